"""The slow, obvious version of attention that is not dense, and of what scores make of it.

float64 NumPy, from the definitions: masks over all pairs of tokens, loops over blocks and heads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from naive_model import NaiveModel, Reals
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
# (layer, query head, queries [n, d], keys [n, d], scale) -> bool [query, key]
MaskOf = Callable[[int, int, Reals, Reals, float], Mask]


class MaskedModel(NaiveModel):
    """A ``NaiveModel`` each of whose heads sees what a function says, in layers without a window of
    their own."""

    def __init__(self, path: Path, mask_of: MaskOf) -> None:
        super().__init__(path)
        self.mask_of = mask_of

    def seen_by(self, il: int, head: int, q: Reals, k: Reals) -> Mask:
        if self.is_local(il):
            return self.seen(il, len(q))
        return self.mask_of(il, head, q, k, self.attention_scale)


def window_mask(n: int, window: int, n_sink: int, wide: tuple[int, int]) -> Mask:
    """Who sees whom: the last ``window`` tokens, the first ones, and some tokens all."""
    mask = np.zeros((n, n), bool)
    for query in range(n):
        for key in range(query + 1):
            is_wide = not window or wide[0] <= query < wide[1]
            mask[query, key] = is_wide or query - key < window or key < n_sink
    return mask


def chosen_blocks(
    q: Reals, k: Reals, scale: float, size: int, alpha: float, n_sink: int, n_local: int,
    is_full: list[bool],
) -> Mask:  # fmt: skip
    """FlashPrefill's choice, bool [query block, key block]."""
    n = len(q)
    n_blocks = -(-n // size)
    chosen = np.zeros((n_blocks, n_blocks), bool)
    for i in range(n_blocks):
        score = np.zeros(n_blocks)
        products = {}
        for j in range(i + 1):
            if (j + 1) * size <= n:
                mean = k[j * size : (j + 1) * size].mean(axis=0)
                for row in range(i * size, min((i + 1) * size, n)):
                    if row >= (j + 1) * size - 1:
                        products[row, j] = q[row] @ mean * scale
        top = max(products.values(), default=0.0)
        for (_, j), product in products.items():
            score[j] += np.exp(product - top)
        if score.sum() > 0:
            score /= score.sum()
        for j in range(i + 1):
            is_near = j < n_sink or i - j < n_local
            is_best = score.max() > 0 and score[j] >= alpha * score.max()
            chosen[i, j] = is_full[i] or is_near or is_best
    return chosen


def block_mask(n: int, size: int, chosen: Mask) -> Mask:
    """Who sees whom, bool [query, key], of the blocks that were chosen."""
    mask = np.zeros((n, n), bool)
    for query in range(n):
        for key in range(query + 1):
            mask[query, key] = chosen[query // size, key // size]
    return mask


def softmax(products: Reals) -> Reals:
    """Of each row."""
    weights = np.exp(products - products.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def weights_of(
    q: Reals, k: Reals, scale: float, highs: NDArray[np.int64], *, is_softmax: bool = True
) -> Reals:
    """What queries [n_rows, d] see of keys [n, d], up to one each; float64 [n_rows, n]."""
    found = np.zeros((len(q), len(k)))
    for r, high in enumerate(highs):
        products = (k[: high + 1] @ q[r]) * scale
        found[r, : high + 1] = softmax(products) if is_softmax else products
    return found


def pooled(values: Reals, width: int) -> Reals:
    """The mean around each number."""
    n = len(values)
    return np.array(
        [values[max(0, i - width // 2) : min(n, i + width // 2 + 1)].mean() for i in range(n)]
    )
