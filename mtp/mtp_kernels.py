"""A whole draft of MTP heads in one call: all threads run ``run_draft`` at once.

A pass gives hidden states to one head's block: first those of the trunk, for the tokens of the text
that came since the last draft, then the head's own, for each drafted token. The block is the
engine's ``run_layers``, so what is computed for a token depends neither on the number of threads
nor on how the text was cut into rounds. docs/mtp.md tells what goes where.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..engine.transformer.dequant_kernels import dequantise_rows
from ..engine.transformer.forward_kernels import (
    CUT,
    EPS,
    FIRST_LAYER,
    HEAD,
    INNER,
    KERNEL,
    LAST_LAYER,
    N_TOKENS,
    OFFSET,
    SOFTCAP,
    Activations,
    Layers,
    Seen,
    add_bias,
    matmul,
    norm_row,
    quantise,
    run_layers,
    share,
    vector_of,
)
from ..engine.transformer.tile_kernels import barrier, float_of_half, row_exp, row_max, stay_out

# See forward_kernels.
BUILT_ON = {
    "engine.transformer.dequant_kernels": "ca4a01d0",
    "engine.transformer.forward_kernels": "fbb37297",
    "engine.transformer.tile_kernels": "2b817fce",
}

# Places in the second half of the slots, a row a head; OUTPUT is absent where it is the trunk's.
(ENORM, HNORM, FEATURE_NORM, TRUNK_NORM, HEAD_NORM, EH_FIRST, EH_PROJ, OUTPUT,
 OUTPUT_BIAS) = range(9)  # fmt: skip

# Places in plan. The text's tokens from position FIRST on, N_TRUE of them, get hidden states of the
# trunk; N_STEPS tokens are drafted. TABLE_ROWS is 0 where all heads share one embedding table.
(FIRST, N_TRUE, N_STEPS, N_DRAFT, EMBEDDING_TYPE, TABLE_ROWS, IS_NORMED, IS_DRAWN,
 N_DRAFTED, N_PLAN) = range(10)  # fmt: skip
# Places in odds.
P_MIN, INVERSE_TEMPERATURE, EMBD_SCALE, N_ODDS = range(4)

BLOCK = 128  # logits that are summed at a time; the sums are added in order
F32, F16, BF16 = 0, 1, 30  # ggml's numbers of the types that are not quantised


class Heads(NamedTuple):
    """The weights of a chain of heads, and of the trunk."""

    layers: Layers  # a block each; slots has a second half, a row a head
    trunk: Layers
    table: NDArray[np.uint8]  # [rows, bytes], embeddings
    d2t: NDArray[np.int32]  # [n_draft], the tokens that can be drafted


class Text(NamedTuple):
    """The text so far, and what the trunk made of it."""

    tokens: NDArray[np.int32]  # [n_ctx + 1]
    hidden: NDArray[np.float32]  # [n_ctx, n_embd]
    features: NDArray[np.float32]  # [k, n_ctx, n_embd]
    turns: NDArray[np.float32]  # [n_ctx, 2, n_rot / 2]
    lows: NDArray[np.int64]  # [2, rows], the first slot that holds a key
    highs: NDArray[np.int64]  # [n_ctx], 0, 1, 2 ...


class Draft(NamedTuple):
    """What is drafted; plan[N_DRAFTED] of each are filled. Rows for N_STEPS or more."""

    tokens: NDArray[np.int32]
    confidences: NDArray[np.float32]
    uniforms: NDArray[np.float64]  # in: from [0, 1), where tokens are drawn
    q: NDArray[np.float32]  # [N_STEPS, padded n_draft], what they were drawn from; else [1, 0]


class Choice(NamedTuple):
    """What a token is chosen in."""

    weights: NDArray[np.float32]  # [padded n_draft]
    tops: NDArray[np.float32]  # [blocks]
    sums: NDArray[np.float32]  # [2, blocks]
    picked: NDArray[np.int64]  # [1]


class Room(NamedTuple):
    """What a draft works in, besides the engine's buffers."""

    chain: NDArray[np.float32]  # [heads, n_embd], the heads' own hidden states
    x: NDArray[np.float32]  # [rows, n_embd]
    inputs: Activations  # [rows, what goes into a block]
    logits: NDArray[np.float32]  # [1, padded n_draft]
    choice: Choice


