"""The arrays that the drafting kernels learn into and look things up in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...engine.errors import CacheUnsuitable, UsageError
from ...engine.host import require_memory
from ..cache.ngram_cache import NgramCache
from ..cache.packed import REMEDY_SMALLER, no_token, pack, row_bits
from ..cache.table import OrderTable
from .draft_kernels import (
    Bigrams,
    Context,
    Dynamic,
    Followers,
    add_ngrams,
    index_dynamic,
    index_edges,
)

# llama.cpp, common/ngram-cache: least sample and least percent by n-gram size 0 (unused) to 4, lax
# for the context cache, strict for the dynamic one.
THRESHOLDS = np.array(
    [[0, 2, 2, 1, 1], [0, 66, 50, 50, 50], [0, 4, 3, 2, 2], [0, 75, 66, 66, 66]], np.int64
)
# A token of the text adds at most one n-gram and one follower for each size.
SIZES = 4
# Nodes and edges are counted from 1 up in int32.
_EDGES_MAX = 2**31 - 2


def _power_of_two(n: int) -> int:
    return 1 << max(4, (n - 1).bit_length())


class ContextSizes(NamedTuple):
    """Elements of the arrays of a context, without those of the vocabulary."""

    n_index: int
    n_nodes: int
    n_edges: int


def context_sizes(n_tokens: int) -> ContextSizes:
    """Room for ``n_tokens``; the index is at most half full, so that probes stay short.

    Raises
    ------
    UsageError : more than can be numbered
    """
    n_edges = SIZES * n_tokens
    _check_edges(n_edges)
    return ContextSizes(_power_of_two(2 * n_edges), 8 * (n_edges + 1), 8 * max(1, n_edges))


def _check_edges(n_edges: int) -> None:
    if n_edges > _EDGES_MAX:
        raise UsageError(
            f"{n_edges} followers of n-grams, a context or dynamic cache holds up to {_EDGES_MAX}",
            remedy="give a smaller -c, a shorter text, or a smaller dynamic cache",
        )


def _followers(n_edges: int) -> Followers:
    """Room for ``n_edges``, in an index as of ``context_sizes``; errors as there."""
    _check_edges(n_edges)
    return Followers(
        n_used=np.zeros(2, np.int64),
        index=np.zeros(_power_of_two(2 * n_edges), np.int32),
        edges=np.empty(8 * max(1, n_edges), np.int32),
    )


def empty_context(n_tokens: int, n_vocab: int) -> Context:
    """A context with room for a chunk of ``n_tokens``, holding node 0 only."""
    context = Context(
        followers=_followers(SIZES * n_tokens),
        nodes=np.zeros(8 * (SIZES * n_tokens + 1), np.int32),
        unigram=np.zeros(n_vocab, np.int32),
    )
    context.nodes[0] = -1
    context.nodes[3] = -1
    context.followers.n_used[0] = 1
    return context


def context_with_room(context: Context, n_tokens: int) -> Context:
    """The same n-grams with room for a text of ``n_tokens`` in all."""
    grown = empty_context(n_tokens, context.unigram.size)
    n_nodes, n_edges = (8 * int(n) for n in context.followers.n_used)
    grown.nodes[:n_nodes] = context.nodes[:n_nodes]
    grown.unigram[:] = context.unigram
    grown.followers.edges[:n_edges] = context.followers.edges[:n_edges]
    grown.followers.n_used[:] = context.followers.n_used
    index_edges(grown.followers)
    return grown


def _dynamic(n_ngrams: int, n_edges: int) -> Dynamic:
    """Room for ``n_ngrams`` in a table at most three quarters full: a smaller one misses less."""
    slots = _power_of_two(n_ngrams + n_ngrams // 3 + 1)
    return Dynamic(
        followers=_followers(n_edges),
        slots=np.full(8 * slots, -1, np.int32),
        hint=np.zeros(max(16, slots >> 3), np.uint64),
    )


def _bytes_of_dynamic(n_ngrams: int, n_edges: int) -> int:
    """Memory of the arrays that ``_dynamic`` makes."""
    slots = _power_of_two(n_ngrams + n_ngrams // 3 + 1)
    return 33 * slots + 4 * _power_of_two(2 * n_edges) + 32 * n_edges


def with_room(dynamic: Dynamic, more: int) -> Dynamic:
    """The same counts, with room for ``more`` n-grams and as many followers.

    A second follower takes two edges, for the first one has none until then.
    """
    n_ngrams, n_edges = (int(n) for n in dynamic.followers.n_used)
    if 4 * 8 * (n_ngrams + more) > 3 * dynamic.slots.size:
        larger = _dynamic(n_ngrams + more, 1)
        grown = Dynamic(dynamic.followers, larger.slots, larger.hint)
        index_dynamic(grown, dynamic.slots, THRESHOLDS)
        dynamic = grown
    if 8 * (n_edges + 2 * more) > dynamic.followers.edges.size:
        followers = _followers(max(n_edges + 2 * more, min(2 * n_edges, _EDGES_MAX)))
        followers.n_used[:] = dynamic.followers.n_used
        followers.edges[: 8 * n_edges] = dynamic.followers.edges[: 8 * n_edges]
        index_edges(followers)
        dynamic = Dynamic(followers, dynamic.slots, dynamic.hint)
    return dynamic


def dynamic_of_cache(cache: NgramCache | None) -> Dynamic:
    """A dynamic table with the counts of a cache's n-grams, all sizes.

    Raises
    ------
    UsageError : more than can be numbered, or than this machine's memory
    """
    tables = cache.tables if cache is not None else {}
    n_ngrams = sum(table.n_ngrams for table in tables.values())
    n_edges = sum(table.n_entries for table in tables.values())
    if cache is not None:
        unpacked = sum(table.unpacked_bytes for table in tables.values())
        require_memory(
            _bytes_of_dynamic(n_ngrams, n_edges) + unpacked,
            f"{cache.name} as dynamic cache",
            remedy=REMEDY_SMALLER,
        )
    dynamic = _dynamic(max(8, n_ngrams), n_edges)
    for order, table in tables.items():
        add_ngrams(
            dynamic,
            table.tokens,
            order,
            table.entry_start,
            table.entry_token,
            table.entry_count,
            THRESHOLDS,
        )
    return dynamic


def bigrams_of_cache(cache: NgramCache | None, n_vocab: int) -> Bigrams:
    """The bigrams of a static cache as the kernels take them, in place; None: no bigram.

    Raises
    ------
    CacheUnsuitable : the cache holds no bigrams
    """
    if cache is None:
        nothing = OrderTable(
            np.zeros(0, np.int32),
            np.zeros(1, np.int64),
            np.zeros(0, np.int32),
            np.zeros(0, np.uint32),
        )
        table = pack(nothing, 2, n_vocab)
    elif 2 not in cache.tables:
        sizes = ", ".join(map(str, cache.orders)) or "none"
        raise CacheUnsuitable(
            f"{cache.name} can't be a static cache: it holds no bigrams (its sizes: {sizes})",
            remedy="create it with lookup-create and its default sizes",
        )
    else:
        table = pack(cache.tables[2], 2, n_vocab, cache.name)
    params = [row_bits(table.n_ngrams), table.shift, no_token(n_vocab), table.n_ngrams]
    arrays = {name: table.arrays[name] for name in Bigrams._fields if name in table.arrays}
    return Bigrams(**arrays, params=np.array(params, np.int64))


def session_of(arrays: NamedTuple, n_arrays: int) -> NDArray[np.int64]:
    """Where all arrays of a session lie, as its kernels find them; int64 [2 * n_arrays].

    Parameters
    ----------
    arrays : a ``Session`` of a kernel module: arrays, and tuples of arrays, which must outlive
        what is returned
    n_arrays : how many the kernels know of
    """
    flat = list(_flat(arrays))
    assert len(flat) == n_arrays, "a session's arrays and its kernels do not agree"
    assert all(array.flags.c_contiguous for array in flat)
    return np.array([(array.ctypes.data, array.size) for array in flat], np.int64).reshape(-1)


def _flat(arrays: Iterable[Any]) -> Iterator[NDArray[Any]]:
    """The arrays of a tuple and of the tuples in it, in order."""
    for one in arrays:
        if isinstance(one, tuple):
            yield from _flat(one)
        else:
            yield one


def context_bytes(context: Context) -> int:
    return sum(int(array.nbytes) for array in (*context.followers, context.nodes, context.unigram))


def dynamic_bytes(dynamic: Dynamic) -> int:
    return sum(int(array.nbytes) for array in (*dynamic.followers, dynamic.slots, dynamic.hint))


def static_bytes(bigrams: Bigrams) -> int:
    return sum(int(array.nbytes) for array in bigrams)
