"""The packed form of a table: what it holds, and that nothing is lost in it."""

from __future__ import annotations

import random
from itertools import product

import naive
import numpy as np
import packed_plain
import pytest
from cache_dicts import COUNT_MAX, table_of
from draftsmith.engine.errors import CacheUnsuitable
from draftsmith.ngram.cache.packed import VOCAB_MAX, PackedTable, pack
from draftsmith.ngram.cache.packed_kernels import checksum
from draftsmith.ngram.cache.table import OrderTable

COUNTS = (1, 1, 1, 2, 3, 253, 254, 255, 256, 257, 65536, COUNT_MAX - 1, COUNT_MAX)
VOCABULARIES = (1, 2, 9, 300, 2**16 - 2, 2**16 - 1, 2**16, 2**16 + 1)


def random_counts(rng: random.Random, order: int, n_rows: int, ids: list[int]) -> naive.Cache:
    counts: naive.Cache = {}
    for _ in range(n_rows):
        part = {rng.choice(ids): rng.choice(COUNTS) for _ in range(rng.randrange(1, 6))}
        counts[tuple(rng.choices(ids, k=order))] = part
    return counts


def some_ids(rng: random.Random, n_vocab: int) -> list[int]:
    """Few enough that they meet again, the first and the last among them."""
    return [0, n_vocab - 1, *(rng.randrange(n_vocab) for _ in range(10))]


def assert_equal(comp: OrderTable | PackedTable, ref: OrderTable) -> None:
    for name in ("tokens", "entry_start", "entry_token", "entry_count"):
        a, b = getattr(comp, name), getattr(ref, name)
        assert a.dtype == b.dtype, name
        np.testing.assert_array_equal(a, b, err_msg=name)


def assert_sound(packed: PackedTable) -> None:
    """Sound to the checks that a file's tables go through."""
    as_read = PackedTable(packed.order, packed.n_ids, packed.arrays, "some file")
    as_read.glance()
    as_read.verify()


@pytest.mark.parametrize("n_vocab", VOCABULARIES)
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_unpacking_gives_what_was_packed(order: int, n_vocab: int) -> None:
    """A type too narrow by one, a count lost at the edge of its byte, a block's last row lost."""
    rng = random.Random(n_vocab * 4 + order)
    for n_rows in (0, 1, 2, 7, 255, 256, 257, 600):
        ids = some_ids(rng, n_vocab) if n_rows < 100 else [*range(min(n_vocab, 2000))]
        counts = random_counts(rng, order, n_rows, ids)
        table = table_of(counts, order)
        packed = pack(table, order, n_vocab)
        assert (packed.n_ngrams, packed.n_entries) == (table.n_ngrams, table.n_entries)
        assert packed.max_token() == table.max_token()
        assert_equal(packed, table)
        assert_equal(PackedTable(order, n_vocab, packed.arrays, "some file"), table)
        assert_sound(packed)


@pytest.mark.parametrize("n_vocab", [9, 2**16 - 1, 2**16])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_arrays_are_the_described_ones(order: int, n_vocab: int) -> None:
    """An item, a type or a hash other than the described: files that no other release can read."""
    rng = random.Random(order)
    for n_rows in (0, 1, 40, 400):
        counts = random_counts(rng, order, n_rows, some_ids(rng, n_vocab))
        packed = pack(table_of(counts, order), order, n_vocab)
        ref = packed_plain.columns(counts, order, n_vocab)
        assert set(packed.arrays) == set(ref)
        for name, (kind, items) in ref.items():
            assert packed.arrays[name].dtype == np.dtype(kind), name
            assert packed.arrays[name].tolist() == items, name


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_equal_tables_equal_bytes(order: int) -> None:
    """Memory that nobody has written, or an order of the index that goes with the run."""
    counts = random_counts(random.Random(order), order, 500, [*range(30)])
    a, b = (pack(table_of(counts, order), order, 30) for _ in range(2))
    again = pack(a.plain, order, 30)
    assert pack(a, order, 30) is a
    for name, array in a.arrays.items():
        assert array.tobytes() == b.arrays[name].tobytes() == again.arrays[name].tobytes(), name


@pytest.mark.parametrize(("n_vocab", "other"), [(9, 12), (2**16 - 1, 2**16), (2**16, 2**16 - 1)])
def test_packed_again_for_another_vocabulary(n_vocab: int, other: int) -> None:
    """The old vocabulary's width, or its id for "none", kept."""
    counts = random_counts(random.Random(1), 2, 60, [*range(9)])
    packed = pack(pack(table_of(counts, 2), 2, n_vocab), 2, other)
    ref = pack(table_of(counts, 2), 2, other)
    assert packed.n_ids == other
    for name, array in ref.arrays.items():
        assert array.tobytes() == packed.arrays[name].tobytes(), name


@pytest.mark.parametrize(
    ("sizes", "shift"),
    [
        ([65535] + [1] * 300, 1),
        ([65534] + [1] * 300, 1),
        ([65536] + [1] * 300, 0),
        ([1] * 300 + [65536], 0),
        ([1, 70000, 1, 70000, 1], 1),
        ([257] * 256, 8),
        ([1] * 256 + [40000, 40000, 1], 1),
        ([256] * 300, 8),
        ([70000], 0),
        ([], 8),
    ],
)
def test_rows_of_many_followers(sizes: list[int], shift: int) -> None:
    """A start that does not fit its 16 bits: followers of other rows."""
    entry_start = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    n_rows = len(sizes)
    table = OrderTable(
        np.arange(n_rows, dtype=np.int32),
        entry_start,
        np.concatenate([np.arange(n, dtype=np.int32) for n in [0, *sizes]]),
        np.ones(int(entry_start[-1]), np.uint32),
    )
    packed = pack(table, 1, 2**17)
    assert packed.shift == shift
    assert_equal(packed, table)
    assert_sound(packed)


