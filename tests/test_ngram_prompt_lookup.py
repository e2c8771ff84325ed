"""Prompt lookup's kernels, held against looking everywhere."""

from __future__ import annotations

import random
from collections.abc import Sequence

import naive_repaired
import numpy as np
import pytest
from draftsmith.ngram.drafters.prompt_lookup_kernels import (
    accept_prompt_lookup,
    begin_prompt_lookup,
    draft_prompt_lookup,
    forget_prompt_lookup,
    grow_prompt_lookup,
    prompt_lookup_sizes,
)
from draftsmith.ngram.drafters.slot_kernels import (
    ENDS,
    KEYS,
    N_PARAMS,
    N_VARS,
    PARTS,
    PROMPT_LOOKUP,
    VLLM_NGRAM,
    Slot,
)
from naive_drafters import Drafter
from numba import njit
from spec_streams import SHORT_STREAMS as STREAMS
from spec_streams import passages

LONGEST = 32  # tokens that out has room for
GUARD = 16  # elements beside the arrays of a slot, which kernels must leave alone
TRANSFORMERS = [(2, 10), (1, 3), (3, 1), (7, 32), (1000, 5)]
VLLM = [(5, 5, 5), (2, 5, 3), (1, 1, 10), (3, 20, 32), (900, 1000, 5)]


@njit(nogil=True, _nrt=False)
def run(slot, tokens, n_prompt, same, places, n_max, out, sizes):
    """One request, with a draft where the text has as many tokens as ``places`` say."""
    forget_prompt_lookup(slot)
    begin_prompt_lookup(slot, tokens, n_prompt, same)
    for i in range(places.size):
        sizes[i] = draft_prompt_lookup(slot, tokens, places[i], n_max, out[i])
        accept_prompt_lookup(slot, tokens, places[i], 0, False)


@njit(nogil=True, _nrt=False)
def grow(slot, old):
    grow_prompt_lookup(slot, old)


class Driven:
    """A slot, and what it drafted."""

    def __init__(self, keys: Sequence[int], n_tokens: int, ends: Sequence[int] = ()) -> None:
        params = np.zeros(N_PARAMS, np.int64)
        params[ENDS:PARTS] = -1
        params[ENDS : ENDS + len(ends)] = ends
        params[0] = VLLM_NGRAM if len(keys) == 3 else PROMPT_LOOKUP
        params[KEYS : KEYS + len(keys)] = keys
        self.guarded = [
            np.full(size + 2 * GUARD, -9, np.int32) for size in prompt_lookup_sizes(n_tokens)
        ]
        for array in self.guarded:
            array[GUARD:-GUARD] = 0
        table, nodes = (array[GUARD:-GUARD] for array in self.guarded)
        self.slot = Slot(params, np.zeros(N_VARS, np.int64), table, nodes, np.zeros(0, np.int64))
        self.text: list[int] = []

    def request(
        self,
        text: list[int],
        *,
        n_prompt: int = 0,
        places: Sequence[int] | None = None,
        n_max: int = LONGEST,
    ) -> list[list[int]]:
        """What is drafted where, everywhere after the prompt by default."""
        if places is None:
            places = range(n_prompt, len(text) + 1)
        same = 0
        while same < min(n_prompt, len(self.text)) and text[same] == self.text[same]:
            same += 1
        out = np.full((len(places), LONGEST), -9, np.int32)
        sizes = np.zeros(len(places), np.int64)
        tokens = np.array(text, np.int32)
        run(self.slot, tokens, n_prompt, same, np.array(places, np.int64), n_max, out, sizes)
        self.text = text[: max([n_prompt, *places])]
        for array in self.guarded:
            assert (array[:GUARD] == -9).all()
            assert (array[-GUARD:] == -9).all()
        return [row[:size].tolist() for row, size in zip(out, sizes, strict=True)]


