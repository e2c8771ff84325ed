"""Whether chunks of a needle are kept, for many ways to score at once."""

from __future__ import annotations

import numpy as np
from numba import njit

from ..select_kernels import NEIGHBOUR_SHARE, keep_chunks, weigh_chunks

# See forward_kernels.
BUILT_ON = {"prefill.select_kernels": "bfa65acb"}


@njit(cache=True, nogil=True)
def count_kept(masses, chunks, n_left, needle, reason, kept):
    """Fill kept (uint8 [n_ways]): 1 where a selection by these scores keeps all of a needle.

    As in ``select``, with what chunks are worth by their neighbours, and without widening.

    Parameters: masses float32 [n_ways, n_chunks], 0 or more; chunks int32 [n_chunks, 2]; n_left:
    tokens of them that may be kept; needle int64, its chunks; reason uint8 [n]: to work in.
    """
    worth = np.empty(chunks.shape[0])
    why, none = np.ones(chunks.shape[0], np.uint8), np.empty(0, np.uint8)
    for way in range(masses.shape[0]):
        weigh_chunks(masses[way].astype(np.float64), chunks, NEIGHBOUR_SHARE, worth)
        order = np.argsort(-worth, kind="mergesort")
        n_told = np.count_nonzero(worth)
        reason[:] = 0
        keep_chunks(chunks, order[:n_told], why, none, none, (0, 0), 1, n_left, reason)
        kept[way] = 1
        for chunk in needle:
            if reason[chunks[chunk, 0]] == 0:
                kept[way] = 0
