"""The lines of a log as the conversations that they belong to.

A client sends the whole chat with each request, so that a log holds every answer again and again.
Each line is put to the conversation that it continues, by the longest prefix of its messages that
is known, and only what is new in it counts as generated: the response, or without one the answers
that no line before it had. Lines that merely share a system prompt or a first question remain
apart; docs/conversations.md tells the rules.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from ...engine.chat.abilities import text_of
from ...engine.chat.messages import Chat, Message
from .marks import (
    Mark,
    MessageMarks,
    Sketch,
    alike,
    chain,
    is_by_chance,
    same,
    size_of,
)

# Characters of conversations that may still go on: of requests, and of others.
_OPEN_REQUESTS, _OPEN_OTHERS = 1 << 26, 1 << 22
# A prompt that is one text is compared with so many texts that it may continue.
_MOST_TEXTS = 64
_REASON_SIZE, _POINTER_SIZE = 1 << 8, 8

_PLACE = re.compile(r"(?::\d+|\[\d+\])+$")

LOST_RESPONSE = "it goes on from a response that is not before it in the log (previous_response_id)"

Line = tuple[str, Chat | str]


@dataclass(eq=False)
class Thread:
    """A conversation, as far as it is known.

    Attributes
    ----------
    number : of those begun before it.
    is_request : its lines are requests, and not conversations as a whole.
    lines : what was sent, one after another, each with its place. A line that goes on word for
        word as the last one does is put to that.
    file : that its first line is in.
    tip : the hash of the last line's messages and their answer.
    size : characters that it takes, nearly.
    is_done : it was handed out; what continues it needs a new one.
    responses : names of its responses.
    """

    number: int
    is_request: bool
    file: str = ""
    lines: list[Line] = field(default_factory=list)
    tip: bytes = b""
    size: int = 0
    is_done: bool = False
    responses: list[str] = field(default_factory=list)
    _last: list[bytes] = field(default_factory=list)
    _kept: dict[bytes, Message] = field(default_factory=dict)

    @property
    def n_messages(self) -> int:
        """Of the last line."""
        return len(self._last)

    def add(self, place: str, chat: Chat, generated: set[int]) -> None:
        """Take what a line sent, and which of its messages are generated and new."""
        hashes = [same(message) for message in chat.messages]
        n = len(self._last)
        last = self.lines[-1][1] if self.lines else None
        new = [i for i, key in enumerate(hashes) if key not in self._kept]
        self.size += size_of([chat.messages[i] for i in new])
        is_new = all(i >= n for i in generated)  # an answer may be given twice, word for word
        if isinstance(last, Chat) and _goes_on(last, chat) and is_new and hashes[:n] == self._last:
            _extend(last, chat, chat.messages[n:], generated)
        else:
            # Messages that were there before are not held a second time.
            held = zip(hashes, chat.messages, strict=True)
            chat.messages = [self._kept.get(key, message) for key, message in held]
            chat.generated = generated
            self.lines.append((place, chat))
            self.size += _POINTER_SIZE * len(hashes)
        self._last = hashes
        self._kept.update((hashes[i], chat.messages[i]) for i in new)

    def add_text(self, place: str, chat: Chat, *, goes_on: int | None) -> None:
        """Take a text and its answer; ``goes_on``: it is the last line's and, from there, more."""
        last = self.lines[-1][1] if self.lines else None
        self.size += 2 * size_of(chat.messages)
        if goes_on is None or not isinstance(last, Chat):
            chat.generated = {1}
            self.lines.append((place, chat))
            return
        asked, answer = chat.messages
        rest = asked | {"content": text_of(asked["content"])[goes_on:]}
        chat.cut = {len(last.messages) + 1} if chat.cut else set()
        _extend(last, chat, [rest, answer], {len(last.messages) + 1})

    def take(self) -> list[Line]:
        """Hand out what there is."""
        lines, self.lines = self.lines, []
        self.is_done, self.size, self._kept = True, 0, {}
        return lines


def _goes_on(last: Chat, chat: Chat) -> bool:
    """Whether both are of a kind, so that one can be put to the other."""
    return last.values == chat.values and not (last.is_raw or chat.is_raw)


def _extend(last: Chat, chat: Chat, messages: list[Message], generated: set[int]) -> None:
    """Put to a line what another one says more."""
    last.messages += messages
    last.generated = (last.generated or set()) | generated
    last.prefills |= chat.prefills
    last.cut |= chat.cut
    last.dropped.take(chat.dropped)


class _Join(NamedTuple):
    """Where a line belongs.

    Attributes
    ----------
    thread : the conversation that it continues; None: a new one.
    generated : its messages that are generated, and that no line before it had.
    is_deep : the line begins with what was generated before.
    """

    thread: Thread | None
    generated: set[int]
    is_deep: bool


