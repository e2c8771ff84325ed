"""One layer with block-sparse attention: all threads run ``run_sparse_layer`` at once.

Which blocks of keys a block of queries sees is FlashPrefill's rule (Fan et al. 2026): from the
means of blocks' keys, scores that are normalised over all blocks of a row of blocks. The blocks
that are seen are attended to as the engine does, in its splits and order: with all of them seen
the results are those of dense attention, bit for bit.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...engine.transformer.forward_kernels import (
    ATTN_SCALE,
    CUT,
    D_HEAD,
    INNER,
    KERNEL,
    N_HEAD,
    N_KV,
    N_TOKENS,
    PART,
    SPLIT,
    Cache,
    attention_inputs,
    finish_layer,
    fold,
    score_split,
    share,
)
from ...engine.transformer.tile_kernels import (
    atomic_add,
    barrier,
    f32_tile,
    float_of_half,
    stay_out,
)

# See forward_kernels.
BUILT_ON = {
    "engine.transformer.forward_kernels": "fbb37297",
    "engine.transformer.tile_kernels": "2b817fce",
}

PANEL = 16

# Places in plan: tokens of a block, first blocks and latest blocks (the own one included) that are
# seen by all.
BLOCK, N_SINK_BLOCKS, N_LOCAL_BLOCKS, N_PLAN = range(4)


class Blocks(NamedTuple):
    """Which blocks are seen: the rule, what is chosen by it, and the keys that it goes by."""

    plan: NDArray[np.int64]  # [N_PLAN]
    alpha: float  # part of the best block's score at which another is seen
    full: NDArray[np.uint8]  # [n_blocks], 1: a block of queries that sees all
    pooled: NDArray[np.float32]  # [n_head_kv, n_blocks / 16, d_head, 16], mean keys
    chosen: NDArray[np.uint8]  # [n_head, n_blocks, n_blocks], which ones each block of queries saw


class Room(NamedTuple):
    """What a thread attends in; with a first axis of threads, that of all."""

    rows: NDArray[np.float32]  # [block, d_head], queries
    lows: NDArray[np.int64]  # [block], slots that they see
    highs: NDArray[np.int64]
    block_scores: NDArray[np.float32]  # [block, padded n_blocks]
    block_sums: NDArray[np.float64]  # [padded n_blocks]
    scores: NDArray[np.float32]  # [block, SPLIT]
    part_outs: NDArray[np.float32]  # [block, padded d_head], of one split
    part_tops: NDArray[np.float32]  # [block]
    part_sums: NDArray[np.float32]  # [block]
    outs: NDArray[np.float32]  # [block, padded d_head], of all
    tops: NDArray[np.float32]  # [block]
    weights: NDArray[np.float32]  # [block]


@njit(**INNER)
def pool_keys(keys, pooled, first, last, size, n_kv, d_head, tid, n_threads):
    """Put the mean key of each block first to last - 1 into its column of ``pooled``."""
    stay_out()
    start, stop = share((last - first) * n_kv, tid, n_threads)
    for task in range(start, stop):
        block, head = first + task // n_kv, task % n_kv
        mean = pooled[head, block // PANEL]
        column = block % PANEL
        for i in range(d_head):
            total = np.float32(0.0)
            for slot in range(block * size, (block + 1) * size):
                total += float_of_half(keys[head, slot // PANEL, i, slot % PANEL])
            mean[i, column] = total / np.float32(size)


@njit(**INNER)
def choose_blocks(rows, n_rows, highs, block, pooled, alpha, plan, is_full, scores, sums, chosen):
    """Say which of the blocks 0 to ``block`` the rows of a block see: chosen [n_blocks], 0 or 1.

    A row counts towards the score of a block that ends before it, or with it. A block's score is
    the sum of its rows' e^(q . mean key), over the largest of all; it is seen if that comes to
    alpha times the best block's.
    """
    stay_out()
    size = plan[BLOCK]
    for j in range(block + 1):
        is_near = j < plan[N_SINK_BLOCKS] or block - j < plan[N_LOCAL_BLOCKS]
        chosen[j] = is_full or is_near
    if is_full:
        return
    d_head = rows.shape[1]
    for p in range(block // PANEL + 1):
        f32_tile(
            n_rows,
            rows.ctypes.data,
            rows.strides[0],
            pooled[p].ctypes.data,
            4 * PANEL,
            d_head,
            scores.ctypes.data + 4 * PANEL * p,
            scores.strides[0],
        )
    top = -np.inf
    for r in range(n_rows):
        for j in range((highs[r] + 1) // size):
            top = max(top, scores[r, j])
    best = 0.0
    sums[: block + 1] = 0.0
    for r in range(n_rows):
        for j in range((highs[r] + 1) // size):
            sums[j] += math.exp(np.float64(scores[r, j]) - top)
    for j in range(block + 1):
        best = max(best, sums[j])
    for j in range(block + 1):
        if best > 0 and sums[j] >= alpha * best:
            chosen[j] = 1


@njit(**INNER)
def attend_blocks(rows, n_rows, keys, values, lows, highs, block, size, chosen, room, out, tops,
                  weights):  # fmt: skip
    """Attend to the blocks that were chosen: runs of them, cut at the engine's splits, folded."""
    stay_out()
    _, outs, part_tops, part_sums = room
    d_head = rows.shape[1]
    out[:n_rows] = 0.0
    tops[:n_rows] = -np.inf
    weights[:n_rows] = 0.0
    stop = highs[n_rows - 1] + 1
    j = 0
    while j <= block:
        if not chosen[j]:
            j += 1
            continue
        start = j
        j += 1
        while j <= block and chosen[j] and j * size % SPLIT != 0:
            j += 1
        score_split(
            rows, n_rows, keys, values, start * size, min(j * size, stop), lows, highs, 0, d_head,
            room,
        )  # fmt: skip
        for r in range(n_rows):
            tops[r], weights[r] = fold(
                out[r], tops[r], weights[r], outs[r], part_tops[r], part_sums[r]
            )


