"""The suffix drafter's kernels, held against counting by hand."""

from __future__ import annotations

import random

import naive_suffix
import numpy as np
import pytest
from draftsmith.ngram.drafters.slot_kernels import (
    ENDS,
    KEYS,
    MILLION,
    N_PARAMS,
    N_VARS,
    PARTS,
    SUFFIX,
    Slot,
)
from draftsmith.ngram.drafters.suffix_kernels import (
    accept_suffix,
    begin_suffix,
    draft_suffix,
    forget_suffix,
    grow_suffix,
    suffix_sizes,
)
from numba import njit
from spec_streams import SHORT_STREAMS as STREAMS
from spec_streams import passages

LONGEST = 64  # tokens that out has room for
GUARD = 16  # elements beside the arrays of a slot, which kernels must leave alone
DEFAULT = (24, 1.0, 0.1, 24)
SETTINGS = [
    DEFAULT,
    (2, 1.0, 0.0, 5),
    (3, 4.0, 0.1, 5),
    (6, 0.5, 0.4, 24),
    (16, 0.29, 0.1, 24),
    (40, 8.0, 0.0, 40),
    (24, 0.0, 0.0, 24),
    (24, 2.5, 1.0, 3),
]


@njit(nogil=True, _nrt=False)
def run(slot, tokens, n_prompt, same, forget, places, n_max, out, sizes):
    """One request, with a draft where the text has as many tokens as ``places`` say."""
    if forget:
        forget_suffix(slot)
    begin_suffix(slot, tokens, n_prompt, same)
    for i in range(places.size):
        sizes[i] = draft_suffix(slot, tokens, places[i], n_max, out[i])
        accept_suffix(slot, tokens, places[i], 0, False)


@njit(nogil=True, _nrt=False)
def grow(slot, old):
    grow_suffix(slot, old)


class Driven:
    """A slot, and what it drafted."""

    def __init__(self, setting: tuple[int, float, float, int], n_tokens: int) -> None:
        depth, factor, share, draft_max = setting
        params = np.zeros(N_PARAMS, np.int64)
        params[ENDS:PARTS] = -1
        params[0] = SUFFIX
        params[KEYS : KEYS + 4] = depth, round(factor * MILLION), round(share * MILLION), draft_max
        self.guarded = [np.full(size + 2 * GUARD, -9, np.int32) for size in suffix_sizes(n_tokens)]
        for array in self.guarded:
            array[GUARD:-GUARD] = 0
        table, nodes = (array[GUARD:-GUARD] for array in self.guarded)
        vars_ = np.zeros(N_VARS, np.int64)
        self.slot = Slot(params, vars_, table, nodes, np.zeros(0, np.int64))
        self.text: list[int] = []

    def request(
        self,
        text: list[int],
        *,
        n_prompt: int = 0,
        places: list[int] | None = None,
        n_max: int = LONGEST,
        forget: bool = False,
    ) -> list[list[int]]:
        """What is drafted where, everywhere after the prompt by default."""
        if places is None:
            places = list(range(n_prompt, len(text) + 1))
        same = 0
        while same < min(n_prompt, len(self.text)) and text[same] == self.text[same]:
            same += 1
        out = np.full((len(places), LONGEST), -9, np.int32)
        sizes = np.zeros(len(places), np.int64)
        tokens = np.array(text, np.int32)
        where = np.array(places, np.int64)
        run(self.slot, tokens, n_prompt, same, forget, where, n_max, out, sizes)
        self.text = text[: max([n_prompt, *places])]
        for array in self.guarded:
            assert (array[:GUARD] == -9).all()
            assert (array[-GUARD:] == -9).all()
        assert all((row[size:] == -9).all() for row, size in zip(out, sizes, strict=True))
        return [row[:size].tolist() for row, size in zip(out, sizes, strict=True)]


def drafts(
    oracle: naive_suffix.Suffix, text: list[int], places: list[int], n_max: int = LONGEST
) -> list[list[int]]:
    return [oracle.draft(text[:n], n_max) for n in places]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("name", STREAMS)
def test_equals_counting(name: str, setting: tuple[int, float, float, int]) -> None:
    """A state that is split without its counts, a favourite that is not the most frequent, a limit
    that is off by one: the draft after every prefix of streams that are hard each in its way."""
    text = STREAMS[name]
    n_max = 3 if setting == DEFAULT else LONGEST
    oracle = naive_suffix.Suffix(*setting)
    expected = drafts(oracle, text, list(range(len(text) + 1)), n_max)
    assert Driven(setting, len(text)).request(text, n_max=n_max) == expected


