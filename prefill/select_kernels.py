"""Kernels that choose tokens within a budget. Arrays are sized and typed by the glue.

``reason`` uint8 [n] says why each token is kept, 0 for one that is not.
"""

from __future__ import annotations

import numpy as np
from numba import njit

NEIGHBOUR_SHARE = 0.5  # of a chunk's score that its right neighbour has, at least


@njit(cache=True, nogil=True)
def sum_chunks(values, chunks, sums):
    """Sum the values (float32 [n]) of each chunk (int32 [n_chunks, 2]); sums float64: out."""
    for chunk in range(chunks.shape[0]):
        total = 0.0
        for at in range(chunks[chunk, 0], chunks[chunk, 1]):
            total += np.float64(values[at])
        sums[chunk] = total


@njit(cache=True, nogil=True)
def weigh_chunks(sums, chunks, share, worth):
    """Fill worth (float64 [n_chunks]): a chunk's sum, or a share of its left neighbour's, if more.

    sums float64 [n_chunks]; chunks int32 [n_chunks, 2], ascending.
    """
    for chunk in range(sums.size):
        worth[chunk] = sums[chunk]
        if chunk > 0 and chunks[chunk - 1, 1] == chunks[chunk, 0]:
            inherited = share * sums[chunk - 1]
            if inherited > 0:
                worth[chunk] = max(worth[chunk], inherited)


@njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _n_missing(start, stop, reason):
    """How many of the tokens start to stop are not kept."""
    missing = 0
    for at in range(start, stop):
        missing += reason[at] == 0
    return missing


@njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _keep(start, stop, why, reason):
    """Keep the tokens start to stop."""
    for at in range(start, stop):
        if reason[at] == 0:
            reason[at] = why


@njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _n_right(stop, is_border, most, n_left, reason):
    """How many tokens from a place on lie before a border; -1: none is near, or they do not fit."""
    n = 0
    while stop + n < reason.size and reason[stop + n] == 0 and is_border[stop + n] == 0:
        n += 1
        if n > min(most, n_left):
            return -1
    return n


@njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _n_left_of(start, is_border, most, n_left, reason):
    """How many tokens before a place lie behind a border; -1: none is near, or they do not fit."""
    n = 0
    while start - n > 0 and reason[start - n - 1] == 0 and is_border[start - n] == 0:
        n += 1
        if n > min(most, n_left):
            return -1
    return n


@njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _widen(start, stop, sentences, words, most, why, n_left, reason):
    """Keep what is between a chunk and the ends of its sentence, or of its word; returns the room.

    First on its right, then on its left. What is kept already is as good as a border.
    """
    n = _n_right(stop, sentences, most[0], n_left, reason)
    if n < 0:
        n = max(0, _n_right(stop, words, most[1], n_left, reason))
    _keep(stop, stop + n, why, reason)
    n_left -= n
    n = _n_left_of(start, sentences, most[0], n_left, reason)
    if n < 0:
        n = max(0, _n_left_of(start, words, most[1], n_left, reason))
    _keep(start - n, start, why, reason)
    return n_left - n


@njit(cache=True, nogil=True)
def keep_chunks(chunks, order, why, sentences, words, most, widened, n_left, reason):
    """Keep chunks, the best first, each to the ends of its sentence, while there is room.

    chunks int32 [n_chunks, 2]; order int64 [at most n_chunks], best first; why uint8 [n_chunks]:
    the reason to note; sentences and words uint8 [n + 1]: whether one may end before a token, [0]:
    nothing is widened; most (int, int): tokens to add on a side for a sentence's end, and for
    a word's; widened: the reason to note for these. Returns what room is left.
    """
    for rank in range(order.size):
        if n_left <= 0:
            break
        chunk = order[rank]
        start, stop = chunks[chunk, 0], chunks[chunk, 1]
        missing = _n_missing(start, stop, reason)
        if missing > n_left:
            continue
        _keep(start, stop, why[chunk], reason)
        n_left -= missing
        if sentences.size > 0:
            n_left = _widen(start, stop, sentences, words, most, widened, n_left, reason)
    return n_left
