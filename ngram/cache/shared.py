"""A dynamic cache that several processes learn into: each adds its own new counts, none is lost.

A run reads the cache when it begins and keeps what it counts apart. At its end it takes a lock,
adds its counts to what the file holds by then, and replaces the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ...engine.atomic_file import check_writable
from ...engine.file_lock import locked
from .count import NgramCounter
from .file import open_cache, write_cache
from .ngram_cache import ORDER_MAX, NgramCache, merge_caches
from .table import OrderTable

ORDERS = tuple(range(1, ORDER_MAX + 1))


def open_shared(path: str | Path, *, n_vocab: int, fingerprint: bytes) -> NgramCache | None:
    """The cache as it is now, None where there is no file yet; either format.

    All that would keep ``add_counts`` from writing, as far as it can be known, is found here:
    before the work, not after it.

    Raises
    ------
    OutputNoFolder, OutputNotWritable, DiskFull : the file can't be replaced
    InputUnreadable, CacheNotACache, CacheTruncated, ... : see ``open_cache``
    """
    check_writable(path)
    if not Path(path).exists():
        return None
    return open_cache(path, n_vocab=n_vocab, fingerprint=fingerprint, verify=True)


def count_generated(
    prompt: Sequence[int] | np.ndarray,
    generated: Sequence[int] | np.ndarray,
    *,
    n_vocab: int,
    fingerprint: bytes,
) -> NgramCache:
    """The n-grams, sizes 1 to 4, whose follower is a generated token.

    They may begin in the prompt. What the prompt says by itself is not counted, so that asking
    the same again does not make it look frequent; llama-lookup counts it each time.

    Raises
    ------
    InputMalformed : a token is outside the vocabulary
    """
    text = np.concatenate((np.asarray(prompt, np.int32), np.asarray(generated, np.int32)))
    tables: dict[int, OrderTable] = {}
    for order in ORDERS:
        # Every window of this part, which are order + 1 long, ends in a generated token.
        part = text[max(0, len(prompt) - order) :]
        if part.size <= order:
            continue
        with NgramCounter(orders=(order,), n_vocab=n_vocab, batch_tokens=part.size) as counter:
            counter.add(0, part)
            table = counter.finish(fingerprint).tables[order]
        assert isinstance(table, OrderTable)
        tables[order] = table
    return NgramCache(tables, n_vocab, fingerprint)


def add_counts(
    path: str | Path, new: NgramCache, *, on_wait: Callable[[], None] | None = None
) -> int:
    """Add ``new`` to the cache at ``path`` under a lock, and return the file's bytes.

    The file keeps its format, and is whole at any time; a new one is native. ``on_wait`` is
    called when another process is writing and has to be waited for.

    Raises
    ------
    OutputNoFolder, OutputNotWritable, DiskFull : the file can't be written
    CacheOtherVocabulary, CacheDamaged, ... : what has become of the file meanwhile
    """
    with locked(Path(path), on_wait):
        merged = _merged(path, new)
        return write_cache(path, merged, format=merged.format)


def _merged(path: str | Path, new: NgramCache) -> NgramCache:
    """The sum, in the format of the file; not mapped from it, or Windows could not replace it."""
    if not Path(path).exists():
        return new
    held = open_cache(path, n_vocab=new.n_vocab, fingerprint=new.fingerprint, verify=True)
    merged = merge_caches([held, new])
    return NgramCache(merged.tables, merged.n_vocab, merged.fingerprint, held.format)
