"""The native cache file: written beside its target and renamed, opened as a memory map.

Layout, little-endian: a header (magic, version, byte-order mark, sizes, vocabulary, checksums), a
table of arrays, then the arrays, each at a multiple of 64 bytes. docs/cache-file.md draws it.
Every byte is under a CRC-32, so a flipped bit anywhere is found; after the checksums all
invariants are checked too, for a hostile file can carry true checksums.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from ..engine.atomic_file import write_atomically
from ..engine.errors import (
    CacheDamaged,
    CacheNewerVersion,
    CacheNotACache,
    CacheOtherVocabulary,
    CacheTruncated,
    InputUnreadable,
)
from ..engine.pages import byte_blocks
from .cache import COUNT_MAX, ORDER_MAX, Format, NgramCache, OrderTable, check_cache
from .llama_format import llama_parts, read_llama

MAGIC = b"\x89DSNG\r\n\x00"  # a text-mode copy or a 7-bit channel would break it visibly
VERSION = 1
_BYTE_ORDER = 0x01020304
_ALIGN = 64
# magic, version, byte order, arrays, CRC of the table, file bytes, n_vocab, fingerprint, CRC of the
# header up to here
_HEADER = struct.Struct("<8sIIIIQQ32sI")
# name, dtype, CRC up to the next array, offset, items
_ENTRY = struct.Struct("<24s4sIQQ")
_NO_FINGERPRINT = bytes(32)
_COLUMNS = (("tokens", "<i4"), ("start", "<i8"), ("next", "<i4"), ("count", "<u4"))
_KINDS = {f"{n}.{name}": kind for n in range(1, ORDER_MAX + 1) for name, kind in _COLUMNS}
_AGAIN = "create it again with lookup-create"


def _padded(n: int) -> int:
    return -(-n // _ALIGN) * _ALIGN


def _named_arrays(cache: NgramCache) -> list[tuple[str, str, np.ndarray]]:
    return [
        (f"{order}.{name}", dtype, array)
        for order, table in cache.tables.items()
        for (name, dtype), array in zip(
            _COLUMNS,
            (table.tokens, table.entry_start, table.entry_token, table.entry_count),
            strict=True,
        )
    ]


def _native_parts(cache: NgramCache) -> Iterator[bytes | memoryview]:
    """The file's content, piece by piece."""
    arrays = [(n, d, np.ascontiguousarray(a, d)) for n, d, a in _named_arrays(cache)]
    offset = _padded(_HEADER.size + _ENTRY.size * len(arrays))
    head_bytes = offset
    rows = []
    for name, dtype, array in arrays:
        padding = bytes(_padded(array.nbytes) - array.nbytes)
        crc = 0
        for block in byte_blocks(array):
            crc = zlib.crc32(block, crc)
        crc = zlib.crc32(padding, crc)
        rows.append(_ENTRY.pack(name.encode(), dtype.encode(), crc, offset, array.size))
        offset += _padded(array.nbytes)
    table = b"".join(rows)
    table += bytes(head_bytes - _HEADER.size - len(table))
    fingerprint = cache.fingerprint or _NO_FINGERPRINT
    fields = (MAGIC, VERSION, _BYTE_ORDER, len(arrays), zlib.crc32(table), offset, cache.n_vocab)
    head = _HEADER.pack(*fields, fingerprint, 0)[:-4]
    yield head + struct.pack("<I", zlib.crc32(head)) + table
    for _, _, array in arrays:
        if array.size:
            yield from byte_blocks(array)
            yield bytes(_padded(array.nbytes) - array.nbytes)


def write_cache(path: str | Path, cache: NgramCache, *, format: Format = "native") -> int:
    """Write a cache and return its size in bytes; the target is whole or untouched.

    Raises
    ------
    OutputNoFolder, OutputNotWritable, DiskFull : the file can't be written
    """
    parts: Iterable[bytes | memoryview]
    if format == "native":
        parts = _native_parts(cache)
    else:
        parts = (memoryview(words).cast("B") for words in llama_parts(cache) if words.size)
    return write_atomically(Path(path), parts)