@njit(**PART)
def sparse_attention(work, held, hi, sizes, scale, blocks, room, counter):
    """Attention of a batch; a task is a query head and a block of its tokens."""
    q, attended = work.q, work.attended
    plan, chosen = blocks.plan, blocks.chosen
    rows, lows, highs, out, weights = room.rows, room.lows, room.highs, room.outs, room.weights
    split = room.scores, room.part_outs, room.part_tops, room.part_sums
    n_tokens, n_head, d_head = sizes[N_TOKENS], sizes[N_HEAD], sizes[D_HEAD]
    group = n_head // sizes[N_KV]
    size = plan[BLOCK]
    n_blocks = (n_tokens + size - 1) // size
    while True:
        task = atomic_add(counter, 1)
        if task >= n_blocks * n_head:
            break
        head, place = task // n_blocks, n_blocks - 1 - task % n_blocks
        first = place * size
        n_rows = min(size, n_tokens - first)
        block = hi[first] // size
        at = head * d_head
        for r in range(n_rows):
            for i in range(d_head):
                rows[r, i] = q[first + r, at + i] * scale
            lows[r] = 0
            highs[r] = hi[first + r]
        kv_head = head // group
        choose_blocks(
            rows, n_rows, highs, block, blocks.pooled[kv_head], blocks.alpha, plan,
            blocks.full[block], room.block_scores, room.block_sums, chosen[head, block],
        )  # fmt: skip
        attend_blocks(
            rows, n_rows, held.keys[kv_head], held.values[kv_head], lows, highs, block, size,
            chosen[head, block], split, out, room.tops, weights,
        )  # fmt: skip
        for r in range(n_rows):
            for i in range(d_head):
                attended[first + r, at + i] = out[r, i] / weights[r]


@njit(**KERNEL)
def run_sparse_layer(tid, n_threads, sync, layers, sizes, x, turns, hi, cache, work, rooms, blocks,
                     captures):  # fmt: skip
    """A layer on x [n_tokens, n_embd], in place; a thread's part.

    As ``run_layers`` with one layer, but for the keys that a token sees: those of ``blocks``. The
    first token's slot is a multiple of the block's size; slots before it are filled.
    """
    meet = sync.ctypes.data
    n_tokens = sizes[N_TOKENS]
    room = Room(rooms.rows[tid], rooms.lows[tid], rooms.highs[tid], rooms.block_scores[tid],
                rooms.block_sums[tid], rooms.scores[tid], rooms.part_outs[tid],
                rooms.part_tops[tid], rooms.part_sums[tid], rooms.outs[tid], rooms.tops[tid],
                rooms.weights[tid])  # fmt: skip
    held = Cache(cache.keys[0], cache.values[0])
    attention_inputs(layers, 0, x, work, turns, held, hi, sizes, captures, tid, n_threads, meet)
    if sizes[CUT]:
        return
    size = blocks.plan[BLOCK]
    pool_keys(
        held.keys, blocks.pooled, hi[0] // size, (hi[n_tokens - 1] + 1) // size, size, sizes[N_KV],
        sizes[D_HEAD], tid, n_threads,
    )  # fmt: skip
    barrier(meet, n_threads)
    sparse_attention(work, held, hi, sizes, layers.reals[ATTN_SCALE], blocks, room, meet + 8)
    barrier(meet, n_threads)
    finish_layer(layers, 0, x, work, sizes, tid, n_threads, meet)
    barrier(meet, n_threads)
