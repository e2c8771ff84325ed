"""One pass of a transformer over a batch of tokens: all threads run ``run_layers`` at once.

The threads share the work of a phase and meet at a barrier before the next. What is computed for
a token depends neither on the number of threads nor on the other tokens of the batch, so batches
of any split give the same bits. docs/engine.md draws the arrays.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .tile_kernels import (
    HAS_VNNI,
    atomic_add,
    barrier,
    bf16_tile,
    f16_tile,
    f32_tile,
    half_bits,
    quantise_row,
    row_activate,
    row_exp,
    row_max,
    row_squares,
    s8_float_tiles,
    s8_half_tiles,
    stay_out,
    u4_float_tiles,
    u4_half_tiles,
)

# Forms of a packed matrix.
F32_PANEL, F16_PANEL, BF16_PANEL, U4_HALF, U4_FLOAT, S8_HALF, S8_FLOAT, VECTOR = range(8)

# Places in a layer's slots. The last row of slots, of no layer, has what follows the layers only.
(ATTN_NORM, ATTN_Q, ATTN_K, ATTN_V, ATTN_OUT, Q_BIAS, K_BIAS, V_BIAS, OUT_BIAS, Q_NORM, K_NORM,
 POST_ATTN_NORM, FFN_NORM, FFN_GATE, FFN_UP, FFN_DOWN, GATE_BIAS, UP_BIAS, DOWN_BIAS,
 POST_FFN_NORM, Q_SCALE, K_SCALE, V_SCALE, OUT_SCALE, GATE_SCALE, UP_SCALE, DOWN_SCALE,
 N_SLOTS) = range(28)  # fmt: skip
OUT_NORM, HEAD, HEAD_BIAS = range(3)
# Places in a slot; an absent tensor has OFFSET -1.
OFFSET, FORM, ROWS, COLUMNS, TILE_BYTES, N_PLACES = range(6)

# Places in sizes.
(N_EMBD, N_HEAD, N_KV, D_HEAD, N_ROT, N_FF, GELU, FIRST_LAYER, LAST_LAYER, N_TOKENS, N_BLOCK,
 N_SINK, N_ROWS, CUT, N_SIZES) = range(15)  # fmt: skip
# Places in reals.
EPS, ATTN_SCALE, SOFTCAP = range(3)

SPLIT = 256  # keys that are scored at a time; partial results of splits are folded in order
BLOCK_ROWS = 48  # query rows of a block: some tokens, and the heads that share a key head
TOKEN_BLOCK = 128  # tokens whose activations stay in the CPU's cache while weights go by

# The beginning of that file's SHA-256: Numba's cache sees edits of this file only, so an edit there
# has to be one here (tests/test_layers.py tells the number).
BUILT_ON = {"engine.transformer.tile_kernels": "2b817fce"}

KERNEL = {"nogil": True, "cache": True, "error_model": "numpy"}
# Called by kernels only: a way in from Python would take as long again to compile.
INNER = {**KERNEL, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# Called in one place: compiled there only.
PART = {"inline": "always", "error_model": "numpy"}


class Layers(NamedTuple):
    """Packed weights: a layer each in slots and kinds, and what holds for all."""

    arena: NDArray[np.uint8]
    slots: NDArray[np.int64]  # [layers, N_SLOTS, N_PLACES]; Model has a last row of no layer
    kinds: NDArray[np.int64]  # [layers], 1 where a layer is local
    reals: NDArray[np.float32]


class Activations(NamedTuple):
    """Rows of floats, and what ``quantise`` makes of them; columns n, or blocks of 32 of them."""

    floats: NDArray[np.float32]  # [rows, n]
    x8: NDArray[np.int8]  # [rows, 32 * blocks]
    x16: NDArray[np.int16]  # [rows, 32 * blocks]
    d: NDArray[np.float32]  # [rows, blocks], scales
    s: NDArray[np.float32]  # [rows, blocks], sums of blocks
    h: NDArray[np.float32]  # [rows, 2 * blocks], of their halves
    z: NDArray[np.int32]  # [rows, blocks], sums of the integers themselves, times -128


class Work(NamedTuple):
    """What a layer computes of a batch's tokens, a row each; float32, columns padded."""

    act: Activations  # of n_embd
    wide: Activations  # of the widest
    q: NDArray[np.float32]
    k: NDArray[np.float32]
    v: NDArray[np.float32]
    attended: NDArray[np.float32]
    gate: NDArray[np.float32]
    up: NDArray[np.float32]
    y: NDArray[np.float32]


