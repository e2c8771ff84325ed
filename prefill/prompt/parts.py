"""A prompt in its parts: the question, what of it may be dropped, and what has to stay.

What may be dropped is the document, or what was said before the last question: never a word of
the system, a tool's definition, the template's own text or the question. Where each message
stands is found in the rendered text, so it does not matter how a template words a conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine.chat.template import ChatTemplate
from ...engine.tokens.detokenise import token_piece
from ...engine.tokens.tokenizer import Tokenizer
from .document import SEPARATOR, document_messages
from .question import Source
from .question_turns import find_asked
from .spans import TokenSpans
from .turns import Message, Turn, find_turns

CHUNK = 32  # tokens

Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class PromptParts:
    """A prompt as token ids, and which of them are what.

    Attributes
    ----------
    ids : int32 [n].
    question : first and after the last token of the question; equal if there is none.
    document : the same of each part that may be dropped, ascending, apart from one another and
        from the question. All else is mandatory.
    spans : where in the prompt's text each token stands; None if there is no text.
    problem : why it is not known what may be dropped, or "".
    question_text : the question, without what its first and last token hold besides.
    source : where the question was found.
    doubt : what is not certain about that, or "".
    unplaced : messages that stay whole, for the template shows another text than theirs.
    """

    ids: NDArray[np.int32]
    question: Span
    document: tuple[Span, ...]
    spans: TokenSpans | None = None
    problem: str = ""
    question_text: str = ""
    source: Source = Source.GIVEN
    doubt: str = ""
    unplaced: tuple[str, ...] = ()

    @classmethod
    def of_document(
        cls,
        document: str,
        question: str,
        tokenizer: Tokenizer,
        template: ChatTemplate | None = None,
        *,
        system: str | None = None,
    ) -> PromptParts:
        """One user turn of a document, a blank line and a question; raw without a template.

        Raises
        ------
        InputMalformed, ChatTemplateUnusable : see ``Tokenizer.encode``, ``ChatTemplate.render``.
        ModelUnsupported : see ``TokenSpans.of``.
        """
        content = f"{document}{SEPARATOR}{question}"
        cut = (len(document), len(document) + len(SEPARATOR))
        if template is None:
            spans = [(0, cut[0])], (cut[1], len(content))
            parts = _parts(content, tokenizer.encode(content), tokenizer, *spans)
            return replace(parts, question_text=question)
        messages = document_messages(content, system)
        text = template.render(messages)
        ids = template.encode(text, tokenizer)
        turns = [turn for turn in find_turns(text, messages, template, {}) if turn.role == "user"]
        if not turns:  # neither document nor question
            return _parts(text, ids, tokenizer, [], (0, 0))
        if not turns[0].is_found:
            return cls(ids, (0, 0), (), None, _lost(turns[0]), source=Source.NONE)
        documents, asked = [turns[0].place(0, cut[0])], turns[0].place(cut[1], len(content))
        return replace(_parts(text, ids, tokenizer, documents, asked), question_text=question)

    @classmethod
    def of_messages(
        cls,
        messages: Sequence[Message],
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        question: str | None = None,
        **values: Any,
    ) -> PromptParts:
        """A conversation; the question is in its last user turn, wherever that asks.

        What the user, the assistant and tools said before that turn may be dropped, and what
        tools said after it; of a long last turn what ``question.find_question`` says. A last turn
        that only goes on with what was asked before ("continue") keeps that question, too.

        Parameters
        ----------
        question : words of the user that are the question, if it is known.
        values : further variables of the template, such as ``tools``; they are not dropped.

        Raises
        ------
        InputMalformed, ChatTemplateUnusable : see ``Tokenizer.encode``, ``ChatTemplate.render``.
        ModelUnsupported : see ``TokenSpans.of``.
        UsageError : the user does not say ``question``.
        """
        text = template.render(messages, **values)
        ids = template.encode(text, tokenizer)
        turns = find_turns(text, messages, template, values)
        asked = find_asked(turns, question)
        if asked is None:
            problem = "the conversation has no turn of a user"
            return cls(ids, (0, 0), (), None, problem, source=Source.NONE)
        if asked.lost is not None:
            return cls(ids, (0, 0), (), None, _lost(asked.lost), source=Source.NONE)
        parts = _parts(text, ids, tokenizer, asked.documents, asked.question)
        return replace(
            parts,
            question_text=text[slice(*asked.question)],
            source=asked.source,
            doubt=asked.doubt,
            unplaced=tuple(map(_named, asked.unplaced)),
        )

    def retokenised(self, tokenizer: Tokenizer) -> PromptParts:
        """The same text and the same parts of it in another tokenizer's ids.

        Raises
        ------
        ModelUnsupported : see ``TokenSpans.of``.
        """
        spans = self.spans
        if spans is None:
            raise ValueError("ids without a text have no other ids")
        text = spans.text
        bos = (
            b"" if tokenizer.bos_id is None else token_piece(tokenizer.vocabulary, tokenizer.bos_id)
        )
        ids = tokenizer.encode(text.removeprefix(bos) if tokenizer.add_bos else text)
        documents = [spans.bytes_of(np.arange(*span, dtype=np.int32)) for span in self.document]
        asked = spans.bytes_of(np.arange(*self.question, dtype=np.int32), whole=False)
        return _parts_of_bytes(
            TokenSpans.of(text, ids, tokenizer),
            ids,
            [(int(a), int(b)) for place in documents for a, b in place],
            (int(asked[0, 0]), int(asked[-1, 1])) if len(asked) else (0, 0),
        )

    @property
    def n(self) -> int:
        """Tokens of the prompt."""
        return int(self.ids.size)

    @cached_property
    def is_document(self) -> NDArray[np.bool_]:
        """Whether each token may be dropped, bool [n]."""
        found = np.zeros(self.n, np.bool_)
        for start, stop in self.document:
            found[start:stop] = True
        return found

    @property
    def n_document(self) -> int:
        """Tokens that may be dropped."""
        return sum(stop - start for start, stop in self.document)

    @property
    def n_mandatory(self) -> int:
        """Tokens that have to stay."""
        return self.n - self.n_document

    def chunks(self, size: int = CHUNK) -> NDArray[np.int32]:
        """Start and stop of each chunk, int32 [n_chunks, 2]: each part of the document from its
        start on, its last chunk as short as need be. None begins inside a character: such a chunk
        begins a token or some later."""
        starts = [self._chunk_starts(a, b, size) for a, b in self.document]
        stops = [np.append(s[1:], b) for s, (_, b) in zip(starts, self.document, strict=True)]
        if not starts:
            return np.empty((0, 2), np.int32)
        return np.stack([np.concatenate(starts), np.concatenate(stops)], axis=1).astype(np.int32)

    def _chunk_starts(self, start: int, stop: int, size: int) -> NDArray[np.int32]:
        starts = np.arange(start, stop, size, dtype=np.int32)
        if self.spans is None:
            return starts
        moved = np.array([start, *(self.spans.next_border(at) for at in starts[1:].tolist())])
        return np.unique(moved[moved < stop]).astype(np.int32)


def _lost(turn: Turn) -> str:
    shown = turn.text.strip()[:40]
    return f"the chat template does not show the last user turn as it is: {shown!r}"


def _named(turn: Turn) -> str:
    return f"message {turn.message + 1} ({turn.role})"


def _parts(
    text: str,
    ids: NDArray[np.int32],
    tokenizer: Tokenizer,
    documents: Sequence[Span],
    question: Span,
) -> PromptParts:
    """Parts of a prompt whose places are known in characters of its text."""
    places = sorted({place for span in (*documents, question) for place in span})
    byte_of, at, n_bytes = {}, 0, 0
    for place in places:
        n_bytes += len(text[at:place].encode())
        byte_of[place], at = n_bytes, place
    return _parts_of_bytes(
        TokenSpans.of(text.encode(), ids, tokenizer),
        ids,
        [(byte_of[start], byte_of[stop]) for start, stop in documents],
        (byte_of[question[0]], byte_of[question[1]]),
    )


def _parts_of_bytes(
    spans: TokenSpans,
    ids: NDArray[np.int32],
    documents: Sequence[Span],
    question: Span,
    problem: str = "",
) -> PromptParts:
    """Parts of a prompt whose places are known in bytes of its text.

    A token that is partly in the question belongs to it, one that is partly in a document stays.
    """
    asked, found = (0, 0), []
    if question[0] < question[1]:
        asked = _touched(spans, question)
    for start, stop in sorted(documents):
        first, end = _touched(spans, (start, stop))
        first += int(first < end and spans.start[first] < start)
        end -= int(first < end and spans.stop[end - 1] > stop)
        while first < end and spans.is_inside(first):
            first += 1
        while first < end < spans.start.size and spans.is_inside(end):
            end -= 1
        if first < end:
            found.append((first, end))
    return PromptParts(ids, asked, tuple(found), spans, problem)


def _touched(spans: TokenSpans, place: Span) -> Span:
    """The tokens that share a byte with a place."""
    first = np.searchsorted(spans.stop, place[0], "right")
    end = np.searchsorted(spans.start, place[1], "left")
    return int(first), int(end)
