"""Rows of a GGUF tensor as float32: the numbers of gguf.quants.dequantize, bit for bit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..gguf.tensors import TensorType
from .dequant_kernels import dequantise_rows

BATCH_BYTES = 1 << 20  # that the kernel gets at a time


def dequantise(
    type: TensorType, data: NDArray[np.uint8], out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Return the numbers of rows, float32 [n_rows, n_columns].

    Parameters
    ----------
    type : of the rows
    data : uint8 [n_rows, row_bytes], as in Tensor.data; whole blocks
    out : where to, float32 [n_rows, n_columns] in C order, or None for a new array
    """
    n_rows, row_bytes = data.shape
    if row_bytes % type.block_bytes:
        raise ValueError(f"rows of {row_bytes} bytes, blocks of {type.block_bytes}")
    shape = (n_rows, row_bytes // type.block_bytes * type.block_items)
    if out is None:
        out = np.empty(shape, np.float32)
    elif out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise ValueError(f"out is {out.dtype} {out.shape}, expected float32 {shape} in C order")
    if type == TensorType.F32:
        out[:] = data.view(np.float32)
    elif type == TensorType.F16:
        out[:] = data.view(np.float16)
    elif type == TensorType.BF16:
        np.left_shift(data.view(np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32)
    else:
        # A copy: Numba would compile the kernel once more for a read-only or a strided array.
        step = max(1, BATCH_BYTES // max(1, row_bytes))
        for start in range(0, n_rows, step):
            batch = np.array(data[start : start + step], order="C")
            dequantise_rows(int(type), batch, out[start : start + step])
    return out
