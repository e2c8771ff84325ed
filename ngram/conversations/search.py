"""Which files hold conversations: told by what is in them, and by their names only where that
leaves it open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal

from ...engine.chat.messages import Chat, NotAChat
from ...engine.errors import DraftsmithError, InputHasNoText
from ..corpus.encodings import as_utf8, may_be_json
from ..corpus.files import COMPRESSED, Source, read_blocks
from ..corpus.find import find_sources
from ..corpus.json_texts import json_head, kind_of
from ..corpus.json_values import Failure, json_values
from ..corpus.store import LOCAL, STDIN
from .formats import NOT_KNOWN, chat_of
from .gathering import gathered

Held = Literal["chats", "json", "strings", "text", "unknown"]

SUFFIXES = (".json", ".jsonl", ".ndjson", ".jsonlines", ".parquet")
_PARQUET = ".parquet"
# So many values, and so much of a file, say what it holds.
_FIRST_VALUES, _BLOCK_BYTES, _MOST_BLOCKS = 20, 1 << 20, 8
# Server-sent events, which may begin with comments.
_EVENTS = re.compile(rb"(?:\xef\xbb\xbf)?(?:(?::|id:|retry:)[^\n]{0,80}\n|\s){0,9}(?:data|event):")


def is_chat_path(path: str) -> bool:
    """Whether a file is taken for conversations by its name: .json, JSON lines, or .parquet."""
    return _inner(path).endswith(SUFFIXES)


def _inner(path: str) -> str:
    name = path.lower()
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    return name


@dataclass
class FoundChats:
    """What some paths stand for.

    Attributes
    ----------
    held : what each file holds, in order.
    """

    held: list[tuple[Source, Held]] = field(default_factory=list)

    def paths(self, *kinds: Held) -> list[str]:
        """The files that hold one of these."""
        return [source.path for source, held in self.held if held in kinds]


def search(paths: Sequence[str]) -> FoundChats:
    """Look what files hold; of folders, all that may be text and can be read.

    Raises
    ------
    InputUnreadable, InputHasNoText, UsageError : see ``find_sources``
    """
    found = FoundChats()
    for path in paths:
        if path == STDIN:
            found.held.append((Source(STDIN, "text", None, None, None), "unknown"))
        else:
            found.held += [(source, held_in(source)) for source in _sources(path)]
    return found


def _sources(path: str) -> list[Source]:
    """The files that a path stands for: those of text, and those of rows."""
    if not LOCAL.is_folder(path):
        rows = "messages" if _inner(path).endswith(_PARQUET) else None
        return find_sources([path], rows, is_text=True, open_each=False, on_skip=_ignore)[0]
    sources: list[Source] = []
    nothing: InputHasNoText | None = None
    for name in (None, "messages"):
        try:
            found, _ = find_sources([path], name, is_text=True, open_each=False, on_skip=_ignore)
        except InputHasNoText as error:
            nothing = nothing or error
            continue
        sources += [one for one in found if name is None or one.layout == "parquet"]
    if not sources and nothing is not None:
        raise nothing
    return [replace(one, is_found=True) for one in sorted(sources, key=lambda one: one.path)]


def _ignore(path: str, error: DraftsmithError) -> None:
    """What cannot be read is told when it is to be read."""


def held_in(source: Source) -> Held:
    """What a file holds; a pipe is not touched, and one that cannot be read is a text so far."""
    if source.layout == "parquet":
        return "chats"
    if source.layout == "token-ids":
        return "text"
    if source.stamp is None:
        return "unknown"
    blocks = read_blocks(source, _BLOCK_BYTES, lambda n_bytes: None)
    try:
        head, text = json_head(as_utf8(blocks, source.path, lambda n_replaced: None))
        if not may_be_json(head) and not _EVENTS.match(head):
            return "text"
        if kind_of(head) == "strings":
            return "strings"
        return _held_in_json(islice(text, _MOST_BLOCKS), len(head))
    except (DraftsmithError, RecursionError):
        return "text"
    finally:
        blocks.close()


def _held_in_json(blocks: Iterator[bytes], n_head: int) -> Held:
    n_bytes = 0

    def counted() -> Iterator[bytes]:
        nonlocal n_bytes
        for block in blocks:
            n_bytes += len(block)
            yield block

    limit = _BLOCK_BYTES * _MOST_BLOCKS
    values = json_values(counted(), limit, lambda n_replaced: None)
    kind: Held = "text"
    for _, value in islice(gathered(values, limit), _FIRST_VALUES):
        if isinstance(value, Failure):
            if n_bytes >= limit - _BLOCK_BYTES:  # a value that goes on after what was looked at
                return "chats"
            continue
        kind = "json"
        if isinstance(value, Chat) or _is_chat(value):
            return "chats"
    return kind


def _is_chat(value: object) -> bool:
    """Whether a value has a known form, though it be damaged."""
    if not isinstance(value, dict | list) or not value:
        return False
    try:
        chat_of(value)
    except NotAChat as error:
        is_list_of_others = isinstance(value, list) and not isinstance(value[0], dict)
        return str(error) != NOT_KNOWN and not is_list_of_others
    return True
