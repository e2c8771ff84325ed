"""Kernels over the packed form of a cache (see packed.py): fill it, look into it, check it, sum it.

Arrays are sized and typed by the glue. ``rest``, ``next`` and ``verdict`` are uint16 or uint32, by
the size of the vocabulary, so kernels that take them compile once for each of the two.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_U = np.uint64
_HASH = _U(0x9E3779B97F4A7C15)
_COUNT_MAX = 2**31 - 1
_MANY = 255

_kernel = njit(cache=True, nogil=True)


@_kernel
def pack_starts(entry_start, shift, base, offset):
    """Starts as a uint32 for each 2**shift rows and a uint16 for each row; -1 if they don't fit.

    entry_start int64 [n + 1]: in; base uint32 [(n >> shift) + 1], offset uint16 [n + 1]: out.
    """
    for row in range(entry_start.size):
        block = row >> shift
        if row == block << shift:
            base[block] = entry_start[row]
        past = entry_start[row] - np.int64(base[block])
        if past > 0xFFFF:
            return -1
        offset[row] = past
    return 0


@_kernel
def unpack_starts(base, offset, shift, entry_start):
    """The inverse of ``pack_starts``."""
    for row in range(entry_start.size):
        entry_start[row] = np.int64(base[row >> shift]) + np.int64(offset[row])


@_kernel
def fill_slots(first, rest, slots, bits):
    """The open-addressed index of bigrams: word = tag << bits | row + 1, 0 where empty.

    first uint32 [n_ids + 1], rest [n_rows]: in; slots uint32 [more than n_rows]: out, zeros before.
    The place is the upper half of a multiplicative hash scaled to the table, the tag its low bits.
    Rows are put in ascending, so equal bigrams give equal bytes.
    """
    n_slots = _U(slots.size)
    tags = _U(32 - bits)
    for token in range(first.size - 1):
        for row in range(first[token], first[token + 1]):
            mixed = ((_U(token) << _U(32)) | _U(rest[row])) * _HASH
            place = ((mixed >> _U(32)) * n_slots) >> _U(32)
            while slots[place] != 0:
                place += _U(1)
                if place == n_slots:
                    place = _U(0)
            tag = mixed & ((_U(1) << tags) - _U(1))
            slots[place] = np.uint32((tag << _U(bits)) | _U(row + 1))


@_kernel
def fill_verdicts(entry_start, entry_token, entry_count, verdict, none):
    """The token that the static rule drafts after each bigram, or ``none``; verdict: out.

    Source: llama.cpp, static-only try: 2 samples, the most frequent at 50 % or more.
    """
    for row in range(entry_start.size - 1):
        total = np.int64(0)
        best = np.int64(0)
        pick = np.int64(none)
        for entry in range(entry_start[row], entry_start[row + 1]):
            count = np.int64(entry_count[entry])
            total += count
            if count > best:  # ids ascend, so the lowest id keeps a tie
                best = count
                pick = np.int64(entry_token[entry])
        verdict[row] = pick if total >= 2 and 2 * best >= total else none


@_kernel
def checksum(words):
    """A 64-bit checksum of uint64 [n], n a multiple of 8.

    Eight lanes of acc = (acc xor word) * odd: each step is a bijection, so a change within one word
    always shows; eight multiplications run at once, so memory is the limit.
    """
    a = b = c = d = e = f = g = h = _HASH
    for i in range(0, words.size, 8):
        j = _U(i)
        a = (a ^ words[j]) * _HASH
        b = (b ^ words[j + _U(1)]) * _HASH
        c = (c ^ words[j + _U(2)]) * _HASH
        d = (d ^ words[j + _U(3)]) * _HASH
        e = (e ^ words[j + _U(4)]) * _HASH
        f = (f ^ words[j + _U(5)]) * _HASH
        g = (g ^ words[j + _U(6)]) * _HASH
        h = (h ^ words[j + _U(7)]) * _HASH
    total = _U(words.size)
    for lane in (a, b, c, d, e, f, g, h):
        total = (total ^ lane ^ (lane >> _U(31))) * _HASH
    return total


@_kernel
def largest_id(ids, none):
    """The largest of ids that are not ``none``, -1 without one; one pass of vector instructions."""
    largest = np.int64(-1)
    for i in range(ids.size):
        value = np.int64(ids[_U(i)])
        largest = max(largest, value if value != none else np.int64(-1))
    return largest


@_kernel
def check_rows(first, rest, order, base, offset, shift, next_token, n_ids):
    """Check the order of rows and followers, and ids; returns (status, where).

    Status 0: sound; 2: ``where`` is a token >= n_ids; 3: row ``where`` is out of order or empty.
    Array sizes are the glue's to check; first's last item is the number of rows.
    """
    n_rows = np.int64(offset.size) - 1
    width = order - 1
    stop = np.int64(base[0]) + np.int64(offset[0])
    if stop != 0 or first[0] != 0:
        return 3, np.int64(0)
    for token in range(first.size - 1):
        begin = np.int64(first[token])
        end = np.int64(first[token + 1])
        if end < begin or end > n_rows or (width == 0 and end > begin + 1):
            return 3, begin
        for row in range(begin, end):
            for j in range(row * width, (row + 1) * width):
                if rest[_U(j)] >= n_ids:
                    return 2, np.int64(rest[_U(j)])
            if row > begin:
                j = row * width
                while j < (row + 1) * width and rest[_U(j)] == rest[_U(j - width)]:
                    j += 1
                if j == (row + 1) * width or rest[_U(j)] < rest[_U(j - width)]:
                    return 3, row
            start = stop
            stop = np.int64(base[_U((row + 1) >> shift)]) + np.int64(offset[_U(row + 1)])
            if stop <= start or stop > next_token.size:
                return 3, row
            last = np.int64(-1)
            for entry in range(start, stop):
                token_after = np.int64(next_token[_U(entry)])
                if token_after <= last:
                    return 3, row
                last = token_after
            if last >= n_ids:
                return 2, last
    if np.int64(first[first.size - 1]) != n_rows or stop != next_token.size:
        return 3, n_rows
    return 0, np.int64(0)


@_kernel
def check_counts(count, many_entry, many_count):
    """Check the counts; returns the entry whose count is wrong, or -1.

    count uint8 [n_entries]: 1 to 254, or 255 where many_entry (uint32 [m], ascending) names the
    entry and many_count (uint32 [m]) holds its count, 255 to 2**31 - 1.
    """
    m = np.int64(0)
    for entry in range(count.size):
        if count[entry] == _MANY:
            if m == many_entry.size or np.int64(many_entry[m]) != entry:
                return entry
            if many_count[m] < _MANY or many_count[m] > _COUNT_MAX:
                return entry
            m += 1
        elif count[entry] == 0:
            return entry
    return np.int64(-1) if m == many_entry.size else np.int64(count.size)