# --------------------------------------------------------------------------------------------------
# What goes into a block


@njit(**INNER)
def embed(kind, table, row, scale, out):
    """A token's embedding, float32 [1, n_embd], as the engine's ``dequantise`` makes it."""
    stay_out()
    n = out.shape[1]
    if kind == F32:
        floats = table[row].view(np.float32)
        for i in range(n):
            out[0, i] = floats[i]
    elif kind == F16:
        halves = table[row].view(np.uint16)
        for i in range(n):
            out[0, i] = float_of_half(halves[i])
    elif kind == BF16:
        halves = table[row].view(np.uint16)
        bits = out.view(np.uint32)
        for i in range(n):
            bits[0, i] = np.uint32(halves[i]) << np.uint32(16)
    else:
        dequantise_rows(kind, table[row : row + 1], out)
    if scale != 1:
        for i in range(n):
            out[0, i] *= scale


@njit(**INNER)
def fill_trunk_row(arena, extras, text, p, eps, is_normed, row):
    """After the embedding's part: position p's hidden state of the trunk and its features."""
    stay_out()
    hidden, features = text.hidden, text.features
    n = hidden.shape[1]
    part = row[n : 2 * n]
    if is_normed:
        norm_row(hidden[p], vector_of(arena, extras[TRUNK_NORM]), eps, part)
        norm_row(part, vector_of(arena, extras[HNORM]), eps, part)
    else:
        norm_row(hidden[p], vector_of(arena, extras[HNORM]), eps, part)
    for i in range(features.shape[0]):
        weight = vector_of(arena, extras[FEATURE_NORM])
        part = row[(2 + i) * n : (3 + i) * n]
        norm_row(features[i, p], weight[i * n : (i + 1) * n], eps, part)


