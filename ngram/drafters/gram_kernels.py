"""Where in a text each n-gram of one size occurs: found by hash, told apart by its tokens.

An index is a table of cells, each of four int32: a part of the hash, the stamps of the n-gram's
latest and first occurrence, and a number of the caller's (0 at first). The stamp of an occurrence
at place p is base + p + 1; the base grows with every new text, so that the cells of older ones are
as good as empty, and the table need not be cleared. Open addressing; a cell of the present text
never empties, so that a search may end at an empty one.

N-grams must be added in the order of their places, without a gap.
"""

from __future__ import annotations

import numpy as np

from .slot_kernels import U, helper

BUILT_ON = {"ngram.drafters.slot_kernels": "a574593d"}

# Places in vars of a slot with an index.
BASE = 0
DONE = 1  # the n-grams at places below it are in the table
_HASH = 2  # of the n-gram at DONE - 1
_MATCH = 3  # 1 + where that one occurred last before, or 0
_TOP = 4  # the factor of a hash's first token; 0: not yet computed
N_INDEX_VARS = 8

CELL = 4  # int32 a cell
# Fields of a cell.
TAG, LAST, FIRST, OWN = U(0), U(1), U(2), U(3)

_BASE_MAX = 2**30
_FACTOR = U(0x9E3779B97F4A7C13)  # 3 modulo 8
_SPREAD = U(0xD6E8FEB86659FD93)


@helper
def same_tokens(tokens, p, q, size):
    """Whether the ``size`` tokens from p on are those from q on."""
    i = 0
    while i < size and tokens[U(p + i)] == tokens[U(q + i)]:
        i += 1
    return i == size


@helper
def new_text(vars, table):
    """Begin an empty index."""
    base = vars[BASE] + vars[DONE]
    if base > _BASE_MAX:
        table[:] = 0
        base = 0
    vars[BASE] = base
    vars[DONE] = 0
    vars[_MATCH] = 0


@helper
def top_of(size, factor):
    """The factor of the first of ``size`` tokens in a hash."""
    top = U(1)
    for _ in range(size - 1):
        top *= factor
    return top


@helper
def rolled_hash(tokens, size, at, here, mixed, top, factor):
    """The hash of the n-gram at ``at``, rolled on from ``mixed``, that at ``here``, if near.

    Tokens are digits to the base ``factor``, modulo 2**64. here: ``at`` or before; -1: none.
    """
    if here < 0 or at - here > size:
        mixed = U(0)
        for i in range(size):
            mixed = mixed * factor + U(tokens[U(at + i)])
        return mixed
    while here < at:
        mixed = (mixed - U(tokens[U(here)]) * top) * factor + U(tokens[U(here + size)])
        here += 1
    return mixed


@helper
def _hash_at(vars, tokens, size, at):
    """The hash of the n-gram at place ``at``, DONE - 1 or later."""
    if vars[_TOP] == 0:
        vars[_TOP] = np.int64(top_of(size, _FACTOR))
    here = vars[DONE] - 1
    return rolled_hash(tokens, size, at, here, U(vars[_HASH]), U(vars[_TOP]), _FACTOR)


@helper
def _find(vars, table, tokens, size, at, mixed, likely):
    """(where its cell begins, whether it holds it) of the n-gram at ``at``; else an empty cell.

    likely: where it occurs if the n-gram before it is any guide, whose match there is known; or -1.
    """
    spread = mixed * _SPREAD
    tag = np.int32(np.uint32(spread >> U(32)))
    base = vars[BASE]
    mask = U((table.size >> 2) - 1)
    place = U(np.uint32(tag)) & mask
    while True:
        cell = place << U(2)
        last = np.int64(table[cell + LAST]) - base - 1
        if last < 0:
            return cell, False
        if table[cell + TAG] == tag:
            if last == likely:
                if tokens[U(last + size - 1)] == tokens[U(at + size - 1)]:
                    return cell, True
            elif same_tokens(tokens, last, at, size):
                return cell, True
        place = (place + U(1)) & mask


@helper
def add_next(vars, table, tokens, size):
    """Add the n-gram at DONE. Returns (its cell, where it occurred last before, or -1)."""
    at = vars[DONE]
    mixed = _hash_at(vars, tokens, size, at)
    match = vars[_MATCH]
    likely = match if match > 0 else np.int64(-1)
    cell, known = _find(vars, table, tokens, size, at, mixed, likely)
    stamp = vars[BASE] + at + 1
    before = np.int64(-1)
    if known:
        before = np.int64(table[cell + LAST]) - vars[BASE] - 1
    else:
        table[cell + TAG] = np.int32(np.uint32((mixed * _SPREAD) >> U(32)))
        table[cell + FIRST] = stamp
        table[cell + OWN] = 0
    table[cell + LAST] = stamp
    vars[_HASH] = np.int64(mixed)
    vars[_MATCH] = before + 1
    vars[DONE] = at + 1
    return cell, before


@helper
def find_gram(vars, table, tokens, size, at):
    """The cell of an n-gram equal to that at ``at``, DONE or later, or -1."""
    mixed = _hash_at(vars, tokens, size, at)
    cell, known = _find(vars, table, tokens, size, at, mixed, np.int64(-1))
    return np.int64(cell) if known else np.int64(-1)


@helper
def last_of(vars, table, cell):
    """Where a cell's n-gram occurs last."""
    return np.int64(table[U(cell) + LAST]) - vars[BASE] - 1


@helper
def first_of(vars, table, cell):
    """Where a cell's n-gram occurs first."""
    return np.int64(table[U(cell) + FIRST]) - vars[BASE] - 1


@helper
def grow_index(vars, table, old_table):
    """Move the present text's cells of a smaller table; ``vars`` are copied already."""
    mask = U((table.size >> 2) - 1)
    for i in range(old_table.size >> 2):
        old = U(i) << U(2)
        if np.int64(old_table[old + LAST]) - vars[BASE] - 1 < 0:
            continue
        place = U(np.uint32(old_table[old + TAG])) & mask
        while table[(place << U(2)) + LAST] != 0:
            place = (place + U(1)) & mask
        for field in range(CELL):
            table[(place << U(2)) + U(field)] = old_table[old + U(field)]
