"""llama.cpp's n-gram cache file, for exchange with its lookup tools and server.

The file has no header, version, checksum or vocabulary: records until its end, little-endian (see
``llama_kernels``). llama.cpp asserts on a damaged file; here each fault has an error of its own.
Only one thing can't be seen: a file that was cut exactly between two records.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...engine.errors import (
    CacheBadCount,
    CacheBadToken,
    CacheNotACache,
    CacheTruncated,
)
from .llama_kernels import (
    BAD_COUNT,
    BAD_NGRAM,
    BAD_SIZE,
    BAD_TOKEN,
    TRUNCATED,
    read_records,
    scan_records,
    write_records,
)
from .ngram_cache import NgramCache
from .table import OrderTable

_AGAIN = "the file is damaged: create it again"


def _first_of_each(keys: np.ndarray) -> np.ndarray:
    """Indices of the first occurrence of each column of keys [n_words, n], columns ascending."""
    order = np.lexsort(keys[::-1])  # stable: equal columns stay in file order
    ranked = keys[:, order]
    new = np.ones(order.size, bool)
    new[1:] = (ranked[:, 1:] != ranked[:, :-1]).any(axis=0)
    return order[new]


def _canonical(order: int, table: OrderTable) -> OrderTable:
    """Sort records and entries; of duplicates llama.cpp keeps the first, and so do we."""
    rows = _first_of_each(table.tokens.reshape(-1, order).T)
    n_entries = np.diff(table.entry_start)
    rank = np.full(n_entries.size, -1, np.int64)
    rank[rows] = np.arange(rows.size)
    row_of_entry = np.repeat(rank, n_entries)
    kept = np.flatnonzero(row_of_entry >= 0)
    keys = np.stack((row_of_entry[kept], table.entry_token[kept].astype(np.int64)))
    entries = kept[_first_of_each(keys)]
    entry_start = np.zeros(rows.size + 1, np.int64)
    np.cumsum(np.bincount(row_of_entry[entries], minlength=rows.size), out=entry_start[1:])
    return OrderTable(
        np.ascontiguousarray(table.tokens.reshape(-1, order)[rows]).reshape(-1),
        entry_start,
        table.entry_token[entries],
        table.entry_count[entries],
    )


def _refuse(status: int, at: int, what: str) -> None:
    where = f"at byte {4 * at}"
    if status == TRUNCATED:
        raise CacheTruncated(
            f"{what}: the llama.cpp cache ends inside the record {where}", remedy=_AGAIN
        )
    if status == BAD_COUNT:
        raise CacheBadCount(
            f"{what}: the record {where} holds a count of 0 or below, but counts are 1 or more",
            remedy=_AGAIN,
        )
    if status == BAD_SIZE:
        raise CacheBadCount(
            f"{what}: the record {where} says that it has 0 or fewer entries", remedy=_AGAIN
        )
    if status == BAD_TOKEN:
        raise CacheBadToken(
            f"{what}: the record {where} holds a follower below 0, outside any vocabulary",
            remedy=_AGAIN,
        )
    if status == BAD_NGRAM:
        raise CacheNotACache(
            f"{what}: neither a native nor a llama.cpp n-gram cache ({where} there is no n-gram)",
            remedy="name a file that lookup-create or llama-lookup-create wrote",
        )


def read_llama(data: np.ndarray, what: str) -> NgramCache:
    """Read a llama.cpp cache from its bytes (uint8 [n]); ``what`` names it in messages.

    Raises
    ------
    CacheTruncated, CacheBadCount, CacheBadToken, CacheNotACache : the first fault found
    """
    words = data[: data.size // 4 * 4].view("<i4").astype(np.int32, copy=False)
    n_records, n_entries = np.zeros(5, np.int64), np.zeros(5, np.int64)
    status, at = scan_records(words, n_records, n_entries)
    _refuse(status, at, what)
    if data.size % 4:
        _refuse(TRUNCATED, at, what)
    tables = {}
    for order in range(1, 5):
        if n_records[order]:
            table = OrderTable(
                np.empty(n_records[order] * order, np.int32),
                np.empty(n_records[order] + 1, np.int64),
                np.empty(n_entries[order], np.int32),
                np.empty(n_entries[order], np.uint32),
            )
            read_records(
                words, order, table.tokens, table.entry_start, table.entry_token, table.entry_count
            )
            tables[order] = _canonical(order, table)
    return NgramCache(tables, format="llama.cpp")


def llama_parts(cache: NgramCache) -> Iterator[np.ndarray]:
    """The file's content: an int32 little-endian array an n-gram size, canonical order."""
    for order, table in cache.tables.items():
        words = np.empty(5 * table.n_ngrams + 2 * table.n_entries, np.int32)
        write_records(
            table.tokens, order, table.entry_start, table.entry_token, table.entry_count, words
        )
        yield words.astype("<i4", copy=False)
