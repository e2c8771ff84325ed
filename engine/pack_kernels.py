"""Re-order the weights of GGUF tensors into tiles whose lanes are rows, without changing a weight.

A quantised tile holds 8 rows, a float panel 16; rows that a matrix lacks are zeros. The blocks'
layouts are those of ggml's ggml-quants.h.
"""

import numpy as np
from numba import njit

from .tile_kernels import (
    bits_of_float,
    float_of_half,
    half_bits,
    put_half_word,
    put_word,
    word_at,
)

# The beginning of that file's SHA-256: Numba's cache sees edits of this file only, so an edit there
# has to be one here (tests/test_layers.py tells the number).
BUILT_ON = {"tile_kernels": "400db008"}

KERNEL = {"nogil": True, "cache": True, "error_model": "numpy"}

# ggml's numbers of the types, as in gguf_tensors.TensorType.
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
    """Block b of 32 of a Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0 row; returns (scale, least).

    q int64 [8]: words of four weights, a byte each.
    """
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
    """Block b of 32 of a Q4_K, Q5_K or Q6_K row; returns two scales and the least, of halves.

    q as in ``unpack_small``.
    """
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
def put_scale(address, place, wide, value):
    """Scale of lane ``place``: float32 (wide) or float16."""
    if wide:
        put_word(address + 4 * place, np.int64(bits_of_float(value)))
    else:
        put_half_word(address + 2 * place, np.int64(half_bits(value)))


@njit(**KERNEL)
def pack_block(to, r, four_bits, wide, q, scale, second, least):
    """One row's 32 weights, into lane r of the block at an address."""
    if four_bits:
        for j in range(4):
            put_word(to + 32 * j + 4 * r, q[2 * j] | q[2 * j + 1] << 4)
        put_scale(to + 128, r, wide, scale)
        put_scale(to + (160 if wide else 144), r, wide, least)
        return
    for w in range(8):
        at = to + 32 * w + 2 * r
        if wide:
            at += 64 * (w // 4)  # behind the first half's scales
        put_half_word(at, q[w])
        put_half_word(at + 16, q[w] >> 16)
    if not wide:
        put_scale(to + 256, r, False, scale)
        return
    for half in range(2):
        put_scale(to + 192 * half + 128, r, True, second if half else scale)
        put_scale(to + 192 * half + 160, r, True, least)


@njit(**KERNEL)
def pack_tiles(kind, raw, order, n_blocks, four_bits, wide, first, last, out):
    """Pack tiles first to last - 1 of a quantised matrix.

    raw uint8 [n_rows, row_bytes]; order int64 [8 * n_tiles]: the row of each lane, -1 for none; out
    uint8 [n_tiles, tile_bytes], zeros. ``four_bits`` and ``wide`` tell the form. Returns how many
    scales and least values are not finite.
    """
    q = np.empty(8, np.int64)
    n_bad = 0
    block_bytes = (192 if wide else 160) if four_bits else (384 if wide else 272)
    for tile in range(first, last):
        for r in range(8):
            source = order[8 * tile + r]
            if source < 0:
                continue
            row = raw[source]
            to = out[tile].ctypes.data
            for b in range(n_blocks):
                if kind <= Q8_0:
                    scale, least = unpack_small(kind, row, b, q)
                    second = scale
                else:
                    scale, second, least = unpack_super(kind, row, b, q)
                # a sum is finite only if all are, but for an overflow that no weight comes near
                if not np.isfinite(scale + second + least):
                    n_bad += 1
                pack_block(to + b * block_bytes, r, four_bits, wide, q, scale, second, least)
    return n_bad


@njit(**KERNEL)
def pack_panels(raw, order, exponent, first, last, out):
    """Pack panels first to last - 1 of a float matrix.

    raw [n_rows, n] of uint16 or uint32 bits; order int64 [16 * n_panels]; out [n_panels, n, 16] of
    the same, zeros. ``exponent``: the bits of the exponent, all set in what is not finite. Returns
    how many numbers are not.
    """
    n_bad = 0
    for panel in range(first, last):
        for r in range(16):
            source = order[16 * panel + r]
            if source < 0:
                continue
            for i in range(raw.shape[1]):
                bits = raw[source, i]
                n_bad += (bits & exponent) == exponent
                out[panel, i, r] = bits
    return n_bad
