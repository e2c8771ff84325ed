"""Kernels that look for special tokens in text, by a trie.

A trie is two arrays, read-only: ``root_child`` (int32 [256]) is the node of a first byte, -1 for
none; ``node`` (int32 [n_nodes, 4]) holds each node's byte, first child, next sibling (-1 for
none) and the rank of the token that ends there (-1 for none). Most bytes of a text begin no
special token and cost one look-up.
"""

from __future__ import annotations

import numpy as np
from numba import njit

# Called by kernels alone: without wrappers for Python a helper compiles faster.
_helper = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)

_BYTE, _CHILD, _SIBLING, _RANK = 0, 1, 2, 3


@_helper
def _child(node, parent, byte):
    child = np.int64(node[parent, _CHILD])
    while child >= 0 and node[child, _BYTE] != byte:
        child = np.int64(node[child, _SIBLING])
    return child


@njit(cache=True, nogil=True)
def mark_specials(text, root_child, node, is_present):
    """Set is_present[rank] (uint8) of every special token in ``text`` (uint8 [n_bytes])."""
    for start in range(text.size):
        place = np.int64(root_child[text[start]])
        at = start + 1
        while place >= 0:
            if node[place, _RANK] >= 0:
                is_present[node[place, _RANK]] = 1
            if at == text.size:
                break
            place = _child(node, place, text[at])
            at += 1


@njit(cache=True, nogil=True)
def touches_special(text, cut, longest, root_child, node):
    """Whether a special token (of ``longest`` bytes at most) ends at ``cut`` or spans it."""
    for start in range(max(0, cut - longest), cut):
        place = np.int64(root_child[text[start]])
        at = start + 1
        while place >= 0:
            if node[place, _RANK] >= 0 and at >= cut:
                return True
            if at == text.size:
                break
            place = _child(node, place, text[at])
            at += 1
    return False
