"""Cut a document into blocks that can be encoded apart without a change to a single id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ..errors import WordTooLong
from .pretokenizers import Splitter
from .special_tokens import SpecialTokens

BLOCK_BYTES = 1 << 18
# Encoding a word takes about 40 bytes of memory for each of its own.
LONGEST_WORD_BYTES = 1 << 22
_LONGEST_CHARACTER = 4
_STEP_BYTES = 1 << 12


class Block(NamedTuple):
    """Part of a document: whole characters, of text at both ends unless those are its own."""

    data: bytes
    is_first: bool
    is_last: bool


def cut_blocks(
    chunks: Iterable[bytes], splitter: Splitter, specials: SpecialTokens, block_bytes: int
) -> Iterator[Block]:
    """Yield the blocks of a document, at least one, of about ``block_bytes``.

    A block ends where the splitter is sure to end a piece and no special token is near. Text
    without such a place is collected until one comes, or the document ends.

    Raises
    ------
    WordTooLong : more than LONGEST_WORD_BYTES without such a place
    """
    pending = bytearray()
    searched = 1  # no place to cut before this offset
    is_first = True
    sight = sight_of(specials)
    for chunk in chunks:
        pending += chunk
        while len(pending) - sight >= max(block_bytes, searched):
            cut, searched = _next_cut(pending, searched, sight, splitter, specials, block_bytes)
            if cut < 0:
                refuse_endless(pending)
                break
            yield Block(bytes(memoryview(pending)[:cut]), is_first, False)
            del pending[:cut]
            is_first = False
    yield Block(bytes(pending), is_first, True)


def last_cut(data: bytes, splitter: Splitter, specials: SpecialTokens) -> int:
    """The last place where ``data``, the begin of a text, may be cut whatever goes on after it.

    0 if there is none.
    """
    text = np.frombuffer(data, np.uint8)
    high = text.size - sight_of(specials)
    while high > 1:
        low = max(1, high - _STEP_BYTES)
        cut = splitter.last_cut(text, low, high)
        if cut >= 0 and specials.may_cut(text, cut):
            return cut
        high = cut if cut >= 0 else low
    return 0


def sight_of(specials: SpecialTokens) -> int:
    """Bytes after a cut that have to be known."""
    return max(_LONGEST_CHARACTER, specials.longest)


def _next_cut(
    pending: bytearray,
    low: int,
    sight: int,
    splitter: Splitter,
    specials: SpecialTokens,
    block_bytes: int,
) -> tuple[int, int]:
    """Offset of the next cut, or -1, and the offset from which to search next time."""
    text = np.frombuffer(pending, np.uint8)
    end = len(pending) - sight
    while low < end:
        high = min(low + block_bytes, end)
        cut = splitter.last_cut(text, low, high)
        while cut >= 0 and not specials.may_cut(text, cut):
            cut = splitter.last_cut(text, low, cut)
        if cut >= 0:
            return cut, 1
        low = high
    return -1, low


def refuse_endless(pending: bytes | bytearray) -> None:
    """Raise WordTooLong if text without a place to cut is longer than it may be."""
    if len(pending) > LONGEST_WORD_BYTES:
        start = bytes(pending[:20]).decode("utf-8", "replace")
        raise WordTooLong(
            f"a text goes on for more than {LONGEST_WORD_BYTES >> 20} MiB as one word, or as one "
            f"run of blanks, from {start!r} on",
            remedy="break it into words or lines, or leave the file out",
        )
