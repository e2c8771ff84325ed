"""MTP drafts against the slow, obvious version, and against themselves: rounds, threads, cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftsmith.engine.decode.generate import generate
from draftsmith.engine.decode.generation import Generation
from draftsmith.engine.decode.protocols import TrunkReader
from draftsmith.engine.decode.sampling import Sampler, SamplingParams
from draftsmith.engine.errors import InputMalformed, UsageError
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.transformer.model import Model, load_model
from draftsmith.mtp.drafter import MtpDrafter
from draftsmith.mtp.head import MtpHead, open_head
from naive_mtp import NaiveMtp
from numpy.typing import NDArray
from toy_model import write_model
from toy_mtp import HEADS, Story, ToyHead, write_toy_head

N_VOCAB = 400  # the toy vocabulary holds some more
N_CTX = 96
SMALL: dict[str, Any] = {"n_embd": 64, "n_ff": 96, "n_head": 4, "n_head_kv": 2, "d_head": 16}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"tied": False, "head_bias": True},
    "qwen3": {"scales": True, "biases": True},
    "gemma3": {"softcap": 5.0},
}
# Of the heads, those that differ in what a round does with them.
KINDS = ("features", "raw", "chain", "feature chain")


def text_of(n: int, seed: int = 3) -> list[int]:
    return np.random.default_rng(seed).integers(0, N_VOCAB, n).tolist()


class Toys:
    """Small models, and heads for them, made as they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models: dict[tuple[str, int], Model] = {}

    def path(self, arch: str) -> Path:
        path = self.folder / f"{arch}.gguf"
        if not path.exists():
            write_model(path, arch, **SMALL, **ARCHITECTURES[arch])
        return path

    def head_path(self, name: str, arch: str, weight_type: str = "F32") -> Path:
        path = self.folder / f"{arch}-{name}-{weight_type}.gguf"
        if not path.exists():
            changes = {**SMALL, **ARCHITECTURES[arch], "weight_type": weight_type}
            write_toy_head(path, arch, ToyHead(**HEADS[name]), **changes)
        return path

    def model(self, arch: str = "llama", n_threads: int = 1) -> Model:
        if (arch, n_threads) not in self.models:
            model = load_model(self.path(arch), n_threads=n_threads)
            self.models[arch, n_threads] = model
        return self.models[arch, n_threads]

    def head(
        self,
        name: str = "plain",
        arch: str = "llama",
        n_threads: int = 1,
        weight_type: str = "F32",
    ) -> MtpHead:
        path = self.head_path(name, arch, weight_type)
        metadata = read_metadata(self.path(arch))
        return open_head(path, metadata, self.model(arch, n_threads), "")

    def story(self, name: str = "plain", n_ctx: int = N_CTX, **options: Any) -> Story:
        """A text that has not begun; ``options`` of ``head`` and of ``MtpDrafter``."""
        of_head = ("arch", "n_threads", "weight_type")
        head = self.head(name, **{key: options.pop(key) for key in of_head if key in options})
        return Story(head.model, MtpDrafter(head, n_ctx, **options))


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toys]:
    made = Toys(tmp_path_factory.mktemp("toys"))
    yield made
    for model in made.models.values():
        model.close()


def drafted(story: Story, n: int = 5) -> tuple[list[int], list[float]]:
    tokens = story.drafter.draft(n).tolist()
    confidences = story.drafter.confidences
    assert confidences.dtype == np.float32
    assert confidences.shape == (len(tokens),)
    return tokens, confidences.tolist()


# --------------------------------------------------------------------------------------------------
# The right drafts


def assert_naive(
    toys: Toys,
    story: Story,
    text: Sequence[int],
    arch: str,
    name: str,
    weight_type: str = "F32",
    tolerance: float = 2e-3,
    start: int = 0,
) -> None:
    """The drafted token of each step is the naive version's most probable one, or as good as it.

    Of float weights 3e-4 is what float32 and float16 keys leave; a part left out moves all tokens.
    """
    tokens, confidences = drafted(story)
    naive = NaiveMtp(toys.path(arch), toys.head_path(name, arch, weight_type))
    expected = naive.probabilities(text, tokens[:-1], start=start)
    assert len(tokens) == min(5, naive.n_heads if naive.n_heads > 1 else 5)
    tops = expected.max(axis=1)
    np.testing.assert_allclose(confidences, tops, rtol=0, atol=tolerance)
    places = np.searchsorted(naive.d2t, tokens)
    assert naive.d2t[places].tolist() == tokens
    assert (expected[np.arange(len(tokens)), places] > tops - tolerance).all()


