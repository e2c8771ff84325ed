"""Whether chunks of a needle are kept, for many ways to score at once."""

from __future__ import annotations

import numpy as np
from numba import njit

from .select_kernels import pick_chunks

# See forward_kernels.
BUILT_ON = {"select_kernels": "374f93ad"}


@njit(cache=True, nogil=True)
def count_kept(masses, chunks, n_left, needle, reason, kept):
    """Fill kept (uint8 [n_ways]): 1 where a selection by these scores keeps all of a needle.

    As in ``select``, with right neighbours and without widening.

    Parameters: masses float32 [n_ways, n_chunks], 0 or more; chunks int32 [n_chunks, 2]; n_left:
    tokens of them that may be kept; needle int64, its chunks; reason uint8 [n]: to work in.
    """
    for way in range(masses.shape[0]):
        order = np.argsort(-masses[way], kind="mergesort")
        n_told = np.count_nonzero(masses[way])
        reason[:] = 0
        pick_chunks(chunks, order[:n_told], n_left, 1, 1, reason)
        kept[way] = 1
        for chunk in needle:
            if reason[chunks[chunk, 0]] == 0:
                kept[way] = 0
