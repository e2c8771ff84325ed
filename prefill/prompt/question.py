"""The question of a long text: what asks, wherever it stands, and what of the text may be dropped.

It is looked for at the end of the text, after thanks, signatures and words on how to answer; or
else at its beginning; or else in the middle. From what asks at the end on, everything stays. What
is not certain stays, too, and ``doubt`` says what was not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from .asking import AskingKind, answers, kind_of, marks_question, points_on
from .paragraphs import LONGEST, LONGEST_BLOCK, Level, Piece, pieces_of

# A turn up to this long is all question.
TURN_CHARACTERS = LONGEST
_TRAILS_MOST = 2048  # characters of words on how to answer, code and JSON apart
_APART_MOST = 512  # between two questions, of what asks nothing
_FRONT_MOST = 512  # of a beginning that asks, where the end asks as well
_SHORT, _LINE, _NAME = 300, 200, 60
_LOOKS_MOST = 64  # paragraphs from the end, where none of them asks

Span = tuple[int, int]


class Source(StrEnum):
    """Where a question was found."""

    GIVEN = "given"  # by name
    TURN = "turn"  # all of a short turn
    END = "end"
    BEGINNING = "beginning"
    MIDDLE = "middle"
    LAST = "last"  # nothing asks: the last paragraph
    EARLIER = "earlier"  # in the turn before, which the last one goes on with
    NONE = "none"


@dataclass(frozen=True)
class FoundQuestion:
    """A question, in characters of a text.

    Attributes
    ----------
    question : first and after the last character; what comes after it may have to stay as well.
    documents : the same of what may be dropped, ascending, apart from one another.
    source : where it was found.
    doubt : what is not certain about it; empty: nothing.
    """

    question: Span
    documents: tuple[Span, ...]
    source: Source
    doubt: str = ""


def find_question(text: str) -> FoundQuestion:
    """The question of a text, and what of the text may be dropped."""
    if len(text) <= TURN_CHARACTERS:
        return FoundQuestion((0, len(text)), (), Source.TURN)
    pieces = pieces_of(text)
    if len(pieces) < 2:
        return FoundQuestion(
            (0, len(text)), (), Source.TURN, "it has no break where it could be cut"
        )
    return _Search(text, pieces).found()


def named_question(text: str, question: str) -> FoundQuestion | None:
    """The last place of a given question in a text, however its words are spaced; None: nowhere.

    What follows it stays, if that is short or says how to answer.
    """
    words = re.compile(r"\s+".join(map(re.escape, question.split())))
    places = [match.span() for match in words.finditer(text)]
    if not places or not question.strip():
        return None
    start, stop = places[-1]
    if len(text) <= TURN_CHARACTERS:
        return FoundQuestion((start, stop), (), Source.GIVEN)
    search = _Search(text, pieces_of(text))
    end = stop if len(text) - stop <= TURN_CHARACTERS else search.end_that_stays()
    top = min(search.begin_that_stays(), start)
    return FoundQuestion((start, stop), _spans((top, start), (stop, max(stop, end))), Source.GIVEN)


def _spans(*spans: Span) -> tuple[Span, ...]:
    return tuple(span for span in spans if span[0] < span[1])


class _Search:
    """The search in the pieces of one text."""

    def __init__(self, text: str, pieces: list[Piece]) -> None:
        self._text, self._pieces = text, pieces
        self._kinds: dict[int, AskingKind] = {}

    def found(self) -> FoundQuestion:
        """The question by the first rule that finds one."""
        end, front = self._end(), self._front()
        if end is None and front is None:
            return self._middle() or self._last()
        if end is None:
            assert front is not None
            return self._of_front(front, self.end_that_stays())
        asks, is_clear = end
        first = self._first_question(asks)
        begin = self._pieces[first].start
        if front is not None and (not is_clear or self._points_on(front, asks)):
            doubt = "both its beginning and its end may ask; both stay"
            return self._of_front(front, begin, doubt)
        last = asks if is_clear else self._last_of(AskingKind.SAYS)
        doubt = "" if is_clear else "what comes after the question may ask as well; it stays"
        top = self._n_top()
        if front is not None and self._pieces[front[2]].stop <= _FRONT_MOST:
            top = max(top, front[2] + 1)
        return FoundQuestion(
            (begin, self._pieces[last].stop), self._dropped(top, first), Source.END, doubt
        )

    def begin_that_stays(self) -> int:
        """Characters of the beginning that stay: it often says what to do with the rest."""
        top = self._n_top()
        return self._pieces[top].start if 0 < top < len(self._pieces) else 0

    def end_that_stays(self) -> int:
        """Where words on how to answer, thanks and the like begin that end the text."""
        number, n_trails = len(self._pieces), 0
        while number > 1:
            piece = self._pieces[number - 1]
            n_trails += 0 if piece.is_block else piece.stop - piece.start
            is_query = self._is_query(number - 1) and number == len(self._pieces)
            if n_trails > _TRAILS_MOST or not (
                is_query or self._kind(number - 1) in (AskingKind.TRAILS, AskingKind.HEADS)
            ):
                break
            number -= 1
        stop = len(self._text)
        return self._pieces[number].start if number < len(self._pieces) else stop

    # ---- by place

    def _end(self) -> tuple[int, bool] | None:
        """The last piece that asks, if it is near the end, and whether all after it is what one
        would expect there."""
        n_says = n_trails = 0
        is_clear = True
        for number in range(len(self._pieces) - 1, -1, -1):
            piece, kind = self._pieces[number], self._kind(number)
            n = piece.stop - piece.start
            if kind in (AskingKind.ASKS, AskingKind.REQUESTS):
                return (number, is_clear) if number or is_clear else None
            if kind is AskingKind.SAYS:
                n_says += n
                is_clear = is_clear and n <= _NAME and piece.level is not Level.SENTENCE
            elif not piece.is_block:
                n_trails += n
            if n_says > TURN_CHARACTERS or n_trails > _TRAILS_MOST:
                break
            if len(self._text) - piece.start > 2 * LONGEST_BLOCK:
                break
        return None

    def _first_question(self, last: int) -> int:
        """The first of the pieces that ask together with a last one."""
        pieces, level = self._pieces, self._pieces[last].level
        first, says, has_crossed = last, 0, False
        for number in range(last - 1, -1, -1):
            piece, kind = pieces[number], self._kind(number)
            if piece.level is not level or pieces[last].stop - piece.start > TURN_CHARACTERS:
                break
            n = piece.stop - piece.start
            if kind in (AskingKind.ASKS, AskingKind.REQUESTS, AskingKind.HEADS):
                if not says or (kind is AskingKind.ASKS and n <= _SHORT):
                    first = number
                if says and (has_crossed or first != number):
                    break
                says, has_crossed = 0, has_crossed or says > 0
            elif kind is AskingKind.TRAILS:
                first = number if number == first - 1 and n <= _LINE and not says else first
            else:
                says += n
                is_note = n <= _LINE and level is Level.PARAGRAPH
                if not is_note or says > _APART_MOST or answers(self._shown(number)):
                    break
        return first

    def _front(self) -> tuple[int, int, int] | None:
        """First and last piece that asks at the beginning, and the last that belongs to them."""
        asks = (AskingKind.ASKS, AskingKind.REQUESTS)
        first = 0
        while first < min(4, len(self._pieces)) and self._kind(first) not in asks:
            first += 1
        if first == min(4, len(self._pieces)) or self._pieces[first].stop > TURN_CHARACTERS:
            return None
        last = stays = first
        for number in range(first + 1, len(self._pieces) - 1):
            kind = self._kind(number)
            if self._pieces[number].stop > TURN_CHARACTERS or kind not in (
                *asks,
                AskingKind.TRAILS,
            ):
                break
            stays, last = number, number if kind in asks else last
        return first, last, stays

    def _points_on(self, front: tuple[int, int, int], end: int) -> bool:
        """Whether the beginning asks about what follows, and the end has no question mark."""
        if self._kind(end) is AskingKind.ASKS or front[1] >= end:
            return False
        return points_on(self._shown(front[1]))

    def _of_front(self, front: tuple[int, int, int], end: int, doubt: str = "") -> FoundQuestion:
        """A question at the beginning; what begins at a character stays."""
        first, last, stays = front
        begin = self._pieces[stays + 1].start if stays + 1 < len(self._pieces) else end
        question = self._pieces[first].start, self._pieces[last].stop
        return FoundQuestion(question, _spans((begin, end)), Source.BEGINNING, doubt)

    def _middle(self) -> FoundQuestion | None:
        """The only piece that ends as a question, or the last that is called one."""
        candidates = [
            number
            for number in range(1, len(self._pieces) - 1)
            if self._length(number) <= _SHORT and marks_question(self._shown(number))
        ]
        named = [number for number in candidates if marks_question(self._shown(number), named=True)]
        if not named and len(candidates) != 1:
            return None
        number = (named or candidates)[-1]
        last = len(self._pieces) - 1
        end = self._pieces[last].start if self._length(last) <= _SHORT else len(self._text)
        before = self._dropped(self._n_top(), number)
        behind = _spans((self._pieces[number + 1].start, end))
        question = self._pieces[number].start, self._pieces[number].stop
        doubt = "only one paragraph in the middle asks"
        return FoundQuestion(question, before + behind, Source.MIDDLE, doubt)

    def _last(self) -> FoundQuestion:
        """Nothing asks: what stands last, thanks left out."""
        number = self._last_of(AskingKind.SAYS)
        last = len(self._pieces) - 1
        if number < last and self._length(number) > _LINE:
            number += 1  # how to answer is all that is asked for
        stop = self._pieces[number if self._is_query(number) else last].stop
        return FoundQuestion(
            (self._pieces[number].start, stop),
            self._dropped(self._n_top(), number),
            Source.LAST,
            "nothing in it asks; what stands last is taken",
        )

    # ---- of pieces

    def _n_top(self) -> int:
        """1 if the first piece has to stay, or else 0."""
        piece = self._pieces[0]
        n = piece.stop - piece.start
        if piece.level is Level.PARAGRAPH:
            return int(n <= TURN_CHARACTERS)
        if piece.level is Level.LINE and n <= _LINE:
            return 1
        return int(self._kind(0) is not AskingKind.SAYS)

    def _dropped(self, top: int, first: int) -> tuple[Span, ...]:
        """What may be dropped between the first pieces and one that has to stay."""
        if top >= first:
            return ()
        start = self._pieces[top].start if top else 0
        return _spans((start, self._pieces[first - 1].stop))

    def _last_of(self, kind: AskingKind) -> int:
        """The last piece of a kind, near the end; the last one of all if there is none."""
        n = len(self._pieces)
        for number in range(n - 1, max(-1, n - 1 - _LOOKS_MOST), -1):
            if self._kind(number) is kind:
                return number
        return n - 1

    def _is_query(self, number: int) -> bool:
        """Whether a piece is short and no sentence: "code of the vault"."""
        shown = self._shown(number)
        return (
            len(shown) <= _LINE
            and shown[-1] not in ".!\u3002\uff01"
            and self._kind(number) is AskingKind.SAYS
        )

    def _kind(self, number: int) -> AskingKind:
        """What a piece is; what stands after the word "Question:" asks."""
        kind = self._own_kind(number)
        if kind is AskingKind.SAYS and number and self._own_kind(number - 1) is AskingKind.HEADS:
            return AskingKind.ASKS
        return kind

    def _own_kind(self, number: int) -> AskingKind:
        if number not in self._kinds:
            is_block = self._pieces[number].is_block
            self._kinds[number] = kind_of(self._shown(number), is_block=is_block)
        return self._kinds[number]

    def _length(self, number: int) -> int:
        return self._pieces[number].stop - self._pieces[number].start

    def _shown(self, number: int) -> str:
        """A piece's text; of a very long one its end, where a question would be."""
        piece = self._pieces[number]
        return self._text[max(piece.start, piece.stop - LONGEST_BLOCK) : piece.stop]
