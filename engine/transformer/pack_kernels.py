"""Re-order the weights of GGUF tensors into tiles whose lanes are rows, without changing a weight.

A quantised tile holds 8 rows, a float panel 16; rows that a matrix lacks are zeros.
"""

import numpy as np
from numba import njit

from .block_kernels import unpack
from .tile_kernels import bits_of_float, half_bits, put_half_word, put_word

# See block_kernels.
BUILT_ON = {
    "engine.transformer.block_kernels": "e2d1f514",
    "engine.transformer.tile_kernels": "2b817fce",
}

KERNEL = {"nogil": True, "cache": True, "error_model": "numpy"}


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
            at += 64 * (w // 4)  # after the first half's scales
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
                scale, second, least = unpack(kind, row, b, q)
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