@pytest.mark.parametrize("name", HEADS)
def test_every_head_drafts_as_the_naive_version(name: str, toys: Toys) -> None:
    """The bug: a tensor that is not read or of another head; the wrong half first; a hidden state
    from before the norm, or of the next token; keys of a step that are missing."""
    story = toys.story(name, n_threads=2)
    story.tell(text_of(21))
    assert_naive(toys, story, text_of(21), "llama", name)


@pytest.mark.parametrize("name", ["plain", "raw features", "own chain", "reduced"])
@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "gemma3"])
def test_every_architecture_drafts_as_the_naive_version(arch: str, name: str, toys: Toys) -> None:
    """The bug: a block without its biases, factors, norms or activation; an output matrix without
    its bias, or with another token's; embeddings that are not scaled; a window or a cap that is
    forgotten, or is there where there is none."""
    story = toys.story(name, arch=arch)
    story.tell(text_of(40))
    assert_naive(toys, story, text_of(40), arch, name)


@pytest.mark.parametrize("n", [2, 3, 17, 18, 255, 256, 257, 258, 520])
def test_texts_of_every_length(n: int, toys: Toys) -> None:
    """The bug: an entry for a position that has none; keys of a split lost; a long text that is
    taken in in parts."""
    story = toys.story("features", n_ctx=600, n_threads=2)
    story.tell(text_of(n))
    assert_naive(toys, story, text_of(n), "llama", "features")


@pytest.mark.parametrize("weight_type", ["F16", "BF16", "Q8_0", "Q4_0", "Q5_1"])
def test_every_form_of_weights(weight_type: str, toys: Toys) -> None:
    """The bug: embeddings unpacked as another type; activations that were not rounded, or of
    another width than the matrix."""
    story = toys.story("own", weight_type=weight_type)
    story.tell(text_of(21))
    assert_naive(toys, story, text_of(21), "llama", "own", weight_type, tolerance=0.05)


# --------------------------------------------------------------------------------------------------
# The same drafts


@pytest.mark.parametrize("name", KINDS)
def test_any_number_of_threads_drafts_the_same(name: str, toys: Toys) -> None:
    """The bug: a sum whose order depends on who did which part; a token that one thread reads
    before another has written it."""
    found = []
    for n_threads in (1, 2, 3):
        for _ in range(3):
            story = toys.story(name, n_threads=n_threads, weight_type="Q8_0")
            story.tell(text_of(40))
            found.append([drafted(story, 1), drafted(story, 4), drafted(story, 9)])
    assert all(one == found[0] for one in found)


def rounds_of(seed: int, n: int) -> Iterator[tuple[int, int]]:
    """How many tokens to draft, and how many of them to let stand, at random."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        n_drafted = int(rng.integers(0, 5))
        yield n_drafted, int(rng.integers(0, n_drafted + 1))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_rounds_leave_what_a_fresh_drafter_has(name: str, seed: int, toys: Toys) -> None:
    """The bug: entries of rejected tokens, or of the head's own hidden states, that stay; the
    hidden state of a rejected token taken for that of the one in its place."""
    story = toys.story(name)
    story.tell(text_of(9))
    text = text_of(9)
    other = iter(text_of(200, seed=seed + 50))
    for n_drafted, n_stands in rounds_of(seed, 12):
        draft = drafted(story, n_drafted)[0] if n_drafted else []
        tokens = [*draft[:n_stands], next(other)]
        story.round(draft, tokens)
        text += tokens
        fresh = toys.story(name)
        fresh.tell(text)
        assert len(story.drafter) == len(fresh.drafter) == len(text)
        if n_stands % 2:  # else its entries wait for a later round
            assert drafted(story) == drafted(fresh)
    assert drafted(story) == drafted(fresh)


@pytest.mark.parametrize("n_batch", [1, 7, 300, 512])
def test_a_prompt_in_batches_is_one_prompt(n_batch: int, toys: Toys) -> None:
    """The bug: the hidden state before a batch's first token lost, or a batch flushed twice."""
    expected = toys.story("features", n_ctx=1200)
    expected.tell(text_of(1100))
    story = toys.story("features", n_ctx=1200)
    story.prompt(text_of(1100)[:-1], n_batch=n_batch)
    story.token(text_of(1100)[-1])
    assert drafted(story) == drafted(expected)


