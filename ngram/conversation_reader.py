"""Files of conversations to texts that can be replayed."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ..engine.chat import ChatTemplate
from ..engine.chat_abilities import Abilities
from ..engine.chat_batch import BatchRenderer, Rendered
from ..engine.chat_batch import Conversation as Job
from ..engine.chat_messages import Chat, NotAChat
from ..engine.errors import InputEmpty, InputMalformed, WordTooLong
from ..engine.tokenizer import Tokenizer
from .conversation_files import ChatFiles
from .conversation_pieces import Piece, pieces_of
from .conversation_tokens import TurnStats, TurnTokens
from .conversations import Conversation, Joined, ReplayTexts

NO_ANSWER = "no answer of the assistant"
_REMEDY = "give conversations in one of the forms that docs/conversations.md names"

# What the process that renders says itself; all else may be the template's words.
_LIMITS = re.compile(
    r"it takes more than [\d.e+]+ s, or too much memory|it needs too much memory"
    r"|its text has more than \d+ characters|it calls itself, or nests, too deeply"
)
_UNDEFINED = re.compile(r"'([\w .]+)' (?:is undefined|has no attribute '(\w+)')")
_PYTHON = re.compile(r"([A-Z]\w*(?:Error|Exception)): ")


def read_conversations(
    files: ChatFiles,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    ends: frozenset[int],
    *,
    values: Mapping[str, Any] | None = None,
    on_read: Callable[[], None] | None = None,
) -> tuple[ReplayTexts, TurnStats]:
    """Read, render and tokenise; ``files.stats`` counts what could not be.

    Parameters
    ----------
    ends : ids of the tokens that end a generation.
    values : further variables of the template; those of a conversation itself come before them.
    on_read : called after each conversation.

    Raises
    ------
    InputUnreadable : a file
    InputMalformed, InputEmpty : no conversation can be replayed
    ChatTemplateUnusable : the template is wrong, or takes too much for all of them
    """
    reader = _Reader(files, tokenizer, template, ends, values or {})
    joined = Joined()
    with closing(reader.conversations()) as conversations:
        for conversation in conversations:
            joined.add(conversation)
            if on_read is not None:
                on_read()
    if not reader.turns.stats.n_turns:
        raise _nothing(files)
    return joined.texts(), reader.turns.stats


def _nothing(files: ChatFiles) -> InputMalformed | InputEmpty:
    stats = files.stats
    if not stats.bad:
        return InputEmpty("the input holds no conversation", remedy=_REMEDY)
    first = stats.bad[0]
    return InputMalformed(
        f"none of {stats.n_bad} conversations can be replayed; {first.place}: {first.reason}",
        remedy=_REMEDY,
    )


@dataclass
class _Item:
    """A conversation on its way, or the reason why it is none; some pieces are done."""

    place: str
    reason: str = ""
    pieces: tuple[Piece, ...] = ()
    n_done: int = 0


class _Reader:
    """Conversations in order, some of them ahead with the process that renders."""

    def __init__(
        self,
        files: ChatFiles,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        ends: frozenset[int],
        values: Mapping[str, Any],
    ) -> None:
        self.turns = TurnTokens(tokenizer, template, ends)
        self._files = files
        self._template = template
        self._values = values
        self._waiting: deque[_Item] = deque()

    def conversations(self) -> Generator[Conversation]:
        """Yield those that can be replayed, and count the others."""
        with BatchRenderer(self._template) as renderer:
            abilities = Abilities.of(self._template, renderer)
            for rendered in renderer.render_all(self._jobs(abilities)):
                self._tell_bad()
                item = self._waiting[0]
                self._add(item, rendered)
                if item.n_done == len(item.pieces):
                    conversation = self.turns.take()
                    if not item.reason and conversation is None:
                        item.reason = NO_ANSWER
                    if item.reason:
                        item.pieces = ()
                        self._tell_bad()
                        continue
                    self._waiting.popleft()
                    assert conversation is not None
                    yield conversation
        self._tell_bad()

    def _jobs(self, abilities: Abilities) -> Iterator[Job]:
        """What is to be rendered, and note where it comes from."""
        for place, chat in self._files.chats():
            item = self._item(place, chat, abilities)
            self._waiting.append(item)
            yield from (piece.job for piece in item.pieces)

    def _item(self, place: str, chat: Chat | str, abilities: Abilities) -> _Item:
        if isinstance(chat, str):
            return _Item(place, chat)
        self._files.stats.n_read += 1
        self._files.stats.add_dropped(place, chat.dropped)
        try:
            pieces, n_empty = pieces_of(chat, abilities, self._values)
        except NotAChat as error:
            return _Item(place, str(error))
        self.turns.stats.n_empty += n_empty
        self.turns.stats.n_cut += len(pieces) > 1
        return _Item(place, "" if pieces else NO_ANSWER, tuple(pieces))

    def _add(self, item: _Item, rendered: Rendered) -> None:
        """Take one piece of a conversation."""
        piece = item.pieces[item.n_done]
        item.n_done += 1
        if rendered.problem:
            item.reason = item.reason or _reason(self._template, rendered)
        if item.reason:
            return
        try:
            self.turns.add(rendered.texts, piece.answers)
        except WordTooLong:
            item.reason = "a word, or blanks, of more than 4 MiB"

    def _tell_bad(self) -> None:
        """Count those at the front that are none."""
        while self._waiting and not self._waiting[0].pieces:
            item = self._waiting.popleft()
            self._files.stats.add_bad(item.place, item.reason)


def _reason(template: ChatTemplate, rendered: Rendered) -> str:
    """What is wrong with a rendering, in words that are not the conversation's."""
    problem = rendered.problem
    place = f", line {rendered.line}" if rendered.line else ""
    if _LIMITS.fullmatch(problem):
        shown = problem
    elif f"'{problem}'" in template.source or f'"{problem}"' in template.source:
        shown = f"it refuses it: {' '.join(problem.split())}"
    elif found := _UNDEFINED.match(problem):
        names = [name for name in found.groups() if name]
        known = all(name in template.source or name.endswith(" object") for name in names)
        shown = found[0] if known else "a value is undefined"
    elif found := _PYTHON.match(problem):
        shown = found[1]
    else:
        shown = "it refuses it"
    return f"the chat template cannot render it{place}: {shown}"
