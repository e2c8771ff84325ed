"""How much queries attend to keys: softmax(q . k), as flat arrays, one query head at a time."""

import numpy as np
from numba import njit

from ...engine.transformer.tile_kernels import f32_tile, row_exp, row_max

# See forward_kernels.
BUILT_ON = {"engine.transformer.tile_kernels": "2b817fce"}

PANEL = 16  # keys that are multiplied at a time


@njit(nogil=True, cache=True, error_model="numpy")
def weigh(queries, keys, head, kv_head, highs, scale, is_softmax, rows, panel, lines):
    """Fill lines[r, key] with the weights of keys 0 to highs[r] for row r of one head; 0 after.

    Without ``is_softmax`` they are the products q . k * scale themselves.

    Parameters
    ----------
    queries : float32 [n_rows, n_head, d]
    keys : float32 [n, n_head_kv, d]
    rows : float32 [n_rows, d], panel : float32 [d, 16], to work in
    lines : float32 [n_rows, n, padded to 16]
    """
    n_rows, d = rows.shape
    n = keys.shape[0]
    width = lines.shape[1]
    for r in range(n_rows):
        for i in range(d):
            rows[r, i] = queries[r, head, i] * scale
    for p in range(width // PANEL):
        panel[:] = 0.0
        for c in range(min(PANEL, n - PANEL * p)):
            key = keys[PANEL * p + c, kv_head]
            for i in range(d):
                panel[i, c] = key[i]
        f32_tile(
            n_rows,
            rows.ctypes.data,
            rows.strides[0],
            panel.ctypes.data,
            panel.strides[0],
            d,
            lines.ctypes.data + 4 * PANEL * p,
            lines.strides[0],
        )
    for r in range(n_rows):
        line = lines[r]
        if not is_softmax:
            line[highs[r] + 1 :] = 0.0
            continue
        line[highs[r] + 1 :] = -np.inf
        top = row_max(line.ctypes.data, width // 8)
        total = row_exp(line.ctypes.data, width // 8, top)
        for i in range(width):
            line[i] /= total
