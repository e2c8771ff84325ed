"""Quantised rows to float32, block by block; the layouts are those of ggml's ggml-quants.h.

Products and sums are rounded to float32 one by one, in the order of gguf.quants: a fused or
re-ordered one would give other bits.
"""

import numpy as np
from numba import njit

KERNEL = {"nogil": True, "cache": True, "error_model": "numpy"}

# ggml's numbers of the types, as in gguf_tensors.TensorType.
Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K = 2, 3, 6, 7, 8, 12, 13, 14


@njit(**KERNEL)
def half_at(halves, row, at):
    """The float16 at byte ``at`` of a row; ``halves`` holds the float32 of each float16's bits."""
    return halves[int(row[at]) | int(row[at + 1]) << 8]


@njit(**KERNEL)
def small_block(kind, halves, row, at, out):
    """A block of Q4_0, Q4_1, Q5_0 or Q5_1 at byte ``at`` to out, float32 [32]."""
    scale = half_at(halves, row, at)
    at += 2
    least = np.float32(0)
    if kind in (Q4_1, Q5_1):
        least = half_at(halves, row, at)
        at += 2
    high = 0
    if kind in (Q5_0, Q5_1):
        for i in range(4):
            high |= int(row[at + i]) << 8 * i
        at += 4
    shift = 8 if kind == Q4_0 else 16 if kind == Q5_0 else 0
    for i in range(16):
        both = int(row[at + i])
        first = (both & 15) | (high >> i & 1) << 4
        second = both >> 4 | (high >> i + 16 & 1) << 4
        out[i] = scale * np.float32(first - shift)
        out[i + 16] = scale * np.float32(second - shift)
    if kind in (Q4_1, Q5_1):
        for i in range(32):
            out[i] = out[i] + least


@njit(**KERNEL)
def byte_block(halves, row, at, out):
    """A block of Q8_0 at byte ``at`` to out, float32 [32]."""
    scale = half_at(halves, row, at)
    for i in range(32):
        byte = int(row[at + 2 + i])
        out[i] = scale * np.float32(byte - 256 if byte > 127 else byte)


@njit(**KERNEL)
def six_bits(row, at, j):
    """Scale and least, 6 bits each, of sub-block j; 12 bytes at ``at`` hold those of 8."""
    if j < 4:
        return int(row[at + j]) & 63, int(row[at + j + 4]) & 63
    both, scale, least = int(row[at + j + 4]), int(row[at + j - 4]), int(row[at + j])
    return (both & 15) | (scale >> 6) << 4, both >> 4 | (least >> 6) << 4


@njit(**KERNEL)
def super_block(kind, halves, row, at, out):
    """A block of Q4_K or Q5_K at byte ``at`` to out, float32 [256]."""
    scale, least = half_at(halves, row, at), half_at(halves, row, at + 2)
    five = kind == Q5_K
    low_at = at + (48 if five else 16)
    for j in range(8):
        times, minus = six_bits(row, at + 4, j)
        sub_scale, sub_least = scale * np.float32(times), least * np.float32(minus)
        for i in range(32):
            q = int(row[low_at + 32 * (j // 2) + i]) >> 4 * (j % 2) & 15
            if five:
                q |= (int(row[at + 16 + i]) >> j & 1) << 4
            out[32 * j + i] = sub_scale * np.float32(q) - sub_least


@njit(**KERNEL)
def six_bit_block(halves, row, at, out):
    """A block of Q6_K at byte ``at`` to out, float32 [256]."""
    scale = half_at(halves, row, at + 208)
    for j in range(16):
        byte = int(row[at + 192 + j])
        sub_scale = scale * np.float32(byte - 256 if byte > 127 else byte)
        # 16 numbers of eight runs of 32: four runs share 64 bytes of low and 32 of high bits
        run, half = j // 2, 16 * (j % 2)
        low_at = at + 64 * (run // 4) + 32 * (run % 2) + half
        high_at = at + 128 + 32 * (run // 4) + half
        for i in range(16):
            low = int(row[low_at + i]) >> 4 * (run % 4 // 2) & 15
            high = int(row[high_at + i]) >> 2 * (run % 4) & 3
            out[16 * j + i] = sub_scale * np.float32((low | high << 4) - 32)


@njit(**KERNEL)
def dequantise_rows(kind, block_bytes, halves, data, out):
    """Rows of a quantised type to float32.

    kind : ggml's number of the type
    block_bytes : of the type
    halves : in, float32 [65536], the value of each float16
    data : in, uint8 [n_rows, row_bytes], whole blocks
    out : out, float32 [n_rows, n_columns]
    """
    size = 256 if kind >= Q4_K else 32
    for r in range(data.shape[0]):
        row = data[r]
        for b in range(row.size // block_bytes):
            at, block = block_bytes * b, out[r, size * b : size * b + size]
            if kind == Q6_K:
                six_bit_block(halves, row, at, block)
            elif kind >= Q4_K:
                super_block(kind, halves, row, at, block)
            elif kind == Q8_0:
                byte_block(halves, row, at, block)
            else:
                small_block(kind, halves, row, at, block)
