"""Kernels that pack n-gram windows into sortable words, count and merge them, and check tables.

Words are packed as ``ngram_cache.KeyLayout`` says. Arrays are sized and typed by the glue.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_COUNT_MAX = 2**31 - 1
_ZERO = np.uint64(0)


@njit(cache=True, nogil=True)
def pack_windows(tokens, width, bits, keys):
    """Pack every window of ``width`` tokens within one document; returns how many there are.

    tokens int32 [n]: in, ids below 2**bits, or -1 between two documents; keys uint64 [n_words, n]:
    out.
    """
    per_word = 64 // bits
    n = 0
    n_valid = 0
    for stop in range(tokens.size):
        n_valid = n_valid + 1 if tokens[stop] >= 0 else 0
        if n_valid < width:
            continue
        at = stop - width + 1
        for word in range(keys.shape[0]):
            packed = _ZERO
            first = word * per_word
            for j in range(first, first + per_word):
                token = np.uint64(tokens[at + j]) if j < width else _ZERO
                packed = (packed << np.uint64(bits)) | token
            keys[word, n] = packed
        n += 1
    return n


@njit(cache=True, nogil=True)
def pack_entries(tokens, entry_start, entry_token, width, bits, keys):
    """Pack the entries of a table (see cache.OrderTable); keys uint64 [n_words, n_entries]: out."""
    per_word = 64 // bits
    order = width - 1
    for row in range(entry_start.size - 1):
        for entry in range(entry_start[row], entry_start[row + 1]):
            for word in range(keys.shape[0]):
                packed = _ZERO
                first = word * per_word
                for j in range(first, first + per_word):
                    token = _ZERO
                    if j < order:
                        token = np.uint64(tokens[row * order + j])
                    elif j == order:
                        token = np.uint64(entry_token[entry])
                    packed = (packed << np.uint64(bits)) | token
                keys[word, entry] = packed


@njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _unpack(keys, at, j, bits):
    """Token j of the packed entry ``at``."""
    per_word = 64 // bits
    shift = np.uint64(bits * (per_word - 1 - j % per_word))
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    return np.int32((keys[j // per_word, at] >> shift) & mask)


@njit(cache=True, nogil=True)
def count_runs(keys, counts):
    """Squeeze equal neighbours, in place; returns how many remain.

    keys uint64 [n_words, n]: in, ascending; out, distinct. counts uint32 [n]: out, saturating.
    """
    n = 0
    for at in range(keys.shape[1]):
        same = n > 0
        for word in range(keys.shape[0]):
            if same and keys[word, at] != keys[word, n - 1]:
                same = False
        if same:
            if counts[n - 1] < _COUNT_MAX:
                counts[n - 1] += 1
        else:
            for word in range(keys.shape[0]):
                keys[word, n] = keys[word, at]
            counts[n] = 1
            n += 1
    return n


@njit(cache=True, nogil=True)
def merge_runs(a_keys, a_counts, b_keys, b_counts, keys, counts):
    """Merge two ascending runs, adding the counts of equal keys (saturating); returns the length.

    a_keys, b_keys, keys uint64 [n_words, n]; counts uint32; the outputs hold at least a + b items.
    """
    a = 0
    b = 0
    n = 0
    n_words = keys.shape[0]
    while a < a_counts.size or b < b_counts.size:
        side = 0  # -1: a is lower, 0: equal, 1: b is lower
        if b == b_counts.size:
            side = -1
        elif a == a_counts.size:
            side = 1
        else:
            for word in range(n_words):
                if a_keys[word, a] != b_keys[word, b]:
                    side = -1 if a_keys[word, a] < b_keys[word, b] else 1
                    break
        total = np.int64(0)
        for word in range(n_words):
            keys[word, n] = a_keys[word, a] if side <= 0 else b_keys[word, b]
        if side <= 0:
            total += np.int64(a_counts[a])
            a += 1
        if side >= 0:
            total += np.int64(b_counts[b])
            b += 1
        counts[n] = min(total, _COUNT_MAX)
        n += 1
    return n


@njit(cache=True, nogil=True)
def row_starts(keys, width, bits, entry_start):
    """Where each n-gram begins among the packed entries; returns the number of n-grams.

    entry_start int64 [n_entries + 1]: out, its first n_ngrams + 1 items.
    """
    n = 0
    for at in range(keys.shape[1]):
        new = at == 0
        j = 0
        while not new and j < width - 1:
            new = _unpack(keys, at, j, bits) != _unpack(keys, at - 1, j, bits)
            j += 1
        if new:
            entry_start[n] = at
            n += 1
    entry_start[n] = keys.shape[1]
    return n


@njit(cache=True, nogil=True)
def unpack_rows(keys, width, bits, entry_start, tokens, entry_token):
    """Tokens of each n-gram (int32 [n_ngrams * (width - 1)]) and of each entry (int32), out."""
    order = width - 1
    for row in range(entry_start.size - 1):
        for j in range(order):
            tokens[row * order + j] = _unpack(keys, entry_start[row], j, bits)
    for entry in range(entry_token.size):
        entry_token[entry] = _unpack(keys, entry, order, bits)


@njit(cache=True, nogil=True)
def check_table(tokens, order, entry_start, entry_token, entry_count, n_ids):
    """Check a table's invariants; returns (status, where).

    Status 0: sound; 1: count of entry ``where`` is not 1 to 2**31 - 1; 2: ``where`` is a token
    that is not in [0, n_ids); 3: row ``where`` is out of order or empty. Sizes are the glue's to
    check.
    """
    n_rows = entry_start.size - 1
    if entry_start[0] != 0 or entry_start[n_rows] != entry_token.size:
        return 3, np.int64(0)
    for row in range(n_rows):
        if not 0 <= entry_start[row] < entry_start[row + 1] <= entry_token.size:
            return 3, np.int64(row)
    for entry in range(entry_count.size):
        if entry_count[entry] < 1 or entry_count[entry] > _COUNT_MAX:
            return 1, np.int64(entry)
        if entry_token[entry] < 0 or entry_token[entry] >= n_ids:
            return 2, np.int64(entry_token[entry])
    for i in range(tokens.size):
        if tokens[i] < 0 or tokens[i] >= n_ids:
            return 2, np.int64(tokens[i])
    for row in range(n_rows):
        for entry in range(entry_start[row] + 1, entry_start[row + 1]):
            if entry_token[entry - 1] >= entry_token[entry]:
                return 3, np.int64(row)
        if row > 0:
            j = 0
            while j < order and tokens[(row - 1) * order + j] == tokens[row * order + j]:
                j += 1
            if j == order or tokens[(row - 1) * order + j] > tokens[row * order + j]:
                return 3, np.int64(row)
    return 0, np.int64(0)
