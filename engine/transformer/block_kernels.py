"""Blocks of GGUF's quantised rows, taken apart: the one place that knows their layouts.

They are those of ggml's ggml-quants.h. A part of 32 weights comes out as integers, scales and the
least value: a weight is ``scale * q + least``.
"""

import numpy as np
from numba import njit

from .tile_kernels import float_of_half, word_at

# The beginning of that file's SHA-256: Numba's cache sees edits of this file only, so an edit there
# has to be one here (tests/test_layers.py tells the number).
BUILT_ON = {"engine.transformer.tile_kernels": "2b817fce"}

KERNEL = {"nogil": True, "cache": True, "error_model": "numpy"}

# ggml's numbers of the types, as in gguf/tensors.py's TensorType.
Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K = 2, 3, 6, 7, 8, 12, 13, 14


@njit(**KERNEL)
def half_at(row, at):
    return float_of_half(np.uint16(row[at] | np.uint16(row[at + 1]) << np.uint16(8)))


@njit(**KERNEL)
def six_bit_pair(scales, j):
    """Scale and least of sub-block j of a Q4_K or Q5_K block, of its 12 bytes."""
    if j < 4:
        return np.int64(scales[j]) & 63, np.int64(scales[j + 4]) & 63
    both = np.int64(scales[j + 4])
    scale = (both & 15) | ((np.int64(scales[j - 4]) >> 6) << 4)
    least = (both >> 4) | ((np.int64(scales[j]) >> 6) << 4)
    return scale, least


@njit(**KERNEL)
def less_16(word):
    """Four bytes of 0 to 31, each less 16, as int8."""
    below = ~word & 0x10101010
    return (word & 0x0F0F0F0F) | below | below << 1 | below << 2 | below << 3


@njit(**KERNEL)
def less_32(word):
    """Four bytes of 0 to 63, each less 32, as int8."""
    below = ~word & 0x20202020
    return (word & 0x1F1F1F1F) | below | below << 1 | below << 2


@njit(**KERNEL)
def unpack_small(kind, row, b, q):
    """Part b of a Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0 row: a block; returns scale and least."""
    start = row.ctypes.data
    if kind == Q8_0:
        at = 34 * b
        for w in range(8):
            q[w] = word_at(start + at + 2 + 4 * w)
        return half_at(row, at), np.float32(0)
    five = kind in (Q5_0, Q5_1)
    both = kind in (Q4_1, Q5_1)
    at = b * (18 + (4 if five else 0) + (2 if both else 0))
    d = half_at(row, at)
    least = half_at(row, at + 2) if both else np.float32(0)
    at += 4 if both else 2
    high = word_at(start + at) if five else 0
    at += 4 if five else 0
    for w in range(4):
        word = word_at(start + at + 4 * w)
        q[w] = word & 0x0F0F0F0F
        q[w + 4] = (word >> 4) & 0x0F0F0F0F
    if five:
        for w in range(8):  # bit i of four goes to the beginning of byte i
            q[w] |= ((((high >> 4 * w) & 15) * 0x204081) & 0x01010101) << 4
            if kind == Q5_0:
                q[w] = less_16(q[w])
    if kind == Q4_0:
        least = np.float32(-8) * d
    return d, least


@njit(**KERNEL)
def unpack_super(kind, row, b, q):
    """Part b of a Q4_K, Q5_K or Q6_K row: an eighth of a block; returns as ``unpack``."""
    start = row.ctypes.data
    part = b % 8
    if kind == Q6_K:
        at = 210 * (b // 8)
        d = half_at(row, at + 208)
        low = start + at + 64 * (part // 4) + 32 * (part % 2)
        high = start + at + 128 + 32 * (part // 4)
        for w in range(8):
            nibbles = (word_at(low + 4 * w) >> (4 * (part % 4 // 2))) & 0x0F0F0F0F
            twos = (word_at(high + 4 * w) >> (2 * (part % 4))) & 0x03030303
            q[w] = less_32(nibbles | twos << 4)
        first = np.int8(row[at + 192 + 2 * part])
        second = np.int8(row[at + 193 + 2 * part])
        return d * np.float32(first), d * np.float32(second), np.float32(0)
    at = (176 if kind == Q5_K else 144) * (b // 8)
    scale, least = six_bit_pair(row[at + 4 : at + 16], part)
    d = half_at(row, at) * np.float32(scale)
    least_value = -(half_at(row, at + 2) * np.float32(least))
    low = start + at + (48 if kind == Q5_K else 16) + 32 * (part // 2)
    for w in range(8):
        q[w] = (word_at(low + 4 * w) >> (4 * (part % 2))) & 0x0F0F0F0F
        if kind == Q5_K:
            q[w] |= ((word_at(start + at + 16 + 4 * w) >> part) & 0x01010101) << 4
    return d, d, least_value


@njit(**KERNEL)
def unpack(kind, row, b, q):
    """Part b of a row; returns the scales of its first and second 16 weights, and the least value.

    kind : ggml's number of the type
    row : in, uint8 [row_bytes]
    q : out, int64 [8], words of four weights, an int8 each
    """
    if kind > Q8_0:
        return unpack_super(kind, row, b, q)
    scale, least = unpack_small(kind, row, b, q)
    return scale, scale, least
