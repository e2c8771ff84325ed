"""Re-order the weights of GGUF tensors into tiles whose lanes are rows, without changing a weight.

A quantised tile holds 8 rows, a float panel 16; rows that a matrix lacks are zeros. The blocks'
layouts are those of ggml's ggml-quants.h.
"""

import numpy as np
from numba import njit

from .tile_kernels import float_of_half, half_bits

# The beginning of that file's SHA-256: Numba's cache sees edits of this file only, so an edit there
# has to be one here (tests/test_layers.py tells the number).
BUILT_ON = {"tile_kernels": "14b42d12"}

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
def unpack_small(kind, row, b, q):
    """Block b of 32 of a Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0 row; returns (scale, least)."""
    if kind == Q8_0:
        at = 34 * b
        for i in range(32):
            q[i] = np.int8(row[at + 2 + i])
        return half_at(row, at), np.float32(0)
    five = kind in (Q5_0, Q5_1)
    both = kind in (Q4_1, Q5_1)
    at = b * (18 + (4 if five else 0) + (2 if both else 0))
    d = half_at(row, at)
    least = np.float32(0)
    at += 2
    if both:
        least = half_at(row, at)
        at += 2
    high = 0
    if five:
        for i in range(4):
            high |= np.int64(row[at + i]) << (8 * i)
        at += 4
    for i in range(16):
        both_halves = np.int64(row[at + i])
        q[i] = (both_halves & 15) | ((high >> i) & 1) << 4
        q[i + 16] = (both_halves >> 4) | ((high >> (i + 16)) & 1) << 4
    if kind == Q5_0:
        for i in range(32):
            q[i] -= 16
    if kind == Q4_0:
        least = np.float32(-8) * d
    return d, least


@njit(**KERNEL)
def unpack_super(kind, row, b, q):
    """Block b of 32 of a Q4_K, Q5_K or Q6_K row; returns two scales and the least, of halves."""
    part = b % 8
    if kind == Q6_K:
        at = 210 * (b // 8)
        d = half_at(row, at + 208)
        ql = at + 64 * (part // 4) + 32 * (part % 2)
        qh = at + 128 + 32 * (part // 4)
        for i in range(32):
            low = (np.int64(row[ql + i]) >> (4 * (part % 4 // 2))) & 15
            high = (np.int64(row[qh + i]) >> (2 * (part % 4))) & 3
            q[i] = (low | high << 4) - 32
        first = np.int8(row[at + 192 + 2 * part])
        second = np.int8(row[at + 193 + 2 * part])
        return d * np.float32(first), d * np.float32(second), np.float32(0)
    at = (176 if kind == Q5_K else 144) * (b // 8)
    scale, least = six_bit_pair(row[at + 4 : at + 16], part)
    d = half_at(row, at) * np.float32(scale)
    least_value = -(half_at(row, at + 2) * np.float32(least))
    low = at + (48 if kind == Q5_K else 16) + 32 * (part // 2)
    for i in range(32):
        q[i] = (np.int64(row[low + i]) >> (4 * (part % 2))) & 15
        if kind == Q5_K:
            q[i] |= ((np.int64(row[at + 16 + i]) >> part) & 1) << 4
    return d, d, least_value


@njit(**KERNEL)
def write_scale(out, at, place, wide, value):
    """Scale of lane ``place``: float32 (wide) or float16."""
    if wide:
        out[at + 4 * place : at + 4 * place + 4].view(np.float32)[0] = value
    else:
        out[at + 2 * place : at + 2 * place + 2].view(np.uint16)[0] = half_bits(value)


@njit(**KERNEL)
def pack_tiles(kind, raw, order, n_blocks, four_bits, wide, first, last, out):
    """Pack tiles first to last - 1 of a quantised matrix.

    raw uint8 [n_rows, row_bytes]; order int64 [8 * n_tiles]: the row of each lane, -1 for none; out
    uint8 [n_tiles, tile_bytes], zeros. ``four_bits`` and ``wide`` tell the form.
    """
    q = np.empty(32, np.int16)
    block_bytes = (192 if wide else 160) if four_bits else (384 if wide else 272)
    for tile in range(first, last):
        to = out[tile]
        for r in range(8):
            source = order[8 * tile + r]
            if source < 0:
                continue
            row = raw[source]
            for b in range(n_blocks):
                at = b * block_bytes
                if kind <= Q8_0:
                    scale, least = unpack_small(kind, row, b, q)
                    second = scale
                else:
                    scale, second, least = unpack_super(kind, row, b, q)
                if four_bits:
                    for j in range(4):
                        for i in range(4):
                            both = q[8 * j + i] | q[8 * j + 4 + i] << 4
                            to[at + 32 * j + 4 * r + i] = np.uint8(both)
                    write_scale(to, at + 128, r, wide, scale)
                    write_scale(to, at + (160 if wide else 144), r, wide, least)
                elif not wide:
                    for j in range(16):
                        to[at + 16 * j + 2 * r] = np.uint8(q[2 * j])
                        to[at + 16 * j + 2 * r + 1] = np.uint8(q[2 * j + 1])
                    write_scale(to, at + 256, r, wide, scale)
                else:
                    for half in range(2):
                        here = at + 192 * half
                        for j in range(8):
                            to[here + 16 * j + 2 * r] = np.uint8(q[16 * half + 2 * j])
                            to[here + 16 * j + 2 * r + 1] = np.uint8(q[16 * half + 2 * j + 1])
                        write_scale(to, here + 128, r, True, second if half else scale)
                        write_scale(to, here + 160, r, True, least)


@njit(**KERNEL)
def pack_panels(raw, order, first, last, out):
    """Pack panels first to last - 1 of a float matrix.

    raw [n_rows, n] of uint16 or uint32 bits; order int64 [16 * n_panels]; out [n_panels, n, 16] of
    the same, zeros.
    """
    for panel in range(first, last):
        for r in range(16):
            source = order[16 * panel + r]
            if source < 0:
                continue
            for i in range(raw.shape[1]):
                out[panel, i, r] = raw[source, i]
