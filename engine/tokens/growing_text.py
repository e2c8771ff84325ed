"""Ids of a text whose end changes again and again, as a conversation does from turn to turn.

What stays is not encoded again: the text is cut into blocks where no id depends on the other side.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .blocks import BLOCK_BYTES, refuse_endless
from .tokenizer import Tokenizer

# Shorter ends are encoded whole, again and again.
_END_BYTES = 1 << 12


class GrowingText:
    """A text and its ids, empty at first.

    Parameters
    ----------
    bos_text : BOS as a text may have it at its begin; it is not doubled.

    Attributes
    ----------
    text : as it is now.
    """

    def __init__(self, tokenizer: Tokenizer, bos_text: str = "") -> None:
        self.text = ""
        self._tokenizer = tokenizer
        self._bos = bos_text.encode() if tokenizer.add_bos else b""
        self._sight = tokenizer.sight
        self._ends: list[tuple[int, int]] = []  # of the blocks, in characters and in ids
        self._ids = np.empty(1 << 8, np.int32)
        self._n = 0

    @property
    def ids(self) -> NDArray[np.int32]:
        """Ids of the text, int32 [n_ids]; a view, valid until the text changes."""
        return self._ids[: self._n]

    def change(self, n_kept: int, rest: str) -> None:
        """Keep the first characters, and let ``rest`` follow them.

        Raises
        ------
        WordTooLong : more than 4 MiB without a place to cut
        """
        self.text = self.text[:n_kept] + rest
        while self._ends and self._ends[-1][0] + self._sight > n_kept:
            self._ends.pop()
        begin, self._n = self._ends[-1] if self._ends else (0, 0)
        data, at = self.text[begin:].encode(), 0
        while len(data) - at > _END_BYTES:
            block = self._block(data, at)
            if not block:
                break
            begin += len(block.decode())
            at += len(block)
            self._encode(block)
            self._ends.append((begin, self._n))
        self._encode(data[at:])

    def _block(self, data: bytes, at: int) -> bytes:
        """What from ``at`` on may be cut off; nothing if there is no place to cut."""
        size = BLOCK_BYTES
        while True:
            ahead = data[at : at + size]
            cut = self._tokenizer.last_cut(ahead)
            if cut:
                return ahead[:cut]
            refuse_endless(ahead)
            if len(ahead) < size:
                return b""
            size *= 2

    def _encode(self, data: bytes) -> None:
        """Put the ids of a part after those that are there."""
        is_first = not self._ends
        if is_first:
            data = data.removeprefix(self._bos)
        ids = self._tokenizer.encode_part(data, begins_text=is_first)
        n = self._n + ids.size
        if n > self._ids.size:
            self._ids = np.concatenate((self.ids, np.empty(max(n, self._n), np.int32)))
        self._ids[self._n : n] = ids
        self._n = n
