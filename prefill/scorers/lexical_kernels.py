"""Kernels of the lexical scorer. Arrays are sized and typed by the glue."""

from __future__ import annotations

import math

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def overlap_values(types, chunks, place, values):
    """Give the words of the question their rarity where a chunk has them first.

    Parameters: types int32 [n], -1 for what is no word; chunks int32 [n_chunks, 2], start and stop
    each; place int32 [n_types], which of the question's words a type is, or -1; values
    float32 [n]: out, 0 on entry.
    """
    n_words = np.int64(0)
    for word in place:
        n_words = max(n_words, np.int64(word) + 1)
    n_with = np.zeros(n_words, np.int64)
    last = np.full(n_words, -1, np.int64)
    for chunk in range(chunks.shape[0]):
        for at in range(chunks[chunk, 0], chunks[chunk, 1]):
            word = place[types[at]] if types[at] >= 0 else -1
            if word >= 0 and last[word] != chunk:
                last[word] = chunk
                n_with[word] += 1
    rarity = np.zeros(n_words, np.float64)
    for word in range(n_words):
        last[word] = -1
        rarity[word] = math.log(1.0 + (chunks.shape[0] - n_with[word] + 0.5) / (n_with[word] + 0.5))
    for chunk in range(chunks.shape[0]):
        for at in range(chunks[chunk, 0], chunks[chunk, 1]):
            word = place[types[at]] if types[at] >= 0 else -1
            if word >= 0 and last[word] != chunk:
                last[word] = chunk
                values[at] = rarity[word]