class Parts(NamedTuple):
    """Attention's results by task, not yet divided by their weights."""

    outs: NDArray[np.float32]  # [tasks, rows, padded d_head]
    tops: NDArray[np.float32]  # [tasks, rows]
    weights: NDArray[np.float32]  # [tasks, rows]


class Room(NamedTuple):
    """What a thread attends in; with a first axis of threads, that of all."""

    rows: NDArray[np.float32]  # [rows, d_head], queries
    lows: NDArray[np.int64]  # [rows], slots that they see
    highs: NDArray[np.int64]
    scores: NDArray[np.float32]  # [rows, SPLIT]
    outs: NDArray[np.float32]  # [rows, padded d_head], of one split
    tops: NDArray[np.float32]  # [rows]
    sums: NDArray[np.float32]  # [rows]


class Buffers(NamedTuple):
    """All that a pass works in."""

    work: Work
    parts: Parts
    rooms: Room


class Cache(NamedTuple):
    """Keys and values, float16 bits, as ``KvCache`` holds them; of all layers, or of one."""

    keys: NDArray[np.uint16]
    values: NDArray[np.uint16]


class Seen(NamedTuple):
    """Which slots the tokens of a batch see, and which tokens go on to the end of the pass."""

    lows: NDArray[np.int64]  # [2, n_tokens], first slots, in layers that are not local and that are
    highs: NDArray[np.int64]  # [n_tokens], last slots: the tokens' own
    kept: NDArray[np.int64]  # rows, ascending


class Captures(NamedTuple):
    """What is taken out of the layers on the way."""

    hidden_place: NDArray[np.int64]  # [layers], where in hidden; -1 for none
    query_place: NDArray[np.int64]  # [layers], where in queries and keys; -1 for none
    hidden: NDArray[np.float32]  # [places, n_tokens, n_embd]
    queries: NDArray[np.float32]  # [places, 2, n_tokens, n_head * d_head]; before RoPE and after it
    keys: NDArray[np.float32]  # [places, 2, n_tokens, n_head_kv * d_head]


@njit(**INNER)
def share(n, tid, n_threads):
    """The part of ``range(n)`` that is a thread's."""
    return n * tid // n_threads, n * (tid + 1) // n_threads


# --------------------------------------------------------------------------------------------------
# Matrix products


@njit(**INNER)
def multiply_panels(arena, slot, floats, first, last, start, stop, out):
    """``multiply`` of a float matrix, by panels of 16 rows."""
    stay_out()
    form = slot[FORM]
    n_tokens = stop - start
    n = slot[COLUMNS]
    x = floats.ctypes.data + start * floats.strides[0]
    for tile in range(first, last):
        w = arena.ctypes.data + slot[OFFSET] + tile * slot[TILE_BYTES]
        to = out.ctypes.data + start * out.strides[0] + 64 * tile
        if form == F32_PANEL:
            f32_tile(n_tokens, x, floats.strides[0], w, 64, n, to, out.strides[0])
        elif form == F16_PANEL:
            f16_tile(n_tokens, x, floats.strides[0], w, 32, n, to, out.strides[0])
        else:
            bf16_tile(n_tokens, x, floats.strides[0], w, 32, n, to, out.strides[0])


