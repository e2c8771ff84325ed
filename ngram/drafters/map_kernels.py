"""ngram-simple, llama.cpp's and ours, and the repaired forms of ngram-map-k and ngram-map-k4v.

Each looks up the last N tokens of the text (size-n) and drafts up to M (size-m) of what followed
them before. llama.cpp scans the text for that; here an index of N-grams gives the same answers.

ngram-simple drafts after the latest occurrence. llama.cpp's own (common/ngram-map.cpp, build
11434) wants more than N + M + 1 tokens, takes no occurrence at the text's first token, does not
copy the sampled token, and drops drafts of fewer than N tokens.

The maps look only at occurrences that M tokens follow, the latest one, and keep a record for each
key (the N tokens): how often it was looked up and found, below min-hits of which nothing is
drafted, and how long its next draft may be. At first that is M; after a draft of d tokens of which
a < d were right max(1, a), after one that was all right max(old, 2 d) up to M. ngram-map-k4v keeps
the first four distinct M-grams that followed a key, with counts, and a length for each; it drafts
the most frequent one if the others together have no more than half as many. Records go with the
text: a prompt that does not go on with it begins with none.
"""

from __future__ import annotations

import numpy as np

from .gram_kernels import (
    DONE,
    N_INDEX_VARS,
    OWN,
    add_next,
    find_gram,
    first_of,
    grow_index,
    last_of,
    new_text,
    same_tokens,
)
from .slot_kernels import EXACT, KEYS, KIND, MAP_K4V, N_VARS, U, copy, helper

BUILT_ON = {"ngram.drafters.gram_kernels": "73478296", "ngram.drafters.slot_kernels": "a574593d"}

# Places in vars, after those of the index.
_SEEN = N_INDEX_VARS  # tokens of the text at the last call
_RECORDS = N_INDEX_VARS + 1
_EPOCH = N_INDEX_VARS + 2  # what records say of older ones is forgotten
_DRAFTED = N_INDEX_VARS + 3  # tokens of the last draft, 0: none
_VALUE = N_INDEX_VARS + 4  # where in nodes its value begins

# A record in nodes: epoch, hits, values, then for each value its place, its count and its length.
RECORD = 16
_HITS = U(1)
_N_VALUES = U(2)
_FIRST_VALUE = 3
_VALUE_SIZE = 3
_COUNT = U(1)
_LENGTH = U(2)
_VALUES_MAX = 4
_HITS_MAX = 2**31 - 1


@helper
def _copy(tokens, start, count, out):
    for i in range(count):
        out[U(i)] = tokens[U(start + i)]
    return count


# ------------------------------------------------------------------------------------ simple


@helper
def forget_simple(slot):
    """See slot_kernels; an index of the text is all there is."""


@helper
def begin_simple(slot, tokens, n, same):
    """See slot_kernels."""
    if same < slot.vars[_SEEN]:
        new_text(slot.vars, slot.table)
    slot.vars[_SEEN] = n


@helper
def draft_simple(slot, tokens, n, n_max, out):
    """See slot_kernels."""
    vars = slot.vars
    size = slot.params[KEYS]
    most = slot.params[KEYS + 1]
    exact = slot.params[EXACT] != 0
    vars[_SEEN] = n
    # llama.cpp's occurrences end before the sampled token, and so do its drafts.
    stop = n - 1 if exact else n
    if stop - size < 1 or (exact and stop <= size + most + 1):
        return 0
    while vars[DONE] < stop - size:
        add_next(vars, slot.table, tokens, size)
    cell = find_gram(vars, slot.table, tokens, size, n - size)
    if cell < 0:
        return 0
    at = last_of(vars, slot.table, cell)
    if exact and at == 0:
        return 0
    count = min(most, stop - at - size)
    if exact and count < size:
        return 0
    return _copy(tokens, at + size, min(count, n_max), out)


@helper
def accept_simple(slot, tokens, n, n_accepted, is_other):
    """See slot_kernels; nothing is learnt from it."""


@helper
def grow_simple(slot, old):
    """See slot_kernels."""
    copy(slot.vars, old.vars, N_VARS)
    grow_index(slot.vars, slot.table, old.table)


# ---------------------------------------------------------------------------------- repaired


@helper
def forget_map(slot):
    """See slot_kernels."""
    slot.vars[_EPOCH] += 1
    slot.vars[_DRAFTED] = 0


@helper
def begin_map(slot, tokens, n, same):
    """See slot_kernels."""
    vars = slot.vars
    if same < vars[_SEEN]:
        new_text(vars, slot.table)
        vars[_RECORDS] = 0
    vars[_SEEN] = n
    vars[_DRAFTED] = 0


