"""The native cache file: written beside its target and renamed, opened as a memory map.

Layout, little-endian: a header (magic, version, byte-order mark, sizes, vocabulary, checksums), a
table of arrays, then the arrays, each at a multiple of 64 bytes. docs/cache-file.md draws it.
Every byte is under a checksum, so a flipped bit anywhere is found; after the checksums all
invariants are checked too, for a hostile file can carry true checksums.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...engine.atomic_file import write_atomically
from ...engine.errors import (
    CacheDamaged,
    CacheNewerVersion,
    CacheNotACache,
    CacheOtherVocabulary,
    CacheTruncated,
    CacheUnsuitable,
    InputUnreadable,
)
from ...engine.host import require_memory
from .llama_format import llama_parts, read_llama
from .ngram_cache import ORDER_MAX, Format, NgramCache, check_cache
from .packed import (
    BIGRAM_COLUMNS,
    COLUMNS,
    SHIFT_MAX,
    PackedTable,
    n_slots,
    pack,
    token_dtype,
)
from .packed_kernels import checksum
from .table import COUNT_MAX, refuse

MAGIC = b"\x89DSNG\r\n\x00"  # a text-mode copy or a 7-bit channel would break it visibly
VERSION = 1
_BYTE_ORDER = 0x01020304
_ALIGN = 64
# magic, version, byte order, arrays, CRC of the table, file bytes, n_vocab, fingerprint, CRC of the
# header up to here
_HEADER = struct.Struct("<8sIIIIQQ32sI")
# name, dtype, checksum up to the next array, offset, items
_ENTRY = struct.Struct("<24s8sQQQ")
_NO_FINGERPRINT = bytes(32)
_AGAIN = "create it again with lookup-create"
# Measured: reading llama.cpp's format takes 4 to 9 times the file, for it is sorted in memory.
_LLAMA_EXPANSION = 9
_TOKEN_KINDS = ("<u2", "<u4")
# Each name a file may hold, and the dtypes it may have.
_KINDS = {
    f"{order}.{name}": _TOKEN_KINDS if kind == "token" else (kind,)
    for order in range(1, ORDER_MAX + 1)
    for name, kind in (COLUMNS | (BIGRAM_COLUMNS if order == 2 else {})).items()
}


def _padded(n: int) -> int:
    return -(-n // _ALIGN) * _ALIGN


def _columns(order: int) -> dict[str, str]:
    return COLUMNS | BIGRAM_COLUMNS if order == 2 else COLUMNS


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """The array as uint8, with the zeros that fill its last 64 bytes."""
    padded = np.zeros(_padded(array.nbytes), np.uint8)
    padded[: array.nbytes] = np.ascontiguousarray(array).view(np.uint8)
    return padded


def _native_parts(cache: NgramCache, what: str) -> Iterator[bytes | memoryview]:
    """The file's content, piece by piece."""
    for one in cache.tables.values():
        if isinstance(one, PackedTable):
            one.verify()  # or a fault would get true checksums
    n_ids = cache.n_vocab or max(1, cache.max_token() + 1)
    named = [
        (f"{order}.{name}", table.arrays[name])
        for order, table in ((o, pack(t, o, n_ids, what)) for o, t in cache.tables.items())
        for name in _columns(order)
    ]
    offset = head_bytes = _padded(_HEADER.size + _ENTRY.size * len(named))
    rows = []
    for name, array in named:
        total = int(checksum(_bytes_of(array).view(np.uint64)))
        kind = array.dtype.str.encode()
        rows.append(_ENTRY.pack(name.encode(), kind, total, offset, array.size))
        offset += _padded(array.nbytes)
    table = b"".join(rows)
    table += bytes(head_bytes - _HEADER.size - len(table))
    fingerprint = cache.fingerprint or _NO_FINGERPRINT
    fields = (MAGIC, VERSION, _BYTE_ORDER, len(named), zlib.crc32(table), offset, cache.n_vocab)
    head = _HEADER.pack(*fields, fingerprint, 0)[:-4]
    yield head + struct.pack("<I", zlib.crc32(head)) + table
    for _, array in named:
        yield _bytes_of(array).data


def write_cache(path: str | Path, cache: NgramCache, *, format: Format = "native") -> int:
    """Write a cache and return its size in bytes; the target is whole or untouched.

    Raises
    ------
    OutputNoFolder, OutputNotWritable, DiskFull : the file can't be written
    CacheUnsuitable : the format can't hold the cache; llama.cpp's has no file without n-grams
    CacheBadCount, CacheBadToken, CacheDamaged : the cache comes from a file that is not sound
    """
    if format == "llama.cpp" and not cache.n_entries:
        raise CacheUnsuitable(
            f"{path}: a cache without n-grams would be an empty file in llama.cpp's format",
            remedy="count a longer text, or write the native format",
        )
    parts: Iterable[bytes | memoryview]
    if format == "native":
        parts = _native_parts(cache, str(path))
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


