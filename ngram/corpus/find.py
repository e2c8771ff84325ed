"""From what a user names (files, folders, patterns, ``-``) to the files of a corpus.

They keep the order given, and each is opened once, so that nothing is missing later. Where files
lie is a ``Store``'s affair.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...engine.errors import (
    DraftsmithError,
    InputHasNoText,
    InputMalformed,
    InputUnreadable,
    UsageError,
)
from .encodings import begin_as_utf8, may_be_json, may_be_text
from .files import COMPRESSED, SNIFF_BYTES, Layout, Source, read_head
from .store import LOCAL, STDIN, Store, show_path, unreadable

_JSON_LINES = frozenset({".jsonl", ".ndjson", ".jsonlines"})
_TOKEN_IDS = ".npy"
_PARQUET = ".parquet"
# Told by name, so that a wrong file is refused and not tokenised as mojibake.
_FOREIGN = frozenset(
    {".7z", ".br", ".docx", ".gguf", ".lz4", ".npz", ".pdf", ".rar"}
    | {".tar", ".tbz2", ".tgz", ".txz", ".zip"}
)


OnSkip = Callable[[str, DraftsmithError], None]


def find_sources(
    paths: Sequence[str],
    field: str | None,
    store: Store = LOCAL,
    *,
    open_each: bool = True,
    is_text: bool = False,
    are_chats: bool = False,
    on_skip: OnSkip | None = None,
) -> tuple[list[Source], list[str]]:
    """Return (sources in the order given, files in folders that were left out as not text).

    An existing path is never taken as a pattern. A folder stands for its text files, a pattern
    for the files it matches (folders and special files among them are passed over); both are
    sorted by path. Pipes are read only when named themselves, and once. Without ``open_each``
    no file is opened: that it can be, and that one in a folder is text, shows when it is read.

    Parameters
    ----------
    is_text : JSON lines are text as any other.
    are_chats : of a folder the files that may be JSON are taken, whatever their names.
    on_skip : gets the path of what was found in a folder or by a pattern and cannot be read, and
        why; None: that is raised.

    Raises
    ------
    InputUnreadable, InputHasNoText, InputMalformed, UsageError : as their messages say.
    """
    if not paths:
        raise UsageError("no input is named", remedy="name a file, a folder or - for stdin")
    if field == "":
        raise UsageError("--field is empty", remedy="name the field that holds the text")
    finder = _Finder(field, store, open_each, is_text, are_chats, on_skip)
    sources: list[Source] = []
    for path in paths:
        if path == STDIN:
            sources.append(Source(STDIN, finder.layout(path, ""), None, None, None))
        elif store.is_folder(path):
            sources += finder.folder(path)
        elif store.is_pattern(path):
            sources += finder.pattern(path)
        else:
            sources.append(finder.file(path)[0])
    _refuse_second_reading(sources)
    return sources, finder.left_out


def _suffixes(path: str) -> tuple[str, str | None]:
    """Return (suffix that tells the layout, compression)."""
    inner, suffix = os.path.splitext(path.lower())
    if suffix in COMPRESSED:
        return os.path.splitext(inner)[1], suffix
    return suffix, None


class _Finder:
    """Turns paths into sources; what is passed over is kept or told."""

    def __init__(
        self,
        field: str | None,
        store: Store,
        open_each: bool,
        is_text: bool,
        are_chats: bool,
        on_skip: OnSkip | None,
    ) -> None:
        self.left_out: list[str] = []
        self._field = field
        self._store = store
        self._open_each = open_each
        self._is_text = is_text
        self._are_chats = are_chats
        self._on_skip = on_skip
        self._last_skipped: DraftsmithError | None = None

    def layout(self, path: str, suffix: str) -> Layout:
        """How the documents of a file lie in it."""
        if suffix == _TOKEN_IDS:
            return "token-ids"
        if suffix == _PARQUET:
            if self._field is None:
                raise InputMalformed(
                    f"{show_path(path)}: rows of columns, and no column is named",
                    remedy="name the column that holds the text with --field, or give --chat for "
                    "conversations",
                )
            return "parquet"
        return "text" if self._field is None else "json-lines"

    def file(self, path: str) -> tuple[Source, bytes]:
        """Return (source, its first decompressed bytes); a pipe is not touched yet."""
        try:
            status = self._store.status(path)
        except (OSError, ValueError) as error:
            raise unreadable(path, error) from error
        suffix, compression = _suffixes(path)
        _refuse_foreign(path, suffix, compression)
        if suffix in _JSON_LINES and self._field is None and not self._is_text:
            raise InputMalformed(
                f"{show_path(path)}: JSON lines, and no field is named",
                remedy="give --field NAME for a text of each line, --chat for conversations, "
                "--text to read it as it is, or a pattern (dir/*.txt)",
            )
        layout = self.layout(path, suffix)
        if status.kind == "pipe" and layout not in ("token-ids", "parquet"):
            return Source(path, layout, compression, None, None), b""
        if status.kind != "file":
            raise InputUnreadable(
                f"{show_path(path)}: a special file, which is not read",
                remedy="name a file, or pipe the text in and name -",
            )
        source = Source(path, layout, compression, status.size, status.stamp)
        return source, read_head(source, self._store) if self._open_each else b""

    def pattern(self, pattern: str) -> list[Source]:
        """The files that match."""
        files = self._store.matches(pattern)
        if not files:
            raise InputHasNoText(
                f"{show_path(pattern)}: no file matches the pattern",
                remedy="check it (** goes into folders; hidden files need their dot)",
            )
        found = (self._found(path) for path in files)
        sources = [replace(one[0], is_found=True) for one in found if one is not None]
        if not sources and self._last_skipped is not None:
            raise self._last_skipped
        return sources

    def folder(self, folder: str) -> list[Source]:
        """The text files of a folder, hidden names passed over."""
        sources: list[Source] = []
        for path in self._store.files_below(folder, self._skip):
            suffix, _ = _suffixes(path)
            if not self._is_wanted(suffix):
                self.left_out.append(path)
                continue
            found = self._found(path, only_regular=True)
            if found is None:
                continue
            source, head = replace(found[0], is_found=True), found[1]
            holds_rows = suffix in _JSON_LINES or suffix == _PARQUET
            if not self._open_each and not holds_rows:
                source = replace(source, folder=folder)
            if self._may_hold_wanted(head) or holds_rows:
                sources.append(source)
            else:
                self.left_out.append(path)
        if not sources:
            if self._last_skipped is not None:
                raise self._last_skipped
            if self._are_chats:
                raise InputHasNoText(
                    f"{show_path(folder)}: the folder holds no file that begins as JSON",
                    remedy="name the files themselves, or leave --chat out for plain text",
                )
            raise no_text(folder, self._field)
        return sources

    def _may_hold_wanted(self, head: bytes) -> bool:
        """Whether a file that begins so may be text, or JSON where chats are looked for."""
        if not may_be_text(head) or not self._are_chats:
            return may_be_text(head)
        return may_be_json(begin_as_utf8(head))

    def _is_wanted(self, suffix: str) -> bool:
        """Whether a file in a folder may be text, or rows that hold it, by its name."""
        if self._are_chats:
            return suffix != _TOKEN_IDS and suffix not in _FOREIGN
        if suffix == _PARQUET or suffix in _JSON_LINES:
            return self._field is not None or suffix != _PARQUET
        return self._field is None and suffix != _TOKEN_IDS and suffix not in _FOREIGN

    def _found(self, path: str, *, only_regular: bool = False) -> tuple[Source, bytes] | None:
        """As ``file``, of a file that nobody named; None: it is passed over."""
        try:
            if only_regular and not self._is_regular(path):
                self.left_out.append(path)
                return None
            return self.file(path)
        except InputUnreadable as error:
            self._skip(path, error)
            return None

    def _is_regular(self, path: str) -> bool:
        try:
            return self._store.status(path).kind == "file"
        except OSError as error:
            raise unreadable(path, error) from error

    def _skip(self, path: str, error: InputUnreadable) -> None:
        if self._on_skip is None:
            raise error
        self._last_skipped = error
        self._on_skip(path, error)


def _refuse_foreign(path: str, suffix: str, compression: str | None) -> None:
    if suffix in _FOREIGN or (suffix in (_TOKEN_IDS, _PARQUET) and compression):
        raise InputUnreadable(
            f"{show_path(path)}: {suffix}{compression or ''} files are not read",
            remedy="unpack it first (text may come through a pipe: name -)",
        )


def no_text(folder: str, field: str | None) -> InputHasNoText:
    """Return the error that tells what a folder should have held."""
    if field is not None:
        expected = f"JSON lines ({', '.join(sorted(_JSON_LINES))}, also compressed) or {_PARQUET}"
        remedy = "name the files themselves, or leave --field out for plain text"
    else:
        expected = (
            f"text (files without a zero byte in their first {SNIFF_BYTES} bytes, also "
            f"{', '.join(COMPRESSED)}; not hidden ones, archives or {_TOKEN_IDS})"
        )
        remedy = "name another folder, or the files themselves"
    return InputHasNoText(f"{show_path(folder)}: the folder holds no {expected}", remedy=remedy)


def _refuse_second_reading(sources: Sequence[Source]) -> None:
    streams = [
        os.path.realpath(s.path) if s.path != STDIN else STDIN for s in sources if s.stamp is None
    ]
    for path in streams:
        if streams.count(path) > 1:
            raise UsageError(
                f"{show_path(path)} is named twice, and can be read only once",
                remedy="name it once",
            )
