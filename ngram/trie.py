"""Tries over growing arrays: what the drafting kernels learn into."""

from __future__ import annotations

import numpy as np

from .cache import NgramCache
from .draft_kernels import Trie, add_ngrams, clear_trie, index_trie


def _arrays(edge_cap: int) -> Trie:
    """Uninitialised arrays; at most half of the slots are ever used, so probes stay short."""
    n_slots = 1 << max(4, (2 * edge_cap - 1).bit_length())
    return Trie(
        n_used=np.zeros(2, np.int64),
        slots=np.zeros(n_slots, np.int32),
        edges=np.empty((edge_cap, 8), np.int32),
        nodes=np.empty((edge_cap + 1, 4), np.int64),
    )


def empty_trie(n_edges: int) -> Trie:
    """A trie with room for ``n_edges`` edges, holding nothing."""
    trie = _arrays(max(8, n_edges))
    clear_trie(trie)
    return trie


def with_room(trie: Trie, more: int) -> Trie:
    """The trie itself, or a larger copy, with room for ``more`` edges (and as many nodes)."""
    wanted = int(trie.n_used[1]) + more
    if wanted <= trie.edges.shape[0]:
        return trie
    grown = _arrays(max(wanted, 2 * trie.edges.shape[0]))
    n_nodes, n_edges = (int(n) for n in trie.n_used)
    grown.n_used[:] = trie.n_used
    grown.edges[:n_edges] = trie.edges[:n_edges]
    grown.nodes[:n_nodes] = trie.nodes[:n_nodes]
    index_trie(grown)
    return grown


def trie_of_cache(cache: NgramCache | None) -> Trie:
    """A trie with the counts of a cache's n-grams, all sizes."""
    tables = cache.tables if cache is not None else {}
    trie = empty_trie(sum(t.n_ngrams * order + t.n_entries for order, t in tables.items()))
    for order, table in tables.items():
        add_ngrams(
            trie, table.tokens, order, table.entry_start, table.entry_token, table.entry_count
        )
    return trie


def trie_bytes(trie: Trie) -> int:
    """Memory of the arrays as far as they are in use: slots whole, nodes and edges by count."""
    n_nodes, n_edges = (int(n) for n in trie.n_used)
    return trie.slots.nbytes + trie.edges[:n_edges].nbytes + trie.nodes[:n_nodes].nbytes
