"""Files of conversations: which files, what is in them, and what of it could not be read.

A file holds one JSON value a line, or is JSON as a whole: one value, several, or a list of
conversations, which is read one by one, whatever its size. What cannot be read is counted and
told with its place, without a word of what it says, and the rest is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...engine.chat.dropped import OTHER_PARTS, Dropped, DroppedKind
from ...engine.chat.messages import Chat, NotAChat
from ...engine.errors import (
    DraftsmithError,
    InputMalformed,
    InputUnreadable,
    UsageError,
)
from ..corpus.decode import LINE_LIMIT_BYTES
from ..corpus.encodings import as_utf8
from ..corpus.files import Source, read_blocks, total_bytes
from ..corpus.find import find_sources
from ..corpus.json_values import TOO_DEEP, Failure, json_values
from ..corpus.parquet import parquet_rows
from ..corpus.store import show_path
from .batches import with_batches
from .formats import chat_of
from .gathering import gathered
from .threads import Line, threads_of

BAD_SHOWN = 100
DROPPED_SHOWN = 10
OTHER_REASONS = "other reasons"

_BLOCK_BYTES = 1 << 20


class Bad(NamedTuple):
    """Something that is no conversation: where (path:line, or path[number]), and why."""

    place: str
    reason: str


@dataclass
class ReadStats:
    """What has been read so far.

    Attributes
    ----------
    n_read : conversations, those that cannot be rendered too.
    n_bad : lines and values that are no conversation, or none that can be replayed.
    bad : the first BAD_SHOWN of them, in order.
    reasons : how many there are for each reason; of too many reasons the last are one.
    n_invalid_utf8 : sequences replaced by U+FFFD.
    dropped : what was left out of conversations, by kind.
    dropped_at : places of each kind, the first DROPPED_SHOWN.
    bytes_read : of the files, before decompression.
    """

    n_read: int = 0
    n_bad: int = 0
    bad: list[Bad] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    n_invalid_utf8: int = 0
    dropped: Counter[DroppedKind] = field(default_factory=Counter)
    dropped_at: dict[DroppedKind, list[str]] = field(default_factory=dict)
    bytes_read: int = 0

    def add_bad(self, place: str, reason: str) -> None:
        """Count one."""
        self.n_bad += 1
        known = reason in self.reasons or len(self.reasons) < BAD_SHOWN
        self.reasons[reason if known else OTHER_REASONS] += 1
        if len(self.bad) < BAD_SHOWN:
            self.bad.append(Bad(place, reason))

    def add_dropped(self, place: str, dropped: Dropped) -> None:
        """Count what was left out of one conversation."""
        for kind, n in dropped.counts.items():
            if kind not in self.dropped and len(self.dropped) >= BAD_SHOWN:
                kind = DroppedKind(OTHER_PARTS, kind.of_answer)
            self.dropped[kind] += n
            places = self.dropped_at.setdefault(kind, [])
            places += dropped.places.get(kind, [place])[: DROPPED_SHOWN - len(places)]

    @property
    def n_media(self) -> int:
        """All that was left out of conversations."""
        return self.dropped.total()

    @property
    def n_inexact(self) -> int:
        """What was left out of answers."""
        return sum(n for kind, n in self.dropped.items() if kind.of_answer)

    def add_bytes(self, n_bytes: int) -> None:
        """Count what was read of a file."""
        self.bytes_read += n_bytes

    def add_invalid(self, n_replaced: int) -> None:
        """Count what was no UTF-8."""
        self.n_invalid_utf8 += n_replaced


class ChatFiles:
    """The conversations of some files, in the order given; one pass.

    Attributes
    ----------
    sources : the files found.
    stats : counters, filled as conversations are taken.
    total_bytes : what ``stats.bytes_read`` ends at; None with standard input or a pipe among them.
    left_out : files in folders that hold no JSON.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        stats: ReadStats | None = None,
        left_out: Sequence[str] = (),
        *,
        strict: bool = True,
    ) -> None:
        self.sources = tuple(sources)
        self.left_out = tuple(left_out)
        self.stats = stats or ReadStats()
        self._strict = strict
        self.total_bytes = total_bytes(sources)

    @property
    def bytes_read(self) -> int:
        """Bytes of the files so far."""
        return self.stats.bytes_read

    def chats(self) -> Iterator[tuple[str, Chat | str]]:
        """Yield (place, what a value says, or the reason why it is no conversation).

        The caller counts what it makes of them. What is wrong with a file in a folder is such a
        reason, and ends that file only, unless they are read strictly.

        Raises
        ------
        InputUnreadable : a file is damaged, or has changed or gone since ``open_chats``
        InputMalformed : a file is in an encoding without a mark
        """
        for place, value in with_batches(self._placed()):
            yield place, _chat_or_reason(value)

    def _placed(self) -> Iterator[tuple[str, Any]]:
        for source in self.sources:
            name = show_path(source.path)
            try:
                for place, value in gathered(self._values(source, name), LINE_LIMIT_BYTES):
                    if isinstance(value, Chat):
                        value.dropped.begin_places(name)
                    yield f"{name}{place}", value
            except (InputUnreadable, InputMalformed) as error:
                if self._strict or not source.is_found:
                    raise
                yield name, Failure(error.message.removeprefix(f"{name}: "))

    def conversations(self) -> Iterator[list[Line]]:
        """Yield the lines of each conversation; see ``threads_of``.

        A reason why there is none stands by itself.

        Raises
        ------
        InputUnreadable : see ``chats``
        """
        return threads_of(self.chats())

    def _values(self, source: Source, name: str) -> Iterator[tuple[str, Any, int]]:
        """The values of a file: (place in it, value or Failure, characters of its text)."""
        if source.layout == "parquet":
            return self._rows(source)
        blocks = read_blocks(source, _BLOCK_BYTES, self.stats.add_bytes)
        text = as_utf8(blocks, name, self.stats.add_invalid)
        return json_values(text, LINE_LIMIT_BYTES, self.stats.add_invalid)

    def _rows(self, source: Source) -> Iterator[tuple[str, Any, int]]:
        before = 0
        for row, value, at in parquet_rows(source, None):
            yield f"[{row}]", value, len(str(value))
            self.stats.add_bytes(max(0, at - before))
            before = max(at, before)
        self.stats.add_bytes((source.size or 0) - before)


def _chat_or_reason(value: Any) -> Chat | str:
    if isinstance(value, Failure):
        return value.reason
    if isinstance(value, Chat):
        return value
    try:
        return chat_of(value)
    except NotAChat as error:
        return str(error)
    except RecursionError:
        return TOO_DEEP.reason


def open_chats(paths: Sequence[str], *, strict: bool = True) -> ChatFiles:
    """Find files of conversations, without reading them; of folders, those that begin as JSON.

    Not ``strict``, what cannot be read of a folder is counted as bad.

    Raises
    ------
    InputUnreadable, InputHasNoText, UsageError : see ``find_sources``
    """
    stats = ReadStats()

    def skip(path: str, error: DraftsmithError) -> None:
        name = show_path(path)
        stats.add_bad(name, error.message.removeprefix(f"{name}: "))

    sources, left_out = find_sources(
        paths, "messages", are_chats=True, on_skip=None if strict else skip
    )
    for source in sources:
        if source.layout == "token-ids":
            raise UsageError(
                f"{show_path(source.path)} holds token ids, among conversations",
                remedy="replay it by itself",
            )
    return ChatFiles(sources, stats, left_out, strict=strict)
