"""Bytes of a text to UTF-8: UTF-16 and UTF-32 by their byte order mark, all else as it is.

A text in one of these encodings without a mark would be counted as letters with zero bytes between
them, and look fine: where zeros lie as they do in such a text, it is refused. Blocks in, blocks
out; a mark, a character or a run of zeros may be cut anywhere.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ...engine.errors import InputMalformed

_REPLACEMENT = "\ufffd"
_LONGEST_MARK = 4
# Bytes that are looked at together, and the fewest zeros that say something about an encoding.
_WINDOW = 8 << 10
_FEWEST_ZEROS = 8
_FEWEST_AT_END = 64


class _Encoding(NamedTuple):
    mark: bytes
    decode: Callable[[bytes, str, bool], tuple[str, int]]
    unit: str  # dtype of a code unit


# The longer marks first: that of UTF-32LE begins as that of UTF-16LE.
_MARKED = (
    _Encoding(codecs.BOM_UTF32_LE, codecs.utf_32_le_decode, "<u4"),
    _Encoding(codecs.BOM_UTF32_BE, codecs.utf_32_be_decode, ">u4"),
    _Encoding(codecs.BOM_UTF16_LE, codecs.utf_16_le_decode, "<u2"),
    _Encoding(codecs.BOM_UTF16_BE, codecs.utf_16_be_decode, ">u2"),
)


def as_utf8(
    blocks: Iterable[bytes], name: str, on_replaced: Callable[[int], None]
) -> Iterator[bytes]:
    """Yield a text's bytes, those of UTF-16 and UTF-32 with a mark as UTF-8 without it.

    What has no such mark is not changed, be it valid UTF-8 or not. ``on_replaced`` gets the number
    of sequences that became U+FFFD, an incomplete last one too. ``name`` is that of messages.

    Raises
    ------
    InputMalformed : no mark, and zeros where UTF-16 or UTF-32 has them.
    """
    source = iter(blocks)
    head = b""
    for block in source:
        head += block
        if len(head) >= _LONGEST_MARK:
            break
    encoding = _encoding_of(head)
    if encoding is not None:
        yield from _decoded(_with(head[len(encoding.mark) :], source), encoding, on_replaced)
        return
    zeros = _Zeros(name)
    held = b""  # the last block, until it is known whether it ends the text
    for block in _with(head, source):
        zeros.look_at(block)
        if held:
            yield held
        held = block
    zeros.finish()
    if held:
        yield held


def may_be_text(head: bytes) -> bool:
    """Whether a file that begins so is text, or was meant as text: UTF-16 without a mark is, too.

    Text has no zero bytes but those of its encoding.
    """
    if b"\0" not in head:
        return True
    encoding = _encoding_of(head)
    if encoding is not None:
        return "\0" not in encoding.decode(head[len(encoding.mark) :], "replace", False)[0]
    told = _told(_counts(head, 0), len(head))
    return bool(told) and _is_shown(head.decode(told or "", "replace"))


def begin_as_utf8(head: bytes) -> bytes:
    """The begin of a text as UTF-8, where a mark, or its zeros, tell another encoding."""
    encoding = _encoding_of(head)
    if encoding is not None:
        return encoding.decode(head[len(encoding.mark) :], "replace", False)[0].encode()
    told = _told(_counts(head, 0), len(head)) if b"\0" in head else None
    return head.decode(told, "replace").encode() if told else head


def may_be_json(head: bytes | bytearray, begins: bytes = b"{[") -> bool:
    """Whether a text's first character is one of ``begins``, blanks and its mark apart."""
    start = head.removeprefix(codecs.BOM_UTF8).lstrip(b" \t\r\n")[:1]
    return start != b"" and start in begins


def _is_shown(text: str) -> bool:
    """Whether a text is one to read, and not numbers that lie as its characters would."""
    n_odd = sum(not (c.isprintable() or c in "\t\n\r\f") or c == _REPLACEMENT for c in text)
    return 50 * n_odd <= len(text)


