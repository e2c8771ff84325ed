"""Where in the text of a rendered conversation each message stands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..engine.chat import ChatTemplate
from ..engine.errors import ChatTemplateUnusable

_DROPPABLE = ("user", "assistant", "tool", "function")
_TOOLS = ("tool", "function")

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

    A text that stands there once, between those before and behind it, is where it has to be. Else
    the conversation is rendered again with a mark for each text, which takes another 0.1 s, and
    what stands around the marks tells the places.
    """
    turns = list(_turns(messages))
    found = _find_all(text, turns)
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

    If anything differs, none is found. Of a turn that is shown twice, the last place counts.
    """
    found = list(turns)
    if not marks:
        return found
    number_of = {mark: number for number, mark in enumerate(marks)}
    pieces = re.split(f"({'|'.join(map(re.escape, marks))})", marked)
    if not text.startswith(pieces[0]):
        return found
    at = len(pieces[0])
    for mark, behind in zip(pieces[1::2], pieces[2::2], strict=True):
        number = number_of[mark]
        turn = turns[number]
        shown = _shown_as(turn.text, text, at, behind)
        if shown is None:
            return list(turns)
        found[number] = replace(turn, start=at + _lead(shown) - _lead(turn.text))
        at += len(shown) + len(behind)
    return found if at == len(text) else list(turns)


def _shown_as(wanted: str, text: str, at: int, behind: str) -> str | None:
    """How a template shows a text: whole, or with the blanks at one or both ends cut off."""
    for shown in (wanted, wanted.strip(), wanted.rstrip(), wanted.lstrip()):
        if text.startswith(shown, at) and text.startswith(behind, at + len(shown)):
            return shown
    return None