@njit(**INNER)
def multiply(arena, slot, x, first, last, start, stop, out):
    """out[t, tiles first to last - 1] = matrix times activations, for tokens start to stop - 1.

    ``x``: the activations (floats, x8, x16, d, s, h, z), as ``quantise`` leaves them.
    """
    stay_out()
    floats, x8, x16, d, s, h, z = x
    form = slot[FORM]
    n_tiles = last - first
    n_tokens = stop - start
    n_blocks = slot[COLUMNS] // 32
    a8 = x8.ctypes.data + start * x8.strides[0]
    a16 = x16.ctypes.data + start * x16.strides[0]
    ad = d.ctypes.data + start * d.strides[0]
    a_s = s.ctypes.data + start * s.strides[0]
    ah = h.ctypes.data + start * h.strides[0]
    az = z.ctypes.data + start * z.strides[0]
    w = arena.ctypes.data + slot[OFFSET] + first * slot[TILE_BYTES]
    to = out.ctypes.data + start * out.strides[0] + 32 * first
    if form <= BF16_PANEL:
        multiply_panels(arena, slot, floats, first, last, start, stop, out)
    elif form == U4_HALF:
        u4_half_tiles(n_tiles, n_tokens, w, a8, x8.strides[0], ad, d.strides[0], a_s, s.strides[0],
                      n_blocks, to, out.strides[0])  # fmt: skip
    elif form == U4_FLOAT:
        u4_float_tiles(n_tiles, n_tokens, w, a8, x8.strides[0], ad, d.strides[0], a_s, s.strides[0],
                       n_blocks, to, out.strides[0])  # fmt: skip
    elif form == S8_FLOAT:
        s8_float_tiles(n_tiles, n_tokens, w, a16, x16.strides[0], ad, d.strides[0], ah,
                       h.strides[0], 2 * n_blocks, to, out.strides[0])  # fmt: skip
    elif HAS_VNNI:
        s8_half_tiles(n_tiles, n_tokens, w, a8, x8.strides[0], ad, d.strides[0], az, z.strides[0],
                      n_blocks, to, out.strides[0])  # fmt: skip
    else:
        s8_half_tiles(n_tiles, n_tokens, w, a16, x16.strides[0], ad, d.strides[0], a_s,
                      s.strides[0], n_blocks, to, out.strides[0])  # fmt: skip


