"""The packed form of a cache's tables: what the file holds and the drafter reads in place.

Narrow types where the data allow, and what a search needs is in the file: opening computes nothing.
An n-gram is found by its first token (``first``) and the others (``rest``); bigrams also through
``slots``. A start is ``base`` of its block plus ``offset``. Most counts are 1: one byte each, 255
meaning that ``many_entry`` and ``many_count`` hold it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...engine.errors import CacheUnsuitable
from ...engine.host import require_memory
from ...engine.pages import forget_pages
from .packed_kernels import (
    check_counts,
    check_rows,
    fill_slots,
    fill_verdicts,
    largest_id,
    pack_starts,
    unpack_starts,
)
from .table import COUNT_MAX, OrderTable, refuse

REMEDY_SMALLER = "make a smaller cache, of less text or fewer n-gram sizes"
MANY = 255
SHIFT_MAX = 8
# ``first`` has an item for each id, so ids are bounded; real vocabularies end near 2**18.
VOCAB_MAX = 1 << 22
# Arrays of a table in the order of the file; the width of "token" arrays goes with the vocabulary.
COLUMNS = {
    "shape": "<u8",
    "first": "<u4",
    "rest": "token",
    "base": "<u4",
    "offset": "<u2",
    "next": "token",
    "count": "|u1",
    "many_entry": "<u4",
    "many_count": "<u4",
}
BIGRAM_COLUMNS = {"verdict": "token", "slots": "<u4"}


def token_dtype(n_ids: int) -> str:
    """uint16 where all ids and the one that says "none" fit."""
    return "<u2" if n_ids < 2**16 else "<u4"


def no_token(n_ids: int) -> int:
    """The id that says "none" in ``verdict``: the largest of its type."""
    return int(np.iinfo(token_dtype(n_ids)).max)


def row_bits(n_ngrams: int) -> int:
    """Bits of a word of ``slots`` that hold a row; those above hold the tag."""
    return max(1, n_ngrams.bit_length())


def n_slots(n_ngrams: int) -> int:
    """Three quarters full: short probes in a small table."""
    return n_ngrams + n_ngrams // 3 + 1


@dataclass(frozen=True, eq=False)
class PackedTable:
    """The n-grams of one size, packed; stands in for an OrderTable, which it unpacks when asked.

    Attributes
    ----------
    order : n-gram size, 1 to 4
    n_ids : ids are below it
    arrays : by column name; token columns are uint16 below 2**16 ids, else uint32
        shape uint64 [3] (n_ngrams, n_entries, shift), first uint32 [n_ids + 1],
        rest [n_ngrams * (order - 1)], base uint32 [(n_ngrams >> shift) + 1],
        offset uint16 [n_ngrams + 1], next [n_entries], count uint8 [n_entries],
        many_entry and many_count uint32 [n_many]; for bigrams also verdict [n_ngrams] and
        slots uint32 [n_slots(n_ngrams)]
    source : the file that it was read from, which nobody has verified yet; empty when made here
    """

    order: int
    n_ids: int
    arrays: dict[str, np.ndarray]
    source: str = ""

    @property
    def n_ngrams(self) -> int:
        return int(self.arrays["shape"][0])

    @property
    def n_entries(self) -> int:
        return int(self.arrays["shape"][1])

    @property
    def shift(self) -> int:
        return int(self.arrays["shape"][2])

    @property
    def n_bytes(self) -> int:
        return sum(int(array.nbytes) for array in self.arrays.values())

    def glance(self) -> None:
        """Check what drafting in place relies on: ids, counts and ``first``, in a few milliseconds.

        The order of rows and followers is not: searches go astray in a wrong one, but stay inside.

        Raises
        ------
        CacheBadCount, CacheBadToken, CacheDamaged
        """
        arrays = self.arrays
        none = no_token(self.n_ids)
        worst = max(largest_id(arrays["rest"], -1), largest_id(arrays["next"], -1))
        if self.order == 2:
            worst = max(worst, largest_id(arrays["verdict"], none))
        status, at = (2, worst) if worst >= self.n_ids else (0, 0)
        if self.n_entries and arrays["count"].min() < 1:
            status, at = 1, int(arrays["count"].argmin())
        many = arrays["many_count"]
        if many.size and (many.min() < MANY or many.max() > COUNT_MAX):
            status, at = 1, int(arrays["many_entry"][(many < MANY) | (many > COUNT_MAX)][0])
        first = arrays["first"]
        if first[0] != 0 or first[-1] != self.n_ngrams or (first[1:] < first[:-1]).any():
            status, at = 3, 0
        refuse(status, at, self.order, self.n_ids, self.source)

    def max_token(self) -> int:
        """The largest id that occurs in a table that ``glance`` has passed, or -1."""
        arrays = self.arrays
        first = int(np.searchsorted(arrays["first"], self.n_ngrams)) - 1
        return max(first, *(int(largest_id(arrays[name], -1)) for name in ("rest", "next")))

    @cached_property
    def _fault(self) -> tuple[int, int]:
        """What ``refuse`` takes, after a check of every invariant; made at most once."""
        arrays = self.arrays
        status, at = check_rows(
            arrays["first"], arrays["rest"], self.order, arrays["base"], arrays["offset"],
            self.shift, arrays["next"], self.n_ids,
        )  # fmt: skip
        if status:
            return status, at
        entry = check_counts(arrays["count"], arrays["many_entry"], arrays["many_count"])
        if entry >= 0:
            return 1, entry
        if self.order == 2:
            index = _index(self._unpacked, arrays["first"], arrays["rest"], self.n_ids)
            if any(not np.array_equal(array, arrays[name]) for name, array in index.items()):
                return 4, 0
        return 0, 0

    def verify(self) -> None:
        """Check every invariant, of a table that was read from a file.

        Raises
        ------
        CacheBadCount, CacheBadToken, CacheDamaged
        """
        if self.source:
            refuse(*self._fault, self.order, self.n_ids, self.source)

    @property
    def unpacked_bytes(self) -> int:
        """Memory that unpacking takes, or checking every invariant, beside the file's map.

        0 once that has been done.
        """
        if "_unpacked" in self.__dict__:
            return 0
        index = 4 * n_slots(self.n_ngrams) + 4 * self.n_ngrams if self.order == 2 else 0
        return (4 * self.order + 12) * self.n_ngrams + 9 * self.n_entries + index

    @cached_property
    def _unpacked(self) -> OrderTable:
        require_memory(
            self.unpacked_bytes,
            f"unpacking the {self.order}-grams of {self.source or 'a cache'}",
            remedy=REMEDY_SMALLER,
        )
        arrays = self.arrays
        tokens = np.empty((self.n_ngrams, self.order), np.int32)
        rows = np.diff(arrays["first"])
        tokens[:, 0] = np.repeat(np.arange(self.n_ids, dtype=np.int32), rows)
        tokens[:, 1:] = arrays["rest"].reshape(self.n_ngrams, self.order - 1)
        entry_start = np.empty(self.n_ngrams + 1, np.int64)
        unpack_starts(arrays["base"], arrays["offset"], self.shift, entry_start)
        count = arrays["count"].astype(np.uint32)
        count[arrays["many_entry"]] = arrays["many_count"]
        return OrderTable(tokens.reshape(-1), entry_start, arrays["next"].astype(np.int32), count)

    @property
    def plain(self) -> OrderTable:
        """The table unpacked, after ``verify``."""
        self.verify()
        return self._unpacked

    @property
    def tokens(self) -> np.ndarray:
        return self.plain.tokens

    @property
    def entry_start(self) -> np.ndarray:
        return self.plain.entry_start

    @property
    def entry_token(self) -> np.ndarray:
        return self.plain.entry_token

    @property
    def entry_count(self) -> np.ndarray:
        return self.plain.entry_count


def _packed_starts(entry_start: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """(shift, base, offset) with the largest blocks whose offsets fit."""
    offset = np.empty(entry_start.size, np.uint16)
    for shift in range(SHIFT_MAX, -1, -1):
        base = np.empty(((entry_start.size - 1) >> shift) + 1, np.uint32)
        if pack_starts(entry_start, shift, base, offset) == 0:
            break
    return shift, base, offset


def _index(
    table: OrderTable | PackedTable, first: np.ndarray, rest: np.ndarray, n_ids: int
) -> dict[str, np.ndarray]:
    """``verdict`` and ``slots`` of a table of bigrams; equal bigrams give equal bytes."""
    verdict = np.empty(table.n_ngrams, rest.dtype)
    starts, tokens, counts = table.entry_start, table.entry_token, table.entry_count
    fill_verdicts(starts, tokens, counts, verdict, no_token(n_ids))
    slots = np.zeros(n_slots(table.n_ngrams), np.uint32)
    fill_slots(first, rest, slots, row_bits(table.n_ngrams))
    return {"verdict": verdict, "slots": slots}


def pack(
    table: OrderTable | PackedTable, order: int, n_ids: int, what: str = "a cache"
) -> PackedTable:
    """Pack a table whose ids are below ``n_ids``; ``what`` names its cache in messages.

    Raises
    ------
    CacheUnsuitable : more than 2**32 - 1 entries, or ids that no vocabulary has
    """
    if isinstance(table, PackedTable) and table.n_ids == n_ids:
        return table
    if n_ids > VOCAB_MAX:
        raise CacheUnsuitable(
            f"{what}: a vocabulary of {n_ids} tokens, a native cache holds up to {VOCAB_MAX}",
            remedy="name the model that the ids belong to, or write llama.cpp's format",
        )
    if table.n_entries >= 2**32:
        raise CacheUnsuitable(
            f"{what}: {table.n_entries} entries, a native cache holds up to {2**32 - 1}",
            remedy="split the corpus over several caches",
        )
    kind = token_dtype(n_ids)
    tokens = table.tokens.reshape(-1, order)
    first = np.zeros(n_ids + 1, np.uint32)
    np.cumsum(np.bincount(tokens[:, 0], minlength=n_ids), out=first[1:])
    shift, base, offset = _packed_starts(table.entry_start)
    many = np.flatnonzero(table.entry_count >= MANY)
    arrays = {
        "shape": np.array([table.n_ngrams, table.n_entries, shift], np.uint64),
        "first": first,
        "rest": np.ascontiguousarray(tokens[:, 1:]).reshape(-1).astype(kind),
        "base": base,
        "offset": offset,
        "next": table.entry_token.astype(kind),
        "count": np.minimum(table.entry_count, MANY).astype(np.uint8),
        "many_entry": many.astype(np.uint32),
        "many_count": table.entry_count[many],
    }
    if order == 2:
        arrays |= _index(table, first, arrays["rest"], n_ids)
    for array in (table.tokens, table.entry_start, table.entry_token, table.entry_count):
        forget_pages(array)  # a large table is mapped from temporary files, and done with
    return PackedTable(order, n_ids, arrays)
