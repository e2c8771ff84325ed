"""Which files a corpus is made of, and their raw bytes.

``find_sources`` turns what a user names (files, folders, patterns, ``-``) into a list of
sources, in the order given, and opens each once so that nothing is missing later;
``read_blocks`` streams one of them, decompressed.
"""

from __future__ import annotations

import glob
import importlib
import os
import stat
import sys
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import IO, Any, Literal

from ..engine.errors import (
    InputHasNoText,
    InputMalformed,
    InputUnreadable,
    UsageError,
)

STDIN = "-"
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


@dataclass(frozen=True)
class Source:
    """One input file, or standard input.

    Attributes
    ----------
    path : as given, or as found in a folder or by a pattern; ``-`` is standard input.
    layout : how a document is found in it.
    compression : ``.gz``, ``.xz`` or ``.bz2``; None for none.
    size : bytes on disk, and ``mtime_ns`` the time of the last change, when the corpus was
        opened; None for standard input and pipes.
    """

    path: str
    layout: Layout
    compression: str | None
    size: int | None
    mtime_ns: int | None


def find_sources(paths: Sequence[str], field: str | None) -> tuple[list[Source], list[str]]:
    """Return (sources in the order given, files in folders that were left out as not text).

    An existing path is never taken as a pattern. A folder stands for its text files, a pattern
    for the files it matches (folders and special files among them are passed over); both are
    sorted by path. Pipes are read only when named themselves, and once.

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
        elif os.path.isdir(path):
            found, others = _folder_sources(path, field)
            sources += found
            left_out += others
        elif glob.has_magic(path) and not os.path.lexists(path):
            sources += _pattern_sources(path, field)
        else:
            sources.append(_file_source(path, field)[0])
    _refuse_second_reading(sources)
    return sources, left_out


def read_blocks(
    source: Source, block_bytes: int, on_raw_bytes: Callable[[int], None]
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
        with _open_raw(source) as raw:
            _check_unchanged(source, raw)
            counted = _CountedReader(raw, on_raw_bytes)
            reader: Any = counted if module is None else module.open(counted, "rb")
            while block := reader.read(block_bytes):
                yield block
            if module is not None and counted.n_bytes == 0:
                raise EOFError("the file is empty")
            _check_unchanged(source, raw)
    except damage as error:
        raise _damaged(source, error) from error
    except OSError as error:
        # The decompressors report bad data as an OSError too, but without an errno.
        if module is not None and error.errno is None:
            raise _damaged(source, error) from error
        raise unreadable(source.path, error) from error


def check_unchanged(source: Source, now: os.stat_result) -> None:
    """Raise InputUnreadable unless ``now`` shows the file as it was when it was found."""
    if source.size is not None and (now.st_size, now.st_mtime_ns) != (source.size, source.mtime_ns):
        raise InputUnreadable(
            f"{show_path(source.path)}: the file has changed since the start",
            remedy="run again when nothing writes to it",
        )


def show_path(path: str) -> str:
    """Return ``path`` for a message: one line, printable, whatever the name holds."""
    if path == STDIN:
        return "standard input"
    return path if path.isprintable() else ascii(path)


def unreadable(path: str, error: OSError | ValueError) -> InputUnreadable:
    """Return the InputUnreadable that tells why ``path`` could not be read."""
    reason = (getattr(error, "strerror", None) or str(error)).lower()
    if isinstance(error, FileNotFoundError):
        remedy = "check the spelling and the current folder"
    elif isinstance(error, PermissionError):
        remedy = "make it readable (chmod +r), or run as its owner"
    else:
        remedy = "check that it is a readable file on a working disk"
    return InputUnreadable(f"{show_path(path)}: cannot be read ({reason})", remedy=remedy)


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


def _open_raw(source: Source) -> AbstractContextManager[IO[bytes]]:
    if source.path != STDIN:
        return open(source.path, "rb")
    if sys.stdin is None or sys.stdin.closed:
        raise InputUnreadable("standard input is closed", remedy="pipe a text in, or name a file")
    return nullcontext(sys.stdin.buffer)  # not ours to close


def _check_unchanged(source: Source, raw: IO[bytes]) -> None:
    if source.size is not None:
        check_unchanged(source, os.fstat(raw.fileno()))


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


def _file_source(path: str, field: str | None) -> tuple[Source, bytes]:
    """Return (source, its first decompressed bytes) of one file; a pipe is not touched yet."""
    try:
        status = os.stat(path)
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
    if stat.S_ISFIFO(status.st_mode) and layout != "token-ids":
        return Source(path, layout, compression, None, None), b""
    if not stat.S_ISREG(status.st_mode):
        raise InputUnreadable(
            f"{show_path(path)}: a special file, which is not read",
            remedy="name a file, or pipe the text in and name -",
        )
    source = Source(path, layout, compression, status.st_size, status.st_mtime_ns)
    with closing(read_blocks(source, SNIFF_BYTES, lambda n_bytes: None)) as blocks:
        return source, next(blocks, b"")


def _refuse_foreign(path: str, suffix: str, compression: str | None) -> None:
    if suffix in _FOREIGN or (suffix == _TOKEN_IDS and compression):
        raise InputUnreadable(
            f"{show_path(path)}: {suffix}{compression or ''} files are not read",
            remedy="unpack it first (text may come through a pipe: name -)",
        )


def _pattern_sources(pattern: str, field: str | None) -> list[Source]:
    matches = sorted(glob.glob(pattern, recursive=True), key=os.fsencode)
    files = [path for path in matches if os.path.isfile(path) or not os.path.exists(path)]
    if not files:
        raise InputHasNoText(
            f"{show_path(pattern)}: no file matches the pattern",
            remedy="check it (** goes into folders; hidden files need their dot)",
        )
    return [_file_source(path, field)[0] for path in files]


def _folder_sources(folder: str, field: str | None) -> tuple[list[Source], list[str]]:
    """Return (sources, files left out) of a folder, hidden names passed over."""
    sources: list[Source] = []
    left_out: list[str] = []
    for path in _visible_files(folder):
        suffix, _ = _suffixes(path)
        is_json = suffix in _JSON_LINES
        is_text = suffix != _TOKEN_IDS and suffix not in _FOREIGN and (is_json or field is None)
        if is_text and _is_regular(path):
            source, head = _file_source(path, field)
            if is_json or b"\0" not in head:
                sources.append(source)
                continue
        left_out.append(path)
    if not sources:
        raise _no_text(folder, field)
    return sources, left_out


def _visible_files(folder: str) -> list[str]:
    def refuse(error: OSError) -> None:
        raise unreadable(error.filename or folder, error) from error

    found: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.join(parent, name) for name in names if not name.startswith(".")]
    return sorted(found, key=os.fsencode)


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError as error:
        raise unreadable(path, error) from error


def _no_text(folder: str, field: str | None) -> InputHasNoText:
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
        os.path.realpath(s.path) if s.path != STDIN else STDIN for s in sources if s.size is None
    ]
    for path in streams:
        if streams.count(path) > 1:
            raise UsageError(
                f"{show_path(path)} is named twice, and can be read only once",
                remedy="name it once",
            )
