"""Each drafter's kernels against its slow and obvious version, round by round."""

from __future__ import annotations

import random

import naive
import numpy as np
import pytest
from cache_dicts import cache_of
from draftsmith.ngram.conversations.conversation import ReplayTexts
from draftsmith.ngram.drafters.settings import parse_specs
from spec_streams import HUGE, cut_into_turns, kernel_rounds, naive_rounds, passages, streams

STREAMS = tuple(streams(0))

SETTINGS = (
    *(f"ngram-simple:size-n={n},size-m={m}" for n, m in ((1, 1), (1, 5), (3, 8), (5, 2), (8, 30))),
    *(
        f"{kind}:size-n={n},size-m={m},min-hits={h}"
        for kind in ("ngram-map-k", "ngram-map-k4v")
        for n, m, h in ((1, 1, 1), (1, 6, 1), (2, 4, 2), (4, 9, 1), (9, 16, 1))
    ),
    *(
        f"ngram-mod:n-match={n},n-min={least},n-max={most}"
        for n, least, most in ((1, 0, 4), (2, 2, 6), (5, 1, 9), (12, 8, 24), (40, 3, 6))
    ),
    "ngram-cache",
    "suffix",
    "suffix:max-tree-depth=7,max-spec-factor=2.5,min-token-prob=0.3,num-speculative-tokens=5",
    "prompt-lookup",
    "prompt-lookup:ngram-max=5,draft-max=3",
    "vllm-ngram:prompt-lookup-min=2,prompt-lookup-max=4",
    "vllm-ngram:prompt-lookup-min=1,num-speculative-tokens=9",
)
COMBINED = (
    "ngram-simple:size-n=4,size-m=8+ngram-map-k:size-n=2,size-m=4",
    "ngram-map-k:size-n=6,size-m=12+ngram-map-k4v:size-n=3,size-m=6+ngram-mod:n-match=2,n-min=1",
    "ngram-simple:size-n=9,size-m=9+ngram-mod:n-match=4,n-min=3,n-max=9+ngram-cache",
    "vllm-ngram:prompt-lookup-min=6+suffix:max-tree-depth=9+prompt-lookup",
)


def assert_rounds(text: str, exact: bool, texts: ReplayTexts, **how) -> None:
    """The kernel's rounds are the slow version's; where not, the first one that parts is shown."""
    (spec,) = parse_specs(text, upstream_exact=exact)
    n_vocab = how.pop("n_vocab", int(texts.tokens.max()) + 1)
    static, dynamic = how.pop("static", None), how.pop("dynamic", None)
    comp = kernel_rounds(
        texts,
        spec,
        n_vocab=n_vocab,
        static=cache_of(static, orders=[2]) if static is not None else None,
        dynamic=cache_of(dynamic) if dynamic is not None else None,
        **how,
    )
    ref = naive_rounds(texts, spec, static=static, dynamic=dynamic, **how)
    parted = [i for i, (a, b) in enumerate(zip(comp, ref, strict=False)) if a != b]
    assert not parted, f"round {parted[0]}: {comp[parted[0]]}, not {ref[parted[0]]}"
    assert len(comp) == len(ref)


def small_ids(tokens: list[int]) -> list[int]:
    """ngram-cache has an array over the vocabulary: its largest id is that of a large one."""
    return [t % 2**20 if t < 2**30 else 2**20 - (HUGE - t) for t in tokens]


def stream_of(text: str, name: str, seed: int = 0, n: int = 400) -> list[int]:
    tokens = streams(seed, n)[name]
    return small_ids(tokens) if "cache" in text else tokens


@pytest.mark.parametrize("exact", [False, True], ids=["repaired", "exact"])
@pytest.mark.parametrize("stream", STREAMS)
def test_a_plain_text(stream: str, exact: bool) -> None:
    """An index that misses an occurrence, or takes a wrong one, on text made to mislead it."""
    for text in SETTINGS:
        tokens = np.array(stream_of(text, stream), np.int32)
        assert_rounds(text, exact, ReplayTexts.of_text(tokens), carry="conversation")