@pytest.mark.parametrize("n_rows", [0, 1, 2, 3, 7, 8, 300])
@pytest.mark.parametrize("n_vocab", [40, 2**16 - 1, 2**16])
def test_slots_find_each_row_and_nothing_else(n_rows: int, n_vocab: int) -> None:
    """A row that the drafter can't find, one found for another bigram, a probe without an end."""
    rng = random.Random(n_rows)
    ids = [*range(39), n_vocab - 1]
    counts = {(rng.choice(ids), rng.choice(ids)): {0: 1} for _ in range(n_rows)}
    arrays = pack(table_of(counts, 2), 2, n_vocab).arrays
    slots, first, rest = (arrays[name].tolist() for name in ("slots", "first", "rest"))
    assert 0 in slots
    assert sum(word != 0 for word in slots) == len(counts)
    row_of = {bigram: row for row, bigram in enumerate(sorted(counts))}
    for bigram in product(ids, repeat=2):
        assert packed_plain.find_row(slots, first, rest, bigram) == row_of.get(bigram), bigram


def test_full_rows_in_the_index() -> None:
    """All followers of a token in one stretch of the index, or rows lost after its wrap."""
    for n in (1, 50, 200):
        counts = {(token, token * k % n): {0: 1} for token in range(n) for k in (1, 3, 7)}
        arrays = pack(table_of(counts, 2), 2, n).arrays
        slots, first, rest = (arrays[name].tolist() for name in ("slots", "first", "rest"))
        for row, bigram in enumerate(sorted(counts)):
            assert packed_plain.find_row(slots, first, rest, bigram) == row


@pytest.mark.parametrize("n_vocab", [9, 2**16 - 1, 2**16])
def test_verdicts_are_the_rule(n_vocab: int) -> None:
    """A tie for the higher id, half taken for too little, one sample for enough, a wrap."""
    none = packed_plain.no_token(n_vocab)
    last = n_vocab - 1
    cases: list[tuple[naive.Part, int]] = [
        ({3: 1}, none),
        ({3: 2}, 3),
        ({3: 1, 5: 1}, 3),
        ({3: 1, 5: 1, 6: 1}, none),
        ({3: 1, 5: 2, 6: 1}, 5),
        ({3: 1, 5: 2, 6: 2}, none),
        ({last: COUNT_MAX}, last),
        ({1: COUNT_MAX, last: COUNT_MAX}, 1),
        ({1: COUNT_MAX, 2: COUNT_MAX, last: COUNT_MAX}, none),
        ({1: COUNT_MAX - 1, last: COUNT_MAX}, last),
        ({1: 254, last: 255}, last),
    ]
    rng = random.Random(2)
    ids = [*range(8), last]
    counts: naive.Cache = {(0, n % 9): part for n, (part, _) in enumerate(cases[:9])}
    counts |= {(1, n): part for n, (part, _) in enumerate(cases[9:])}
    for bigram in product(range(2, 9), range(9)):
        n = rng.randrange(1, 6)
        counts[bigram] = {token: rng.choice((1, 2, *COUNTS)) for token in rng.sample(ids, n)}
    verdict = pack(table_of(counts, 2), 2, n_vocab).arrays["verdict"].tolist()
    assert verdict[: len(cases)] == [token for _, token in cases]
    assert verdict == [
        packed_plain.verdict_of(counts[bigram], n_vocab) for bigram in sorted(counts)
    ]


def test_vocabulary_that_can_not_be() -> None:
    """Gigabytes asked for, because an id is large."""
    table = table_of({(1, 2): {3: 1}}, 2)
    assert_equal(pack(table, 2, VOCAB_MAX), table)
    with pytest.raises(CacheUnsuitable, match=str(VOCAB_MAX)):
        pack(table, 2, VOCAB_MAX + 1)


def test_too_many_entries() -> None:
    """Starts that wrap at 2**32."""

    class Huge(OrderTable):
        @property
        def n_entries(self) -> int:
            return 2**32

    table = table_of({(1,): {3: 1}}, 1)
    huge = Huge(table.tokens, table.entry_start, table.entry_token, table.entry_count)
    with pytest.raises(CacheUnsuitable, match="4294967296 entries"):
        pack(huge, 1, 9)


@pytest.mark.parametrize("n_bytes", [0, 64, 128, 640])
def test_checksum(n_bytes: int) -> None:
    """A sum other than the described one, or a lane that does not count."""
    data = random.Random(n_bytes).randbytes(n_bytes)
    words = np.frombuffer(bytearray(data), np.uint64)
    assert checksum(words) == packed_plain.checksum(data)
    for at in range(words.size):
        words[at] ^= np.uint64(1 << (at * 7 % 64))
        assert checksum(words) != packed_plain.checksum(data)
        words[at] ^= np.uint64(1 << (at * 7 % 64))
