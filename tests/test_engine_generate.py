"""The loop with a model whose logits depend on every token before them: whatever is wrong with
the cache, the positions or the text shows in the next token.
"""

from __future__ import annotations

import functools
import math
import random
import signal
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pytest
from draftsmith.engine.decode.generate import generate
from draftsmith.engine.decode.generation import Generation, Round
from draftsmith.engine.decode.pacer import Pacer
from draftsmith.engine.decode.protocols import Drafter
from draftsmith.engine.decode.sampling import Sampler, SamplingParams
from draftsmith.engine.errors import ModelDamaged, UsageError
from draftsmith.engine.transformer.model import Taps
from draftsmith.ngram.lookup.drafter import NgramDrafter
from numpy.typing import ArrayLike, NDArray

N_VOCAB = 24
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
N_CTX = 200
TEMPERATURES = (0.0, 1.2)


class HashCache:
    """Holds the tokens themselves."""

    def __init__(self, n_ctx: int = N_CTX) -> None:
        self.n_ctx = n_ctx
        self.tokens: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def truncate(self, length: int) -> None:
        assert 0 <= length <= len(self.tokens)
        del self.tokens[length:]


class HashPass:
    def __init__(self, logits: NDArray[np.float32]) -> None:
        self.logits = logits
        self.all_hidden: NDArray[np.float32] | None = None
        self.taps: Taps | None = None


@functools.cache
def hashed_row(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 2, N_VOCAB).astype(np.float32)


