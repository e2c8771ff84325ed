"""Encode the fragments of a block of text; one encoder belongs to one thread at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .piece_kernels import MergeRules, PieceTable, Scratch, encode_pieces
from .pretokenizers import Splitter
from .special_tokens import Fragment

# The table of pieces starts small, so that a short text does not pay for a large one, and grows to
# some 30 MB. A full table is emptied: what it forgets is merged again, the ids are the same.
SMALLEST_TABLE = 1 << 14
LARGEST_TABLE = 1 << 20

LONGEST_KEPT = 64  # bytes; longer pieces hardly ever come twice
_BYTES_PER_ENTRY, _IDS_PER_ENTRY = 12, 5  # what code and prose need, and a little
_LARGEST_KEPT_BUFFER = 1 << 20  # bytes of text; room for longer blocks is given back


class PieceEncoder:
    """Turns text into ids by ``rules`` and ``splitter``, and remembers the pieces it met."""

    def __init__(self, rules: MergeRules, splitter: Splitter) -> None:
        self._rules = rules
        self._splitter = splitter
        self._most_spelled = max(1, int(np.diff(rules.spelled_start).max()))
        self._table = _empty_table(SMALLEST_TABLE)
        self._scratch = _empty_scratch(1 << 10)
        self._resize_buffers(0, 0)

    def encode(self, data: bytes, fragments: list[Fragment]) -> NDArray[np.int32]:
        """Ids of the fragments of ``data``, int32 [n_ids].

        ``fragments`` are in order and do not overlap.
        """
        if not fragments:
            return np.empty(0, np.int32)
        n_pieces_most = len(data) + len(fragments)
        if n_pieces_most > len(self._start):
            self._resize_buffers(n_pieces_most, len(fragments))
        text = np.frombuffer(data, np.uint8)
        start, stop, token = np.array(fragments, np.int64).T.copy()
        n_pieces = self._splitter.split(text, (start, stop, token), self._start, self._stop)
        done, n_ids = 0, 0
        while True:
            done, n_ids = encode_pieces(
                text,
                self._start,
                self._stop,
                done,
                n_pieces,
                self._rules,
                self._table,
                self._scratch,
                LONGEST_KEPT,
                self._out,
                n_ids,
            )
            if done == n_pieces:
                break
            self._make_room(int(self._stop[done] - self._start[done]))
        ids = self._out[:n_ids].copy()
        if len(data) > _LARGEST_KEPT_BUFFER:
            self._resize_buffers(0, 0)
            self._scratch = _empty_scratch(1 << 10)
        return ids

    def _make_room(self, size: int) -> None:
        """Make room for a piece of ``size`` bytes, in the scratch or else in the table."""
        if 2 * size > len(self._scratch.heap):
            self._scratch = _empty_scratch(2 * size)
            return
        n_slots = min(4 * len(self._table.slot), LARGEST_TABLE)
        self._table = _empty_table(n_slots)

    def _resize_buffers(self, n_pieces: int, n_fragments: int) -> None:
        self._start = np.empty(n_pieces, np.int64)
        self._stop = np.empty(n_pieces, np.int64)
        self._out = np.empty(n_pieces * self._most_spelled + n_fragments, np.int32)


def _empty_table(n_slots: int) -> PieceTable:
    """A table of pieces, at most half full."""
    n_entries = n_slots // 2
    return PieceTable(
        slot=np.zeros(n_slots, np.int64),
        entry=np.empty((n_entries, 4), np.int32),
        data=np.empty(n_entries * _BYTES_PER_ENTRY, np.uint8),
        ids=np.empty(n_entries * _IDS_PER_ENTRY, np.int32),
        used=np.zeros(3, np.int64),
    )


def _empty_scratch(n_symbols: int) -> Scratch:
    return Scratch(
        symbol=np.empty((n_symbols + 1, 6), np.int32),
        heap=np.empty(2 * n_symbols, np.int64),
    )