def test_many_rounds_without_a_draft(toys: Toys) -> None:
    """The bug: more waiting entries than a pass has room for."""
    text = text_of(1100)
    story = toys.story("features", n_ctx=1200)
    story.tell(text[:5])
    for token in text[5:]:
        story.round([], [token])
    expected = toys.story("features", n_ctx=1200)
    expected.tell(text)
    assert drafted(story) == drafted(expected)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("length", [0, 1, 2, 8, 20, 39])
def test_truncated_then_told_is_never_told(name: str, length: int, toys: Toys) -> None:
    """The bug: entries or hidden states that were forgotten, and still count."""
    story = toys.story(name)
    story.tell(text_of(40))
    drafted(story)
    story.show([story.last, 5, 6])  # a round that was broken off
    story.drafter.truncate(length)
    story.cache.truncate(length)
    text = text_of(40)[:length] + text_of(10, seed=8)
    story.tell(text[length:])
    fresh = toys.story(name)
    fresh.tell(text)
    assert drafted(story) == drafted(fresh)


def test_reset_forgets_the_text(toys: Toys) -> None:
    """The bug: a text that begins after the last one, or other random numbers than before."""
    found = []
    story = toys.story("features", temperature=1.0, seed=4)
    for seed in (3, 3):
        story.tell(text_of(20, seed))
        found.append(drafted(story))
        assert found[-1] == found[0]
        story.drafter.reset()
        story.cache.truncate(0)
        assert len(story.drafter) == 0
        assert drafted(story) == ([], [])


def test_drafting_again_drafts_the_same(toys: Toys) -> None:
    """The bug: a draft's own entries taken for the text's."""
    story = toys.story("raw")
    story.tell(text_of(20))
    whole = drafted(story, 8)
    for n in (8, 1, 3, 8):
        assert drafted(story, n) == (whole[0][:n], whole[1][:n])


# --------------------------------------------------------------------------------------------------
# What was not seen


@pytest.mark.parametrize("n", [1, 2, 3, 30])
def test_tokens_that_nobody_saw_are_no_context(n: int, toys: Toys) -> None:
    """The bug: hidden states taken for those of other tokens; garbage in place of keys."""
    text = text_of(40)
    story = toys.story("features")
    story.drafter.accept(text[:n])
    assert drafted(story) == ([], [])
    story.model.forward(np.array(text[:n]), story.cache)
    story.tell(text[n:])
    assert_naive(toys, story, text, "llama", "features", start=n)


def test_a_prompt_that_was_broken_off(toys: Toys) -> None:
    """The bug: what was seen of it, accepted with the next prompt."""
    for n in (1, 30, N_CTX):
        story = toys.story("features")
        story.show(text_of(N_CTX, seed=9)[:n])
        story.cache.truncate(0)
        story.tell(text_of(20))
        expected = toys.story("features")
        expected.tell(text_of(20))
        assert drafted(story) == drafted(expected)


def test_a_round_that_was_broken_off(toys: Toys) -> None:
    """The bug: what was seen of it, accepted with the next round."""
    story = toys.story("features")
    story.tell(text_of(20))
    story.show([story.last, 5, 6])
    story.cache.truncate(19)
    story.round([7, 8], [7, 9])
    expected = toys.story("features")
    expected.tell([*text_of(20), 7, 9])
    assert drafted(story) == drafted(expected)


# --------------------------------------------------------------------------------------------------
# How long a draft is


