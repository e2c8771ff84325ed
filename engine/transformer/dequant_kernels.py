"""Quantised rows to float32.

Products and sums are rounded to float32 one by one, in the order of gguf.quants: a fused or
re-ordered one would give other bits.
"""

import numpy as np
from numba import njit

from .block_kernels import Q4_0, Q4_1, Q4_K, Q5_1, Q5_K, unpack

# See block_kernels.
BUILT_ON = {"engine.transformer.block_kernels": "e2d1f514"}

KERNEL = {"nogil": True, "cache": True, "error_model": "numpy"}


@njit(**KERNEL)
def dequantise_rows(kind, data, out):
    """Rows of a quantised type to float32.

    kind : ggml's number of the type
    data : in, uint8 [n_rows, row_bytes], whole blocks
    out : out, float32 [n_rows, n_columns]
    """
    q = np.empty(8, np.int64)
    # Adding a least value of 0 would turn -0 into 0, and so would Q4_0's own.
    has_least = kind in (Q4_1, Q5_1, Q4_K, Q5_K)
    shift = 8 if kind == Q4_0 else 0
    for r in range(data.shape[0]):
        for b in range(out.shape[1] // 32):
            first, second, least = unpack(kind, data[r], b, q)
            for i in range(32):
                weight = np.int8(q[i // 4] >> 8 * (i % 4)) - shift
                value = (first if i < 16 else second) * np.float32(weight)
                out[r, 32 * b + i] = value + least if has_least else value
