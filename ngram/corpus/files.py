"""A file that a corpus is made of, and its bytes: ``read_blocks`` streams them, decompressed."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import IO, Any, Literal

from ...engine.errors import InputUnreadable
from .store import LOCAL, Stamp, Status, Store, show_path, unreadable
from .zstd import ZstdReader

SNIFF_BYTES = 8 << 10

_ZSTD = ".zst"
# Suffix -> standard library module whose open() decompresses; imported when one is met, because
# some builds of Python lack lzma or bz2. The package for .zst is an extra.
COMPRESSED = {".gz": "gzip", ".xz": "lzma", ".bz2": "bz2", _ZSTD: ""}
Layout = Literal["text", "json-lines", "parquet", "token-ids"]


@dataclass(frozen=True, slots=True)
class Source:
    """One input file, or standard input.

    Attributes
    ----------
    path : as given, or as found in a folder or by a pattern; ``-`` is standard input.
    layout : how a document is found in it.
    compression : ``.gz``, ``.xz``, ``.bz2`` or ``.zst``; None for none.
    size : bytes on disk; None when unknown.
    stamp : what changes when the file does; None for standard input and pipes.
    folder : the folder that it was found in, while nobody has looked whether it holds text.
    is_found : in a folder or by a pattern, not named itself: a fault in it need not end the run.
    """

    path: str
    layout: Layout
    compression: str | None
    size: int | None
    stamp: Stamp
    folder: str | None = None
    is_found: bool = False


def total_bytes(sources: Sequence[Source]) -> int | None:
    """Bytes of all files; None when one does not say."""
    sizes = [source.size for source in sources if source.size is not None]
    return sum(sizes) if len(sizes) == len(sources) else None


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
    is_packed = source.compression is not None
    damage: tuple[type[Exception], ...] = (EOFError, zlib.error)
    try:
        with store.open(source.path) as raw:
            _check_unchanged(source, raw, store)
            counted = _CountedReader(raw, on_raw_bytes)
            reader, more = _decompressed(source, counted)
            damage += more
            while block := reader.read(block_bytes):
                yield block
            if is_packed and counted.n_bytes == 0:
                raise EOFError("the file is empty")
            _check_unchanged(source, raw, store)
    except OSError as error:
        # The decompressors report bad data as an OSError too, but without an errno.
        if is_packed and error.errno is None:
            raise _damaged(source, error) from error
        raise unreadable(source.path, error) from error
    except Exception as error:
        if isinstance(error, damage):
            raise _damaged(source, error) from error
        raise


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


def _decompressed(source: Source, raw: _CountedReader) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return (what reads the content of a file, further errors that bad data raises)."""
    if source.compression is None:
        return raw, ()
    if source.compression == _ZSTD:
        zstd = ZstdReader(raw, show_path(source.path))
        return zstd, (zstd.damage,)
    name = COMPRESSED[source.compression]
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise InputUnreadable(
            f"{show_path(source.path)}: this Python was built without {name}",
            remedy="decompress the file first",
        ) from error
    return module.open(raw, "rb"), (getattr(module, "LZMAError", EOFError),)


def _damaged(source: Source, error: Exception) -> InputUnreadable:
    return InputUnreadable(
        f"{show_path(source.path)}: damaged or cut short {source.compression} data ({error})",
        remedy="get the file again, or decompress it by hand and look",
    )


def read_head(source: Source, store: Store = LOCAL) -> bytes:
    """Return the first decompressed bytes of a file, at most SNIFF_BYTES.

    Raises
    ------
    InputUnreadable : as for ``read_blocks``.
    """
    with closing(read_blocks(source, SNIFF_BYTES, lambda n_bytes: None, store)) as blocks:
        return next(blocks, b"")
