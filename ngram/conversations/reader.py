"""Files of conversations to texts that can be replayed."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ...engine.chat.abilities import Abilities
from ...engine.chat.batch import BatchedChat, BatchRenderer, Rendered
from ...engine.chat.messages import Chat, NotAChat
from ...engine.chat.prompt import PromptTemplate
from ...engine.chat.template import ChatTemplate
from ...engine.errors import InputEmpty, InputMalformed, WordTooLong
from ...engine.host import available_memory_bytes
from ...engine.tokens.tokenizer import Tokenizer
from .conversation import Conversation, Joined, ReplayTexts
from .files import ChatFiles
from .pieces import Piece, pieces_of
from .tokens import TurnStats, TurnTokens

NO_ROOM = "no room in memory: all conversations together have too many tokens"
NO_ANSWER = "no answer of the assistant"
_REMEDY = (
    "give conversations in one of the forms that docs/conversations.md names, --text to read "
    "the file as it is, or --field NAME for a text of each object"
)

# What the process that renders says itself; all else may be the template's words.
_LIMITS = re.compile(
    r"it takes more than [\d.e+]+ s, or too much memory|it needs too much memory"
    r"|its text has more than \d+ characters|it calls itself, or nests, too deeply"
)
_UNDEFINED = re.compile(r"'([\w .]+)' (?:is undefined|has no attribute '(\w+)')")
_PYTHON = re.compile(r"([A-Z]\w*(?:Error|Exception)): ")


# All conversations are in memory together, and what replays them takes more than their ids: so many
# bytes of what is free for each token, but never fewer tokens than the least.
_BYTES_A_TOKEN, LEAST_TOKENS = 32, 1 << 26


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
    """A line of a conversation on its way, or the reason why it is none; some pieces are done.

    Attributes
    ----------
    is_alone, is_last : of the lines of its conversation.
    """

    place: str
    reason: str = ""
    pieces: tuple[Piece, ...] = ()
    n_done: int = 0
    is_alone: bool = True
    is_last: bool = True


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
        # Of the conversation whose lines are at the front.
        self._first, self._n_bad = "", 0
        self._most_tokens = max(LEAST_TOKENS, available_memory_bytes() // _BYTES_A_TOKEN)
        self._n_tokens = 0

    def conversations(self) -> Generator[Conversation]:
        """Yield those that can be replayed, and count the others."""
        with BatchRenderer(self._template) as renderer:
            if isinstance(self._template, PromptTemplate):
                abilities = self._template.abilities
            else:
                abilities = Abilities.of(self._template, renderer)
            for rendered in renderer.render_all(self._jobs(abilities)):
                yield from self._settled()
                item = self._waiting[0]
                self._add(item, rendered)
                yield from self._settled()
        yield from self._settled()

    def _jobs(self, abilities: Abilities) -> Iterator[BatchedChat]:
        """What is to be rendered, and note where it comes from."""
        for lines in self._files.conversations():
            self._files.stats.n_read += any(isinstance(chat, Chat) for _, chat in lines)
            for number, (place, chat) in enumerate(lines, start=1):
                item = self._item(place, chat, abilities)
                item.is_alone, item.is_last = len(lines) == 1, number == len(lines)
                self._waiting.append(item)
                yield from (piece.job for piece in item.pieces if piece.job is not None)

    def _item(self, place: str, chat: Chat | str, abilities: Abilities) -> _Item:
        if isinstance(chat, str):
            return _Item(place, chat)
        self._files.stats.add_dropped(place, chat.dropped)
        try:
            pieces, n_empty = pieces_of(chat, abilities, self._values)
        except NotAChat as error:
            return _Item(place, str(error))
        self.turns.stats.n_empty += n_empty
        self.turns.stats.n_cut += len(pieces) > 1
        return _Item(place, "" if pieces else chat.unanswered, tuple(pieces))

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

    def _settled(self) -> Iterator[Conversation]:
        """What is complete at the front: yield the conversations, and count what is none."""
        while self._waiting:
            item = self._waiting[0]
            while item.n_done < len(item.pieces) and item.pieces[item.n_done].job is None:
                self._add(item, Rendered(item.pieces[item.n_done].texts))
            if item.n_done < len(item.pieces):
                return
            self._waiting.popleft()
            self._n_bad += self._tell_bad(item.place, item.reason)
            self._first = self._first or item.place
            if item.is_last:
                conversation = self.turns.take()
                if conversation is None and not self._n_bad:
                    self._tell_bad(self._first, NO_ANSWER)
                elif conversation is not None and not (item.is_alone and item.reason):
                    self._n_tokens += conversation.tokens.size
                    if self._n_tokens <= self._most_tokens:
                        yield conversation
                    else:
                        self._n_tokens -= conversation.tokens.size
                        self._tell_bad(self._first, NO_ROOM)
                self._first, self._n_bad = "", 0

    def _tell_bad(self, place: str, reason: str) -> bool:
        """Count a line that is none, if there is a reason."""
        if reason:
            self._files.stats.add_bad(place, reason)
        return bool(reason)


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
