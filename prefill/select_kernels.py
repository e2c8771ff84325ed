"""Kernels that choose tokens within a budget. Arrays are sized and typed by the glue.

``reason`` uint8 [n] says why each token is kept, 0 for one that is not.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def sum_chunks(values, chunks, sums):
    """Sum the values (float32 [n]) of each chunk (int32 [n_chunks, 2]); sums float64: out."""
    for chunk in range(chunks.shape[0]):
        total = 0.0
        for at in range(chunks[chunk, 0], chunks[chunk, 1]):
            total += np.float64(values[at])
        sums[chunk] = total


@njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _keep(start, stop, why, n_left, reason):
    """Keep tokens start to stop if there is room for all; returns what room is left."""
    if stop - start > n_left:
        return n_left
    for at in range(start, stop):
        reason[at] = why
    return n_left - (stop - start)


@njit(cache=True, nogil=True)
def pick_chunks(chunks, order, n_left, picked, neighbour, reason):
    """Keep chunks, the best first, each with its right neighbour, while there is room.

    chunks int32 [n_chunks, 2], ascending; order int64 [n_chunks], best first; picked and neighbour
    are the reasons to note, neighbour 0: take none. A chunk that is kept as a neighbour and comes
    up itself has its own neighbour kept too. Returns what room is left.
    """
    for rank in range(order.size):
        if n_left <= 0:
            break
        chunk = order[rank]
        start, stop = chunks[chunk, 0], chunks[chunk, 1]
        if reason[start] == 0:
            n_left = _keep(start, stop, picked, n_left, reason)
            if reason[start] == 0:
                continue
        follows = chunk + 1 < chunks.shape[0] and chunks[chunk + 1, 0] == stop
        if neighbour > 0 and follows and reason[stop] == 0:
            n_left = _keep(stop, chunks[chunk + 1, 1], neighbour, n_left, reason)
    return n_left


@njit(cache=True, nogil=True)
def find_runs(reason, rank, start, stop, best):
    """Find the runs of kept tokens among those that may be dropped.

    rank int64 [n]: of the chunk that a token is in, -1 outside the document; start, stop and best
    int64 [n]: out, the best rank in each run. Returns how many runs there are.
    """
    n_runs = 0
    for at in range(reason.size):
        if reason[at] == 0 or rank[at] < 0:
            continue
        if n_runs > 0 and stop[n_runs - 1] == at:
            stop[n_runs - 1] = at + 1
            best[n_runs - 1] = min(best[n_runs - 1], rank[at])
        else:
            start[n_runs] = at
            stop[n_runs] = at + 1
            best[n_runs] = rank[at]
            n_runs += 1
    return n_runs


@njit(cache=True, nogil=True)
def widen_runs(start, stop, order, is_border, most, n_left, why, reason):
    """Widen runs to borders on their right, then on their left, where there is room for it.

    start, stop int64 [n_runs]; order int64 [n_runs], whose turn it is; is_border uint8 [n + 1]:
    whether a sentence, line or word may end before a token; most: tokens to add on a side. What
    is kept already is as good as a border. Returns what room is left.
    """
    for turn in range(order.size):
        if n_left <= 0:
            break
        first, end = start[order[turn]], stop[order[turn]]
        at = end
        while at - end < most and at < reason.size and reason[at] == 0 and is_border[at] == 0:
            at += 1
        if at == reason.size or reason[at] != 0 or is_border[at] != 0:
            n_left = _keep(end, at, why, n_left, reason)
        at = first
        while first - at < most and at > 0 and reason[at - 1] == 0 and is_border[at] == 0:
            at -= 1
        if at == 0 or reason[at - 1] != 0 or is_border[at] != 0:
            n_left = _keep(at, first, why, n_left, reason)
    return n_left