def test_drafts_end_with_the_context(toys: Toys) -> None:
    """The bug: keys written after the cache's end; a last token that could be drafted and is not.

    The token after n_ctx others needs no place of its own.
    """
    expected = toys.story("features", n_ctx=40)
    expected.tell(text_of(15))
    whole = drafted(expected, 20)
    for n_ctx in (14, 15, 16, 17, 34):
        story = toys.story("features", n_ctx=n_ctx)
        story.tell(text_of(15))
        n = n_ctx - 14
        assert drafted(story, 20) == (whole[0][:n], whole[1][:n])


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_text_that_fills_the_context_to_the_last_batch(n_threads: int, toys: Toys) -> None:
    """The bug: an entry after the cache's end, made of the token that has no place in it."""
    story = toys.story("chain", n_ctx=512, n_threads=n_threads)
    story.prompt(text_of(512))
    story.token(5)
    assert len(story.drafter) == 513
    assert drafted(story) == ([], [])


@pytest.mark.parametrize("n", [0, -1])
def test_nothing_to_draft(n: int, toys: Toys) -> None:
    """The bug: a draft of one token where none is wanted."""
    story = toys.story()
    story.tell(text_of(20))
    assert drafted(story, n) == ([], [])


def test_too_little_text(toys: Toys) -> None:
    """The bug: a hidden state before the first."""
    story = toys.story()
    assert drafted(story) == ([], [])
    story.prompt([7])
    assert drafted(story) == ([], [])
    story.token(8)
    assert len(drafted(story)[0]) == 5


def test_a_draft_ends_where_nothing_is_sure(toys: Toys) -> None:
    """The bug: an unsure token that is drafted, or a sure one after it; a head that has been cut
    short, and goes on from there."""
    text = text_of(20)
    whole = toys.story("raw")
    whole.tell(text)
    tokens, confidences = drafted(whole, 12)
    for p_min in (0.0, *confidences, 1.0):
        story = toys.story("raw", p_min=float(p_min))
        story.tell(text)
        n = next((i for i, p in enumerate(confidences) if p < p_min), 12)
        assert drafted(story, 12) == (tokens[:n], confidences[:n])
        story.round(tokens[:n], [*tokens[:n], 3])
        fresh = toys.story("raw", p_min=float(p_min))
        fresh.tell([*text, *tokens[:n], 3])
        assert drafted(story) == drafted(fresh)


# --------------------------------------------------------------------------------------------------
# Drawn at random


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("name", ["reduced", "chain"])
def test_what_a_draft_was_drawn_from(name: str, temperature: float, toys: Toys) -> None:
    """The bug: probabilities at another temperature, of another step, or of the most probable
    token's path instead of the drawn one's."""
    text = text_of(20)
    story = toys.story(name, n_threads=2, temperature=temperature, seed=1)
    story.tell(text)
    tokens, confidences = drafted(story, 4)
    naive = NaiveMtp(toys.path("llama"), toys.head_path(name, "llama"))
    expected = naive.probabilities(text, tokens[:-1], temperature=temperature)
    proposed = story.drafter.proposals(len(tokens))
    assert proposed is not None
    ids, q = proposed
    assert ids.tolist() == naive.d2t.tolist()
    np.testing.assert_allclose(q, expected, atol=2e-3)
    np.testing.assert_allclose(q.sum(axis=1), 1, atol=1e-5)
    tops = naive.probabilities(text, tokens[:-1]).max(axis=1)
    np.testing.assert_allclose(confidences, tops, atol=2e-3)


def test_drawn_tokens_follow_their_probabilities(toys: Toys) -> None:
    """The bug: a running sum that begins a place late, or leaves the last block out."""
    story = toys.story("plain", temperature=1.5, seed=2)
    story.tell(text_of(20))
    n = 20_000
    counts = np.zeros(story.drafter.d2t.size)
    for _ in range(n):
        counts[story.drafter.draft(1)[0]] += 1
    expected = story.drafter.probabilities[0].astype(np.float64) * n
    common = expected > 5
    squares = ((counts - expected) ** 2 / expected)[common].sum()
    n_free = common.sum()
    assert n_free > 50
    assert squares < n_free + 5 * np.sqrt(2 * n_free)
    assert abs(counts[~common].sum() - expected[~common].sum()) < 5 * np.sqrt(n)


def test_the_lowest_temperature(toys: Toys) -> None:
    """The bug: logits divided by next to nothing, and NaN for probabilities."""
    greedy, cold = toys.story("reduced"), toys.story("reduced", temperature=1e-45)
    for story in (greedy, cold):
        story.tell(text_of(20))
    assert drafted(cold) == drafted(greedy)
    assert (cold.drafter.probabilities.max(axis=1) == 1).all()


