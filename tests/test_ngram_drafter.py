"""The drafter of a generation loop: the replay's drafts, token by token."""

from __future__ import annotations

import random

import naive
import numpy as np
import pytest
from cache_dicts import cache_of
from draftsmith.engine.errors import CacheBadToken, InputMalformed, UsageError
from draftsmith.ngram.lookup.drafter import NgramDrafter
from draftsmith.ngram.lookup.replay import SOURCES

N_VOCAB = 40


def stream(rng: random.Random, n: int) -> list[int]:
    """Tokens that repeat themselves often."""
    tokens = [rng.randrange(N_VOCAB) for _ in range(8)]
    while len(tokens) < n:
        start = rng.randrange(len(tokens) - 4)
        tokens += tokens[start : start + rng.randrange(1, 9)]
        tokens.append(rng.randrange(N_VOCAB))
    return tokens[:n]


def draft_after(tokens: list[int]) -> list[int]:
    drafter = NgramDrafter(N_VOCAB)
    drafter.accept(tokens)
    return drafter.draft().tolist()


def random_caches(rng: random.Random) -> tuple[naive.Cache, naive.Cache]:
    return naive.count_ngrams([stream(rng, 300)], (2,)), naive.count_ngrams([stream(rng, 300)])


@pytest.mark.parametrize("seed", range(6))
def test_equals_the_oracle(seed: int) -> None:
    """A drafter that forgets, looks at the wrong end of the text, or mixes up sources: every draft
    along a text that is accepted in pieces of random size, across growing arrays."""
    rng = random.Random(seed)
    tokens = stream(rng, 600)
    static, dynamic = random_caches(rng)
    drafter = NgramDrafter(
        N_VOCAB,
        draft_max=6,
        static=cache_of(static, n_vocab=N_VOCAB),
        dynamic=cache_of(dynamic, n_vocab=N_VOCAB),
        n_tokens=16,
    )
    context: naive.Cache = {}
    n = 0
    while n < len(tokens):
        piece = tokens[n : n + rng.choice((1, 1, 1, 2, 5, 40))]
        drafter.accept(piece)
        for _ in piece:
            n += 1
            naive.update(context, naive.ALL_SIZES, tuple(tokens[:n]), 1)
        ref = naive.draft(tuple(tokens[:n]), 6, context, dynamic, static, "lowest_id")
        comp = drafter.draft()
        assert comp.tolist() == [drafted.token for drafted in ref]
        assert drafter.origins(len(comp)) == [(SOURCES[d.source], d.size) for d in ref]
        assert drafter.draft(2).tolist() == comp.tolist()[:2]
    assert len(drafter) == len(tokens)


def test_reset_forgets() -> None:
    """N-grams of the last conversation drafted in the next."""
    drafter = NgramDrafter(N_VOCAB, draft_max=4)
    drafter.accept([1, 2, 3, 4, 1, 2, 3, 4, 1, 2])
    assert drafter.draft().tolist() == [3, 4, 1, 2]
    drafter.reset()
    assert len(drafter) == 0
    drafter.accept([1, 2])
    assert drafter.draft().size == 0


def test_little_text() -> None:
    """Memory before the text read where there is none."""
    drafter = NgramDrafter(N_VOCAB, draft_max=4)
    assert drafter.draft().size == 0
    drafter.accept([])
    drafter.accept([5])
    assert drafter.draft().size == 0
    assert NgramDrafter(N_VOCAB, draft_max=0).draft().size == 0


@pytest.mark.parametrize("bad", [[N_VOCAB], [-1], [2**40], [1, N_VOCAB], [2, -3, 4], [2**40, 1]])
def test_tokens_outside_the_vocabulary(bad: list[int]) -> None:
    """Arrays read and written outside of their bounds."""
    drafter = NgramDrafter(N_VOCAB)
    drafter.accept([1, 2, 1])
    with pytest.raises(InputMalformed):
        drafter.accept(bad)
    assert len(drafter) == 3
    assert drafter.draft().tolist() == draft_after([1, 2, 1])


def test_refusals() -> None:
    """A negative length, or a cache of another vocabulary, found only by a crash."""
    with pytest.raises(UsageError):
        NgramDrafter(N_VOCAB, draft_max=-1)
    alien = cache_of({(1, N_VOCAB): {2: 3}})
    for which in ("static", "dynamic"):
        with pytest.raises(CacheBadToken):
            NgramDrafter(N_VOCAB, **{which: alien})


def test_accepts_numpy_ids() -> None:
    """Ids of another integer type cut or refused."""
    for kind in (np.int32, np.int64, np.uint16):
        drafter = NgramDrafter(N_VOCAB, draft_max=2)
        drafter.accept(np.array([3, 4, 5, 3, 4, 5, 3, 4], kind))
        assert drafter.draft().tolist() == [5, 3]
