"""The question of a conversation, and what of its messages may be dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...engine.errors import UsageError
from .asking import continues, refers_back
from .question import FoundQuestion, Source, find_question, named_question
from .turns import Turn

_SEPARATOR = "\n\n"  # between the texts of one message
_APART_MOST = 1024  # characters between two turns that are one question
_EARLIER_MOST = 8  # messages of the user that are looked at
_ANSWER_END = 512  # characters of the last answer, where the user asks to go on with it

Span = tuple[int, int]


@dataclass(frozen=True)
class AskedTurns:
    """What a conversation asks, in characters of its rendered text.

    Attributes
    ----------
    question : first and after the last character.
    documents : the same of what may be dropped.
    source : where the question was found.
    doubt : what is not certain about it, or "".
    unplaced : messages that could be dropped if they stood in the text as they are.
    lost : the message of the question, if it is one of those; nothing else is known then.
    """

    question: Span
    documents: tuple[Span, ...]
    source: Source
    doubt: str = ""
    unplaced: tuple[Turn, ...] = ()
    lost: Turn | None = None


def find_asked(turns: Sequence[Turn], question: str | None = None) -> AskedTurns | None:
    """What the user asks; None: no user says anything.

    Parameters
    ----------
    turns : the texts of all messages, in order.
    question : words of the user that are the question; None: they are to be found.

    Raises
    ------
    UsageError : the user does not say ``question``.
    """
    said = _said(turns)
    if not said:
        return None
    last = max(said)
    if question is not None:
        asking = _who_says(said, question)
        kept = {number: find_question(said[number].text) for number in said if number > asking}
        kept[asking] = found = named_question(said[asking].text, question) or FoundQuestion(
            (0, 0), (), Source.GIVEN
        )
        source = found.source
    else:
        kept = _kept(said, last)
        earlier = min(kept)
        asking = earlier if continues(said[last].text) else last
        source = kept[last].source if earlier == last else Source.EARLIER
    if (lost := said[asking].lost(kept[asking].question)) is not None:
        return AskedTurns((0, 0), (), Source.NONE, lost=lost)
    asked = said[asking].place(kept[asking].question)
    if question is None and asking == last:
        asked = _with_earlier(asked, said, kept)
    documents = [
        place
        for number in kept
        for span in kept[number].documents
        for place in said[number].places(span)
    ]
    goes_on = question is None and asking != last
    documents += _other_documents(turns, kept, last, _ANSWER_END if goes_on else 0)
    unplaced = [
        turn
        for turn in turns
        if not turn.is_found and (turn.message in kept or turn.may_drop(last))
    ]
    return AskedTurns(
        asked,
        tuple(_outside(documents, asked)),
        source,
        kept[asking].doubt,
        tuple(unplaced),
    )


def _kept(said: dict[int, _Said], last: int) -> dict[int, FoundQuestion]:
    """The last message of the user, and those before it that it goes on with, each searched."""
    kept = {}
    for number in sorted(said, reverse=True)[:_EARLIER_MOST]:
        text = said[number].text
        kept[number] = find_question(text)
        if not (continues(text) or refers_back(text)):
            break
    return kept


def _who_says(said: dict[int, _Said], question: str) -> int:
    """The last message with these words.

    Raises
    ------
    UsageError : there is none.
    """
    for number in sorted(said, reverse=True):
        if named_question(said[number].text, question) is not None:
            return number
    shown = question if len(question) <= 60 else f"{question[:60]}..."
    raise UsageError(
        f"--question {shown!r}: the user says no such words",
        remedy="give words as the prompt has them, or leave it out",
    )


def _with_earlier(asked: Span, said: dict[int, _Said], kept: dict[int, FoundQuestion]) -> Span:
    """A question with the one that it refers to, if they are near each other."""
    first = min(kept)
    if said[first].lost(kept[first].question) is None:
        before = said[first].place(kept[first].question)
        if before[0] < asked[0] and asked[0] - before[1] <= _APART_MOST:
            return before[0], asked[1]
    return asked


def _other_documents(
    turns: Sequence[Turn], kept: dict[int, FoundQuestion], last: int, answer_end: int
) -> list[Span]:
    """Places of the messages that may be dropped as a whole; ``answer_end`` characters of the
    last answer before the user's last message stay."""
    found = []
    answers = [turn.message for turn in turns if turn.role == "assistant" and turn.message < last]
    for turn in turns:
        if turn.message in kept or not turn.is_found or not turn.may_drop(last):
            continue
        n_stay = answer_end if answers and turn.message == answers[-1] else 0
        found.append(turn.place(0, max(0, len(turn.text) - n_stay)))
    return found


def _outside(documents: Sequence[Span], question: Span) -> list[Span]:
    """Those parts that the question does not reach into."""
    return [
        span
        for span in documents
        if span[0] < span[1] and (span[1] <= question[0] or span[0] >= question[1])
    ]


def _said(turns: Sequence[Turn]) -> dict[int, _Said]:
    """What the user says, by message, in order."""
    by_message: dict[int, list[Turn]] = {}
    for turn in turns:
        if turn.role == "user":
            by_message.setdefault(turn.message, []).append(turn)
    return {number: _Said(texts) for number, texts in by_message.items()}


class _Said:
    """The texts of one message as one text, and places of that in the rendered one."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.text = _SEPARATOR.join(turn.text for turn in turns)
        self._turns: list[tuple[int, Turn]] = []
        at = 0
        for turn in turns:
            self._turns.append((at, turn))
            at += len(turn.text) + len(_SEPARATOR)

    def lost(self, span: Span) -> Turn | None:
        """The first of the texts with a part in a span that is not found; None: all are."""
        return next((turn for _, turn, _ in self._parts(span) if not turn.is_found), None)

    def place(self, span: Span) -> Span:
        """Characters of the rendered text from a span's first to its last; all are found."""
        places = self.places(span)
        return (places[0][0], places[-1][1]) if places else (0, 0)

    def places(self, span: Span) -> list[Span]:
        """Characters of the rendered text for each part of a span that is found."""
        return [turn.place(*part) for _, turn, part in self._parts(span) if turn.is_found]

    def _parts(self, span: Span) -> list[tuple[int, Turn, Span]]:
        """The texts that share a character with a span, and which of their characters."""
        found = []
        for at, turn in self._turns:
            start, stop = max(0, span[0] - at), min(len(turn.text), span[1] - at)
            if start < stop:
                found.append((at, turn, (start, stop)))
        return found
