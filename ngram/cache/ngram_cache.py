"""The n-gram cache: frozen flat arrays, in canonical order, so that equal caches have equal bytes.

A cache holds, for each n-gram size (order), the n-grams in ascending order and for each the
tokens that followed it, ascending by id, with their counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...engine.errors import CacheBadToken, CacheOtherVocabulary
from ...engine.host import require_memory
from .count_kernels import (
    check_table,
    merge_runs,
    pack_entries,
    row_starts,
    unpack_rows,
)
from .packed import PackedTable
from .table import COUNT_MAX, OrderTable, refuse

ORDER_MAX = 4
Format = Literal["native", "llama.cpp"]


@dataclass(frozen=True, eq=False)
class NgramCache:
    """N-grams of one or more sizes over one vocabulary.

    Attributes
    ----------
    tables : order (1 to 4) -> OrderTable, or PackedTable from a native file; ascending by order
    n_vocab : ids are below it; 0 when unknown (llama.cpp's files do not say)
    fingerprint : 32 bytes, SHA-256 of the vocabulary; empty when unknown
    format : the file format that it was read from
    source : the file that it was read from; empty when made here
    """

    tables: Mapping[int, OrderTable | PackedTable]
    n_vocab: int = 0
    fingerprint: bytes = b""
    format: Format = "native"
    source: str = ""

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.source or "a cache"

    @property
    def orders(self) -> tuple[int, ...]:
        return tuple(self.tables)

    @property
    def n_ngrams(self) -> int:
        return sum(table.n_ngrams for table in self.tables.values())

    @property
    def n_entries(self) -> int:
        return sum(table.n_entries for table in self.tables.values())

    @property
    def memory_bytes(self) -> int:
        return sum(table.n_bytes for table in self.tables.values())

    def max_token(self) -> int:
        """The largest id that occurs, or -1 in an empty cache."""
        return max((table.max_token() for table in self.tables.values()), default=-1)


@dataclass(frozen=True)
class KeyLayout:
    """How an n-gram and its follower are packed into uint64 words that sort as the tokens do.

    Token j of ``width`` tokens lies in word j // per_word, the first in the highest bits.
    """

    width: int
    bits: int

    @classmethod
    def for_order(cls, order: int, n_vocab: int) -> KeyLayout:
        return cls(order + 1, max(1, (n_vocab - 1).bit_length()))

    @property
    def per_word(self) -> int:
        return 64 // self.bits

    @property
    def n_words(self) -> int:
        return -(-self.width // self.per_word)


@dataclass(frozen=True, eq=False)
class Run:
    """Distinct packed entries, ascending, with their counts.

    keys uint64 [n_words, n] (C-contiguous), counts uint32 [n].
    """

    keys: np.ndarray
    counts: np.ndarray


def join_runs(a: Run, b: Run) -> Run:
    """The sum of two runs; counts saturate."""
    n_most = a.counts.size + b.counts.size
    keys = np.empty((a.keys.shape[0], n_most), np.uint64)
    counts = np.empty(n_most, np.uint32)
    n = merge_runs(a.keys, a.counts, b.keys, b.counts, keys, counts)
    return Run(np.ascontiguousarray(keys[:, :n]), counts[:n].copy())


def table_of_run(run: Run, layout: KeyLayout) -> OrderTable:
    """Unpack a run into the flat arrays of a cache."""
    n_entries = run.counts.size
    entry_start = np.empty(n_entries + 1, np.int64)
    n_ngrams = row_starts(run.keys, layout.width, layout.bits, entry_start)
    entry_start = entry_start[: n_ngrams + 1].copy()
    tokens = np.empty(n_ngrams * (layout.width - 1), np.int32)
    entry_token = np.empty(n_entries, np.int32)
    unpack_rows(run.keys, layout.width, layout.bits, entry_start, tokens, entry_token)
    return OrderTable(tokens, entry_start, entry_token, run.counts)


def run_of_table(table: OrderTable | PackedTable, layout: KeyLayout) -> Run:
    """Pack a cache's flat arrays again."""
    keys = np.empty((layout.n_words, table.n_entries), np.uint64)
    pack_entries(
        table.tokens, table.entry_start, table.entry_token, layout.width, layout.bits, keys
    )
    return Run(keys, table.entry_count)


def _common_vocabulary(caches: Sequence[NgramCache]) -> tuple[int, bytes]:
    """(n_vocab, fingerprint) that all caches share, as far as they say."""
    known = [cache for cache in caches if cache.fingerprint]
    if not known:
        return 0, b""
    first, n_vocab = known[0], known[0].n_vocab
    for cache in known:
        if (cache.n_vocab, cache.fingerprint) != (n_vocab, first.fingerprint):
            raise CacheOtherVocabulary(
                f"{cache.name} belongs to another vocabulary ({cache.fingerprint.hex()[:12]}, "
                f"{cache.n_vocab} tokens) than {first.name} ({first.fingerprint.hex()[:12]}, "
                f"{n_vocab} tokens)",
                remedy="merge only caches that were made with the same model",
            )
    for cache in caches:
        if cache.max_token() >= n_vocab:
            raise CacheBadToken(
                f"{cache.name} holds token {cache.max_token()}, but the vocabulary of {first.name} "
                f"has {n_vocab} tokens",
                remedy="merge only caches that were made with the same model",
            )
    return n_vocab, first.fingerprint


def merge_caches(caches: Sequence[NgramCache]) -> NgramCache:
    """One cache with the sums of all counts of one or more.

    Raises
    ------
    CacheOtherVocabulary : two caches say that their vocabularies differ
    CacheBadToken : a cache that does not say holds an id that the others' vocabulary lacks
    UsageError : more than this machine's memory
    """
    n_vocab, fingerprint = _common_vocabulary(caches)
    n_ids = n_vocab or max(cache.max_token() for cache in caches) + 1
    tables: dict[int, OrderTable] = {}
    for order in sorted({order for cache in caches for order in cache.orders}):
        layout = KeyLayout.for_order(order, n_ids)
        _require_room([c.tables[order] for c in caches if order in c.tables], layout)
        runs = [run_of_table(c.tables[order], layout) for c in caches if order in c.tables]
        while len(runs) > 1:  # pairwise, so that no entry is copied more than log2(n) times
            pairs = [join_runs(a, b) for a, b in zip(runs[::2], runs[1::2], strict=False)]
            runs = pairs + runs[len(runs) & ~1 :]
        tables[order] = table_of_run(runs[0], layout)
    all_llama = all(cache.format == "llama.cpp" for cache in caches)
    return NgramCache(tables, n_vocab, fingerprint, "llama.cpp" if all_llama else "native")


def _require_room(tables: Sequence[OrderTable | PackedTable], layout: KeyLayout) -> None:
    """Refuse a merge that memory does not suffice for: runs, their sum, and its table."""
    unpacked = sum(table.unpacked_bytes for table in tables)
    n_entries = sum(table.n_entries for table in tables)
    n_ngrams = sum(table.n_ngrams for table in tables)
    entry_bytes = 2 * (8 * layout.n_words + 4) + 4
    require_memory(
        unpacked + entry_bytes * n_entries + (4 * layout.width + 4) * n_ngrams,
        f"merging {n_entries} entries of {layout.width - 1}-grams",
        remedy="merge smaller caches",
    )


def check_cache(cache: NgramCache, what: str) -> None:
    """Check every invariant of the arrays; ``what`` names the file in messages.

    Raises
    ------
    CacheBadCount, CacheBadToken, CacheDamaged : the first invariant that does not hold
    """
    n_ids = cache.n_vocab or COUNT_MAX + 1
    for order, table in cache.tables.items():
        if isinstance(table, PackedTable):
            table.verify()
            continue
        status, at = check_table(
            table.tokens, order, table.entry_start, table.entry_token, table.entry_count, n_ids
        )
        refuse(status, at, order, n_ids, what)