def _read(path: Path, n_bytes: int) -> np.ndarray:
    """The first bytes of the file in memory of our own, uint8 [at most n].

    What is parsed must not change meanwhile: what is checked of a map may be another number when
    it is used.
    """
    require_memory(
        _LLAMA_EXPANSION * n_bytes,
        f"{path}: reading llama.cpp's format of {n_bytes / 1e9:.1f} GB",
        remedy="create it again in the native format, or with a smaller corpus",
    )
    try:
        with path.open("rb") as file:
            return np.fromfile(file, np.uint8, n_bytes)
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
    if n_bytes != data.size or table_stop > data.size or n_arrays > ORDER_MAX * len(_columns(2)):
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
        raw, dtype, total, offset, n_items = _ENTRY.unpack(data[at : at + _ENTRY.size].tobytes())
        name = raw.rstrip(b"\0").decode("ascii", "replace")
        kind = dtype.rstrip(b"\0").decode("ascii", "replace")
        if kind not in _KINDS.get(name, ()) or name in arrays:
            raise CacheDamaged(f"{what}: unknown array {name!r} of {kind!r}", remedy=_AGAIN)
        n_bytes = n_items * np.dtype(kind).itemsize
        stop = offset + _padded(n_bytes)
        if offset != expected or stop > data.size:
            raise CacheDamaged(f"{what}: array {name} lies outside the file", remedy=_AGAIN)
        if (
            int(checksum(np.ndarray(((stop - offset) // 8,), "<u8", data[offset:stop].data)))
            != total
        ):
            raise CacheDamaged(f"{what}: the checksum of array {name} is wrong", remedy=_AGAIN)
        arrays[name] = np.ndarray((n_items,), kind, data[offset : offset + n_bytes].data)
        expected = stop
    if expected != data.size:
        raise CacheDamaged(f"{what}: bytes after the last array", remedy=_AGAIN)
    return arrays


def _sizes_agree(table: PackedTable) -> bool:
    """Whether the arrays of a table have the sizes that its shape says."""
    n_ngrams, n_entries, shift = table.n_ngrams, table.n_entries, table.shift
    sizes = {
        "shape": 3,
        "first": table.n_ids + 1,
        "rest": n_ngrams * (table.order - 1),
        "base": (n_ngrams >> shift) + 1,
        "offset": n_ngrams + 1,
        "next": n_entries,
        "count": n_entries,
        "many_entry": table.arrays["many_count"].size,
    }
    if table.order == 2:
        sizes |= {"verdict": n_ngrams, "slots": n_slots(n_ngrams)}
    kind = np.dtype(token_dtype(table.n_ids))
    return all(table.arrays[name].size == size for name, size in sizes.items()) and all(
        table.arrays[name].dtype == kind
        for name, column in _columns(table.order).items()
        if column == "token"
    )


def _tables(arrays: dict[str, np.ndarray], n_vocab: int, what: str) -> dict[int, PackedTable]:
    tables = {}
    for order in range(1, ORDER_MAX + 1):
        names = {name: f"{order}.{name}" for name in _columns(order)}
        if names["shape"] not in arrays:
            continue
        if not all(name in arrays for name in names.values()):
            raise CacheDamaged(f"{what}: the {order}-grams lack an array", remedy=_AGAIN)
        mine = {short: arrays.pop(name) for short, name in names.items()}
        n_ids = n_vocab or mine["first"].size - 1
        if mine["shape"].size != 3 or mine["shape"][2] > SHIFT_MAX or n_ids < 1:
            raise CacheDamaged(f"{what}: the {order}-grams' shape can't be", remedy=_AGAIN)
        tables[order] = PackedTable(order, n_ids, mine, what)
        if not _sizes_agree(tables[order]):
            raise CacheDamaged(f"{what}: the {order}-grams' arrays differ in size", remedy=_AGAIN)
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
    return replace(cache, n_vocab=n_vocab)


def open_cache(
    path: str | Path,
    *,
    n_vocab: int | None = None,
    fingerprint: bytes | None = None,
    verify: bool = False,
) -> NgramCache:
    """Open a native cache (a memory map) or llama.cpp's (read into memory), told by the magic.

    With ``n_vocab`` and ``fingerprint`` (the model's) a cache of another vocabulary is refused. All
    checksums are compared. Of a native file, ids, counts and ``first`` are checked too, which makes
    drafting from it safe; every invariant is with ``verify``, or when a table is unpacked.

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
    head = data[:16].tobytes()
    if head[: len(MAGIC)] != MAGIC[: len(head)]:
        # Ids stay below 2**21, so the highest byte of llama.cpp's first four is 0, or 255 where
        # unused. A text named by mistake should not be called a damaged cache.
        if any(byte not in (0, 255) for byte in head[3:16:4]):
            raise CacheNotACache(
                f"{what}: neither a native nor a llama.cpp n-gram cache",
                remedy="name a file that lookup-create or llama-lookup-create wrote",
            )
        cache = read_llama(_read(path, data.size), what)
    else:
        n_arrays, file_vocab, file_fingerprint = _read_header(data, what)
        arrays = _read_arrays(data, n_arrays, what)
        cache = NgramCache(_tables(arrays, file_vocab, what), file_vocab, file_fingerprint)
    cache = replace(cache, source=what)
    cache = _check_vocabulary(cache, what, n_vocab, fingerprint)
    for order, table in cache.tables.items():
        if isinstance(table, PackedTable):
            table.glance()
            # Where the file does not say its vocabulary, the model's may be the smaller one.
            if 0 < cache.n_vocab < table.n_ids and table.max_token() >= cache.n_vocab:
                refuse(2, table.max_token(), order, cache.n_vocab, what)
    if verify or cache.format == "llama.cpp":
        check_cache(cache, what)
    return cache