class Threads:
    """Takes lines, and hands out conversations.

    Those that nothing has continued for long are handed out first, so that what is held is
    bounded.
    """

    def __init__(self) -> None:
        self._marks: MessageMarks[Thread] = MessageMarks()
        self._open: dict[bool, OrderedDict[int, Thread]] = {
            True: OrderedDict(),
            False: OrderedDict(),
        }
        self._size = {True: 0, False: 0}
        self._n = 0
        self._newest: Thread | None = None
        self._responses: OrderedDict[str, tuple[Thread, list[Message]]] = OrderedDict()
        self._texts: OrderedDict[int, tuple[Thread, str]] = OrderedDict()

    def add(self, place: str, line: Chat | str) -> None:
        """Take a line, or the reason why there is none."""
        if isinstance(line, Chat) and line.follows and not self._is_known(line.follows):
            line = LOST_RESPONSE
        if isinstance(line, str):
            thread = self._begin(is_request=False)
            thread.lines, thread.size = [(place, line)], _REASON_SIZE
            self._hold(thread, 0)
        elif line.is_raw:
            self._add_text(place, line)
        else:
            self._add_messages(place, line)

    def ready(self) -> Iterator[list[Line]]:
        """Hand out what went on longest ago, as far as room is needed."""
        for is_request, most in ((True, _OPEN_REQUESTS), (False, _OPEN_OTHERS)):
            while self._size[is_request] > most:
                yield self._take(next(iter(self._open[is_request].values())))

    def rest(self) -> Iterator[list[Line]]:
        """Hand out all others, in the order in which they began."""
        threads = [one for held in self._open.values() for one in held.values()]
        for thread in sorted(threads, key=lambda one: one.number):
            yield self._take(thread)

    # ---- lines of messages

    def _add_messages(self, place: str, chat: Chat) -> None:
        if chat.follows:
            before = self._responses[chat.follows][1]
            chat.messages[chat.beside : chat.beside] = before
            chat.asked = None if chat.asked is None else chat.asked + len(before)
            chat.cut = {i + len(before) for i in chat.cut}
        hashes = [alike(message) for message in chat.messages]
        prefixes = chain(hashes)
        n = len(chat.messages) if chat.asked is None else chat.asked
        is_request = n < len(chat.messages) or not _is_said(chat.messages, n - 1)
        if chat.follows:
            join = _Join(self._responses[chat.follows][0], _answers(chat, n), is_deep=True)
        elif is_request:
            join = self._request(chat, n, hashes, prefixes)
        else:
            join = self._whole(file_of(place), chat, prefixes)
        thread = join.thread
        if thread is None or thread.is_done:
            thread = self._begin(is_request=is_request)
        thread.file = thread.file or file_of(place)
        before_size = thread.size
        thread.add(place, chat, set(join.generated))
        thread.tip = prefixes[-1]
        self._hold(thread, before_size)
        if is_request:
            self._remember(thread, chat, n, hashes, prefixes, join)
        else:
            whole = Mark(thread, is_answer=True, is_deep=True, is_whole=True)
            self._marks.put(prefixes[-1], whole)

    def _request(self, chat: Chat, n: int, hashes: list[bytes], prefixes: list[bytes]) -> _Join:
        """Where a request belongs, with its response or without."""
        new = _answers(chat, n)
        at, mark = self._longest(prefixes, n)
        if mark is not None and self._continues(chat, n, at, mark):
            is_pending = not mark.is_answer and mark.answer is None
            if chat.asked is None or chat.is_trace:
                # What follows an answered request is its answer, with changes.
                first = at if at == n or mark.is_answer or is_pending else at + 1
                new = {i for i in range(first, len(hashes)) if _is_said(chat.messages, i)}
            elif is_pending and at < n and _is_said(chat.messages, at):
                new |= {at}
            return _Join(mark.owner, new, mark.is_answer or mark.is_deep or is_pending)
        thread, pending = self._by_exchange(chat, n, hashes)
        if thread is not None:
            return _Join(thread, new | ({pending} if pending is not None else set()), is_deep=True)
        if chat.asked is None or chat.is_trace:
            new = {i for i in range(len(hashes)) if _is_said(chat.messages, i)}
        return _Join(None, new, is_deep=False)

    def _continues(self, chat: Chat, n: int, at: int, mark: Mark[Thread]) -> bool:
        """Whether a request that begins with a known prefix is of the conversation that has it."""
        if mark.is_answer and mark.owner.n_messages != at:  # a branch of it
            return mark.owner is self._newest or not is_by_chance(chat.messages[:at])
        if mark.is_answer or mark.is_deep or mark.answer is None:
            return True
        if chat.asked is None and at == n:  # again, and nothing is known of its answer
            return True
        # The same first question may be anybody's, unless it goes on with its answer.
        return at < n and _is_said(chat.messages, at) and mark.answer.is_of(chat.messages[at])

    def _by_exchange(
        self, chat: Chat, n: int, hashes: list[bytes]
    ) -> tuple[Thread | None, int | None]:
        """The conversation whose history was cut or rewritten before its last exchange.

        With it comes the place of the answer, if that is new: its request was logged without one.
        """
        at = max((i for i in range(1, n) if _is_said(chat.messages, i)), default=0)
        if not at:
            return None, None
        for key, new in ((hashes[at - 1] + hashes[at], None), (hashes[at - 1], at)):
            thread = self._marks.exchange(key)
            is_long = not is_by_chance(chat.messages[at - 1 : at + 1])
            if thread is not None and (is_long or thread is self._newest):
                return thread, new
        return None, None

    def _whole(self, file: str, chat: Chat, prefixes: list[bytes]) -> _Join:
        """Where a conversation belongs that ends with an answer, such as data sets have."""
        n = len(chat.messages)
        at, mark = self._longest(prefixes, n)
        if mark is not None and at < n and self._grew(file, chat, at, mark):
            # All of an earlier line, and more.
            new = {i for i in range(at, n) if _is_said(chat.messages, i)}
            return _Join(mark.owner, new, is_deep=True)
        return _Join(None, {i for i in range(n) if _is_said(chat.messages, i)}, is_deep=False)

    def _grew(self, file: str, chat: Chat, at: int, mark: Mark[Thread]) -> bool:
        """Whether a conversation is an earlier one and more, and not another that begins so.

        Chats that are saved as a file each are as many conversations.
        """
        if mark.is_whole and mark.owner.file != file:
            return False
        is_end = mark.is_whole or (mark.is_answer and mark.owner.n_messages == at)
        is_pending = not mark.is_answer and mark.answer is None
        is_sure = mark.owner is self._newest or not is_by_chance(chat.messages[:at])
        return is_sure and (is_end or is_pending)

    def _longest(self, prefixes: list[bytes], n: int) -> tuple[int, Mark[Thread] | None]:
        """The longest known prefix of the first ``n`` messages: its length, and its mark."""
        for at in range(n, 0, -1):
            mark = self._marks.find(prefixes[at], partial(_ends_with, prefixes[at]))
            if mark is not None:
                return at, mark
        return 0, None

    def _remember(
        self,
        thread: Thread,
        chat: Chat,
        n: int,
        hashes: list[bytes],
        prefixes: list[bytes],
        join: _Join,
    ) -> None:
        """Mark what a request and its answers end."""
        is_answered = n < len(hashes)
        is_deep = join.is_deep or any(i < n for i in join.generated)
        # ``chat`` may have been put to another line, but its messages are its own.
        answer = Sketch.of(chat.messages[n]) if is_answered else None
        self._marks.put(prefixes[n], Mark(thread, is_deep=is_deep, answer=answer))
        for i in join.generated:
            self._marks.put(prefixes[i + 1], Mark(thread, is_answer=True, is_deep=True))
            if i:
                self._marks.put_exchange(hashes[i - 1] + hashes[i], thread)
        if not is_answered and n:
            self._marks.put_exchange(hashes[n - 1], thread)
        if chat.response_id:
            self._responses[chat.response_id] = (thread, chat.messages[chat.beside :])
            thread.responses.append(chat.response_id)

    def _is_known(self, response_id: str) -> bool:
        return response_id in self._responses

    # ---- lines that are texts

    def _add_text(self, place: str, chat: Chat) -> None:
        asked, answer = (text_of(message["content"]) for message in chat.messages)
        thread, goes_on = None, None
        for one, text in reversed(self._texts.values()):
            if asked.startswith(text):
                thread, goes_on = one, len(text)
                break
        if thread is None:
            thread = self._begin(is_request=True)
        before = thread.size
        thread.add_text(place, chat, goes_on=goes_on)
        self._hold(thread, before)
        self._texts[thread.number] = (thread, asked + answer)
        self._texts.move_to_end(thread.number)
        if len(self._texts) > _MOST_TEXTS:
            self._texts.popitem(last=False)

    # ---- what is held

    def _begin(self, *, is_request: bool) -> Thread:
        self._n += 1
        return Thread(self._n, is_request)

    def _hold(self, thread: Thread, size_before: int) -> None:
        held = self._open[thread.is_request]
        self._size[thread.is_request] += thread.size - size_before
        held[thread.number] = thread
        held.move_to_end(thread.number)
        self._newest = thread

    def _take(self, thread: Thread) -> list[Line]:
        del self._open[thread.is_request][thread.number]
        self._size[thread.is_request] -= thread.size
        self._texts.pop(thread.number, None)
        for response_id in thread.responses:
            self._responses.pop(response_id, None)
        return thread.take()


def file_of(place: str) -> str:
    """The file that a place is in."""
    return _PLACE.sub("", place)


def _answers(chat: Chat, n: int) -> set[int]:
    """The messages of a response."""
    return {i for i in range(n, len(chat.messages)) if _is_said(chat.messages, i)}


def _is_said(messages: list[Message], at: int) -> bool:
    return 0 <= at < len(messages) and messages[at]["role"] == "assistant"


def _ends_with(tip: bytes, thread: Thread) -> bool:
    return thread.tip == tip


def threads_of(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Lines as conversations, each with the lines that it consists of; no more is held than needed.

    A line that is a reason why there is none stands by itself.
    """
    threads = Threads()
    for place, line in lines:
        threads.add(place, line)
        yield from threads.ready()
    yield from threads.rest()
