"""The JSON values of a file: one a line, or the file as a whole, a list's values one by one.

No more is in memory than a block, or the line or value that is read. What is no JSON is told as
such; after a bad line the next one is read, after a bad value in a whole file nothing is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ...engine.chat.messages import is_message
from ...engine.json_text import mended
from .decode import MOST_VALUES, is_too_much, repair_utf8

_DECODER = json.JSONDecoder()
_BLANKS = re.compile(r"[ \t\r\n]*")
_SEPARATORS = re.compile(r"[ \t\r\n,]*")
# Lines of server-sent events beside those with data.
_FRAME = re.compile(
    r"event: ?[\w.]{1,64}|id: ?\w{1,64}|retry: ?\d{1,9}|:[\w .,:-]{0,64}|data: ?\[DONE\]"
)
# What an unfinished value may end with: \u12, or -Infinit.
_LONGEST_UNFINISHED = 16
_KEPT = 1 << 20
_MOST_ADDED = 1 << 26


class Failure(NamedTuple):
    """Why there is no value; a fixed text."""

    reason: str


NOT_JSON = Failure("not JSON")
TOO_DEEP = Failure("values nested too deeply")
TOO_MANY = Failure(f"more than {MOST_VALUES} values")


def json_values(
    blocks: Iterator[bytes],
    limit: int,
    on_replaced: Callable[[int], None],
    *,
    lists_texts: bool = False,
) -> Iterator[tuple[str, Any, int]]:
    """Yield (":line" or "[number]", both from 1 on; value or Failure; characters of its text).

    Blank lines are passed over; a line that is a list of several conversations yields each.

    Parameters
    ----------
    limit : characters of the longest line or value.
    on_replaced : gets the number of invalid UTF-8 sequences that were replaced by U+FFFD.
    lists_texts : a file may be a list of texts, or of messages, too.
    """
    text = _Text(blocks, limit, on_replaced, lists_texts)
    if text.is_whole():
        for number, (value, size) in enumerate(text.values(), start=1):
            yield f"[{number}]", value, size
        return
    for number, line in enumerate(text.lines(), start=1):
        if line is None:
            yield f":{number}", text.too_long, limit
        elif line.strip() and not _FRAME.fullmatch(line.strip()):
            yield from _values_of_line(f":{number}", line.removeprefix("data:"))


def _values_of_line(place: str, line: str) -> Iterator[tuple[str, Any, int]]:
    value = parsed(line)
    if not isinstance(value, list) or not value or not _is_list_of_chats(value[0]):
        yield place, value, len(line)
        return
    for number, one in enumerate(value, start=1):
        yield f"{place}[{number}]", one, len(line) // len(value)


def parsed(text: str) -> Any:
    """The value that a text is, or a Failure; halves of surrogate pairs become U+FFFD."""
    if is_too_much(text):
        return TOO_MANY
    try:
        return mended(json.loads(text), text)
    except RecursionError:
        return TOO_DEEP
    except ValueError:  # numbers of too many digits, too
        return NOT_JSON


class _Text:
    """The text of a file, read as it is looked at."""

    def __init__(
        self,
        blocks: Iterator[bytes],
        limit: int,
        on_replaced: Callable[[int], None],
        lists_texts: bool,
    ) -> None:
        self._lists_texts = lists_texts
        self.too_long = Failure(f"longer than {limit} characters")
        self._limit = limit
        self._blocks = repair_utf8(blocks, on_replaced)
        self._held = next(self._blocks, b"").decode().removeprefix("\ufeff")
        self._at = 0  # what stands before is done with

    def is_whole(self) -> bool:
        """Whether the file is JSON as a whole, and not one value a line.

        It is if it begins with a list of several conversations, or if its first line is no value
        and more of it is.
        """
        start = self._skip(_BLANKS, 0)
        if self._held[start : start + 1] == "[":
            first = self._first_of_list(start)
            if self._is_list(first):
                return True
        elif self._held[start : start + 1] != "{":
            return False
        end = self._line_end(start)
        if end is not None and parsed(self._held[start:end]) != NOT_JSON:
            return False
        return not isinstance(self._scan(start)[0], Failure)

    def lines(self) -> Iterator[str | None]:
        """Yield each line; None for one that is too long."""
        while True:
            self._forget()
            end = self._line_end(self._at)
            if end is None:
                yield None
                end = self._skip_line()
            else:
                yield self._held[self._at : end]
            if end == len(self._held):
                return
            self._at = end + 1

    def values(self) -> Iterator[tuple[Any, int]]:
        """Yield each value of the whole file, or of the lists that it consists of, and its size.

        Nothing is read after a Failure.
        """
        is_in_list = False
        while True:
            self._forget()
            self._at = self._skip(_SEPARATORS if is_in_list else _BLANKS, self._at)
            begin = self._held[self._at : self._at + 1]
            if not begin and not is_in_list:
                return
            if begin == "]" and is_in_list:
                is_in_list = False
                self._at += 1
                continue
            if begin == "[" and not is_in_list and self._is_list(self._first_of_list(self._at)):
                is_in_list = True
                self._at += 1
                continue
            value, end = self._scan(self._at)
            yield value, end - self._at
            if isinstance(value, Failure):
                return
            self._at = end

    def _is_list(self, first: object) -> bool:
        """Whether a list that begins with this value is read one by one."""
        if self._lists_texts:
            return isinstance(first, dict | list | str)
        return _is_list_of_chats(first)

    def _first_of_list(self, start: int) -> Any:
        """The first value of the list that begins there, or a Failure."""
        return self._scan(self._skip(_BLANKS, start + 1))[0]

    def _scan(self, start: int) -> tuple[Any, int]:
        """The value that begins there, or a Failure; and its end."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self._held, start)
                return mended(value, self._held[start:end]), end
            except RecursionError:
                return TOO_DEEP, start
            except json.JSONDecodeError as error:
                is_unfinished = error.pos > len(
                    self._held
                ) - _LONGEST_UNFINISHED or error.msg.startswith("Unterminated")
            except ValueError:
                is_unfinished = False
            if is_unfinished and len(self._held) - start > self._limit:
                return self.too_long, start
            if not is_unfinished or not self._grow():
                return NOT_JSON, start
            if is_too_much(self._held[start:]):
                return TOO_MANY, start

    def _skip(self, pattern: re.Pattern[str], start: int) -> int:
        """The first place from ``start`` on where the pattern does not go on, or the limit."""
        while True:
            match = pattern.match(self._held, start)
            assert match is not None
            end = match.end()
            if end < len(self._held) or end - self._at > self._limit or not self._grow():
                return end

    def _line_end(self, start: int) -> int | None:
        """Where the line ends that begins there; None: it is too long."""
        searched = start
        while (end := self._held.find("\n", searched)) < 0:
            searched = len(self._held)
            if searched - start > self._limit:
                return None
            if not self._grow():
                return searched
        return end if end - start <= self._limit else None

    def _skip_line(self) -> int:
        """Go on to the end of a line that is too long to be held."""
        while (end := self._held.find("\n", self._at)) < 0:
            self._at = len(self._held)
            self._forget()
            if not self._grow():
                return len(self._held)
        return end

    def _forget(self) -> None:
        """Hold what is done with no longer, once that is most of it."""
        if 2 * self._at > len(self._held) and self._at > _KEPT:
            self._held = self._held[self._at :]
            self._at = 0

    def _grow(self) -> bool:
        """Hold more, twice as much if it is much already; False: there is no more."""
        added, n = [], 0
        for block in self._blocks:
            added.append(block.decode())
            n += len(added[-1])
            if n >= min(len(self._held), _MOST_ADDED):
                break
        self._held += "".join(added)
        return n > 0


def _is_list_of_chats(first: object) -> bool:
    """Whether a list that begins with this value holds several conversations, and is not one."""
    return isinstance(first, dict | list) and not is_message(first)
