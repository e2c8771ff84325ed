"""Kernels over llama.cpp's headerless cache file, seen as int32 words.

A record is four token ids (unused: -1), the number of entries, and (token, count) pairs.
"""

from __future__ import annotations

import numpy as np
from numba import njit

OK, TRUNCATED, BAD_SIZE, BAD_COUNT, BAD_NGRAM, BAD_TOKEN = range(6)


@njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _order_of(words, at):
    """Size of the n-gram at ``at``: how many ids stand before the unused ones; 0 if malformed."""
    order = 0
    while order < 4 and words[at + order] >= 0:
        order += 1
    for i in range(order, 4):
        if words[at + i] != -1:
            return 0
    return order


@njit(cache=True, nogil=True)
def scan_records(words, n_records, n_entries):
    """Walk all records; returns (status, word where it stopped).

    words int32 [n]: in; n_records, n_entries int64 [5]: out, how many of each n-gram size.
    """
    at = 0
    while at < words.size:
        if at + 5 > words.size:
            return TRUNCATED, at
        order = _order_of(words, at)
        if order == 0:
            return BAD_NGRAM, at
        size = np.int64(words[at + 4])
        if size < 1:
            return BAD_SIZE, at
        if size > (words.size - at - 5) // 2:
            return TRUNCATED, at
        for entry in range(size):
            if words[at + 5 + 2 * entry] < 0:
                return BAD_TOKEN, at
            if words[at + 6 + 2 * entry] < 1:
                return BAD_COUNT, at
        n_records[order] += 1
        n_entries[order] += size
        at += 5 + 2 * size
    return OK, at


@njit(cache=True, nogil=True)
def read_records(words, order, tokens, entry_start, entry_token, entry_count):
    """Take out the records of one n-gram size, in file order; sizes as ``scan_records`` found them.

    tokens int32 [n_records * order], entry_start int64 [n_records + 1], entry_token int32 and
    entry_count uint32 [n_entries]: out.
    """
    at = 0
    row = 0
    to = 0
    entry_start[0] = 0
    while at < words.size:
        size = words[at + 4]
        if _order_of(words, at) == order:
            for j in range(order):
                tokens[row * order + j] = words[at + j]
            for entry in range(size):
                entry_token[to] = words[at + 5 + 2 * entry]
                entry_count[to] = words[at + 6 + 2 * entry]
                to += 1
            row += 1
            entry_start[row] = to
        at += 5 + 2 * size


@njit(cache=True, nogil=True)
def write_records(tokens, order, entry_start, entry_token, entry_count, words):
    """Lay a table out as records; words int32 [5 * n_ngrams + 2 * n_entries]: out."""
    at = 0
    for row in range(entry_start.size - 1):
        for j in range(4):
            words[at + j] = tokens[row * order + j] if j < order else -1
        words[at + 4] = entry_start[row + 1] - entry_start[row]
        at += 5
        for entry in range(entry_start[row], entry_start[row + 1]):
            words[at] = entry_token[entry]
            words[at + 1] = entry_count[entry]
            at += 2