class HashModel:
    """Logits seeded by a hash of all tokens up to and with that row's."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.on_forward: Callable[[int], None] = lambda n_calls: None
        self.nan_from = math.inf  # tokens of text
        self._logits = np.empty((64, N_VOCAB), np.float32)

    def forward(
        self,
        tokens: NDArray[np.int32],
        cache: HashCache,
        *,
        rows: Literal["last", "all", "none"] = "last",
    ) -> HashPass:
        assert tokens.dtype == np.int32
        self.batches.append(len(tokens))
        n_rows = {"all": len(tokens), "last": 1, "none": 0}[rows]
        logits = self._logits[:n_rows]  # overwritten by the next pass, as a model may do
        for place, token in enumerate(tokens.tolist()):
            assert 0 <= token < N_VOCAB
            cache.tokens.append(token)
            assert len(cache.tokens) <= cache.n_ctx
            row = place - len(tokens) + n_rows
            if row >= 0:
                logits[row] = self.row(cache.tokens)
        self.on_forward(len(self.batches))
        return HashPass(logits)

    def row(self, text: Sequence[int]) -> NDArray[np.float32]:
        if len(text) >= self.nan_from:
            return np.full(N_VOCAB, np.nan, np.float32)
        return hashed_row(zlib.crc32(np.array(text, np.int32).tobytes()))


class OpenModel(HashModel):
    """Has hidden states and features too: the hash of the text, and that times the layer."""

    def forward(
        self,
        tokens: NDArray[np.int32],
        cache: HashCache,
        *,
        rows: Literal["last", "all", "none"] = "last",
        taps: Taps | None = None,
        all_hidden: bool = False,
    ) -> HashPass:
        before = cache.length
        done = super().forward(tokens, cache, rows=rows)
        if all_hidden:
            places = range(before + 1, cache.length + 1)
            done.all_hidden = np.array([hidden_of(cache.tokens[:n]) for n in places])
        if taps is not None:
            features = [layer * done.all_hidden for layer in taps.hidden_layers]
            done.taps = Taps(hidden=np.array(features).reshape(-1, len(tokens), 2))
        return done


def hidden_of(text: Sequence[int]) -> NDArray[np.float32]:
    return np.array([len(text), zlib.crc32(np.array(text, np.int32).tobytes())], np.float32)


class ListDrafter:
    """Drafts what ``guess`` makes of the text so far and a length."""

    def __init__(self, guess: Callable[[list[int], int], ArrayLike]) -> None:
        self.guess = guess
        self.text: list[int] = []
        self.asked: list[int] = []
        self.on_draft: Callable[[int], None] = lambda n_calls: None

    def draft(self, n_max: int) -> NDArray[np.int32]:
        assert n_max > 0
        self.asked.append(n_max)
        self.on_draft(len(self.asked))
        return self.guess(self.text, n_max)  # type: ignore[return-value]

    def accept(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        self.text += [int(token) for token in tokens]

    def reset(self) -> None:
        raise AssertionError("a text that goes on would be forgotten")


class LooseDrafter(ListDrafter):
    """Hands out the same array each time, and scribbles over it as soon as it may."""

    def __init__(self, guess: Callable[[list[int], int], ArrayLike]) -> None:
        super().__init__(guess)
        self.array = np.zeros(64, np.int32)

    def draft(self, n_max: int) -> NDArray[np.int32]:
        drafted = np.asarray(super().draft(n_max))
        self.array[: drafted.size] = drafted
        return self.array[: drafted.size]

    def accept(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        super().accept(tokens)
        self.array[:] = -1


class ReadingDrafter(ListDrafter):
    """Keeps the hidden states of the tokens that stand, by the rules of ``TrunkReader``."""

    def __init__(
        self, guess: Callable[[list[int], int], ArrayLike], feature_layers: Sequence[int] = (3, 1)
    ) -> None:
        super().__init__(guess)
        self.feature_layers = feature_layers
        self.hidden: list[NDArray[np.float32]] = []
        self.seen: list[tuple[int, NDArray[np.float32]]] = []

    def see(
        self,
        tokens: NDArray[np.int32],
        hidden: NDArray[np.float32],
        features: NDArray[np.float32],
    ) -> None:
        assert tokens.dtype == np.int32
        assert tokens.shape == hidden.shape[:1]
        assert features.shape == (len(self.feature_layers), *hidden.shape)
        for layer, values in zip(self.feature_layers, features, strict=True):
            assert (values == layer * hidden).all()
        self.seen += zip(tokens.tolist(), hidden, strict=True)

    def accept(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        outstanding = self.text[len(self.hidden) :]
        if self.seen:
            stands = [*outstanding, *np.asarray(tokens).tolist()][: len(tokens)]
            assert [token for token, _ in self.seen[: len(tokens)]] == stands
            self.hidden += [row for _, row in self.seen[: len(tokens)]]
        else:
            assert len(tokens) == 1
            assert not outstanding
        self.seen = []
        super().accept(tokens)


def sampler_of(temperature: float, **changes: float) -> Sampler:
    return Sampler(SamplingParams(temperature=temperature, seed=11, **changes))  # type: ignore[arg-type]


def run(
    drafter: Drafter | None = None,
    *,
    temperature: float = 0.0,
    n_predict: int = 60,
    draft_max: int = 4,
    prompt: ArrayLike = PROMPT,
    model: HashModel | None = None,
    cache: HashCache | None = None,
    **options: object,
) -> Generation:
    """Generate, and check what has to hold whatever happens."""
    model, cache = model or HashModel(), cache or HashCache()
    before = list(cache.tokens)
    emitted: list[int] = []
    n_accepted = 0
    inner = options.pop("on_tokens", None)

    def on_tokens(tokens: list[int], n_from_draft: int) -> None:
        nonlocal n_accepted
        assert 0 <= n_from_draft <= len(tokens) <= n_from_draft + 1
        emitted.extend(tokens)
        n_accepted += n_from_draft
        if inner is not None:
            inner(tokens, n_from_draft)  # type: ignore[operator]

    learnt = len(drafter.text) if isinstance(drafter, ListDrafter) else 0
    done = generate(
        model,
        cache,
        prompt,
        sampler=options.pop("sampler", None) or sampler_of(temperature),  # type: ignore[arg-type]
        n_predict=n_predict,
        drafter=drafter,
        draft_max=draft_max,
        on_tokens=on_tokens,
        **options,  # type: ignore[arg-type]
    )
    text = [*np.asarray(prompt).tolist()[: done.prompt_tokens], *done.tokens]
    assert emitted == done.tokens
    assert n_accepted == done.n_accepted
    assert cache.tokens == before + (text[:-1] if done.tokens else text)
    if isinstance(drafter, ListDrafter):
        assert drafter.text[learnt:] == text
        assert all(n <= draft_max for n in drafter.asked)
    assert done.n_drafted == done.drafted_by_position.sum()
    assert done.n_accepted == done.accepted_by_position.sum()
    assert done.drafted_by_position.shape == done.accepted_by_position.shape == (draft_max,)
    return done


@functools.cache
def plain_text(temperature: float, n: int, prompt: tuple[int, ...]) -> list[int]:
    model, sampler = HashModel(), sampler_of(temperature)
    sampler.accept_all(prompt)
    text = list(prompt)
    for _ in range(n):
        text.append(sampler.sample(model.row(text)))
        sampler.accept(text[-1])
    return text[len(prompt) :]


def plain(temperature: float = 0.0, n: int = 60, prompt: Sequence[int] = PROMPT) -> list[int]:
    """The text, by nothing but the model and the sampler."""
    return plain_text(temperature, N_CTX + 80, tuple(prompt))[:n]


def guesses(temperature: float) -> dict[str, Callable[[list[int], int], ArrayLike]]:
    rng = random.Random(3)
    truth = [*PROMPT, *plain(temperature, N_CTX + 80)]

    def perfect(text: list[int], n: int) -> list[int]:
        return truth[len(text) : len(text) + n]

    def wrong(text: list[int], n: int) -> list[int]:
        return [(token + 1) % N_VOCAB for token in perfect(text, n)]

    def mixed(text: list[int], n: int) -> list[int]:
        return [t if rng.random() < 0.7 else rng.randrange(N_VOCAB) for t in perfect(text, n)]

    return {
        "empty": lambda text, n: [],
        "perfect": perfect,
        "wrong": wrong,
        "mixed": mixed,
        "random": lambda text, n: [rng.randrange(N_VOCAB) for _ in range(rng.randrange(n + 1))],
        "longer": lambda text, n: truth[len(text) : len(text) + n + 9],
        "outside": lambda text, n: [*perfect(text, n)[:2], rng.choice([-1, N_VOCAB, 2**31 - 1])],
        "int64": lambda text, n: np.array(perfect(text, n), np.int64),
        "huge": lambda text, n: [*perfect(text, n)[:1], 2**70],
    }


NAMES = list(guesses(0.0))


class AnyPacer(Pacer):
    """Verifies some of the draft, at random."""

    def __init__(self, draft_max: int) -> None:
        super().__init__(draft_max)
        self.rng = random.Random(1)

    def n_to_draft(self, room: int) -> int:
        return self.rng.randrange(min(room, self.draft_max) + 1)

    def n_to_verify(self, n_drafted: int, confidences: Sequence[float] = ()) -> int:
        return self.rng.randrange(n_drafted + 1)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [ListDrafter, LooseDrafter])
@pytest.mark.parametrize("pacer", [None, Pacer, AnyPacer])
def test_the_text_is_plain_decodings(
    temperature: float, name: str, kind: type[ListDrafter], pacer: type[Pacer] | None
) -> None:
    """A draft that changes the text: rejected tokens left in the cache, a bonus token from the
    wrong row, random numbers spent on what is thrown away."""
    if kind is LooseDrafter and name == "huge":
        return  # such an id is in no int32 array
    done = run(
        kind(guesses(temperature)[name]),
        temperature=temperature,
        pacer=pacer and pacer(4),
        n_batch=3,
    )
    assert done.tokens == plain(temperature)
    assert done.stop_reason == "length"


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_without_a_drafter(temperature: float) -> None:
    """Plain decoding that differs from itself."""
    done = run(temperature=temperature)
    assert done.tokens == plain(temperature)
    assert (done.n_rounds, done.n_drafted, done.acceptance) == (59, 0, None)
    assert done.tokens_per_round == 1


@pytest.mark.parametrize("draft_max", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("n_predict", [1, 2, 8, 9, 10, 60])
def test_counts_of_the_perfect_drafter(draft_max: int, n_predict: int) -> None:
    """A round that asks for more than there is room for, or counts its own token as drafted."""
    model = HashModel()
    drafter = ListDrafter(guesses(0.0)["perfect"])
    done = run(drafter, draft_max=draft_max, n_predict=n_predict, model=model)
    n_full, rest = divmod(n_predict - 1, draft_max + 1)
    assert done.n_rounds == n_full + (rest > 0)
    assert done.n_drafted == done.n_accepted == n_predict - 1 - done.n_rounds
    by_position = [n_full + (position < rest - 1) for position in range(draft_max)]
    assert done.drafted_by_position.tolist() == by_position
    assert done.accepted_by_position.tolist() == by_position
    assert model.batches == [len(PROMPT)] + [draft_max + 1] * n_full + [rest] * (rest > 0)
    assert drafter.asked == [draft_max] * n_full + [rest - 1] * (rest > 1)


@pytest.mark.parametrize("layers", [(), (5,), (3, 1)])
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pacer", [None, AnyPacer])
def test_a_reader_sees_what_stands(
    layers: Sequence[int], temperature: float, name: str, pacer: type[Pacer] | None
) -> None:
    """Hidden states of rejected tokens taken for the text's, of a batch that was left out, or of
    another position; a text that depends on who looks on."""
    drafter = ReadingDrafter(guesses(temperature)[name], layers)
    done = run(
        drafter,
        temperature=temperature,
        model=OpenModel(),
        pacer=pacer and pacer(4),
        n_batch=3,
    )
    assert done.tokens == plain(temperature)
    places = range(1, len(drafter.text))
    assert len(drafter.hidden) == len(places)
    expected = [hidden_of(drafter.text[:n]) for n in places]
    assert (np.array(drafter.hidden) == np.array(expected)).all()


@pytest.mark.parametrize("n_calls", [1, 3, 4, 5, 9])
def test_a_reader_that_is_interrupted(n_calls: int) -> None:
    """What an interrupted prompt or round showed, accepted with the next one."""
    model = OpenModel()
    model.on_forward = raise_at(n_calls)
    drafter = ReadingDrafter(guesses(0.0)["mixed"])
    done = run(drafter, model=model, n_batch=3)
    assert done.stop_reason == "interrupted"
    assert len(drafter.hidden) == max(0, len(drafter.text) - 1)


def test_counts_of_the_drafter_that_is_always_wrong() -> None:
    """A rejected token that is counted as accepted, or as one at a later position."""
    done = run(ListDrafter(guesses(0.0)["wrong"]), n_predict=60)
    assert (done.n_rounds, done.n_accepted, done.acceptance) == (59, 0, 0)
    assert done.drafted_by_position.tolist() == [58, 57, 56, 55]
    assert done.tokens_per_round == 1


@pytest.mark.parametrize("name", [None, *NAMES])
@pytest.mark.parametrize("place", range(1, 12))
def test_end_of_generation_inside_a_draft(name: str | None, place: int) -> None:
    """Drafted tokens after the end of the text, shown or kept; an end that goes unnoticed where
    the draft foresaw it."""
    text = plain()
    end = text[place]
    drafter = name and ListDrafter(guesses(0.0)[name])
    done = run(drafter or None, stop=frozenset({end}))
    assert done.tokens == text[: text.index(end) + 1]
    assert done.stop_reason == "eog"


@pytest.mark.parametrize("name", [None, *NAMES])
@pytest.mark.parametrize("n_ctx", [8, 9, 10, 11, 30])
@pytest.mark.parametrize("n_predict", [-1, 1000])
def test_full_context(name: str | None, n_ctx: int, n_predict: int) -> None:
    """A draft past the end of the context (the cache refuses), or a stop before it is full."""
    drafter = name and ListDrafter(guesses(0.0)[name])
    cache = HashCache(n_ctx)
    done = run(drafter or None, cache=cache, n_predict=n_predict)
    assert done.tokens == plain(n=n_ctx - len(PROMPT) + 1)
    assert done.stop_reason == "context"
    assert cache.length == n_ctx


class TokenStop:
    """Ends a text with two tokens in a row, which a round may part."""

    def __init__(self, first: int, second: int) -> None:
        self._wanted, self._last = (first, second), -1
        self.found: str | None = None

    def n_until_stop(self, ids: Sequence[int]) -> int | None:
        for n, token in enumerate(ids, 1):
            if (self._last, token) == self._wanted:
                self.found = "both"
                return n
            self._last = token
        return None


@pytest.mark.parametrize("name", [None, *NAMES])
@pytest.mark.parametrize("place", range(1, 12))
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_stop_string_inside_a_draft(name: str | None, place: int, temperature: float) -> None:
    """Another text with drafts than without, or tokens after the string that stay in the cache."""
    text = plain(temperature)
    drafter = name and ListDrafter(guesses(temperature)[name])
    cache = HashCache()
    stop = TokenStop(text[place - 1], text[place])
    done = run(drafter or None, cache=cache, temperature=temperature, stop_text=stop)
    n = next(i for i in range(1, 60) if text[i - 1 : i + 1] == text[place - 1 : place + 1]) + 1
    assert done.tokens == text[:n]
    assert (done.stop_reason, done.stop_string) == ("stop", "both")
    assert cache.length == len(PROMPT) + n - 1
    assert done.n_accepted <= n - 1


def test_which_reason_counts() -> None:
    """ "context" for a text that ended by itself with the last token that fits."""
    text = plain()
    stop = frozenset({text[0]})
    assert run(cache=HashCache(8), n_predict=1, stop=stop).stop_reason == "eog"
    assert run(cache=HashCache(8), n_predict=1).stop_reason == "length"


def test_nothing_to_generate() -> None:
    """A first token that nobody asked for; a prompt that is not evaluated."""
    drafter = ListDrafter(guesses(0.0)["perfect"])
    done = run(drafter, n_predict=0)
    assert (done.tokens, done.stop_reason, done.first_token_ns) == ([], "length", None)
    assert done.prompt_tokens == len(PROMPT)
    assert done.decode_tokens_per_s is None
    assert drafter.asked == []


def test_a_draft_longer_than_the_context() -> None:
    """Memory for every position of a draft that cannot be."""
    options = {"sampler": sampler_of(0), "n_predict": 30, "draft_max": 2**40}
    drafter = ListDrafter(guesses(0.0)["perfect"])
    pacer = Pacer(2**40)
    done = generate(HashModel(), HashCache(), PROMPT, drafter=drafter, pacer=pacer, **options)  # type: ignore[arg-type]
    assert done.tokens == plain(n=30)
    assert done.drafted_by_position.shape == (N_CTX,)


def test_no_draft_asked_for() -> None:
    """A drafter called with 0, or not told of the text."""
    drafter = ListDrafter(guesses(0.0)["perfect"])
    done = run(drafter, draft_max=0)
    assert drafter.asked == []
    assert done.tokens == plain()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": []}, "no token"),
        ({"prompt": [1] * 201}, "201 tokens .* context of 200"),
        ({"prompt": [1] * 190, "held": 11}, "190 tokens .* context of 200, which holds 11 already"),
        ({"n_predict": -2}, "-2 tokens"),
        ({"draft_max": -1}, "-1 is below 0"),
        ({"n_batch": 0}, "batch of 0"),
    ],
    ids=str,
)
def test_refusals(changes: dict[str, object], message: str) -> None:
    """A crash, or a text that begins with nothing, for what can be said before anything is run."""
    cache = HashCache()
    cache.tokens += [7] * changes.pop("held", 0)  # type: ignore[operator]
    held = list(cache.tokens)
    model = HashModel()
    arguments = {"prompt": PROMPT, "n_predict": 4, "draft_max": 2} | changes
    prompt = arguments.pop("prompt")
    with pytest.raises(UsageError, match=message):
        generate(model, cache, prompt, sampler=sampler_of(0), **arguments)  # type: ignore[arg-type]
    assert model.batches == []
    assert cache.tokens == held


@pytest.mark.parametrize("n_batch", [1, 3, 8, 9])
def test_prefill_in_batches(n_batch: int) -> None:
    """A last batch that is left out, or progress that does not come to its end."""
    model = HashModel()
    told: list[tuple[int, int]] = []
    done = run(
        model=model, n_batch=n_batch, n_predict=1, on_prefill=lambda *pair: told.append(pair)
    )
    assert done.tokens == plain(n=1)
    assert sum(model.batches) == len(PROMPT)
    assert told == [(min(n, 8), 8) for n in range(n_batch, 8 + n_batch, n_batch)]


@pytest.mark.parametrize("name", [None, *NAMES])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_prompt_is_recent_text(name: str | None, temperature: float) -> None:
    """A repeat penalty that does not know the prompt, or that counts rejected tokens."""
    sampler = sampler_of(temperature, repeat_penalty=1.6, repeat_last_n=10)
    sampler.accept_all(PROMPT)
    text = list(PROMPT)
    for _ in range(40):
        text.append(sampler.sample(HashModel().row(text)))
        sampler.accept(text[-1])
    sampler.reset()
    drafter = name and ListDrafter(guesses(temperature)[name])
    done = run(drafter or None, sampler=sampler, n_predict=40)
    assert done.tokens == text[len(PROMPT) :]


@pytest.mark.parametrize("name", [None, *NAMES])
@pytest.mark.parametrize("cut", [1, 7, 20])
def test_a_text_that_goes_on(name: str | None, cut: int) -> None:
    """Two calls that do not add up to one: a token evaluated twice, or never."""
    cache, sampler = HashCache(), sampler_of(1.2)
    drafter = (name and ListDrafter(guesses(1.2)[name])) or None
    first = run(drafter, cache=cache, sampler=sampler, n_predict=cut)
    # The loop takes the last token of the first call for the second's prompt.
    if drafter is not None:
        del drafter.text[-1:]
    second = run(
        drafter, cache=cache, sampler=sampler, n_predict=30 - cut, prompt=first.tokens[-1:]
    )
    assert first.tokens + second.tokens == plain(1.2, 30)


class TwoSources(ListDrafter):
    """Drafts well from one source and badly from another, and is sure of the good one."""

    def __init__(self, temperature: float) -> None:
        super().__init__(guesses(temperature)["perfect"])
        self.bad = guesses(temperature)["wrong"]
        self.confidences = np.empty(0, np.float32)
        self.origins: list[str] = []

    def offers(self) -> list[str]:
        return ["bad", "good"]

    def draft_from(self, origin: str, n_max: int) -> NDArray[np.int32]:
        self.origins.append(origin)
        drafted = self.draft(n_max) if origin == "good" else self.bad(self.text, n_max)
        self.confidences = np.full(len(drafted), 0.9 if origin == "good" else 0.2, np.float32)
        return drafted  # type: ignore[return-value]


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_drafter_of_several_sources(temperature: float) -> None:
    """A source that is not asked, or whose drafts count for the other; confidences that the pacer
    never hears of."""
    told: list[Sequence[float]] = []

    class Listener(Pacer):
        def n_to_verify(self, n_drafted: int, confidences: Sequence[float] = ()) -> int:
            told.append(confidences)
            assert len(confidences) == n_drafted
            return super().n_to_verify(n_drafted, confidences)

        def observe(self, *args: Any, verify_ns: int, draft_ns: int | None) -> None:
            """As of a model that takes its time: this one is done before a draft is."""
            del verify_ns
            draft_ns = draft_ns and 1000
            super().observe(*args, verify_ns=1_000_000, draft_ns=draft_ns)

    drafter, pacer = TwoSources(temperature), Listener(4)
    done = run(drafter, temperature=temperature, pacer=pacer)
    assert done.tokens == plain(temperature)
    assert set(drafter.origins) == {"bad", "good"}
    assert done.n_accepted > 0
    assert {round(c, 3) for confidences in told for c in confidences} == {0.2, 0.9}
    assert run(TwoSources(temperature), temperature=temperature).tokens == plain(temperature)


def test_with_the_ngram_drafter() -> None:
    """A protocol that the real drafter does not follow."""
    prompt = PROMPT * 4
    drafter = NgramDrafter(N_VOCAB, draft_max=4)
    done = run(drafter, prompt=prompt, pacer=Pacer(4))
    assert done.tokens == plain(prompt=prompt)
    assert len(drafter) == len(prompt) + len(done.tokens)


@pytest.mark.parametrize("name", ["empty", "perfect", "mixed"])
def test_damaged_logits(name: str) -> None:
    """An endless loop of whatever token NaN happens to choose."""
    model, cache = HashModel(), HashCache()
    model.nan_from = 30
    drafter = ListDrafter(guesses(0.0)[name])
    with pytest.raises(ModelDamaged, match="after 30 tokens"):
        run(drafter, model=model, cache=cache)
    assert 8 < len(drafter.text) <= 30
    assert cache.tokens == drafter.text[:-1]


def raise_at(n: int, error: type[BaseException] = KeyboardInterrupt) -> Callable[..., None]:
    """Something to call that raises the n-th time."""
    n_calls = 0

    def step(*_: object) -> None:
        nonlocal n_calls
        n_calls += 1
        if n_calls == n:
            raise error

    return step


@pytest.mark.parametrize("name", ["empty", "perfect", "wrong", "mixed"])
@pytest.mark.parametrize("where", ["forward", "draft", "tokens", "prefill"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 9])
def test_interrupted_at_any_point(name: str, where: str, n: int) -> None:
    """Tokens in the cache or the drafter that nobody saw, or the other way round (``run`` compares
    them); a text that cannot go on afterwards."""
    model, cache = HashModel(), HashCache()
    drafter = ListDrafter(guesses(0.0)[name])
    on_tokens = on_prefill = None
    if where == "forward":
        model.on_forward = raise_at(n)
    elif where == "draft":
        drafter.on_draft = raise_at(n)
    elif where == "tokens":
        on_tokens = raise_at(n)
    else:
        on_prefill = raise_at(n)
    done = run(
        drafter,
        model=model,
        cache=cache,
        n_predict=-1,
        n_batch=3,
        on_tokens=on_tokens,
        on_prefill=on_prefill,
    )
    if where == "prefill" and n > 3:
        assert done.stop_reason == "context"
        return
    assert done.stop_reason == "interrupted"
    assert done.prompt_tokens == (0 if done.first_token_ns is None else len(PROMPT))
    assert done.tokens == plain(n=len(done.tokens))
    if done.tokens:
        model.on_forward = lambda n_calls: None
        more = run(model=model, cache=cache, prompt=done.tokens[-1:], n_predict=20)
        assert done.tokens + more.tokens == plain(n=len(done.tokens) + 20)


@pytest.mark.parametrize("where", ["forward", "tokens"])
def test_other_errors_pass(where: str) -> None:
    """A broken pipe that is taken for Ctrl-C, or that leaves a draft in the cache."""
    model, cache = HashModel(), HashCache()
    drafter = ListDrafter(guesses(0.0)["wrong"])
    if where == "forward":
        model.on_forward = raise_at(4, BrokenPipeError)
    on_tokens = raise_at(4, BrokenPipeError) if where == "tokens" else None
    with pytest.raises(BrokenPipeError):
        run(drafter, model=model, cache=cache, on_tokens=on_tokens)
    assert cache.tokens == drafter.text[:-1]


class SignalDrafter(ListDrafter):
    """Ctrl-C in the middle of what has to happen whole."""

    n_signals = 1

    def accept(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        if len(self.text) == len(PROMPT) + 6:
            for _ in range(self.n_signals):
                signal.raise_signal(signal.SIGINT)
        super().accept(tokens)


@pytest.mark.parametrize("name", ["empty", "wrong"])
def test_a_signal_waits_for_the_round_to_end(name: str) -> None:
    """A token that the drafter was not told of, or that was not shown."""
    handler = signal.getsignal(signal.SIGINT)
    drafter = SignalDrafter(guesses(0.0)[name])
    done = run(drafter, n_predict=-1)
    assert (len(done.tokens), done.stop_reason) == (7, "interrupted")
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_second_signal_does_not_wait() -> None:
    """A terminal that blocks, and with it Ctrl-C."""
    shown = []

    def on_tokens(tokens: list[int], _: int) -> None:
        signal.raise_signal(signal.SIGINT)
        shown.append("once")
        signal.raise_signal(signal.SIGINT)
        shown.append("twice")

    done = run(on_tokens=on_tokens)
    assert done.stop_reason == "interrupted"
    assert shown == ["once"]


def test_a_signal_during_a_pass_does_not_wait() -> None:
    """A long pass that Ctrl-C does not end."""
    model = HashModel()
    after = []

    def on_forward(n_calls: int) -> None:
        if n_calls == 5:
            signal.raise_signal(signal.SIGINT)
            after.append(n_calls)

    model.on_forward = on_forward
    done = run(model=model)
    assert (len(done.tokens), done.stop_reason, after) == (4, "interrupted", [])


def test_in_another_thread() -> None:
    """signal.signal called where Python allows it not."""
    texts: list[list[int]] = []
    thread = threading.Thread(target=lambda: texts.append(run().tokens))
    thread.start()
    thread.join()
    assert texts == [plain()]


def test_times() -> None:
    """Times that overlap, so that shares of them add up to more than there is."""
    done = run(ListDrafter(guesses(0.0)["mixed"]), on_tokens=lambda *_: None)
    assert done.first_token_ns is not None
    assert 0 < done.prefill_ns + done.learn_ns < done.first_token_ns
    assert min(done.draft_ns, done.verify_ns, done.emit_ns) > 0
    assert done.draft_ns + done.verify_ns + done.emit_ns < done.decode_ns
    assert done.prefill_tokens_per_s == pytest.approx(len(PROMPT) / done.prefill_ns * 1e9)
    assert done.decode_tokens_per_s == pytest.approx(59 / done.decode_ns * 1e9)


class PlacedModel(OpenModel):
    """Keeps the positions that it is given; a model that is given none is the plain one."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: dict[int, int] = {}  # by slot

    def forward(  # type: ignore[override]
        self,
        tokens: NDArray[np.int32],
        cache: HashCache,
        *,
        rows: Literal["last", "all", "none"] = "last",
        positions: NDArray[np.int64] | None = None,
        taps: Taps | None = None,
        all_hidden: bool = False,
    ) -> HashPass:
        if positions is not None:
            assert positions.dtype == np.int64
            slots = range(cache.length, cache.length + len(tokens))
            self.positions.update(zip(slots, positions.tolist(), strict=True))
        return super().forward(tokens, cache, rows=rows, taps=taps, all_hidden=all_hidden)


