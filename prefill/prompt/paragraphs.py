"""A text cut into paragraphs; one that is too long into its lines, and those into sentences.

Every kind of line break counts, and so does a blank line of any blanks, or one of dashes. A block
of code between fences, or of JSON, is one piece if it is not too long: a blank line inside it
parts nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

LONGEST = 1024  # characters of a piece that is not cut any further
LONGEST_BLOCK = 4096  # of a block of code or JSON, which is a third of the text at most

# What closes a sentence after its mark: brackets, quotes, Markdown.
CLOSERS = "(?:[\\x29\\]\"'*_]|\u201d|\u2019|\u00bb|\u300d|\u300f|\uff09)*"
# A run of marks is looked at once, from its begin: from each mark on would take its square.
SENTENCE_END = f"(?<![.!?])[.!?]+{CLOSERS}(?=\\s)|(?:\u3002|\uff01|\uff1f|\u2026){CLOSERS}"

# One break; that a carriage return and a line feed are one has to hold inside of a blank line, too.
_BREAK = "(?:\\r\\n|\\n|\\r(?!\\n)|[\\x85\u2028\u2029])"
_BLANK = "[ \\t\\x0b\\x0c\xa0\u3000]*"
_RULE = f"(?:[-=*_]{{3,}}{_BLANK})?"  # a line of dashes parts what it stands between
_PARAGRAPH_BREAK = re.compile(f"{_BREAK}(?:{_BLANK}{_RULE}{_BREAK})+\\s*|\u2029\\s*")
_LINE_BREAK = re.compile(f"{_BREAK}\\s*")
# Arabic, Devanagari, Ethiopic and Armenian, beside those by which a selection is widened.
_SENTENCE_BREAK = re.compile(f"(?:{SENTENCE_END}|[\u061f\u06d4\u0964\u1362\u0589]){CLOSERS}\\s*")
_FENCE = re.compile("(?:^|(?<=[\\r\\n]))[ \\t]*(`{3,}|~{3,})")
_JSON = re.compile("(?:^|(?<=[\\r\\n]))[ \\t]*([{\\[])[ \\t]*(?=[\\r\\n]|$)")
_BRACKETS = re.compile("[{}\\[\\]]")


class Level(IntEnum):
    """What a piece of a text is."""

    PARAGRAPH = 1
    LINE = 2
    SENTENCE = 3


@dataclass(frozen=True)
class Piece:
    """A part of a text, without blanks at its ends.

    Attributes
    ----------
    start, stop : characters of the text.
    level : what it was cut out as.
    is_block : code between fences, or JSON, and nothing else.
    """

    start: int
    stop: int
    level: Level
    is_block: bool = False


def pieces_of(text: str) -> list[Piece]:
    """The pieces of a text, in order: paragraphs; lines of a paragraph of more than ``LONGEST``
    characters; sentences of a line of more than that. What has no end of a sentence stays whole."""
    blocks = _blocks(text)
    found: list[Piece] = []
    for start, stop in _cut(text, 0, len(text), _PARAGRAPH_BREAK, blocks):
        is_block = _is_block((start, stop), blocks)
        if is_block or stop - start <= LONGEST:
            found.append(Piece(start, stop, Level.PARAGRAPH, is_block))
            continue
        for line in _cut(text, start, stop, _LINE_BREAK, blocks):
            is_block = _is_block(line, blocks)
            if is_block or line[1] - line[0] <= LONGEST:
                found.append(Piece(*line, Level.LINE, is_block))
                continue
            sentences = _cut(text, *line, _SENTENCE_BREAK, (), keeps_break=True)
            found += [Piece(a, b, Level.SENTENCE) for a, b in sentences]
    return found


def sentences_of(text: str) -> list[str]:
    """The sentences of a short text; a line break ends one, too."""
    found = []
    for line in _LINE_BREAK.split(text):
        spans = _cut(line, 0, len(line), _SENTENCE_BREAK, (), keeps_break=True)
        found += [line[a:b] for a, b in spans]
    return found


def _is_block(span: tuple[int, int], blocks: Sequence[tuple[int, int]]) -> bool:
    at = bisect_left(blocks, span)
    return at < len(blocks) and blocks[at] == span


def _cut(
    text: str,
    start: int,
    stop: int,
    at: re.Pattern[str],
    blocks: Sequence[tuple[int, int]],
    *,
    keeps_break: bool = False,
) -> Iterator[tuple[int, int]]:
    """Parts of a text between breaks that are in no block, without outer blanks; none is empty."""
    begin, number = start, bisect_right(blocks, (start, start))
    for match in at.finditer(text, start, stop):
        while number < len(blocks) and blocks[number][1] <= match.start():
            number += 1
        if number < len(blocks) and blocks[number][0] < match.start():
            continue
        yield from _stripped(text, begin, match.end() if keeps_break else match.start())
        begin = match.end()
    yield from _stripped(text, begin, stop)


def _stripped(text: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
    part = text[start:stop]
    start += len(part) - len(part.lstrip())
    stop = start + len(part.strip())
    if start < stop:
        yield start, stop


def _blocks(text: str) -> list[tuple[int, int]]:
    """Blocks that are not too long to be one piece, in order and apart."""
    fences = list(_fenced(text))
    found: list[tuple[int, int]] = []
    at, longest = 0, min(LONGEST_BLOCK, max(LONGEST, len(text) // 3))
    for start, stop in [*fences, (len(text), len(text))]:
        found += _json_blocks(text, at, start, longest)
        if 0 < stop - start <= longest:
            found.append((start, stop))
        at = stop
    return found


def _fenced(text: str) -> Iterator[tuple[int, int]]:
    """Parts of a text between two fences of the same kind, and these."""
    opened = None
    for match in _FENCE.finditer(text):
        if opened is None:
            opened = match
        elif match[1].startswith(opened[1]):
            yield opened.start(1), match.end()
            opened = None


def _json_blocks(text: str, start: int, stop: int, longest: int) -> Iterator[tuple[int, int]]:
    """Parts that begin with a line of one bracket and end with the one that closes it."""
    while (opened := _JSON.search(text, start, stop)) is not None:
        first, depth = opened.start(1), 0
        start = min(first + longest, stop)
        for match in _BRACKETS.finditer(text, first, start):
            depth += 1 if match[0] in "{[" else -1
            if depth == 0:
                start = match.end()
                yield first, start
                break
