"""Which files a corpus is made of, and their raw bytes.

``find_sources`` turns what a user names (files, folders, patterns, ``-``) into a list of
sources, in the order given, and opens each once so that nothing is missing later;
``read_blocks`` streams one of them, decompressed. Where files lie is a ``Store``'s affair.
"""

from __future__ import annotations

import importlib
import os
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import IO, Any, Literal

from ..engine.errors import (
    InputHasNoText,
    InputMalformed,
    InputUnreadable,
    UsageError,
)
from .corpus_store import LOCAL, STDIN, Stamp, Status, Store, show_path, unreadable

SNIFF_BYTES = 8 << 10

# Suffix -> standard library module whose open() decompresses; imported when one is met, because
# some builds of Python lack lzma or bz2.
_COMPRESSED = {".gz": "gzip", ".xz": "lzma", ".bz2": "bz2"}
_JSON_LINES = frozenset({".jsonl", ".ndjson", ".jsonlines"})
_TOKEN_IDS = ".npy"
# Told by name, so that a wrong file is refused and not tokenised as mojibake.
_FOREIGN = frozenset(
    {".7z", ".br", ".docx", ".gguf", ".lz4", ".npz", ".parquet", ".pdf", ".rar"}
    | {".tar", ".tbz2", ".tgz", ".txz", ".zip", ".zst"}
)

Layout = Literal["text", "json-lines", "token-ids"]


@dataclass(frozen=True, slots=True)
class Source:
    """One input file, or standard input.

    Attributes
    ----------
    path : as given, or as found in a folder or by a pattern; ``-`` is standard input.
    layout : how a document is found in it.
    compression : ``.gz``, ``.xz`` or ``.bz2``; None for none.
    size : bytes on disk; None when unknown.
    stamp : what changes when the file does; None for standard input and pipes.
    folder : the folder that it was found in, while nobody has looked whether it holds text.
    """

    path: str
    layout: Layout
    compression: str | None
    size: int | None
    stamp: Stamp
    folder: str | None = None


def total_bytes(sources: Sequence[Source]) -> int | None:
    """Bytes of all files; None when one does not say."""
    sizes = [source.size for source in sources if source.size is not None]
    return sum(sizes) if len(sizes) == len(sources) else None


def find_sources(
    paths: Sequence[str], field: str | None, store: Store = LOCAL, *, open_each: bool = True
) -> tuple[list[Source], list[str]]:
    """Return (sources in the order given, files in folders that were left out as not text).

    An existing path is never taken as a pattern. A folder stands for its text files, a pattern
    for the files it matches (folders and special files among them are passed over); both are
    sorted by path. Pipes are read only when named themselves, and once. Without ``open_each``
    no file is opened: that it can be, and that one in a folder is text, shows when it is read.

    Raises
    ------
    InputUnreadable, InputHasNoText, InputMalformed, UsageError : as their messages say.
    """
    if not paths:
        raise UsageError("no input is named", remedy="name a file, a folder or - for stdin")
    if field == "":
        raise UsageError("--field is empty", remedy="name the field that holds the text")
    sources: list[Source] = []
    left_out: list[str] = []
    for path in paths:
        if path == STDIN:
            sources.append(Source(STDIN, _layout("", field), None, None, None))
        elif store.is_folder(path):
            found, others = _folder_sources(path, field, store, open_each)
            sources += found
            left_out += others
        elif store.is_pattern(path):
            sources += _pattern_sources(path, field, store, open_each)
        else:
            sources.append(_file_source(path, field, store, open_each)[0])
    _refuse_second_reading(sources)
    return sources, left_out


def read_blocks(
    source: Source, block_bytes: int, on_raw_bytes: Callable[[int], None], store: Store = LOCAL
) -> Generator[bytes]:
    """Yield the decompressed bytes of ``source`` in blocks of at most ``block_bytes``.

    ``on_raw_bytes`` gets the number of bytes read from the file before decompression. The file
    is closed at the end, at an error, and when the iterator is closed or forgotten.

    Raises
    ------
    InputUnreadable : the file cannot be opened or read, is damaged or cut short, or is not the
        file any more that it was when the corpus was opened.
    """
    module = None if source.compression is None else _decompressor(source)
    damage = (EOFError, zlib.error, getattr(module, "LZMAError", EOFError))
    try:
        with store.open(source.path) as raw:
            _check_unchanged(source, raw, store)
            counted = _CountedReader(raw, on_raw_bytes)
            reader: Any = counted if module is None else module.open(counted, "rb")
            while block := reader.read(block_bytes):
                yield block
            if module is not None and counted.n_bytes == 0:
                raise EOFError("the file is empty")
            _check_unchanged(source, raw, store)
    except damage as error:
        raise _damaged(source, error) from error
    except OSError as error:
        # The decompressors report bad data as an OSError too, but without an errno.
        if module is not None and error.errno is None:
            raise _damaged(source, error) from error
        raise unreadable(source.path, error) from error


def check_unchanged(source: Source, now: Status) -> None:
    """Raise InputUnreadable unless ``now`` shows the file as it was when it was found."""
    if source.stamp is not None and (now.size, now.stamp) != (source.size, source.stamp):
        raise InputUnreadable(
            f"{show_path(source.path)}: the file has changed since the start",
            remedy="run again when nothing writes to it",
        )