@pytest.mark.parametrize("exact", [False, True], ids=["repaired", "exact"])
@pytest.mark.parametrize("carry", ["none", "conversation", "all"])
@pytest.mark.parametrize("seed", range(6))
def test_conversations(seed: int, carry: str, exact: bool) -> None:
    """State of an older text that lives on, or is lost, where a server's slot would not."""
    rng = random.Random(seed)
    names = [rng.choice(STREAMS) for _ in range(4)]
    n_turns = [rng.randint(1, 4) for _ in names]
    moving = rng.random() < 0.5
    for text in (*SETTINGS, *COMBINED):
        talk = random.Random(seed)
        texts = ReplayTexts.of(
            cut_into_turns(
                talk, stream_of(text, name, seed, talk.choice([60, 170, 300])), k, moving=moving
            )
            for name, k in zip(names, n_turns, strict=True)
        )
        assert_rounds(text, exact, texts, carry=carry)


@pytest.mark.parametrize("exact", [False, True], ids=["repaired", "exact"])
@pytest.mark.parametrize("seed", range(4))
def test_limits_of_requests(seed: int, exact: bool) -> None:
    """Drafts that overrun what is left of n_predict or n_ctx, or rounds that ask without room."""
    rng = random.Random(seed)
    talks = [passages(rng, rng.choice([90, 200]), 6) for _ in range(3)]
    texts = ReplayTexts.of(cut_into_turns(rng, talk, 2) for talk in talks)
    longest = int((texts.turns[:, 1] - texts.turns[:, 0]).max())
    for text in (*SETTINGS, *COMBINED):
        assert_rounds(text, exact, texts, carry="all", n_predict=longest)
        assert_rounds(text, exact, texts, carry="conversation", n_predict=longest + 3, n_ctx=201)


@pytest.mark.parametrize("exact", [False, True], ids=["repaired", "exact"])
@pytest.mark.parametrize("seed", range(8))
def test_ngram_cache_with_caches(seed: int, exact: bool) -> None:
    """Ties between followers of equal weight, in libstdc++'s order or by the lowest id."""
    rng = random.Random(seed)
    n_vocab = rng.choice([3, 8, 40])
    static = naive.count_ngrams([passages(rng, 600, n_vocab)], sizes=[2])
    dynamic = naive.count_ngrams([passages(rng, 300, n_vocab)])
    # The order of a file with ascending ids, as draftsmith writes it.
    static = {ngram: dict(sorted(part.items())) for ngram, part in sorted(static.items())}
    dynamic = {ngram: dict(sorted(part.items())) for ngram, part in sorted(dynamic.items())}
    texts = ReplayTexts.of(cut_into_turns(rng, passages(rng, 250, n_vocab), 3) for _ in range(2))
    for given in ({"static": static}, {"dynamic": dynamic}, {"static": static, "dynamic": dynamic}):
        assert_rounds("ngram-cache", exact, texts, carry="all", n_vocab=n_vocab, **given)


def test_many_followers_in_libstdcxx_order() -> None:
    """More followers than its first 13 buckets, which it then distributes anew."""
    rng = random.Random(5)
    n_vocab = 90
    static = {(a, b): dict.fromkeys(range(n_vocab), 1) for a in range(3) for b in range(3)}
    tokens = [rng.choice([0, 1, 2, *range(n_vocab)]) for _ in range(1500)]
    # Each block of the exact form is a prompt: all is learnt at once.
    texts = ReplayTexts.of([cut_into_turns(rng, tokens, 12)])
    assert_rounds("ngram-cache", True, texts, carry="all", n_vocab=n_vocab, static=static)


@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True], ids=["repaired", "exact"])
@pytest.mark.parametrize("seed", range(40))
def test_at_random(seed: int, exact: bool) -> None:
    """What none of the cases above meets."""
    rng = random.Random(1000 + seed)
    size = rng.randint(1, 6)
    most = rng.randint(1, 12)
    hits = rng.randint(1, 3)
    text = rng.choice(
        [
            f"ngram-simple:size-n={size},size-m={most}",
            f"ngram-map-k:size-n={size},size-m={most},min-hits={hits}",
            f"ngram-map-k4v:size-n={size},size-m={most},min-hits={hits}",
            f"ngram-mod:n-match={size},n-min={rng.randint(0, most)},n-max={most}",
            "ngram-cache",
            rng.choice(COMBINED),
        ]
    )
    n_vocab = rng.choice([2, 3, 5, 20])
    texts = ReplayTexts.of(
        cut_into_turns(
            rng,
            passages(rng, rng.randint(50, 900), n_vocab),
            rng.randint(1, 6),
            moving=seed % 3 == 0,
        )
        for _ in range(rng.randint(1, 5))
    )
    carry = rng.choice(["none", "conversation", "all"])
    assert_rounds(text, exact, texts, carry=carry)