@njit(**INNER)
def matmul(arena, slot, x, n_tokens, out, tid, n_threads):
    """A thread's part of out[0:n_tokens] = activations times the slot's matrix, by its rows."""
    stay_out()
    rows = 16 if slot[FORM] <= BF16_PANEL else 8
    first, last = share((slot[ROWS] + rows - 1) // rows, tid, n_threads)
    for start in range(0, n_tokens, TOKEN_BLOCK):
        stop = min(start + TOKEN_BLOCK, n_tokens)
        multiply(arena, slot, x, first, last, start, stop, out)


@njit(**INNER)
def quantise(x, first, last, start, stop):
    """Make integers and sums of rows first to last - 1, columns start to stop - 1, by blocks of 32.

    Of a last block that is not whole nothing is made: its matrices are float.
    """
    stay_out()
    floats, x8, x16, d, s, h, z = x
    b = start // 32
    for t in range(first, last):
        quantise_row(
            floats.ctypes.data + t * floats.strides[0] + 4 * start,
            (stop - start) // 32,
            x8.ctypes.data + t * x8.strides[0] + start,
            x16.ctypes.data + t * x16.strides[0] + 2 * start,
            d.ctypes.data + t * d.strides[0] + 4 * b,
            s.ctypes.data + t * s.strides[0] + 4 * b,
            h.ctypes.data + t * h.strides[0] + 8 * b,
            z.ctypes.data + t * z.strides[0] + 4 * b,
        )


@njit(**INNER)
def vector_of(arena, slot):
    """float32 [ROWS]: a slot's vector."""
    start = slot[OFFSET]
    return arena[start : start + 4 * slot[ROWS]].view(np.float32)


@njit(**INNER)
def add_bias(arena, slot, out, first, last, start, stop):
    """Add columns start to stop - 1 of a slot's vector, where the model has it."""
    stay_out()
    if slot[OFFSET] < 0:
        return
    bias = vector_of(arena, slot)
    for t in range(first, last):
        for i in range(start, stop):
            out[t, i] += bias[i]


@njit(**INNER)
def scale_rows(arena, slot, out, first, last, start, stop):
    """Multiply columns start to stop - 1 by a matrix's factor, where the model has one."""
    stay_out()
    if slot[OFFSET] < 0:
        return
    factor = vector_of(arena, slot)[0]
    for t in range(first, last):
        for i in range(start, stop):
            out[t, i] *= factor


# --------------------------------------------------------------------------------------------------
# Norms, positions


@njit(**INNER)
def norm_row(row, weight, eps, out):
    """out = row / rms(row) * weight; both may be one array."""
    n = row.size
    mean = row_squares(row.ctypes.data, n // 8) / np.float32(n)
    scale = np.float32(1.0) / np.float32(math.sqrt(mean + eps))
    for i in range(n):
        out[i] = row[i] * scale * weight[i]


@njit(**INNER)
def norm_rows(arena, slot, rows, out, first, last, eps):
    stay_out()
    weight = vector_of(arena, slot)
    n = weight.size
    for t in range(first, last):
        norm_row(rows[t, :n], weight, eps, out[t, :n])


@njit(**INNER)
def norm_heads(arena, slot, rows, first, last, n_heads, eps):
    """RMSNorm of each head's part of each row, in place."""
    stay_out()
    if slot[OFFSET] < 0:
        return
    weight = vector_of(arena, slot)
    n = weight.size
    for t in range(first, last):
        for head in range(n_heads):
            part = rows[t, head * n : (head + 1) * n]
            norm_row(part, weight, eps, part)


@njit(**INNER)
def rotate(rows, turn, first, last, n_heads, d_head, n_rot):
    """Turn the pairs (i, i + n_rot / 2) of each head by turn[t, i] = (cos, sin), in place."""
    stay_out()
    half = n_rot // 2
    for t in range(first, last):
        for head in range(n_heads):
            a = rows[t, head * d_head : head * d_head + half]
            b = rows[t, head * d_head + half : head * d_head + n_rot]
            for i in range(half):
                c = turn[t, 0, i]
                s = turn[t, 1, i]
                x = a[i]
                y = b[i]
                a[i] = x * c - y * s
                b[i] = x * s + y * c


@njit(**INNER)
def store_keys(k, v, keys, values, first, last, places, n_kv, d_head):
    """Write tokens' keys (columns of panels) and values (rows), as float16 bits, to their slots."""
    stay_out()
    for t in range(first, last):
        slot = places[t]
        for head in range(n_kv):
            panel = keys[head, slot // 16]
            column = slot % 16
            for i in range(d_head):
                panel[i, column] = half_bits(k[t, head * d_head + i])
            row = values[head, slot]
            for i in range(d_head):
                row[i] = half_bits(v[t, head * d_head + i])


# --------------------------------------------------------------------------------------------------
# Attention


@njit(**INNER)
def hide(line, width, key_start, low, high, n_sink):
    """Put -inf at the keys of a split that a row does not see; returns whether it sees any.

    line [width]: scores of the keys from key_start on. It sees low to high, and below n_sink.
    """
    stop = min(max(high + 1 - key_start, 0), width)
    start = min(max(low - key_start, 0), stop)
    sinks = min(max(n_sink - key_start, 0), start)
    line[stop:width] = -np.inf
    line[sinks:start] = -np.inf
    return sinks > 0 or start < stop


@njit(**INNER)
def score_split(rows, n_rows, keys, values, key_start, key_stop, lows, highs, n_sink, d_head, work):
    """Attention of query rows to one split's keys: fills work's tops, sums and outs.

    Row r sees the keys lows[r] to highs[r], and those below n_sink up to highs[r]. ``keys`` [panel,
    d, 16] and ``values`` [slot, d] are of one head; rows [n_rows, d] are scaled already. A row
    that sees none of the keys gets the sum 0.
    """
    stay_out()
    scores, outs, tops, sums = work
    n_panels = (key_stop - key_start + 15) // 16
    width = 16 * n_panels
    for p in range(n_panels):
        f16_tile(
            n_rows,
            rows.ctypes.data,
            rows.strides[0],
            keys[key_start // 16 + p].ctypes.data,
            32,
            d_head,
            scores.ctypes.data + 64 * p,
            scores.strides[0],
        )
    for r in range(n_rows):
        line = scores[r]
        if hide(line, width, key_start, lows[r], highs[r], n_sink):
            tops[r] = row_max(line.ctypes.data, width // 8)
            sums[r] = row_exp(line.ctypes.data, width // 8, tops[r])
        else:
            tops[r] = -np.inf
            sums[r] = 0.0
            line[:width] = 0.0
    for c in range(outs.shape[1] // 16):
        f16_tile(
            n_rows,
            scores.ctypes.data,
            scores.strides[0],
            values.ctypes.data + key_start * values.strides[0] + 32 * c,
            values.strides[0],
            key_stop - key_start,
            outs.ctypes.data + 64 * c,
            outs.strides[0],
        )


@njit(**INNER)
def fold(total, top, weight, part, part_top, part_sum):
    """Add one split's result to a row's; returns the new top and weight.

    The rule of online softmax (Milakov and Gimelshein 2018, as FlashAttention uses it).
    """
    stay_out()
    if part_sum == 0.0:
        return top, weight
    new = max(top, part_top)
    old_scale = np.float32(0.0) if weight == 0.0 else np.float32(math.exp(top - new))
    part_scale = np.float32(math.exp(part_top - new))
    for i in range(total.size):
        total[i] = total[i] * old_scale + part[i] * part_scale
    return new, weight * old_scale + part_sum * part_scale


@njit(**INNER)
def gather_rows(q, first, last, kv_head, group, d_head, scale, rows, lows, highs, lo, hi):
    """Copy the queries of tokens first to last - 1 that share a key head; returns their number."""
    stay_out()
    n = 0
    for t in range(first, last):
        for g in range(group):
            start = (kv_head * group + g) * d_head
            for i in range(d_head):
                rows[n, i] = q[t, start + i] * scale
            lows[n] = lo[t]
            highs[n] = hi[t]
            n += 1
    return n


@njit(**INNER)
def attend_block(q, first, last, kv_head, group, d_head, scale, keys, values, lo, hi, n_sink,
                 split_first, split_last, room, out, tops, weights):  # fmt: skip
    """Attend from some tokens to splits split_first to split_last - 1, folded in order.

    Results, not yet divided by their weights: out [n_rows, d], tops and weights [n_rows].
    """
    stay_out()
    rows, lows, highs, scores, outs, part_tops, part_sums = room
    n = gather_rows(q, first, last, kv_head, group, d_head, scale, rows, lows, highs, lo, hi)
    out[:n] = 0.0
    tops[:n] = -np.inf
    weights[:n] = 0.0
    stop = highs[:n].max() + 1
    start = lows[:n].min()
    work = (scores, outs, part_tops, part_sums)
    for split in range(split_first, split_last):
        key_start = split * SPLIT
        key_stop = min(key_start + SPLIT, stop)
        if key_start >= stop or (key_start + SPLIT <= start and key_start >= n_sink):
            continue
        score_split(rows, n, keys, values, key_start, key_stop, lows, highs, n_sink, d_head, work)
        for r in range(n):
            tops[r], weights[r] = fold(
                out[r], tops[r], weights[r], outs[r], part_tops[r], part_sums[r]
            )
    return n


@njit(**PART)
def attention(work, cache, lows, highs, sizes, scale, room, parts, counter, tid, n_threads, sync):
    """Attention of all tokens, from work's q: its attended[t, head * d_head ...].

    Many tokens: a task is a block of tokens and a key head. Few: a task is a key head and one
    split, and its results wait in ``parts`` until all are there. Either way the same folds happen
    in the same order.
    """
    n_tokens, n_kv, d_head, n_sink = sizes[N_TOKENS], sizes[N_KV], sizes[D_HEAD], sizes[N_SINK]
    group = sizes[N_HEAD] // n_kv
    q, out = work.q, work.attended
    per_block = sizes[N_BLOCK]
    n_blocks = (n_tokens + per_block - 1) // per_block
    n_splits = (highs[:n_tokens].max() + SPLIT) // SPLIT
    part_out, part_tops, part_weights = parts
    if n_blocks > 1:
        n_splits_task, n_tasks = n_splits, n_blocks * n_kv
    else:
        n_splits_task, n_tasks = 1, n_splits * n_kv
    while True:
        task = atomic_add(counter, 1)
        if task >= n_tasks:
            break
        kv_head = task // n_blocks if n_blocks > 1 else task % n_kv
        if n_blocks > 1:
            # all blocks of a head in turn: its keys stay in the cache; the longest block first
            first = (n_blocks - 1 - task % n_blocks) * per_block
            last = min(first + per_block, n_tokens)
            place, split = tid, 0
        else:
            first, last = 0, n_tokens
            place, split = task, task // n_kv
        n = attend_block(
            q, first, last, kv_head, group, d_head, scale, cache.keys[kv_head],
            cache.values[kv_head], lows, highs, n_sink, split, split + n_splits_task, room,
            part_out[place], part_tops[place], part_weights[place],
        )  # fmt: skip
        if n_blocks > 1:
            divide(part_out[place], part_weights[place], n, first, kv_head, group, d_head, out)
    if n_blocks > 1:
        return
    barrier(sync, n_threads)
    first, last = share(n_kv, tid, n_threads)
    for kv_head in range(first, last):
        n = n_tokens * group
        for split in range(1, n_splits):
            at = split * n_kv + kv_head
            for r in range(n):
                part_tops[kv_head, r], part_weights[kv_head, r] = fold(
                    part_out[kv_head, r],
                    part_tops[kv_head, r],
                    part_weights[kv_head, r],
                    part_out[at, r],
                    part_tops[at, r],
                    part_weights[at, r],
                )
        divide(part_out[kv_head], part_weights[kv_head], n, 0, kv_head, group, d_head, out)


@njit(**INNER)
def divide(results, weights, n, first, kv_head, group, d_head, out):
    """Put a block's rows, divided by their weights, at their tokens and heads."""
    stay_out()
    for r in range(n):
        start = (kv_head * group + r % group) * d_head
        for i in range(d_head):
            out[first + r // group, start + i] = results[r, i] / weights[r]


# --------------------------------------------------------------------------------------------------
# The pass


@njit(**INNER)
def keep_rows(rows, kept, n):
    """Move the rows ``kept`` (ascending) to the front."""
    stay_out()
    for r in range(kept.size):
        if kept[r] != r:
            rows[r, :n] = rows[kept[r], :n]


@njit(**INNER)
def add_rows(x, y, first, last, n):
    for t in range(first, last):
        for i in range(n):
            x[t, i] += y[t, i]


@njit(**INNER)
def finish_branch(arena, slot, y, x, first, last, n, eps):
    """x += y, after y's norm where the model has one."""
    stay_out()
    if slot[OFFSET] >= 0:
        norm_rows(arena, slot, y, y, first, last, eps)
    add_rows(x, y, first, last, n)


@njit(**PART)
def attention_inputs(layers, il, x, work, turns, cache, highs, sizes, captures, tid, n_threads,
                     sync):  # fmt: skip
    """Norm, products, RoPE and ``cache`` of one layer; the queries stay in work's q."""
    arena, layer, reals = layers.arena, layers.slots[il], layers.reals
    act, q, k, v = work.act, work.q, work.k, work.v
    n_tokens, d_head, n_rot = sizes[N_TOKENS], sizes[D_HEAD], sizes[N_ROT]
    n_head, n_kv = sizes[N_HEAD], sizes[N_KV]
    first, last = share(n_tokens, tid, n_threads)
    norm_rows(arena, layer[ATTN_NORM], x, act.floats, first, last, reals[EPS])
    quantise(act, first, last, 0, sizes[N_EMBD])
    barrier(sync, n_threads)
    matmul(arena, layer[ATTN_Q], act, n_tokens, q, tid, n_threads)
    matmul(arena, layer[ATTN_K], act, n_tokens, k, tid, n_threads)
    matmul(arena, layer[ATTN_V], act, n_tokens, v, tid, n_threads)
    barrier(sync, n_threads)
    scale_rows(arena, layer[Q_SCALE], q, first, last, 0, n_head * d_head)
    scale_rows(arena, layer[K_SCALE], k, first, last, 0, n_kv * d_head)
    scale_rows(arena, layer[V_SCALE], v, first, last, 0, n_kv * d_head)
    add_bias(arena, layer[Q_BIAS], q, first, last, 0, n_head * d_head)
    add_bias(arena, layer[K_BIAS], k, first, last, 0, n_kv * d_head)
    add_bias(arena, layer[V_BIAS], v, first, last, 0, n_kv * d_head)
    norm_heads(arena, layer[Q_NORM], q, first, last, n_head, reals[EPS])
    norm_heads(arena, layer[K_NORM], k, first, last, n_kv, reals[EPS])
    place = captures.query_place[il]
    if place >= 0:
        captures.queries[place, 0, first:last] = q[first:last, : n_head * d_head]
        captures.keys[place, 0, first:last] = k[first:last, : n_kv * d_head]
    turn = turns[layers.kinds[il]]
    rotate(q, turn, first, last, n_head, d_head, n_rot)
    rotate(k, turn, first, last, n_kv, d_head, n_rot)
    if place >= 0:
        captures.queries[place, 1, first:last] = q[first:last, : n_head * d_head]
        captures.keys[place, 1, first:last] = k[first:last, : n_kv * d_head]
    store_keys(k, v, cache.keys, cache.values, first, last, highs, n_kv, d_head)
    barrier(sync, n_threads)


@njit(**PART)
def finish_layer(layers, il, x, work, sizes, tid, n_threads, sync):
    """What a layer does after its attention."""
    arena, layer, reals = layers.arena, layers.slots[il], layers.reals
    act, wide, y = work.act, work.wide, work.y
    first, last = share(sizes[N_TOKENS], tid, n_threads)
    act_rows = Activations(work.attended, wide.x8, wide.x16, wide.d, wide.s, wide.h, wide.z)
    quantise(act_rows, first, last, 0, sizes[N_HEAD] * sizes[D_HEAD])
    barrier(sync, n_threads)
    matmul(arena, layer[ATTN_OUT], act_rows, sizes[N_TOKENS], y, tid, n_threads)
    barrier(sync, n_threads)
    scale_rows(arena, layer[OUT_SCALE], y, first, last, 0, sizes[N_EMBD])
    add_bias(arena, layer[OUT_BIAS], y, first, last, 0, sizes[N_EMBD])
    finish_branch(arena, layer[POST_ATTN_NORM], y, x, first, last, sizes[N_EMBD], reals[EPS])
    norm_rows(arena, layer[FFN_NORM], x, act.floats, first, last, reals[EPS])
    quantise(act, first, last, 0, sizes[N_EMBD])
    barrier(sync, n_threads)
    feed_forward(layers, il, x, work, sizes, tid, n_threads, sync)


@njit(**PART)
def feed_forward(layers, il, x, work, sizes, tid, n_threads, sync):
    """The feed-forward half of one layer, after its norm has been quantised into work's act."""
    arena, layer, reals = layers.arena, layers.slots[il], layers.reals
    act, wide, gate, up, y = work.act, work.wide, work.gate, work.up, work.y
    n_tokens, n_ff, n_embd = sizes[N_TOKENS], sizes[N_FF], sizes[N_EMBD]
    matmul(arena, layer[FFN_GATE], act, n_tokens, gate, tid, n_threads)
    matmul(arena, layer[FFN_UP], act, n_tokens, up, tid, n_threads)
    barrier(sync, n_threads)
    first, last = share(n_tokens, tid, n_threads)
    if n_tokens < n_threads:  # too few tokens to share: blocks of 32 numbers instead
        start, stop = share((n_ff + 31) // 32, tid, n_threads)
        activate(arena, layer, gate, up, wide, 0, n_tokens, 32 * start, min(32 * stop, n_ff), sizes)
    else:
        activate(arena, layer, gate, up, wide, first, last, 0, n_ff, sizes)
    barrier(sync, n_threads)
    matmul(arena, layer[FFN_DOWN], wide, n_tokens, y, tid, n_threads)
    barrier(sync, n_threads)
    # llama.cpp's factors take the bias in here, unlike those of the attention
    add_bias(arena, layer[DOWN_BIAS], y, first, last, 0, n_embd)
    scale_rows(arena, layer[DOWN_SCALE], y, first, last, 0, n_embd)
    finish_branch(arena, layer[POST_FFN_NORM], y, x, first, last, n_embd, reals[EPS])


@njit(**INNER)
def activate(arena, layer, gate, up, wide, first, last, start, stop, sizes):
    """Columns start to stop - 1 of activation(gate) * up, into ``wide``, and quantised there."""
    stay_out()
    add_bias(arena, layer[GATE_BIAS], gate, first, last, start, stop)
    add_bias(arena, layer[UP_BIAS], up, first, last, start, stop)
    scale_rows(arena, layer[GATE_SCALE], gate, first, last, start, stop)
    scale_rows(arena, layer[UP_SCALE], up, first, last, start, stop)
    for t in range(first, last):
        row_activate(
            gate[t, start:].ctypes.data,
            up[t, start:].ctypes.data,
            (stop - start) // 8,
            wide.floats[t, start:].ctypes.data,
            sizes[GELU] != 0,
        )
    quantise(wide, first, last, start, stop)


@njit(**KERNEL)
def run_layers(tid, n_threads, sync, layers, sizes_in, x, turns, seen, cache, buffers, captures):
    """Layers FIRST_LAYER to LAST_LAYER - 1 on x [n_tokens, n_embd], in place; a thread's part.

    Token t's keys go to slot highs[t]; it sees the slots lows[kind, t] to highs[t].
    sizes[N_BLOCK] tokens share the keys that attention reads.
    ``sync`` int64: [0] the barrier, [1 + layer] the layer's next attention task. With sizes[CUT],
    only the rows ``kept`` go through the rest of the last layer once its keys are stored, and end
    at the front of x; with none kept, none do.
    """
    work, rooms, kept = buffers.work, buffers.rooms, seen.kept
    sizes = sizes_in.copy()
    meet = sync.ctypes.data
    n_embd = sizes[N_EMBD]
    n_rows_out = sizes[N_HEAD] * sizes[D_HEAD]
    room = Room(rooms.rows[tid], rooms.lows[tid], rooms.highs[tid], rooms.scores[tid],
                rooms.outs[tid], rooms.tops[tid], rooms.sums[tid])  # fmt: skip
    lows = seen.lows
    highs = seen.highs
    for il in range(sizes[FIRST_LAYER], sizes[LAST_LAYER]):
        first, last = share(sizes[N_TOKENS], tid, n_threads)
        place = captures.hidden_place[il]
        if place >= 0:
            captures.hidden[place, first:last] = x[first:last]
        held = Cache(cache.keys[il], cache.values[il])
        attention_inputs(
            layers, il, x, work, turns, held, seen.highs, sizes, captures, tid, n_threads, meet
        )
        if sizes[CUT] and il == sizes[LAST_LAYER] - 1:
            if tid == 0:
                keep_rows(x, kept, n_embd)
                keep_rows(work.q, kept, n_rows_out)
            barrier(meet, n_threads)
            sizes[N_TOKENS] = kept.size
            if kept.size == 0:
                break
            lows = lows[:, kept]
            highs = highs[kept]
        attention(
            work, held, lows[layers.kinds[il]], highs, sizes, layers.reals[ATTN_SCALE], room,
            buffers.parts, meet + 8 * (1 + il), tid, n_threads, meet,
        )  # fmt: skip
        barrier(meet, n_threads)
        finish_layer(layers, il, x, work, sizes, tid, n_threads, meet)
    barrier(meet, n_threads)


@njit(**KERNEL)
def run_head(tid, n_threads, sync, layers, sizes, x, normed, act, logits):
    """The last norm and the output matrix for rows of x [N_ROWS, n_embd]; a thread's part.

    Fills ``normed`` float32 [N_ROWS, n_embd] (the hidden states after the last norm) and ``logits``
    float32 [N_ROWS, padded n_vocab], which may be [0, 0].
    """
    meet = sync.ctypes.data
    n_rows = sizes[N_ROWS]
    arena, slots, reals = layers.arena, layers.slots, layers.reals
    last_row = slots[slots.shape[0] - 1]
    first, last = share(n_rows, tid, n_threads)
    norm_rows(arena, last_row[OUT_NORM], x, act.floats, first, last, reals[EPS])
    for t in range(first, last):
        normed[t] = act.floats[t, : sizes[N_EMBD]]
    if logits.shape[0] == 0:
        return
    quantise(act, first, last, 0, sizes[N_EMBD])
    barrier(meet, n_threads)
    matmul(arena, last_row[HEAD], act, n_rows, logits, tid, n_threads)
    if last_row[HEAD_BIAS, OFFSET] >= 0:
        barrier(meet, n_threads)
        add_bias(arena, last_row[HEAD_BIAS], logits, first, last, 0, last_row[HEAD_BIAS, ROWS])
    cap = reals[SOFTCAP]
    if cap > 0:
        barrier(meet, n_threads)
        for t in range(first, last):
            for i in range(logits.shape[1]):
                logits[t, i] = cap * math.tanh(logits[t, i] / cap)