@helper
def _new_record(slot, cell, size, most):
    """Make the record of a cell, with the value after its first occurrence."""
    number = slot.vars[_RECORDS]
    slot.vars[_RECORDS] += 1
    slot.table[U(cell) + OWN] = number + 1
    record = U(number * RECORD)
    nodes = slot.nodes
    nodes[record] = np.int32(slot.vars[_EPOCH])
    nodes[record + _HITS] = 0
    nodes[record + _N_VALUES] = 1
    value = record + U(_FIRST_VALUE)
    nodes[value] = first_of(slot.vars, slot.table, cell) + size
    nodes[value + _COUNT] = 1
    nodes[value + _LENGTH] = most
    return record


@helper
def _record_of(slot, cell, size, most):
    """Where the record of a cell begins, made where there is none."""
    number = np.int64(slot.table[U(cell) + OWN])
    if number == 0:
        return _new_record(slot, cell, size, most)
    record = U((number - 1) * RECORD)
    nodes = slot.nodes
    if nodes[record] != np.int32(slot.vars[_EPOCH]):
        nodes[record] = np.int32(slot.vars[_EPOCH])
        nodes[record + _HITS] = 0
        for i in range(nodes[record + _N_VALUES]):
            nodes[record + U(_FIRST_VALUE + i * _VALUE_SIZE) + _LENGTH] = most
    return record


@helper
def _count_value(slot, tokens, record, at, most):
    """Count the tokens from ``at`` on as a value of a record; a fifth distinct one is none."""
    nodes = slot.nodes
    n_values = np.int64(nodes[record + _N_VALUES])
    for i in range(n_values):
        value = record + U(_FIRST_VALUE + i * _VALUE_SIZE)
        if same_tokens(tokens, np.int64(nodes[value]), at, most):
            nodes[value + _COUNT] += 1
            return
    if n_values < _VALUES_MAX:
        value = record + U(_FIRST_VALUE + n_values * _VALUE_SIZE)
        nodes[value] = at
        nodes[value + _COUNT] = 1
        nodes[value + _LENGTH] = most
        nodes[record + _N_VALUES] = n_values + 1


@helper
def _add_occurrences(slot, tokens, stop, size, most):
    """Index the N-grams at places below ``stop``, and count the values of ngram-map-k4v."""
    vars = slot.vars
    count_values = slot.params[KIND] == MAP_K4V
    while vars[DONE] < stop:
        cell, before = add_next(vars, slot.table, tokens, size)
        if count_values and before >= 0:
            record = _record_of(slot, cell, size, most)
            _count_value(slot, tokens, record, vars[DONE] - 1 + size, most)


@helper
def _clear_favourite(nodes, record):
    """Where the value begins that is to be drafted, or the record where none is."""
    best = np.int64(0)
    total = np.int64(0)
    favourite = record
    for i in range(nodes[record + _N_VALUES]):
        value = record + U(_FIRST_VALUE + i * _VALUE_SIZE)
        count = np.int64(nodes[value + _COUNT])
        total += count
        if count > best:
            best = count
            favourite = value
    rest = total - best
    if rest > 0 and best < 2 * rest:
        return record
    return favourite


@helper
def draft_map(slot, tokens, n, n_max, out):
    """See slot_kernels."""
    vars = slot.vars
    nodes = slot.nodes
    size = slot.params[KEYS]
    most = slot.params[KEYS + 1]
    vars[_SEEN] = n
    vars[_DRAFTED] = 0
    if n < size + most:
        return 0
    _add_occurrences(slot, tokens, n - size - most + 1, size, most)
    cell = find_gram(vars, slot.table, tokens, size, n - size)
    if cell < 0:
        return 0
    record = _record_of(slot, cell, size, most)
    hits = min(np.int64(nodes[record + _HITS]) + 1, _HITS_MAX)
    nodes[record + _HITS] = hits
    if hits < slot.params[KEYS + 2]:
        return 0
    value = record + U(_FIRST_VALUE)
    start = last_of(vars, slot.table, cell) + size
    if slot.params[KIND] == MAP_K4V:
        value = _clear_favourite(nodes, record)
        if value == record:
            return 0
        start = np.int64(nodes[value])
    drafted = min(np.int64(nodes[value + _LENGTH]), n_max)
    vars[_DRAFTED] = drafted
    vars[_VALUE] = np.int64(value)
    return _copy(tokens, start, drafted, out)


@helper
def accept_map(slot, tokens, n, n_accepted, is_other):
    """See slot_kernels."""
    vars = slot.vars
    drafted = vars[_DRAFTED]
    if is_other or drafted == 0:
        return
    length = U(vars[_VALUE]) + _LENGTH
    if n_accepted < drafted:
        slot.nodes[length] = max(1, n_accepted)
    else:
        old = np.int64(slot.nodes[length])
        slot.nodes[length] = min(slot.params[KEYS + 1], max(old, 2 * drafted))


@helper
def grow_map(slot, old):
    """See slot_kernels."""
    copy(slot.vars, old.vars, N_VARS)
    copy(slot.nodes, old.nodes, old.vars[_RECORDS] * RECORD)
    grow_index(slot.vars, slot.table, old.table)
