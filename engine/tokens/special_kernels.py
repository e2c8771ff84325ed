"""Kernels that look for special tokens in text, by a trie with links (Aho and Corasick, 1975).

A trie is two arrays, read-only: ``root_child`` (int32 [256]) is the node of a first byte, -1 for
none; ``node`` (int32 [n_nodes, 7]) holds each node's byte, first child, next sibling (-1 for
none), the rank of the token that ends there (-1 for none), its depth, the node of the longest end
of its text that begins a token (0, the root, for none), and the bytes of the longest token that
its text ends with (0 for none). With the links each byte of a text is looked at once, however
tokens overlap; most bytes begin no special token and cost one look-up.
"""

from __future__ import annotations

import numpy as np
from numba import njit

# Called by kernels alone: without wrappers for Python a helper compiles faster.
_helper = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)

_BYTE, _CHILD, _SIBLING, _RANK, _DEPTH, _LINK, _LONGEST = 0, 1, 2, 3, 4, 5, 6


@_helper
def _child(node, parent, byte):
    child = np.int64(node[parent, _CHILD])
    while child >= 0 and node[child, _BYTE] != byte:
        child = np.int64(node[child, _SIBLING])
    return child


@_helper
def _next(node, root_child, place, byte):
    """The node of the longest end of the text, now with one byte more, that begins a token."""
    while place > 0:
        child = _child(node, place, byte)
        if child >= 0:
            return child
        place = np.int64(node[place, _LINK])
    return max(np.int64(root_child[byte]), np.int64(0))


@njit(cache=True, nogil=True)
def link_trie(order, parent, root_child, node):
    """Fill links and longest tokens of a trie: of all nodes but the root.

    order int64 [n_nodes - 1]: nodes by depth; parent int32 [n_nodes]; the rest of ``node`` is
    filled.
    """
    for at in range(order.size):
        place = order[at]
        link = np.int64(0)
        if node[place, _DEPTH] > 1:
            above = np.int64(node[parent[place], _LINK])
            link = _next(node, root_child, above, node[place, _BYTE])
        node[place, _LINK] = link
        own = node[place, _DEPTH] if node[place, _RANK] >= 0 else 0
        node[place, _LONGEST] = max(own, node[link, _LONGEST])


@njit(cache=True, nogil=True)
def mark_specials(text, place, root_child, node, is_seen, is_present):
    """Set is_present[rank] (uint8) of every special token in ``text`` (uint8 [n_bytes]).

    place: the node at which the text before ended, 0 at first; returns that of this one. is_seen
    uint8 [n_nodes]: whether a node's tokens are marked already, 0 at first, in and out.
    """
    for at in range(text.size):
        place = _next(node, root_child, np.int64(place), text[at])
        found = place
        while found > 0 and is_seen[found] == 0:
            is_seen[found] = 1
            if node[found, _RANK] >= 0:
                is_present[node[found, _RANK]] = 1
            found = np.int64(node[found, _LINK])
    return place


@njit(cache=True, nogil=True)
def touches_special(text, cut, longest, root_child, node):
    """Whether a special token (of ``longest`` bytes at most) ends at ``cut`` or spans it."""
    place = np.int64(0)
    for at in range(max(0, cut - longest), cut):
        place = _next(node, root_child, place, text[at])
    at = cut
    while node[place, _DEPTH] > at - cut:  # what begins before the cut may still become a token
        if node[place, _LONGEST] > at - cut:
            return True
        if at == text.size:
            break
        place = _next(node, root_child, place, text[at])
        at += 1
    return False