@njit(**INNER)
def enter(tid, n_threads, meet, heads, plan, odds, text, drafted, room, y, head, first, n_rows,
          step):  # fmt: skip
    """Make room's x [n_rows, n_embd] of the tokens from position ``first`` on; a thread's part.

    ``step``: 0 for tokens of the text; else the rows are the draft's last n_rows tokens before that
    step, with the head's own hidden states.
    """
    stay_out()
    arena, slots, eps = heads.layers.arena, heads.layers.slots, heads.layers.reals[EPS]
    chain, x, inputs = room.chain, room.x, room.inputs
    n_features = text.features.shape[0]
    extras = slots[slots.shape[0] // 2 + head]
    n = x.shape[1]
    start, stop = share(n_rows, tid, n_threads)
    width = 2 * n if step else (2 + n_features) * n
    for r in range(start, stop):
        place = step - n_rows + r
        token = drafted[place] if step else text.tokens[first + r]
        row = inputs.floats[r]
        embed(
            plan[EMBEDDING_TYPE], heads.table, head * plan[TABLE_ROWS] + token, odds[EMBD_SCALE],
            x[r : r + 1],
        )  # fmt: skip
        norm_row(x[r], vector_of(arena, extras[ENORM]), eps, row[:n])
        if step:
            own = chain[place % chain.shape[0]]
            norm_row(own, vector_of(arena, extras[HNORM]), eps, row[n : 2 * n])
        else:
            fill_trunk_row(arena, extras, text, first + r - 1, eps, plan[IS_NORMED] != 0, row)
    quantise(inputs, start, stop, 0, width)
    barrier(meet, n_threads)
    is_first = step == 0 and n_features > 0
    matmul(arena, extras[EH_FIRST if is_first else EH_PROJ], inputs, n_rows, y, tid, n_threads)
    barrier(meet, n_threads)
    for r in range(start, stop):
        for i in range(n):
            x[r, i] = y[r, i]


# --------------------------------------------------------------------------------------------------
# What comes out of it


@njit(**INNER)
def leave(tid, n_threads, meet, heads, plan, head, x, act, own, logits):
    """Logits of x's first row, and the hidden state that a next step gets; a thread's part."""
    stay_out()
    arena, slots, eps = heads.layers.arena, heads.layers.slots, heads.layers.reals[EPS]
    extras = slots[slots.shape[0] // 2 + head]
    n = x.shape[1]
    if tid == 0:
        norm_row(x[0], vector_of(arena, extras[HEAD_NORM]), eps, act.floats[0, :n])
        source = act.floats[0] if plan[IS_NORMED] else x[0]
        for i in range(n):
            own[i] = source[i]
        quantise(act, 0, 1, 0, n)
    barrier(meet, n_threads)
    if extras[OUTPUT, OFFSET] >= 0:
        matmul(arena, extras[OUTPUT], act, 1, logits, tid, n_threads)
    else:
        slot = heads.trunk.slots[heads.trunk.slots.shape[0] - 1, HEAD]
        matmul(heads.trunk.arena, slot, act, 1, logits, tid, n_threads)
    barrier(meet, n_threads)
    if extras[OUTPUT_BIAS, OFFSET] >= 0:
        start, stop = share(plan[N_DRAFT], tid, n_threads)
        add_bias(arena, extras[OUTPUT_BIAS], logits, 0, 1, start, stop)
        barrier(meet, n_threads)


@njit(**INNER)
def find_tops(row, n_draft, cap, first, last, tops):
    """The largest logit of each block from ``first`` on; what lies after the last is hidden."""
    stay_out()
    for b in range(first, last):
        start, stop = b * BLOCK, min((b + 1) * BLOCK, row.size)
        if cap > 0:
            for i in range(start, stop):
                row[i] = cap * math.tanh(row[i] / cap)
        for i in range(max(start, n_draft), stop):
            row[i] = -np.inf
        tops[b] = row_max(row.ctypes.data + 4 * start, (stop - start) // 8)


@njit(**INNER)
def weigh(row, scale, top, first, last, out, sums):
    """out = e^(scale * (row - top)) and its sums, by blocks."""
    stay_out()
    for b in range(first, last):
        start, stop = b * BLOCK, min((b + 1) * BLOCK, row.size)
        for i in range(start, stop):
            out[i] = row[i] * scale
        sums[b] = row_exp(out.ctypes.data + 4 * start, (stop - start) // 8, top * scale)


@njit(**INNER)
def place_of_top(row, top, tops, n_blocks):
    """The first place of the largest logit."""
    for b in range(n_blocks):
        if tops[b] == top:
            for i in range(b * BLOCK, min((b + 1) * BLOCK, row.size)):
                if row[i] == top:
                    return i
    return 0


@njit(**INNER)
def place_drawn(row, sums, n_blocks, uniform):
    """The place at which the running sum of weights passes ``uniform`` of their total."""
    total = np.float64(0)
    for b in range(n_blocks):
        total += sums[b]
    rest = uniform * total
    found = 0
    for b in range(n_blocks):
        if rest >= sums[b] and b < n_blocks - 1:
            rest -= sums[b]
            continue
        for i in range(b * BLOCK, min((b + 1) * BLOCK, row.size)):
            if row[i] > 0:
                found = i
                rest -= row[i]
                if rest < 0:
                    return found
    return found


@njit(**INNER)
def choose(tid, n_threads, meet, plan, odds, cap, row, choice, uniform, q):
    """The place of the drafted token and the probability of the top one, the same in all threads.

    ``q`` float32 [padded n_draft]: its probabilities where it is drawn, and may be empty else.
    """
    stay_out()
    weights, tops, sums, picked = choice.weights, choice.tops, choice.sums, choice.picked
    n_blocks = (row.size + BLOCK - 1) // BLOCK
    first, last = share(n_blocks, tid, n_threads)
    find_tops(row, plan[N_DRAFT], cap, first, last, tops)
    barrier(meet, n_threads)
    top = tops[:n_blocks].max()
    weigh(row, np.float32(1), top, first, last, weights, sums[0])
    if plan[IS_DRAWN]:
        weigh(row, odds[INVERSE_TEMPERATURE], top, first, last, q, sums[1])
    barrier(meet, n_threads)
    total = np.float32(0)
    for b in range(n_blocks):
        total += sums[0, b]
    if tid == 0:
        if plan[IS_DRAWN]:
            picked[0] = place_drawn(q, sums[1], n_blocks, uniform)
        else:
            picked[0] = place_of_top(row, top, tops, n_blocks)
    barrier(meet, n_threads)
    if plan[IS_DRAWN]:
        drawn_total = np.float32(0)
        for b in range(n_blocks):
            drawn_total += sums[1, b]
        for i in range(first * BLOCK, min(last * BLOCK, row.size)):
            q[i] /= drawn_total
    return picked[0], np.float32(1) / total


# --------------------------------------------------------------------------------------------------
# The draft


@njit(**KERNEL)
def run_draft(tid, n_threads, sync, heads, plan, odds, sizes_in, text, draft, room, cache, buffers,
              captures):  # fmt: skip
    """Catch up with the text, then draft; a thread's part.

    Parameters
    ----------
    sync : int64 [1 + heads], zeros; that, cache, buffers and captures are those of ``run_layers``
    plan, odds : int64 [N_PLAN], float32 [N_ODDS]
    """
    meet = sync.ctypes.data
    sizes = sizes_in.copy()
    work, chain, reals = buffers.work, room.chain, heads.layers.reals
    n_heads = chain.shape[0]
    last = np.empty(1, np.int64)
    first, n_true, n_steps = plan[FIRST], plan[N_TRUE], plan[N_STEPS]
    # every head takes in the text, the first one last: it goes on to draft
    for turn in range(n_heads + max(0, n_steps - 1)):
        step = max(0, turn - n_heads + 1)
        head = n_heads - 1 - turn if turn < n_heads else step % n_heads
        if step == 0:
            at, n_rows, goes_on = first, n_true, head == 0 and n_steps > 0
        else:
            n_rows, goes_on = step if n_heads > 1 else 1, True
            at = first + n_true + step - n_rows
        if tid == 0:
            sync[1 + head] = 0
        barrier(meet, n_threads)
        enter(
            tid, n_threads, meet, heads, plan, odds, text, draft.tokens, room, work.y, head, at,
            n_rows, step,
        )  # fmt: skip
        last[0] = n_rows - 1
        kept = last[: 1 if goes_on else 0]
        sizes[FIRST_LAYER] = head
        sizes[LAST_LAYER] = head + 1
        sizes[N_TOKENS] = n_rows
        sizes[CUT] = n_rows > kept.size
        turns = text.turns[at : at + n_rows].reshape(1, n_rows, 2, text.turns.shape[2])
        run_layers(
            tid, n_threads, sync, heads.layers, sizes, room.x, turns,
            Seen(text.lows, text.highs[at : at + n_rows], kept), cache, buffers, captures,
        )  # fmt: skip
        if not goes_on:
            continue
        leave(
            tid, n_threads, meet, heads, plan, head, room.x, work.act, chain[step % n_heads],
            room.logits,
        )  # fmt: skip
        place, confidence = choose(
            tid, n_threads, meet, plan, odds, reals[SOFTCAP], room.logits[0], room.choice,
            draft.uniforms[step], draft.q[step % draft.q.shape[0]],
        )  # fmt: skip
        if not confidence >= odds[P_MIN]:  # nor with NaN
            break
        if tid == 0:
            draft.tokens[step] = heads.d2t[place]
            draft.confidences[step] = confidence
            plan[N_DRAFTED] = step + 1
