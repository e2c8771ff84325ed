"""Where in the text of a rendered conversation each message stands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...engine.chat.template import ChatTemplate
from ...engine.errors import ChatTemplateUnusable

_DROPPABLE = ("user", "assistant", "tool", "function")
_TOOLS = ("tool", "function")
_SURE = 32  # characters that are in one place by no accident
_LOOKS_MOST = 1 << 31  # characters that are looked at, turn by turn

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    """One text of a message; a message may have several.

    Attributes
    ----------
    message : its place in the conversation.
    role : who said it.
    text : as the message has it.
    start : where in the rendered text ``text`` begins, or would begin if its outer blanks had not
        been cut off; None if it is not to be found.
    """

    message: int
    role: str
    text: str
    start: int | None = None

    @property
    def is_found(self) -> bool:
        return self.start is not None

    def place(self, start: int, stop: int) -> tuple[int, int]:
        """Characters of the rendered text that ``text[start:stop]`` is, without outer blanks."""
        assert self.start is not None
        first, last = _lead(self.text), len(self.text.rstrip())
        start, stop = min(max(start, first), last), min(stop, last)
        return self.start + start, self.start + max(start, stop)

    def may_drop(self, last_user: int) -> bool:
        """Whether it is older than the last user turn, or what a tool answered to it."""
        if self.message > last_user:
            return self.role in _TOOLS
        return self.role in _DROPPABLE and self.message < last_user


def find_turns(
    text: str, messages: Sequence[Message], template: ChatTemplate, values: Mapping[str, Any]
) -> list[Turn]:
    """The texts of all messages, in order, with their places in the rendered text.

    A text that stands there once, between those before and after it, is where it has to be. Else
    the conversation is rendered again with a mark for each text, which takes another 0.1 s, and
    what stands around the marks tells the places.
    """
    turns = list(_turns(messages))
    found = _find_all(text, turns) if len(turns) * len(text) <= _LOOKS_MOST else None
    if found is not None:
        return found
    try:
        marks = _marks(text, len(turns))
        marked = template.render(_with_texts(messages, iter(marks)), **values)
    except ChatTemplateUnusable:  # it looks into the texts, and a mark is none that it knows
        return turns
    return _find_between(text, turns, marked, marks)


def _turns(messages: Sequence[Message]) -> Iterator[Turn]:
    for number, message in enumerate(messages):
        for text in _texts(message):
            if text.strip():
                yield Turn(number, str(message.get("role", "")), text)


def _texts(message: Message) -> list[str]:
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if _is_text(part)]


def _is_text(part: object) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)


def _with_texts(messages: Sequence[Message], texts: Iterator[str]) -> list[dict[str, Any]]:
    """The messages with other texts, where theirs are not blank."""

    def other(text: str) -> str:
        return next(texts) if text.strip() else text

    changed = []
    for message in messages:
        copy = dict(message)
        content = message.get("content")
        if isinstance(content, str):
            copy["content"] = other(content)
        elif isinstance(content, list):
            copy["content"] = [
                {**part, "text": other(part["text"])} if _is_text(part) else part
                for part in content
            ]
        changed.append(copy)
    return changed


def _lead(text: str) -> int:
    """Blanks that a text begins with."""
    return len(text) - len(text.lstrip())


def _find_all(text: str, turns: Sequence[Turn]) -> list[Turn] | None:
    """The turns where each stands once, in order and apart; None if that is not so."""
    found, stop = [], 0
    for turn in turns:
        wanted = turn.text.strip()
        at = text.find(wanted)
        if at < stop or text.find(wanted, at + 1) >= 0:
            return None
        found.append(replace(turn, start=at - _lead(turn.text)))
        stop = at + len(wanted)
    return found


def _marks(text: str, n: int) -> list[str]:
    """A word for each text that is nowhere else."""
    salt = 0
    while f"mark{salt}x" in text:
        salt += 1
    return [f"mark{salt}x{number}y" for number in range(n)]


def _find_between(
    text: str, turns: Sequence[Turn], marked: str, marks: Sequence[str]
) -> list[Turn]:
    """The turns by what the template put around marks in their stead.

    From the text's beginning on as far as all is shown as it is, then from its end back. Between a
    first and a last turn that the template changed, those count that stand there once. Of a turn
    that is shown twice, the last place counts.
    """
    found = list(turns)
    number_of = {mark: number for number, mark in enumerate(marks)}
    pieces = re.split(f"({'|'.join(map(re.escape, marks))})", marked) if marks else [marked]
    numbers = [number_of[mark] for mark in pieces[1::2]]
    fixed = pieces[0::2]  # before the first turn, between two of them, after the last one
    if not numbers or not text.startswith(fixed[0]) or not text.endswith(fixed[-1]):
        return found
    start, stop = len(fixed[0]), len(text) - len(fixed[-1])
    first, last = 0, len(numbers)
    while first < last:
        is_last = first == len(numbers) - 1
        shown = _shown_as(turns[numbers[first]].text, text, start, fixed[first + 1], is_last)
        if shown is None:
            break
        if shown[1]:
            found[numbers[first]] = _placed(turns[numbers[first]], shown[0], start)
        start += len(shown[0]) + len(fixed[first + 1]) * (not is_last)
        first += 1
    if first == last:
        return found if start == stop else list(turns)
    while first < last - 1:
        turn = turns[numbers[last - 1]]
        shown_before = _shown_before(turn.text, text, start, stop, fixed[last - 1])
        if shown_before is None:
            break
        found[numbers[last - 1]] = _placed(turn, shown_before, stop - len(shown_before))
        stop -= len(shown_before) + len(fixed[last - 1])
        last -= 1
    # Where only what follows a text differs, it stands where it has to all the same.
    for shown_first in _trims(turns[numbers[first]].text):
        if len(shown_first) >= _SURE and text.startswith(shown_first, start, stop):
            found[numbers[first]] = _placed(turns[numbers[first]], shown_first, start)
            start += len(shown_first)
            break
    if (last - first) * len(text) > _LOOKS_MOST:
        return found
    for number in range(first + 1, last - 1):
        turn = turns[numbers[number]]
        around = fixed[number] + turn.text.strip() + fixed[number + 1]
        at = text.find(around, start, stop)
        if at >= 0 and text.find(around, at + 1, stop) < 0:
            start = at + len(fixed[number])
            found[numbers[number]] = _placed(turn, turn.text.strip(), start)
    return found


def _placed(turn: Turn, shown: str, at: int) -> Turn:
    """A turn that is shown like that at a place."""
    return replace(turn, start=at + _lead(shown) - _lead(turn.text))


def _trims(wanted: str) -> tuple[str, ...]:
    """How a template may show a text as it is: whole, or with outer blanks cut off."""
    return wanted, wanted.strip(), wanted.rstrip(), wanted.lstrip()


def _shown_as(
    wanted: str, text: str, at: int, behind: str, is_last: bool
) -> tuple[str, bool] | None:
    """How a template shows a text at a place, and whether as it is; None: in no known way."""

    def fits(shown: str) -> bool:
        end = at + len(shown)
        if is_last and end + len(behind) != len(text):
            return False
        return text.startswith(shown, at) and text.startswith(behind, end)

    for shown in _trims(wanted):
        if fits(shown):
            return shown, True
    for shown in map(_as_json, _trims(wanted)):
        if fits(shown):
            return shown, False
    return None


def _shown_before(wanted: str, text: str, start: int, stop: int, before: str) -> str | None:
    """How a template shows a text as it is that ends at a place; None: it does not."""
    for shown in _trims(wanted):
        begin = stop - len(shown) - len(before)
        if begin >= start and text.endswith(before + shown, begin, stop):
            return shown
    return None


def _as_json(text: str) -> str:
    """A text as Jinja's ``tojson`` writes it in a template of llama.cpp's: escaped, without quotes.

    It is the same text to the model, but its places are others, so that it is not cut.
    """
    return json.dumps(text, ensure_ascii=False)[1:-1]