class _CountedReader:
    """A readable file that reports how many bytes were read; all that the decompressors need."""

    def __init__(self, raw: IO[bytes], on_raw_bytes: Callable[[int], None]) -> None:
        self._raw = raw
        self._on_raw_bytes = on_raw_bytes
        self.n_bytes = 0

    def read(self, n_bytes: int = -1) -> bytes:
        data = self._raw.read(n_bytes)
        self.n_bytes += len(data)
        self._on_raw_bytes(len(data))
        return data


def _check_unchanged(source: Source, raw: IO[bytes], store: Store) -> None:
    if source.stamp is not None:
        check_unchanged(source, store.status(source.path, raw))


def _decompressor(source: Source) -> Any:
    name = _COMPRESSED[source.compression or ""]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputUnreadable(
            f"{show_path(source.path)}: this Python was built without {name}",
            remedy="decompress the file first",
        ) from error


def _damaged(source: Source, error: Exception) -> InputUnreadable:
    return InputUnreadable(
        f"{show_path(source.path)}: damaged or cut short {source.compression} data ({error})",
        remedy="get the file again, or decompress it by hand and look",
    )


def _suffixes(path: str) -> tuple[str, str | None]:
    """Return (suffix that tells the layout, compression)."""
    inner, suffix = os.path.splitext(path.lower())
    if suffix in _COMPRESSED:
        return os.path.splitext(inner)[1], suffix
    return suffix, None


def _layout(suffix: str, field: str | None) -> Layout:
    if suffix == _TOKEN_IDS:
        return "token-ids"
    return "text" if field is None else "json-lines"


def _file_source(
    path: str, field: str | None, store: Store, open_each: bool
) -> tuple[Source, bytes]:
    """Return (source, its first decompressed bytes) of one file; a pipe is not touched yet."""
    try:
        status = store.status(path)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    suffix, compression = _suffixes(path)
    _refuse_foreign(path, suffix, compression)
    if suffix in _JSON_LINES and field is None:
        raise InputMalformed(
            f"{show_path(path)}: JSON lines, and no field is named",
            remedy="name the field that holds the text with --field, or use a pattern (dir/*.txt)",
        )
    layout = _layout(suffix, field)
    if status.kind == "pipe" and layout != "token-ids":
        return Source(path, layout, compression, None, None), b""
    if status.kind != "file":
        raise InputUnreadable(
            f"{show_path(path)}: a special file, which is not read",
            remedy="name a file, or pipe the text in and name -",
        )
    source = Source(path, layout, compression, status.size, status.stamp)
    return source, read_head(source, store) if open_each else b""


def read_head(source: Source, store: Store = LOCAL) -> bytes:
    """Return the first decompressed bytes of a file, at most SNIFF_BYTES.

    Raises
    ------
    InputUnreadable : as for ``read_blocks``.
    """
    with closing(read_blocks(source, SNIFF_BYTES, lambda n_bytes: None, store)) as blocks:
        return next(blocks, b"")


def _refuse_foreign(path: str, suffix: str, compression: str | None) -> None:
    if suffix in _FOREIGN or (suffix == _TOKEN_IDS and compression):
        raise InputUnreadable(
            f"{show_path(path)}: {suffix}{compression or ''} files are not read",
            remedy="unpack it first (text may come through a pipe: name -)",
        )


def _pattern_sources(
    pattern: str, field: str | None, store: Store, open_each: bool
) -> list[Source]:
    files = store.matches(pattern)
    if not files:
        raise InputHasNoText(
            f"{show_path(pattern)}: no file matches the pattern",
            remedy="check it (** goes into folders; hidden files need their dot)",
        )
    return [_file_source(path, field, store, open_each)[0] for path in files]


def _folder_sources(
    folder: str, field: str | None, store: Store, open_each: bool
) -> tuple[list[Source], list[str]]:
    """Return (sources, files left out) of a folder, hidden names passed over."""
    sources: list[Source] = []
    left_out: list[str] = []
    for path in store.files_below(folder):
        suffix, _ = _suffixes(path)
        is_json = suffix in _JSON_LINES
        is_text = suffix != _TOKEN_IDS and suffix not in _FOREIGN and (is_json or field is None)
        if is_text and _is_regular(path, store):
            source, head = _file_source(path, field, store, open_each)
            if not open_each and not is_json:
                source = replace(source, folder=folder)
            if is_json or b"\0" not in head:
                sources.append(source)
                continue
        left_out.append(path)
    if not sources:
        raise no_text(folder, field)
    return sources, left_out


def _is_regular(path: str, store: Store) -> bool:
    try:
        return store.status(path).kind == "file"
    except OSError as error:
        raise unreadable(path, error) from error


def no_text(folder: str, field: str | None) -> InputHasNoText:
    """Return the error that tells what a folder should have held."""
    if field is not None:
        expected = f"JSON lines ({', '.join(sorted(_JSON_LINES))}, also compressed)"
        remedy = "name the files themselves, or leave --field out for plain text"
    else:
        expected = (
            f"text (files without a zero byte in their first {SNIFF_BYTES} bytes, also "
            f"{', '.join(_COMPRESSED)}; not hidden ones, archives or {_TOKEN_IDS})"
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
