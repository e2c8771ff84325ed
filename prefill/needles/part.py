"""A part of a text that is too long for a haystack: drawn in one pass, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

_BLANKS = (b"\n", b" ")
# Where a part begins or ends, the next line is looked for this far, and the next word else.
_LINE_MOST = 4096


@dataclass(frozen=True)
class Part:
    """A part of a text.

    Attributes
    ----------
    data : UTF-8, whole lines or words
    start : first byte of it in the text
    n_text : bytes of the text
    """

    data: bytes
    start: int
    n_text: int

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the text."""
        return len(self.data) == self.n_text


def draw_part(blocks: Iterable[bytes], n_bytes: int, seed: int) -> Part:
    """Draw a part of at most ``n_bytes`` from a text whose length nobody knows.

    The text is cut into windows of that size; each whole one is as likely, whatever their number
    (a reservoir of one). A text that fits is taken whole.

    Parameters
    ----------
    blocks : UTF-8, in order; a character may span two
    seed : 0 or more; the same gives the same part of the same bytes, however these are cut
    """
    rng = np.random.default_rng([seed, n_bytes])
    kept, start, n_windows, n_text = b"", 0, 0, 0
    window = bytearray()
    for block in blocks:
        n_text += len(block)
        window += block
        while len(window) >= n_bytes:
            if rng.integers(n_windows + 1) == 0:
                kept, start = bytes(window[:n_bytes]), n_windows * n_bytes
            n_windows += 1
            del window[:n_bytes]
    if not n_windows:
        return Part(bytes(window), 0, n_text)
    if n_text == n_bytes:
        return Part(kept, 0, n_text)
    skipped = _first_break(kept) if start else 0
    return Part(kept[skipped : _last_break(kept)], start + skipped, n_text)


def _first_break(data: bytes) -> int:
    """Return where the first whole line begins, or the first word."""
    for blank in _BLANKS:
        at = data.find(blank, 0, _LINE_MOST)
        if at >= 0:
            return at + 1
    return next((i for i in range(min(4, len(data))) if data[i] & 0xC0 != 0x80), 0)


def _last_break(data: bytes) -> int:
    """Return where the last whole line ends, or the last word."""
    for blank in _BLANKS:
        at = data.rfind(blank, max(0, len(data) - _LINE_MOST))
        if at >= 0:
            return at + 1
    ends = [i for i in range(len(data) - 1, max(-1, len(data) - 5), -1) if data[i] & 0xC0 != 0x80]
    return ends[0] if ends else len(data)
