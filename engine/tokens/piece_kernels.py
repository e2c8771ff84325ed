"""Kernels that turn pieces of text into token ids: a table of known pieces, and merging.

A piece is looked up by its bytes in a table that grows with the text; only a piece that is new is
merged. Merging takes the pair of neighbours of the lowest rank, leftmost among equals, until no
pair is left: byte-level BPE finds a pair's rank by the two ids, SPM by the bytes of the two
together (its ranks are scores, best first).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Called by kernels alone: without wrappers for Python a helper compiles faster.
_helper = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)

# Two numbers of 32 bits share an int64: the first in its high half, the second in its low one.
_HALF, _LOW_HALF = 32, 0xFFFFFFFF
_NONE = -1


class MergeRules(NamedTuple):
    """A vocabulary as the kernels need it; read-only, shared by all threads.

    ``n_vocab`` and above are the ids of symbols that are no tokens: bytes that the vocabulary
    lacks, and what merges make of them.
    """

    by_text: bool  # SPM: symbols are characters, pairs are found by their bytes
    whole_pieces: bool  # a piece that is a token is not merged (ignore_merges)
    n_vocab: int
    token_slot: NDArray[np.int32]  # [power of 2], token by hash of its bytes, -1 empty
    token_bytes: NDArray[np.uint8]
    token_start: NDArray[np.int64]  # [n_vocab + 1], into token_bytes
    token_rank: NDArray[np.int32]  # [n_vocab], SPM: 0 is the best score
    pair_slot: NDArray[np.int64]  # [power of 2, 2], BPE: (left id, right id) and, for the pair,
    # (rank, id of what it makes), two halves each; -1 if empty
    byte_id: NDArray[np.int32]  # [256], BPE: symbol of one byte
    spelled_start: NDArray[np.int32]  # [257], ids that stand for a byte of a symbol that is ...
    spelled_id: NDArray[np.int32]  # ... no token


class PieceTable(NamedTuple):
    """The pieces seen so far and their ids, of one thread."""

    slot: NDArray[np.int64]  # [power of 2], (high half of the hash, entry + 1); 0 if empty
    entry: NDArray[np.int32]  # [n, 4]: first byte, number of bytes, first id, number of ids
    data: NDArray[np.uint8]  # bytes of the pieces
    ids: NDArray[np.int32]
    used: NDArray[np.int64]  # [3]: entries, bytes, ids


class Scratch(NamedTuple):
    """Room for the symbols of one piece; a symbol is known by the index of its first one."""

    symbol: NDArray[np.int32]  # [n + 1, 6]: see the columns below
    heap: NDArray[np.int64]  # [2 n], (rank, index), least first


# Columns of Scratch.symbol: offset in the piece, id, neighbours (-1 and n at the ends), rank of
# the pair that begins here (-1 without one) and id of what it makes.
_START, _ID, _LEFT, _RIGHT, _RANK, _MERGED = 0, 1, 2, 3, 4, 5


@_helper
def _hash(text, start, stop):
    """FNV-1a over the bytes in wrapping int64, its high half folded into the low one."""
    value = -0x340D631B7BDDDCDB
    for at in range(start, stop):
        value = (value ^ text[at]) * 0x100000001B3
    return value ^ (value >> _HALF)


@_helper
def _same_bytes(text, start, other, other_start, size):
    i = 0
    while i < size and text[start + i] == other[other_start + i]:
        i += 1
    return i == size


@_helper
def _pair_place(pair_slot, key):
    """Slot of a pair, or the empty one where it belongs; Fibonacci hashing of the key."""
    mask = pair_slot.shape[0] - 1
    at = ((key * -0x61C8864680B583EB) >> _HALF) & mask
    while pair_slot[at, 0] != key and pair_slot[at, 0] != _NONE:
        at = (at + 1) & mask
    return at


@_helper
def _find_token(token_slot, token_bytes, token_start, text, start, stop):
    """Id of the token whose bytes are text[start:stop], -1 without one."""
    mask = token_slot.size - 1
    at = _hash(text, start, stop) & mask
    size = stop - start
    token = token_slot[at]
    while token >= 0:
        first = token_start[token]
        is_as_long = token_start[token + 1] - first == size
        if is_as_long and _same_bytes(text, start, token_bytes, first, size):
            break
        at = (at + 1) & mask
        token = token_slot[at]
    return token


@njit(cache=True, nogil=True)
def fill_token_slots(token_bytes, token_start, token_slot):
    """Enter every token that has bytes into ``token_slot``; return the id of one met twice, or -1.

    Parameters
    ----------
    token_bytes : uint8 [n]; token_start : int64 [n_vocab + 1], where each token's bytes begin
        in it; a token without bytes is left out.
    token_slot : int32 [power of 2, at least 2 n_vocab], out, -1 throughout.
    """
    mask = token_slot.size - 1
    for token in range(token_start.size - 1):
        start, stop = token_start[token], token_start[token + 1]
        if start == stop:
            continue
        if _find_token(token_slot, token_bytes, token_start, token_bytes, start, stop) >= 0:
            return token
        at = _hash(token_bytes, start, stop) & mask
        while token_slot[at] >= 0:
            at = (at + 1) & mask
        token_slot[at] = token
    return -1


@njit(cache=True, nogil=True)
def resolve_merges(token_slot, token_bytes, token_start, text, start, middle, found):
    """Ids of both sides and of the result of every merge.

    Parameters
    ----------
    token_slot, token_bytes, token_start : the vocabulary, as in MergeRules.
    text : uint8 [n], both sides of every merge; start : int64 [n_merges + 1], where each begins
        in it; middle : int64 [n_merges], where its right side begins.
    found : int32 [n_merges, 3], out: ids of left, right and result, -1 for no token.
    """
    for i in range(middle.size):
        for side in range(3):
            first = middle[i] if side == 1 else start[i]
            last = middle[i] if side == 0 else start[i + 1]
            found[i, side] = _find_token(token_slot, token_bytes, token_start, text, first, last)


@njit(cache=True, nogil=True)
def fill_pair_slots(found, rank, pair_slot):
    """Enter merges, found (int32 [n, 3]) and their ranks (int32 [n]), into the pair table.

    ``pair_slot`` : out, as in MergeRules, -1 throughout. Of two merges of the same pair the first
    stands.
    """
    for i in range(rank.size):
        key = (np.int64(found[i, 0]) << _HALF) | found[i, 1]
        at = _pair_place(pair_slot, key)
        if pair_slot[at, 0] == _NONE:
            pair_slot[at, 0] = key
            pair_slot[at, 1] = (np.int64(rank[i]) << _HALF) | found[i, 2]


@_helper
def _push(heap, n, value):
    """Add to a binary heap of n values, least first; return the new size."""
    at = n
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent] <= value:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = value
    return n + 1


@_helper
def _drop_least(heap, n):
    """Remove heap[0] from a binary heap of n values; return the new size."""
    n -= 1
    value = heap[n]
    at, child = 0, 1
    while child < n:
        if child + 1 < n and heap[child + 1] < heap[child]:
            child += 1
        if value <= heap[child]:
            break
        heap[at] = heap[child]
        at = child
        child = 2 * at + 1
    heap[at] = value
    return n


@_helper
def _set_symbols(rules, text, start, stop, symbol):
    """Fill ``symbol`` with the bytes (BPE) or characters (SPM) of a piece; return how many."""
    n = 0
    at = start
    while at < stop:
        size = 1
        if rules.by_text:
            if text[at] >= 0xC0:
                size = 2 if text[at] < 0xE0 else (3 if text[at] < 0xF0 else 4)
                size = min(size, stop - at)
            token = _find_token(
                rules.token_slot, rules.token_bytes, rules.token_start, text, at, at + size
            )
            symbol[n, _ID] = token if token >= 0 else rules.n_vocab
        else:
            symbol[n, _ID] = rules.byte_id[text[at]]
        symbol[n, _START] = at - start
        symbol[n, _LEFT] = n - 1
        symbol[n, _RIGHT] = n + 1
        symbol[n, _RANK] = -1
        n += 1
        at += size
    symbol[n, _START] = stop - start
    return n


@_helper
def _rate_pair(rules, text, start, symbol, left, right):
    """(rank, id of what it makes) of two neighbours, in two halves; -1 if they do not merge."""
    if not rules.by_text:
        key = (np.int64(symbol[left, _ID]) << _HALF) | symbol[right, _ID]
        return rules.pair_slot[_pair_place(rules.pair_slot, key), 1]
    first, last = symbol[left, _START], symbol[symbol[right, _RIGHT], _START]
    token = _find_token(
        rules.token_slot, rules.token_bytes, rules.token_start, text, start + first, start + last
    )
    if token < 0:
        return _NONE
    return (np.int64(rules.token_rank[token]) << _HALF) | token


@_helper
def _merge(rules, text, start, symbol, heap, n):
    """Merge the first n symbols until no pair has a rank."""
    n_heap = 0
    # A round rates the pair that begins at ``left``, then ``n_more`` pairs before it: all pairs
    # in the first round, later the two that a merge made.
    left, n_more = n - 2, n - 2
    while True:
        while n_more >= 0:
            right = symbol[left, _RIGHT]
            symbol[left, _RANK] = _NONE
            if right < n:
                pair = _rate_pair(rules, text, start, symbol, left, right)
                if pair != _NONE:
                    symbol[left, _RANK] = pair >> _HALF
                    symbol[left, _MERGED] = pair & _LOW_HALF
                    n_heap = _push(heap, n_heap, (pair >> _HALF << _HALF) | left)
            left = symbol[left, _LEFT]
            n_more = n_more - 1 if left >= 0 else -1
        if n_heap == 0:
            return
        least = heap[0]
        n_heap = _drop_least(heap, n_heap)
        left = least & _LOW_HALF
        # A symbol that changed or went has another rank, or none: then the entry is stale.
        if symbol[left, _RANK] == least >> _HALF:
            right = symbol[left, _RIGHT]
            after = symbol[right, _RIGHT]
            symbol[right, _RANK] = _NONE
            symbol[left, _ID] = symbol[left, _MERGED]
            symbol[left, _RIGHT] = after
            if after < n:
                symbol[after, _LEFT] = left
            n_more = 1


@_helper
def _encode_piece(rules, text, start, stop, scratch, out, n_out):
    """Write the ids of one piece at out[n_out]; return the new n_out."""
    if rules.whole_pieces:
        token = _find_token(
            rules.token_slot, rules.token_bytes, rules.token_start, text, start, stop
        )
        if token >= 0:
            out[n_out] = token
            return n_out + 1
    symbol = scratch.symbol
    n = _set_symbols(rules, text, start, stop, symbol)
    _merge(rules, text, start, symbol, scratch.heap, n)
    i = 0
    while i < n:
        after = symbol[i, _RIGHT]
        if symbol[i, _ID] < rules.n_vocab:
            out[n_out] = symbol[i, _ID]
            n_out += 1
        else:
            for at in range(start + symbol[i, _START], start + symbol[after, _START]):
                first, last = rules.spelled_start[text[at]], rules.spelled_start[text[at] + 1]
                for k in range(first, last):
                    out[n_out] = rules.spelled_id[k]
                    n_out += 1
        i = after
    return n_out


@njit(cache=True, nogil=True)
def encode_pieces(
    text, piece_start, piece_stop, first, n_pieces, rules, table, scratch, longest_kept, out, n_out
):
    """Write the ids of pieces first..n_pieces-1 to ``out``; return (pieces done, ids written).

    Stops early, for the caller to see to it, at a piece that finds no room in the table or in
    the scratch.

    Parameters
    ----------
    text : uint8 [n_bytes].
    piece_start, piece_stop : int64 [at least n_pieces]; a stop of -1 - id is a special token.
    rules, table, scratch : see there; table and scratch change.
    longest_kept : int64, a piece of more bytes is not entered into the table.
    out : int32, ids are written from ``n_out`` on.
    """
    mask = table.slot.size - 1
    n_symbols = scratch.heap.size // 2
    for piece in range(first, n_pieces):
        start, stop = piece_start[piece], piece_stop[piece]
        if stop < 0:
            out[n_out] = -1 - stop
            n_out += 1
            continue
        size = stop - start
        value, at = 0, 0
        if size <= longest_kept:
            value = _hash(text, start, stop)
            at = value & mask
            entry = _NONE
            while table.slot[at] != 0:
                if table.slot[at] >> _HALF == value >> _HALF:
                    entry = (table.slot[at] & _LOW_HALF) - 1
                    if table.entry[entry, 1] == size and _same_bytes(
                        text, start, table.data, table.entry[entry, 0], size
                    ):
                        break
                    entry = _NONE
                at = (at + 1) & mask
            if entry >= 0:
                first_id = table.entry[entry, 2]
                for i in range(table.entry[entry, 3]):
                    out[n_out] = table.ids[first_id + i]
                    n_out += 1
                continue
        entry, n_data, n_ids = table.used[0], table.used[1], table.used[2]
        if size > n_symbols:
            return piece, n_out
        if size <= longest_kept and (
            entry == table.entry.shape[0]
            or n_data + size > table.data.size
            or n_ids + 2 * size > table.ids.size
        ):
            return piece, n_out
        end = _encode_piece(rules, text, start, stop, scratch, out, n_out)
        if size <= longest_kept:
            table.slot[at] = (value >> _HALF << _HALF) | (entry + 1)
            table.entry[entry, 0] = n_data
            table.entry[entry, 1] = size
            table.entry[entry, 2] = n_ids
            table.entry[entry, 3] = end - n_out
            for i in range(size):
                table.data[n_data + i] = text[start + i]
            for i in range(end - n_out):
                table.ids[n_ids + i] = out[n_out + i]
            table.used[0] = entry + 1
            table.used[1] = n_data + size
            table.used[2] = n_ids + end - n_out
        n_out = end
    return n_pieces, n_out