def oracle(keys: Sequence[int], ends: Sequence[int] = ()) -> Drafter:
    if len(keys) == 3:
        return naive_repaired.VllmNgram(*keys)
    return naive_repaired.PromptLookup(*keys, end_tokens=ends)


@pytest.mark.parametrize("keys", [*TRANSFORMERS, *VLLM], ids=str)
@pytest.mark.parametrize("name", STREAMS)
def test_equals_looking(name: str, keys: tuple[int, ...]) -> None:
    """A place that is not the first, an n-gram that is not the longest, a draft beyond the text's
    end: the draft after every prefix of streams that are hard each in its way."""
    text = STREAMS[name]
    naive = oracle(keys)
    for n_max in (LONGEST, 2):
        expected = [naive.draft(text[:n], n_max) for n in range(len(text) + 1)]
        assert Driven(keys, len(text)).request(text, n_max=n_max) == expected


@pytest.mark.parametrize("keys", [(2, 10), (1, 4), (2, 5, 10)], ids=str)
def test_ends_of_generation(keys: tuple[int, ...]) -> None:
    """transformers' drafts that go on after an end-of-generation token, or look further when they
    begin with one; vLLM's that stop at it."""
    text = passages(random.Random(3), 300, 6)
    naive = oracle(keys, (2, 4))
    expected = [naive.draft(text[:n], LONGEST) for n in range(len(text) + 1)]
    assert Driven(keys, len(text), (2, 4)).request(text) == expected


@pytest.mark.parametrize("keys", [(3, 10), (2, 6, 5)], ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_texts_one_after_another(seed: int, keys: tuple[int, ...]) -> None:
    """Something of an earlier text in the drafts of the next one, a prompt that is not read where
    it only grew, tokens lost between two drafts."""
    rng = random.Random(seed)
    naive = oracle(keys)
    driven = Driven(keys, 2000)
    text: list[int] = []
    for _ in range(12):
        kept = rng.choice([len(text), len(text), rng.randrange(len(text) + 1), 0])
        text = text[:kept] + passages(rng, rng.randrange(60), 9)
        n_prompt = rng.randrange(kept, len(text) + 1)
        places = list(range(n_prompt, len(text) + 1, rng.choice([1, 2, 5])))
        expected = [naive.draft(text[:n], LONGEST) for n in places]
        assert driven.request(text, n_prompt=n_prompt, places=places) == expected


def test_grows() -> None:
    """Places or edges that are left behind when a slot moves to larger arrays."""
    text = passages(random.Random(5), 400, 8)
    keys = (2, 6, 5)
    naive = oracle(keys)
    old, new = Driven(keys, 200), Driven(keys, 400)
    drafted = old.request(text[:200])
    grow(new.slot, old.slot)
    new.text = old.text
    drafted += new.request(text, n_prompt=200)[1:]
    assert drafted == [naive.draft(text[:n], LONGEST) for n in range(len(text) + 1)]


@pytest.mark.parametrize("name", STREAMS)
def test_stops_where_there_is_no_room(name: str) -> None:
    """A write after the arrays, or an endless loop, where more comes than was said; drafts from
    places that were not indexed."""
    text = STREAMS[name] * 8
    small = Driven((2, 10), 40)
    naive = oracle((2, 10))
    for _ in range(2):
        for n, drafted in enumerate(small.request(text)):
            assert drafted in ([], naive.draft(text[:n], LONGEST))
    assert small.request([1, 2, 1, 2])[-1] == [1, 2]


@pytest.mark.parametrize("keys", [(1000, 10), (900, 1000, 10)], ids=str)
def test_time_goes_with_the_length(keys: tuple[int, ...]) -> None:
    """A search of the text, or of all n-gram sizes, for each draft: 300,000 of them."""
    text = [5, 6, 7] * 100_000
    drafted = Driven(keys, len(text)).request(text)
    assert drafted[-1] == [5, 6, 7, 5, 6, 7, 5, 6, 7, 5]
