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

from ..engine.chat_messages import Chat, NotAChat
from ..engine.errors import UsageError
from .conversation_formats import chat_of
from .conversation_json import TOO_DEEP, Failure, json_values
from .corpus_decode import LINE_LIMIT_BYTES
from .corpus_files import Source, find_sources, read_blocks, total_bytes
from .corpus_store import show_path

BAD_SHOWN = 100
OTHER_REASONS = "other reasons"
SUFFIXES = (".json", ".jsonl", ".ndjson", ".jsonlines")

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
    n_media : images and other parts that are no text, left out.
    bytes_read : of the files, before decompression.
    """

    n_read: int = 0
    n_bad: int = 0
    bad: list[Bad] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    n_invalid_utf8: int = 0
    n_media: int = 0
    bytes_read: int = 0

    def add_bad(self, place: str, reason: str) -> None:
        """Count one."""
        self.n_bad += 1
        known = reason in self.reasons or len(self.reasons) < BAD_SHOWN
        self.reasons[reason if known else OTHER_REASONS] += 1
        if len(self.bad) < BAD_SHOWN:
            self.bad.append(Bad(place, reason))

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

    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = tuple(sources)
        self.stats = ReadStats()
        self.total_bytes = total_bytes(sources)

    @property
    def bytes_read(self) -> int:
        """Bytes of the files so far."""
        return self.stats.bytes_read

    def chats(self) -> Iterator[tuple[str, Chat | str]]:
        """Yield (place, conversation, or the reason why there is none).

        The caller counts what it makes of them.

        Raises
        ------
        InputUnreadable : a file is damaged, or has changed or gone since ``open_chats``
        """
        for source in self.sources:
            blocks = read_blocks(source, _BLOCK_BYTES, self.stats.add_bytes)
            values = json_values(blocks, LINE_LIMIT_BYTES, self.stats.add_invalid)
            name = show_path(source.path)
            for place, value in _with_sessions(values, LINE_LIMIT_BYTES):
                yield f"{name}{place}", _chat_or_reason(value)


def _chat_or_reason(value: Any) -> Chat | str:
    if isinstance(value, Failure):
        return value.reason
    try:
        return chat_of(value)
    except NotAChat as error:
        return str(error)
    except RecursionError:
        return TOO_DEEP.reason


def open_chats(paths: Sequence[str]) -> ChatFiles:
    """Find files of conversations, without reading them; of folders, those named as JSON lines.

    Raises
    ------
    InputUnreadable, InputHasNoText, UsageError : see ``find_sources``
    """
    sources, _ = find_sources(paths, "messages")
    for source in sources:
        if source.layout == "token-ids":
            raise UsageError(
                f"{show_path(source.path)} holds token ids, among conversations",
                remedy="replay it by itself",
            )
    return ChatFiles(sources)


def is_chat_path(path: str) -> bool:
    """Whether a file is taken for conversations, by its name alone: .json, or JSON lines."""
    name = path.lower()
    for suffix in (".gz", ".xz", ".bz2"):
        name = name.removesuffix(suffix)
    return name.endswith(SUFFIXES)


def _with_sessions(values: Iterator[tuple[str, Any, int]], limit: int) -> Iterator[tuple[str, Any]]:
    """Values, with the lines of each session of llama-server's web page as one of them."""
    session: dict[str, Any] | None = None
    place, n_left = "", limit
    for where, value, size in values:
        kind = value.get("type") if isinstance(value, dict) else None
        message = value.get("message") if kind == "message" else None
        if kind == "session" and "messages" not in value:
            if session:
                yield place, session
            session, place, n_left = {"conv": value, "messages": []}, where, limit
        elif session and isinstance(message, dict):
            n_left -= size
            if n_left >= 0:
                session["messages"].append(message)
            else:
                yield where, Failure("a session that is too long")
        elif isinstance(message, dict) and "messages" not in value:
            yield where, Failure("a message before any session")
        elif not (session and isinstance(kind, str)):  # a session's other records mean nothing
            if session and not isinstance(value, Failure):
                yield place, session
                session = None
            yield where, value
    if session:
        yield place, session