def _map(path: Path) -> np.ndarray:
    """The bytes of the file as a memory map, uint8 [n]."""
    try:
        if not path.is_file():
            kind = "is not a file" if path.exists() else "does not exist"
            raise InputUnreadable(
                f"{path} {kind}", remedy="name a cache file, or create one with lookup-create"
            )
        if path.stat().st_size == 0:
            raise CacheTruncated(f"{path}: the cache file is empty", remedy=_AGAIN)
        # Copy-on-write, and never written: Numba compiles anew for read-only arrays.
        return np.memmap(path, np.uint8, "c")
    except OSError as error:
        raise InputUnreadable(
            f"{path} can't be read ({os.strerror(error.errno or 0)})",
            remedy="check the path and its permissions",
        ) from error


def _sensible(n_vocab: int, fingerprint: bytes) -> bool:
    """Ids are int32; a cache without a vocabulary has no fingerprint, one with it has both."""
    return n_vocab <= COUNT_MAX and (n_vocab > 0 or fingerprint == _NO_FINGERPRINT)


def _read_header(data: np.ndarray, what: str) -> tuple[int, int, bytes]:
    """(arrays, n_vocab, fingerprint) of a native file, after all checks of header and table."""
    if data.size < _HEADER.size:
        raise CacheTruncated(f"{what}: the cache ends inside its header", remedy=_AGAIN)
    head = data[: _HEADER.size].tobytes()
    _, version, byte_order, n_arrays, table_crc, n_bytes, n_vocab, fingerprint, crc = (
        _HEADER.unpack(head)
    )
    if version > VERSION and zlib.crc32(head[:-4]) == crc:
        raise CacheNewerVersion(
            f"{what}: the cache has format version {version}, this release reads up to {VERSION}",
            remedy="upgrade draftsmith, or create the cache again with this release",
        )
    if zlib.crc32(head[:-4]) != crc or byte_order != _BYTE_ORDER or version != VERSION:
        raise CacheDamaged(f"{what}: the header's checksum is wrong", remedy=_AGAIN)
    if n_bytes > data.size:
        raise CacheTruncated(
            f"{what}: the cache has {data.size} bytes, its header says {n_bytes}", remedy=_AGAIN
        )
    table_stop = _padded(_HEADER.size + _ENTRY.size * n_arrays)
    if not _sensible(n_vocab, fingerprint):
        raise CacheDamaged(f"{what}: a vocabulary of {n_vocab} tokens can't be", remedy=_AGAIN)
    if n_bytes != data.size or table_stop > data.size or n_arrays > ORDER_MAX * len(_COLUMNS):
        raise CacheDamaged(f"{what}: the header's sizes contradict the file's", remedy=_AGAIN)
    if zlib.crc32(data[_HEADER.size : table_stop]) != table_crc:
        raise CacheDamaged(f"{what}: the array table's checksum is wrong", remedy=_AGAIN)
    return n_arrays, n_vocab, b"" if fingerprint == _NO_FINGERPRINT else fingerprint


def _read_arrays(data: np.ndarray, n_arrays: int, what: str) -> dict[str, np.ndarray]:
    """The arrays by name, as views of the map, checksums verified."""
    arrays: dict[str, np.ndarray] = {}
    expected = _padded(_HEADER.size + _ENTRY.size * n_arrays)
    for i in range(n_arrays):
        at = _HEADER.size + i * _ENTRY.size
        raw, dtype, crc, offset, n_items = _ENTRY.unpack(data[at : at + _ENTRY.size].tobytes())
        name = raw.rstrip(b"\0").decode("ascii", "replace")
        kind = _KINDS.get(name)
        if kind is None or dtype.rstrip(b"\0") != kind.encode() or name in arrays:
            raise CacheDamaged(f"{what}: unknown array {name!r}", remedy=_AGAIN)
        n_bytes = n_items * np.dtype(kind).itemsize
        stop = offset + _padded(n_bytes)
        if offset != expected or stop > data.size:
            raise CacheDamaged(f"{what}: array {name} lies outside the file", remedy=_AGAIN)
        if zlib.crc32(data[offset:stop]) != crc:
            raise CacheDamaged(f"{what}: the checksum of array {name} is wrong", remedy=_AGAIN)
        arrays[name] = np.ndarray((n_items,), kind, data[offset : offset + n_bytes].data)
        expected = stop
    if expected != data.size:
        raise CacheDamaged(f"{what}: bytes after the last array", remedy=_AGAIN)
    return arrays