def test_random_drafts_are_the_seeds(toys: Toys) -> None:
    """The bug: draws that depend on threads, or on how many tokens were asked for before."""
    found = []
    for n_threads in (1, 2, 3):
        story = toys.story("features", n_threads=n_threads, temperature=1.0, seed=6)
        story.tell(text_of(20))
        one = drafted(story, 5)
        found.append((one, story.drafter.probabilities.tobytes(), drafted(story, 2)))
    assert found[0] == found[1] == found[2]
    other = toys.story("features", temperature=1.0, seed=7)
    other.tell(text_of(20))
    assert drafted(other) != found[0][0]


def test_greedy_drafts_are_not_drawn(toys: Toys) -> None:
    """The bug: probabilities of a draft that was not drawn from them."""
    story = toys.story()
    story.tell(text_of(20))
    drafted(story)
    assert story.drafter.proposals(5) is None
    assert story.drafter.probabilities.shape == (0, story.drafter.d2t.size)


# --------------------------------------------------------------------------------------------------
# In the loop


@pytest.fixture(scope="module")
def perfect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MtpHead]:
    """A model whose next token depends on the last one only, and a head that knows it.

    Blocks that add nothing; and the embedding is all that goes into the head's.
    """
    folder = tmp_path_factory.mktemp("perfect")
    n, ff = SMALL["n_embd"], SMALL["n_ff"]

    def nothing(block: int) -> dict[str, NDArray[Any] | None]:
        return {
            f"blk.{block}.attn_output.weight": np.zeros((n, n), np.float32),
            f"blk.{block}.ffn_down.weight": np.zeros((n, ff), np.float32),
        }

    ones = np.ones(n, np.float32)
    path = write_model(folder / "model.gguf", tensors=nothing(0) | nothing(1), **SMALL)
    own: dict[str, NDArray[Any] | None] = {
        "blk.2.nextn.eh_proj.weight": np.concatenate((np.eye(n), np.zeros((n, n))), 1),
        "blk.2.nextn.enorm.weight": ones,
    }
    own = {name: np.asarray(value, np.float32) for name, value in own.items()}
    head = ToyHead(norm=False, tensors=own | nothing(2))
    head_path = write_toy_head(folder / "head.gguf", head=head, **SMALL)
    model = load_model(path, n_threads=2)
    yield open_head(head_path, read_metadata(path), model, "")
    model.close()


Generate = Callable[..., Generation]


@pytest.fixture
def run(perfect: MtpHead) -> Generate:
    """Generate with the perfect model, and check that the text is plain decoding's."""

    def generated(
        drafter: MtpDrafter | None, *, n_ctx: int = 200, n_predict: int = 40, **options: Any
    ) -> Generation:
        done = []
        for one in (drafter, None):
            done.append(
                generate(
                    perfect.model,
                    perfect.model.new_cache(n_ctx),
                    [11, 12],
                    sampler=Sampler(SamplingParams(temperature=0.0, seed=0)),
                    n_predict=n_predict,
                    drafter=one,
                    **options,
                )
            )
        assert done[0].tokens == done[1].tokens
        assert done[0].stop_reason == done[1].stop_reason
        return done[0]

    return generated


def test_it_is_what_the_loop_asks_for(perfect: MtpHead) -> None:
    """The bug: a drafter that the loop does not take for one that wants to see."""
    assert isinstance(MtpDrafter(perfect, 10), TrunkReader)