@pytest.mark.parametrize("seed", range(8))
def test_rounds_of_any_size(seed: int) -> None:
    """Tokens that are lost between two drafts, or counted twice; a prompt that is not learnt."""
    rng = random.Random(seed)
    text = passages(rng, 300, 10)
    n_prompt = rng.randrange(len(text))
    places = sorted({rng.randrange(n_prompt, len(text) + 1) for _ in range(60)})
    oracle = naive_suffix.Suffix(*DEFAULT)
    oracle.begin(text[:n_prompt])
    driven = Driven(DEFAULT, len(text))
    assert driven.request(text, n_prompt=n_prompt, places=places) == drafts(oracle, text, places)


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_texts_one_after_another(seed: int, forgets: bool) -> None:
    """Earlier texts that no longer count, or still do after forgetting; a shared beginning that is
    counted twice, or a text that goes on otherwise from it with what it must not know."""
    rng = random.Random(seed)
    oracle = naive_suffix.Suffix(*DEFAULT)
    driven = Driven(DEFAULT, 2000)
    text: list[int] = []
    for _ in range(12):
        forget = forgets and rng.random() < 0.4
        if forget:
            oracle = naive_suffix.Suffix(*DEFAULT)
        kept = rng.choice([len(text), len(text), rng.randrange(len(text) + 1), 0])
        text = text[:kept] + passages(rng, rng.randrange(60), 9)
        n_prompt = rng.randrange(kept, len(text) + 1)
        places = list(range(n_prompt, len(text) + 1, rng.choice([1, 2, 5])))
        oracle.begin(text[:n_prompt])
        expected = drafts(oracle, text, places)
        assert driven.request(text, n_prompt=n_prompt, places=places, forget=forget) == expected


def test_earlier_texts_count() -> None:
    """An answer that is not remembered for the next conversation, or after it was to be."""
    driven = Driven(DEFAULT, 100)
    answer = list(range(20, 40))
    driven.request([1, 2, 3, *answer])
    assert driven.request([9, 20, 21, 22], n_prompt=4) == [[23, 24, 25]]
    assert driven.request([9, 9, 20, 21, 22], n_prompt=5, forget=True) == [[]]


def test_grows() -> None:
    """Counts or edges that are left behind when a slot moves to larger arrays."""
    text = passages(random.Random(5), 400, 8)
    oracle = naive_suffix.Suffix(*DEFAULT)
    expected = drafts(oracle, text, list(range(len(text) + 1)))
    old = Driven(DEFAULT, 200)
    drafted = old.request(text[:200])
    new = Driven(DEFAULT, 400)
    grow(new.slot, old.slot)
    new.text = old.text
    drafted += new.request(text, n_prompt=200)[1:]
    assert drafted == expected


@pytest.mark.parametrize("name", STREAMS)
def test_forgets_what_has_no_room(name: str) -> None:
    """A write after the arrays, or an endless loop, where more comes than was said; and drafts
    that are no longer made then."""
    text = STREAMS[name] * 8
    small = Driven(DEFAULT, 40)
    for _ in range(3):
        drafted = small.request(text)
        assert max((token for draft in drafted for token in draft), default=0) <= max([0, *text])
    if len(text) > 200 and len(set(text)) == 2:
        assert drafted[-1]


def test_many_short_texts_that_part_late() -> None:
    """Arrays that overflow by texts which share a long beginning: each adds an edge to all the
    suffixes of it."""
    setting = (64, 1.0, 0.1, 24)
    driven = Driven(setting, 400)
    oracle = naive_suffix.Suffix(*setting)
    for i in range(40):
        text = [5] * 60 + [100 + i]
        oracle.begin(text)
        drafted = driven.request(text, n_prompt=61)
        if i == 0:
            assert drafted == [oracle.draft(text, LONGEST)]
    assert driven.request([5] * 60, n_prompt=60) != [[]]


def test_prefers_what_is_surer() -> None:
    """The longest match winning whatever it is worth: here a shorter one was followed by the same
    token always, the longer one by two."""
    text = [1, 2, 3, 4, 4, 1, 2, 3, 5, 5, *[9, 2, 3, 6, 6] * 4, 1, 2, 3]
    assert naive_suffix.Suffix(*DEFAULT).draft(text, LONGEST) == [6, 6]
    assert Driven(DEFAULT, len(text)).request(text)[-1] == [6, 6]


def test_lowest_of_equals() -> None:
    """The favourite by order of arrival: 7 came before 4, as often."""
    text = [1, 2, 7, 1, 2, 4, 1, 2]
    assert Driven(DEFAULT, 8).request(text)[-1][:1] == [4]


@pytest.mark.parametrize("text", [[5] * 300_000, [5, 6, 7] * 100_000], ids=["one", "period 3"])
def test_time_goes_with_the_length(text: list[int]) -> None:
    """A visit of all that ends the text for each token, not only of its last ``depth`` tokens: a
    text that repeats itself would take hours."""
    drafted = Driven(DEFAULT, len(text)).request(text, places=[len(text)])
    assert drafted == [text[:12]]