@pytest.mark.parametrize("drafter", ["none", "list", "reading"])
@pytest.mark.parametrize("n_batch", [3, 512])
def test_positions_of_a_prompt_with_gaps(drafter: str, n_batch: int) -> None:
    """Text after a prompt with gaps at the slots' positions, or at those of a rejected draft."""
    model, cache = PlacedModel(), HashCache()
    places = np.array([0, 1, 7, 8, 9, 40, 41, 50], np.int64)
    wrong = [5, *plain(n=30)[1:]]
    drafts = {"none": None, "list": ListDrafter, "reading": ReadingDrafter}[drafter]
    done = generate(
        model,
        cache,
        PROMPT,
        sampler=sampler_of(0.0),
        n_predict=30,
        drafter=None if drafts is None else drafts(lambda text, n: wrong[:n]),
        draft_max=3,
        n_batch=n_batch,
        positions=places,
    )
    assert done.tokens == plain(n=30)
    assert [model.positions[slot] for slot in range(8)] == places.tolist()
    behind = [model.positions[slot] for slot in range(8, cache.length)]
    assert behind == list(range(51, 51 + len(behind)))


def test_positions_go_on_where_a_text_goes_on() -> None:
    """Positions counted from the first token of the cache, not of the prompt."""
    model, cache = PlacedModel(), HashCache()
    common = {"sampler": sampler_of(0.0), "n_predict": 4}
    generate(model, cache, PROMPT, **common, positions=np.arange(100, 108))  # type: ignore[arg-type]
    generate(model, cache, [5, 6], **common, positions=np.array([300, 302]))  # type: ignore[arg-type]
    assert [model.positions[slot] for slot in range(8, 16)] == [
        *(108, 109, 110, 300, 302, 303, 304, 305)
    ]


