"""Values of a file, with those of a conversation that is spread over several as one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...engine.chat.messages import Json
from ..corpus.json_values import Failure
from .agents import Line, is_agent_line, is_record
from .formats import GATHERED, Gathered, is_known

TOO_LONG = Failure("a conversation over several lines that is too long")
CUT_CELLS = Failure("a row with cells that the server has cut")
# Records, such as a session's title, that may stand before its first message.
_MOST_WAITING, _MOST_CHARACTERS = 1000, 1 << 22


class _Gathering:
    """The values of one conversation, as they come."""

    def __init__(self, form: Gathered, limit: int) -> None:
        self._form = form
        self._lines: list[Line] = []
        self._values: list[Json] = []
        self._n_left = limit

    def takes(self, value: Json) -> bool:
        """Whether a value belongs to it."""
        return self._form.goes_on(value, self._values)

    def add(self, place: str, value: Json, size: int) -> bool:
        """Take a value that belongs to it; False if there is no room."""
        if self._values and not self._form.keeps(value):
            return True
        self._n_left -= size
        if self._n_left >= 0:
            self._values.append(value)
            self._lines.append(Line(place, value))
        return self._n_left >= 0

    def chats(self) -> Iterator[tuple[str, Any]]:
        """Yield what they are together, each with its place."""
        if self._form.chats is None:
            yield self._lines[0].place, self._form.joined(self._values)
            return
        for place, chat in self._form.chats(self._lines):
            yield place, Failure(chat) if isinstance(chat, str) else chat


def gathered(values: Iterator[tuple[str, Any, int]], limit: int) -> Iterator[tuple[str, Any]]:
    """Yield (place, value, Chat or Failure), several values as one where they belong together.

    Parameters
    ----------
    values : place, value or Failure, and characters of each.
    limit : characters of the values of one conversation.
    """
    found: _Gathering | None = None
    waiting = _Waiting()
    for where, value, size in _unfolded(values):
        if isinstance(value, Failure):  # what follows it may go on
            yield where, value
            continue
        is_object = isinstance(value, dict)
        if found and is_object and found.takes(value):
            if not found.add(where, value, size):
                yield where, TOO_LONG
            continue
        if found:
            yield from found.chats()
            found = None
        form = next((form for form in GATHERED if is_object and form.begins(value)), None)
        if form is None and is_record(value) and not is_known(value):
            yield from waiting.add(where, value, size)
            continue
        if form is None or not form.has_records:
            yield from waiting.strayed()
        if form is None:
            yield where, _strayed(value)
            continue
        found = _Gathering(form, limit)
        for one in (*waiting.taken(), (where, value, size)):
            found.add(*one)
    if found:
        yield from found.chats()
    yield from waiting.strayed()


class _Waiting:
    """Records that may belong to a session whose first message is still to come."""

    def __init__(self) -> None:
        self._records: list[tuple[str, Any, int]] = []
        self._n_characters = 0

    def add(self, place: str, value: Any, size: int) -> Iterator[tuple[str, Any]]:
        """Let one wait; yield them all if they are too many."""
        self._records.append((place, value, size))
        self._n_characters += size
        if len(self._records) > _MOST_WAITING or self._n_characters > _MOST_CHARACTERS:
            yield from self.strayed()

    def taken(self) -> list[tuple[str, Any, int]]:
        """All of them, and let none wait."""
        records, self._records, self._n_characters = self._records, [], 0
        return records

    def strayed(self) -> Iterator[tuple[str, Any]]:
        """Yield each as a value of its own, and let none wait."""
        for place, value, _ in self.taken():
            yield place, _strayed(value)


def _unfolded(values: Iterator[tuple[str, Any, int]]) -> Iterator[tuple[str, Any, int]]:
    """Yield the values; of those that hold several values, as a file's lines, each of them."""
    for where, value, size in values:
        inside = _inside(value) if isinstance(value, dict) else None
        if inside is None:
            yield where, value, size
            continue
        for number, one in enumerate(inside, start=1):
            yield f"{where}[{number}]", one, size // len(inside)


def _inside(value: Json) -> list[Any] | None:
    """The rows of a page of a data set, as its server gives it, the lines of an agent's session in
    a list, or the only conversation of a batch; None if the value is none of these."""
    rows, listed = value.get("rows"), value.get("messages")
    if isinstance(rows, list) and rows and all(map(_is_row, rows)):
        return [CUT_CELLS if row.get("truncated_cells") else row["row"] for row in rows]
    if not isinstance(listed, list) or not listed:
        return None
    if len(listed) == 1 and isinstance(listed[0], list):
        return [{**value, "messages": listed[0]}]
    return listed if any(map(is_agent_line, listed)) and all(map(is_record, listed)) else None


def _is_row(row: object) -> bool:
    return isinstance(row, Mapping) and "row" in row and "row_idx" in row


def _strayed(value: Any) -> Any:
    """The value, or a Failure if it is a part of a conversation whose begin is missing."""
    is_part = isinstance(value, dict) and value.get("type") == "message"
    if is_part and isinstance(value.get("message"), dict) and "messages" not in value:
        return Failure("a message before any session")
    return value