def _tables(arrays: dict[str, np.ndarray], what: str) -> dict[int, OrderTable]:
    tables = {}
    for order in range(1, ORDER_MAX + 1):
        names = [f"{order}.{name}" for name, _ in _COLUMNS]
        if names[0] not in arrays:
            continue
        if not all(name in arrays for name in names) or not arrays[names[1]].size:
            raise CacheDamaged(f"{what}: the {order}-grams lack an array", remedy=_AGAIN)
        tokens, start, entry_token, entry_count = (arrays.pop(name) for name in names)
        if tokens.size != (start.size - 1) * order or entry_token.size != entry_count.size:
            raise CacheDamaged(f"{what}: the {order}-grams' arrays differ in size", remedy=_AGAIN)
        tables[order] = OrderTable(tokens, start, entry_token, entry_count)
    if arrays:
        raise CacheDamaged(f"{what}: array {min(arrays)} has no n-grams", remedy=_AGAIN)
    return tables


def _check_vocabulary(
    cache: NgramCache, what: str, n_vocab: int | None, fingerprint: bytes | None
) -> NgramCache:
    """The cache, bound to the wanted vocabulary where its file does not say one."""
    other = fingerprint is not None and cache.fingerprint != fingerprint
    if cache.fingerprint and (other or n_vocab not in (None, cache.n_vocab)):
        raise CacheOtherVocabulary(
            f"{what}: the cache was made with another vocabulary ({cache.n_vocab} tokens, "
            f"{cache.fingerprint.hex()[:12]}) than the model's ({n_vocab} tokens, "
            f"{fingerprint.hex()[:12] if fingerprint else 'unknown'})",
            remedy="create the cache again with this model, or name the model it was made with",
        )
    if cache.fingerprint or n_vocab is None:
        return cache
    return NgramCache(cache.tables, n_vocab, cache.fingerprint, cache.format)


def open_cache(
    path: str | Path, *, n_vocab: int | None = None, fingerprint: bytes | None = None
) -> NgramCache:
    """Open a native cache (a memory map) or llama.cpp's (read into memory), told by the magic.

    With ``n_vocab`` and ``fingerprint`` (the model's) a cache of another vocabulary is refused.

    Raises
    ------
    InputUnreadable : no such file, or it can't be read
    CacheNotACache, CacheTruncated, CacheDamaged, CacheBadCount, CacheBadToken, CacheNewerVersion :
        what is wrong with the file
    CacheOtherVocabulary : the cache belongs to another vocabulary
    """
    path = Path(path)
    data = _map(path)
    what = str(path)
    head = data[: len(MAGIC)].tobytes()
    if head != MAGIC[: len(head)]:
        # Ids stay below 2**21, so the highest byte of llama.cpp's first four is 0, or 255 where
        # unused. A text named by mistake should not be called a damaged cache.
        if not np.isin(data[3:16:4], (0, 255)).all():
            raise CacheNotACache(
                f"{what}: neither a native nor a llama.cpp n-gram cache",
                remedy="name a file that lookup-create or llama-lookup-create wrote",
            )
        cache = read_llama(data, what)
    else:
        n_arrays, file_vocab, file_fingerprint = _read_header(data, what)
        arrays = _read_arrays(data, n_arrays, what)
        cache = NgramCache(_tables(arrays, what), file_vocab, file_fingerprint)
    cache = _check_vocabulary(cache, what, n_vocab, fingerprint)
    check_cache(cache, what)
    return cache