def test_without_positions_none_are_given() -> None:
    """A loop that needs more of a model than it did; positions that do not match the prompt."""
    model = PlacedModel()
    generate(model, HashCache(), PROMPT, sampler=sampler_of(0.0), n_predict=4)
    assert not model.positions
    with pytest.raises(ValueError, match="2 positions for 8 tokens"):
        generate(
            model, HashCache(), PROMPT, sampler=sampler_of(0.0), n_predict=1,
            positions=np.arange(2, dtype=np.int64),
        )  # fmt: skip


def test_tells_of_each_round() -> None:
    """Rounds that are not told, or what stands of a draft counted from what was only watched."""
    told: list[Round] = []
    done = run(ListDrafter(guesses(0.0)["mixed"]), draft_max=4, on_round=told.append)
    assert len(told) == done.n_rounds
    assert sum(one.n_verified for one in told) == done.n_drafted
    assert sum(one.n_stand for one in told) == done.n_accepted
    assert done.tokens[1:] == [token for one in told for token in one.tokens]


def test_keeps_the_first_logits_on_request() -> None:
    """Logits of a later token, or of a buffer that the next pass overwrites."""
    done = run(first_logits=True)
    assert done.first_logits is not None
    assert int(done.first_logits.argmax()) == done.tokens[0]
    assert run().first_logits is None


def test_another_reader_sees_the_prompt() -> None:
    """What passes computed, shown to the drafter alone."""
    seen: list[int] = []

    class Reader:
        feature_layers: Sequence[int] = ()

        def see(self, tokens: NDArray[np.int32], hidden: Any, features: Any) -> None:
            seen.extend(tokens.tolist())

    done = run(reader=Reader(), model=OpenModel(), n_predict=0)
    assert done.tokens == []
    assert seen == list(PROMPT)