def _encoding_of(head: bytes) -> _Encoding | None:
    return next((one for one in _MARKED if head.startswith(one.mark)), None)


def _with(head: bytes, others: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from others


def _decoded(
    blocks: Iterable[bytes], encoding: _Encoding, on_replaced: Callable[[int], None]
) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        whole = rest + block if rest else block
        text, n_read = encoding.decode(whole, "replace", False)
        rest = whole[n_read:]
        # A U+FFFD that was in the text is no repair; it never is half of another character.
        units = np.frombuffer(whole[:n_read], encoding.unit)
        n_replaced = text.count(_REPLACEMENT) - int((units == ord(_REPLACEMENT)).sum())
        if n_replaced:
            on_replaced(n_replaced)
        if text:
            yield text.encode()
    if rest:
        text, _ = encoding.decode(rest, "replace", True)
        on_replaced(len(text))
        yield text.encode()


class _Zeros:
    """Where the zero bytes of a text lie, window by window."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._at = 0
        self._n = 0
        self._counts = [0, 0, 0, 0]

    def look_at(self, block: bytes) -> None:
        """Count the zeros of the next block, and refuse the text if they are too many."""
        if b"\0" not in block:
            self._add(len(block), None)
            return
        for start in range(0, len(block), _WINDOW):
            part = block[start : start + _WINDOW]
            self._add(len(part), _counts(part, self._at))

    def _add(self, n: int, counts: list[int] | None) -> None:
        self._at += n
        self._n += n
        if counts is not None:
            self._counts = [a + b for a, b in zip(self._counts, counts, strict=True)]
        if self._n >= _WINDOW:
            self._check()
            self._n, self._counts = 0, [0, 0, 0, 0]

    def finish(self) -> None:
        """Look at the end of the text; some zeros at the end of a long one tell nothing."""
        if self._at == self._n or self._n >= _FEWEST_AT_END:
            self._check()

    def _check(self) -> None:
        """Refuse what the last bytes show to be no UTF-8."""
        encoding = _told(self._counts, self._n)
        if encoding is None:
            return
        start = self._at - self._n
        where = f" from byte {start} on" if start else ""
        if not encoding:
            raise InputMalformed(
                f"{self._name}: a quarter of its bytes or more{where} are 0, which is no text",
                remedy="convert it to UTF-8, or leave it out",
            )
        share = "three of four bytes" if "32" in encoding else "every second byte"
        verb = "are" if "32" in encoding else "is"
        raise InputMalformed(
            f"{self._name}: {share}{where} {verb} 0, as in {encoding} without a byte order mark; "
            "expected UTF-8",
            remedy=f"convert it first: iconv -f {encoding} -t UTF-8 FILE >NEW",
        )


def _counts(part: bytes, at: int) -> list[int]:
    """Zero bytes by the remainder of their place in the file by four; ``at`` is the first."""
    return [part[(i - at) % 4 :: 4].count(0) for i in range(4)]


def _told(counts: list[int], n: int) -> str | None:
    """The encoding that zeros by place tell of; "": too many for any text; None: none."""
    total = sum(counts)
    even, odd = counts[0] + counts[2], counts[1] + counts[3]
    if 4 * total >= n and total >= 2:
        if 2 * total > n and _is_mostly(counts[2:], n) and 20 * counts[0] < n:
            return "UTF-32LE"
        if 2 * total > n and _is_mostly(counts[:2], n) and 20 * counts[3] < n:
            return "UTF-32BE"
        if 10 * even <= total:
            return "UTF-16LE"
        return "UTF-16BE" if 10 * odd <= total else ""
    # A letter of another script has no zero in it, but blanks and line breaks have.
    if 50 * total >= n and total >= _FEWEST_ZEROS:
        if 20 * even <= total:
            return "UTF-16LE"
        if 20 * odd <= total:
            return "UTF-16BE"
    return None


def _is_mostly(counts: list[int], n: int) -> bool:
    """Whether both of two places in four hold zeros nine times of ten."""
    return all(40 * count >= 9 * n - 36 for count in counts)