@pytest.mark.parametrize("draft_max", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("n_predict", [1, 2, 8, 9, 10, 41])
def test_the_perfect_drafters_pattern(
    draft_max: int, n_predict: int, run: Generate, perfect: MtpHead
) -> None:
    """The bug: a draft that is about another position than the one it is verified at."""
    done = run(MtpDrafter(perfect, 200), n_predict=n_predict, draft_max=draft_max)
    n_full, rest = divmod(n_predict - 1, draft_max + 1)
    assert done.n_rounds == n_full + (rest > 0)
    assert done.n_drafted == done.n_accepted == n_predict - 1 - done.n_rounds
    by_position = [n_full + (position < rest - 1) for position in range(draft_max)]
    assert done.drafted_by_position.tolist() == by_position
    assert done.accepted_by_position.tolist() == by_position


def test_drafts_of_none(run: Generate, perfect: MtpHead) -> None:
    """The bug: a drafter that has to be asked before it can be told."""
    drafter = MtpDrafter(perfect, 200)
    assert run(drafter, draft_max=0).n_drafted == 0
    assert len(drafter) == 42


@pytest.mark.parametrize("n_ctx", [2, 3, 4, 9])
def test_to_the_end_of_the_context(n_ctx: int, run: Generate, perfect: MtpHead) -> None:
    """The bug: a text that is one token longer than the drafter has room for."""
    done = run(MtpDrafter(perfect, n_ctx), n_ctx=n_ctx, n_predict=-1, draft_max=6)
    assert done.stop_reason == "context"
    assert len(done.tokens) == n_ctx - 1


@pytest.mark.parametrize("place", range(1, 9))
def test_end_of_generation_inside_a_draft(place: int, run: Generate, perfect: MtpHead) -> None:
    """The bug: a drafter whose text goes on after the end of the text."""
    text = run(None).tokens
    end = text[place]
    drafter = MtpDrafter(perfect, 200)
    done = run(drafter, stop=frozenset({end}), draft_max=4)
    assert done.tokens == text[: text.index(end) + 1]
    assert len(drafter) == 2 + len(done.tokens)


@pytest.mark.parametrize("name", KINDS)
def test_the_loops_text_is_plain_decodings(name: str, toys: Toys) -> None:
    """The bug: a pass that shows what it computes, and computes something else."""
    model = toys.model(n_threads=2)
    drafter = MtpDrafter(toys.head(name, n_threads=2), N_CTX)
    texts = []
    for one in (drafter, None):
        sampler = Sampler(SamplingParams(temperature=0.9, seed=5))
        cache = model.new_cache(N_CTX)
        done = generate(
            model, cache, text_of(20), sampler=sampler, n_predict=-1, drafter=one, draft_max=3,
            n_batch=8,
        )  # fmt: skip
        texts.append(done.tokens)
        if one is not None:
            assert done.n_drafted > 50
    assert texts[0] == texts[1]
    # a text that goes on begins with the token that no pass has seen
    drafter.truncate(N_CTX - 10)
    cache.truncate(N_CTX - 10)
    kept = [*text_of(20), *texts[0]][: N_CTX - 10]
    story = Story(model, drafter)
    story.cache = cache
    story.tell([5, 6])
    fresh = toys.story(name, n_threads=2)
    fresh.tell([*kept, 5, 6])
    assert drafted(story) == drafted(fresh)


# --------------------------------------------------------------------------------------------------
# Refusals


@pytest.mark.parametrize("wrong", [-1, 10**6, 2**31])
def test_tokens_outside_the_vocabulary_are_refused(wrong: int, toys: Toys) -> None:
    """The bug: an embedding read from before the first or after the last."""
    drafter = toys.story().drafter
    with pytest.raises(InputMalformed, match="vocabulary"):
        drafter.accept([3, wrong])
    assert len(drafter) == 0


def test_a_text_longer_than_the_context_is_refused(toys: Toys) -> None:
    """The bug: tokens written after the end."""
    drafter = toys.story(n_ctx=8).drafter
    drafter.accept(text_of(9))
    with pytest.raises(UsageError, match=r"10 tokens .* context of 8"):
        drafter.accept([1])


@pytest.mark.parametrize("length", [-1, 6])
def test_keeping_more_than_there_is_is_refused(length: int, toys: Toys) -> None:
    """The bug: tokens of an earlier text."""
    drafter = toys.story().drafter
    drafter.accept(text_of(5))
    with pytest.raises(UsageError, match=f"{length} of 5"):
        drafter.truncate(length)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"p_min": -0.1}, "-0.1"),
        ({"p_min": 1.1}, "1.1"),
        ({"p_min": float("nan")}, "nan"),
        ({"temperature": -1.0}, "-1.0"),
        ({"temperature": float("inf")}, "inf"),
        ({"seed": -1}, "-1"),
        ({"n_ctx": 0}, "0"),
    ],
)
def test_numbers_out_of_range_are_refused(changes: dict[str, Any], word: str, toys: Toys) -> None:
    """The bug: a draft of nothing but NaN."""
    with pytest.raises(UsageError, match=word):
        toys.story(**changes)
