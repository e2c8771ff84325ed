"""llama.cpp's own ngram-map-k and ngram-map-k4v, answer for answer, flaws included.

Source: llama.cpp build 11434, common/ngram-map.cpp. In its terms: ``inp`` is the text without the
sampled token, ``n`` is N (size-n), ``m`` is M (size-m). What is kept as it is there: the map of
2**18 places by an N-gram's hash, filled from the newest place down, never overwritten; the places
around the end of each prompt that never get into it; keys as a list of places, whatever text stands
there now; the statistics of values, which count a match again each time; the length of a key's next
draft, which never grows.

What is done faster, with the same answers: llama.cpp scans places not yet in the map, then puts
them there: here one pass does both, comparing hashes first. It scans its list of keys: here an
index finds the first of the list. It scans the text for a key's occurrences: here they are chained.
Where it reads after the end of ``inp`` (keys of an older, longer text), nothing matches here.
"""

from __future__ import annotations

import numpy as np

from .gram_kernels import (
    DONE,
    N_INDEX_VARS,
    add_next,
    find_gram,
    first_of,
    grow_index,
    new_text,
    same_tokens,
)
from .slot_kernels import KEYS, KIND, MAP_K4V, N_VARS, PARTS, U, copy, helper, view

BUILT_ON = {"ngram.drafters.gram_kernels": "73478296", "ngram.drafters.slot_kernels": "a574593d"}

# Places in vars, after those of the index of occurrences, which ngram-map-k4v alone has.
_SEEN = N_INDEX_VARS  # tokens of the text at the last call, the sampled one included
_N_KEYS = N_INDEX_VARS + 1
_LOGGED = N_INDEX_VARS + 2  # places of the map that are in use
_LAST_BEGIN = N_INDEX_VARS + 3  # llama.cpp's size_last_begin
_LAST_CHECK = N_INDEX_VARS + 4  # its idx_last_check
_LAST_MAPPED = N_INDEX_VARS + 5  # its key_map_last_idx
_DRAFT_KEY = N_INDEX_VARS + 6  # its last_draft_key_idx + 1; 0: its last_draft_created is false
_DRAFT_VALUE = N_INDEX_VARS + 7
_INDEXED = N_INDEX_VARS + 8  # tokens of inp when keys were last put into their index
_PENDING = N_INDEX_VARS + 9  # tokens of inp from which on all keys are in it
_TOP_AT = N_INDEX_VARS + 10  # 1 + the place of the N-gram whose hash is next; 0: none
_TOP_HASH = N_INDEX_VARS + 11
_KEY_AT = N_INDEX_VARS + 12  # the same of the N-gram that was last looked up
_KEY_HASH = N_INDEX_VARS + 13

MAP_CELLS = 1 << 18
_LCG = np.uint32(2654435761)
_LCG_INVERSE = np.uint32(pow(2654435761, -1, 2**32))
_COUNT_MAX = 16380
_VALUES = 4

# table: the map's places of N-grams; the index of keys: number + 1, or 0; cells of occurrences.
# nodes: the places of the map that are in use; keys, records as below; next occurrences + 1.
# Both are parted as params[PARTS:] say: places of keys in their index, room for keys.
KEY = 16
_AT = U(0)  # key_idx
_STAT = U(1)  # stat_idx
_HITS = U(2)  # key_num
_KEY_LCG = U(3)  # the hash under which the key is in its index
_FIRST_VALUE = 4  # then for each value: value_idx, value_num, n_accepted
_VALUE = 3
_NUM = U(1)
_ACCEPTED = U(2)


@view
def _map(slot):
    return slot.table[:MAP_CELLS]


@view
def _key_index(slot):
    return slot.table[MAP_CELLS : MAP_CELLS + slot.params[PARTS]]


@view
def _occurrences(slot):
    return slot.table[MAP_CELLS + slot.params[PARTS] :]


@view
def _keys(slot):
    return slot.nodes[MAP_CELLS : MAP_CELLS + KEY * slot.params[PARTS + 1]]


@view
def _next(slot):
    return slot.nodes[MAP_CELLS + KEY * slot.params[PARTS + 1] :]


# -------------------------------------------------------------------------------------- hash


@helper
def _token(tokens, i):
    return np.uint32(tokens[U(i)])


@helper
def _top_factor(size):
    top = np.uint32(1)
    for _ in range(size - 1):
        top = np.uint32(top * _LCG)
    return top


@helper
def _hash_at(tokens, size, top, at, near, near_hash):
    """The hash of the N-gram at ``at``, rolled on from that at ``near`` if that is before it."""
    if near < 0 or near > at or at - near > size:
        mixed = np.uint32(0)
        for i in range(size):
            mixed = np.uint32(mixed * _LCG + _token(tokens, at + i))
        return mixed
    mixed = np.uint32(near_hash)
    for i in range(near, at):
        mixed = np.uint32((mixed - _token(tokens, i) * top) * _LCG + _token(tokens, i + size))
    return mixed


# -------------------------------------------------------------------------------------- keys


@helper
def _key_place(index, mixed):
    return (U(mixed) * U(0x9E3779B97F4A7C15) >> U(32)) & U(index.size - 1)


@helper
def _find_key(slot, tokens, size, at, mixed):
    """(place in the index, number or -1) of the key that equals the N-gram at ``at``."""
    index = _key_index(slot)
    keys = _keys(slot)
    mask = U(index.size - 1)
    place = _key_place(index, mixed)
    while True:
        number = np.int64(index[place]) - 1
        if number < 0:
            return place, number
        key = U(number * KEY)
        if np.uint32(keys[key + _KEY_LCG]) == mixed and same_tokens(
            tokens, np.int64(keys[key + _AT]), at, size
        ):
            return place, number
        place = (place + U(1)) & mask


@helper
def _index_key(slot, tokens, size, number):
    """Put a key into the index; of equal ones the first of the list is found."""
    keys = _keys(slot)
    key = U(number * KEY)
    at = np.int64(keys[key + _AT])
    mixed = _hash_at(tokens, size, np.uint32(0), at, np.int64(-1), np.uint32(0))
    keys[key + _KEY_LCG] = np.int32(mixed)
    place, other = _find_key(slot, tokens, size, at, mixed)
    if other < 0 or number < other:
        _key_index(slot)[place] = number + 1


@helper
def _index_keys_from(slot, tokens, size, known, inp):
    """Put the keys into the index that lie in the first ``inp`` tokens, but not in ``known``."""
    vars = slot.vars
    keys = _keys(slot)
    pending = inp
    for number in range(vars[_N_KEYS]):
        end = np.int64(keys[U(number * KEY) + _AT]) + size
        if end > inp:
            pending = max(pending, end)
        elif end > known:
            _index_key(slot, tokens, size, number)
    vars[_INDEXED] = inp
    vars[_PENDING] = pending


@helper
def _clear_key_index(slot):
    """Empty every run of places that holds a key."""
    index = _key_index(slot)
    keys = _keys(slot)
    mask = U(index.size - 1)
    for number in range(slot.vars[_N_KEYS]):
        place = _key_place(index, np.uint32(keys[U(number * KEY) + _KEY_LCG]))
        while index[place] != 0:
            index[place] = 0
            place = (place + U(1)) & mask


@helper
def _new_key(slot, tokens, size, most, at, mixed, place):
    """Append a key to the list and to the index, at the place where it is missing."""
    number = slot.vars[_N_KEYS]
    slot.vars[_N_KEYS] += 1
    keys = _keys(slot)
    key = U(number * KEY)
    keys[key + _AT] = at
    keys[key + _STAT] = 0
    keys[key + _HITS] = 0
    keys[key + _KEY_LCG] = np.int32(mixed)
    for v in range(_VALUES):
        value = key + U(_FIRST_VALUE + v * _VALUE)
        keys[value] = 0
        keys[value + _NUM] = 0
        keys[value + _ACCEPTED] = most
    _key_index(slot)[place] = number + 1
    return number


# ------------------------------------------------------------------------------------- begin


@helper
def _clean_map(slot, least):
    """Empty the places of the map that hold ``least`` or more."""
    cells = _map(slot)
    log = slot.nodes
    kept = 0
    for i in range(slot.vars[_LOGGED]):
        cell = log[U(i)]
        if cells[U(cell)] >= least:
            cells[U(cell)] = 0
        else:
            log[U(kept)] = cell
            kept += 1
    slot.vars[_LOGGED] = kept


@helper
def _clean_values(keys, key, least):
    """Drop a key's values from ``least`` on; whether it still has one."""
    for v in range(_VALUES - 1, -1, -1):
        at = np.int64(keys[key + U(_FIRST_VALUE + v * _VALUE)])
        if at != 0 and at >= least:
            for i in range(_FIRST_VALUE + v * _VALUE, _FIRST_VALUE + (_VALUES - 1) * _VALUE):
                keys[key + U(i)] = keys[key + U(i + _VALUE)]
            last = key + U(_FIRST_VALUE + (_VALUES - 1) * _VALUE)
            keys[last] = 0
            keys[last + _NUM] = 0
    return keys[key + U(_FIRST_VALUE)] != 0


@helper
def _clean_keys(slot, least):
    """Drop the keys from ``least`` on, and those whose values are all dropped."""
    keys = _keys(slot)
    with_values = slot.params[KIND] == MAP_K4V
    kept = np.int64(0)
    for number in range(slot.vars[_N_KEYS]):
        key = U(number * KEY)
        if keys[key + _AT] >= least or (with_values and not _clean_values(keys, key, least)):
            continue
        for i in range(KEY):
            keys[U(kept * KEY + i)] = keys[key + U(i)]
        kept += 1
    slot.vars[_N_KEYS] = kept


@helper
def forget_server_map(slot):
    """See slot_kernels; the chained occurrences stay, they are the text's."""
    vars = slot.vars
    _clean_map(slot, 0)
    _clear_key_index(slot)
    for i in range(_N_KEYS, _PENDING + 1):
        vars[i] = 0


@helper
def begin_server_map(slot, tokens, n, same):
    """See slot_kernels."""
    vars = slot.vars
    size = slot.params[KEYS]
    most = slot.params[KEYS + 1]
    changed = same < vars[_SEEN]
    cleans = n < vars[_LAST_CHECK]
    if changed or cleans:
        _clear_key_index(slot)
    if cleans:
        least = vars[_LAST_BEGIN]
        if least > n:
            least = max(n - size - most, 0)
        _clean_map(slot, least)
        vars[_LAST_MAPPED] = max(least - 1, 0)
        _clean_keys(slot, least)
    if changed:
        vars[_TOP_AT] = 0
        vars[_KEY_AT] = 0
        if slot.params[KIND] == MAP_K4V:
            new_text(vars, _occurrences(slot))
    vars[_LAST_CHECK] = n
    vars[_LAST_BEGIN] = n
    vars[_SEEN] = n
    if changed or cleans:
        _index_keys_from(slot, tokens, size, np.int64(-1), n)


# ------------------------------------------------------------------------------------- draft


@helper
def _scan(slot, tokens, size, top, first, stop, looks, at, key_hash):
    """Put the places from ``first`` down to above ``stop`` into the map.

    Returns the first of them that holds the N-gram at ``at``, if it ``looks`` for that, or 0.
    """
    vars = slot.vars
    if first <= stop:
        return np.int64(0)
    mixed = _hash_at(tokens, size, top, first, vars[_TOP_AT] - 1, np.uint32(vars[_TOP_HASH]))
    vars[_TOP_AT] = first + 1
    vars[_TOP_HASH] = np.int64(mixed)
    cells = _map(slot)
    found = np.int64(0)
    place = first
    while True:
        if looks and found == 0 and mixed == key_hash and same_tokens(tokens, place, at, size):
            found = place
        cell = U(mixed & np.uint32(MAP_CELLS - 1))
        if cells[cell] == 0:
            cells[cell] = place
            slot.nodes[U(vars[_LOGGED])] = np.int64(cell)
            vars[_LOGGED] += 1
        place -= 1
        if place <= stop:
            return found
        mixed = np.uint32(
            (mixed - _token(tokens, place + size)) * _LCG_INVERSE + _token(tokens, place) * top
        )


@helper
def _match(slot, tokens, size, most, inp, at, key_hash):
    """Where the key occurred before, as llama.cpp finds it, or 0; and the map is filled."""
    vars = slot.vars
    top = _top_factor(size)
    newest = inp - size - most - 1
    match = np.int64(_map(slot)[U(key_hash & np.uint32(MAP_CELLS - 1))])
    if match >= newest or not same_tokens(tokens, match, at, size):
        match = np.int64(0)
    mapped = vars[_LAST_MAPPED]
    if vars[_LAST_BEGIN] > size + most + 1:
        first = vars[_LAST_BEGIN] - size - most - 1
        found = _scan(slot, tokens, size, top, first, mapped, match == 0, at, key_hash)
        match = max(match, found)
    stop = max(vars[_LAST_BEGIN], mapped)
    found = _scan(slot, tokens, size, top, newest, stop, match == 0, at, key_hash)
    vars[_LAST_MAPPED] = max(newest, mapped)
    return max(match, found)


@helper
def _value_matches(tokens, inp, at, value, most):
    return value + most <= inp and same_tokens(tokens, at, value, most)


@helper
def _count_occurrence(keys, key, tokens, inp, at, most):
    """Count the M-gram at ``at`` among a key's values, as a new one if there is room."""
    for v in range(_VALUES):
        value = key + U(_FIRST_VALUE + v * _VALUE)
        if keys[value] == 0:
            keys[value] = at
            keys[value + _NUM] = 1
            keys[value + _ACCEPTED] = most
            return
        if _value_matches(tokens, inp, at, np.int64(keys[value]), most):
            keys[value + _NUM] = min(np.int64(keys[value + _NUM]) + 1, _COUNT_MAX)
            return


@helper
def _count_values(slot, tokens, size, most, inp, at, key, match):
    """Count what followed a key's occurrences from where its statistics ended up to ``match``."""
    vars = slot.vars
    keys = _keys(slot)
    chain = _next(slot)
    table = _occurrences(slot)
    while vars[DONE] <= inp - size - most - 1:
        _, before = add_next(vars, table, tokens, size)
        chain[U(vars[DONE] - 1)] = 0
        if before >= 0:
            chain[U(before)] = vars[DONE]
    begin = np.int64(keys[key + _STAT])
    if begin > match:
        place = match + 1
    elif begin > 0 and same_tokens(tokens, begin, at, size):
        place = begin
    else:
        place = first_of(vars, table, find_gram(vars, table, tokens, size, at))
        while place < begin:
            place = np.int64(chain[U(place)]) - 1
    while True:
        if place > match:
            break
        _count_occurrence(keys, key, tokens, inp, place + size, most)
        following = np.int64(chain[U(place)])
        if following == 0:
            break
        place = following - 1
    keys[key + _STAT] = match


@helper
def _favourite(keys, key):
    """The value that llama.cpp takes for the draft, or -1."""
    best = np.int64(0)
    total = np.int64(0)
    favourite = np.int64(0)
    for v in range(_VALUES):
        count = np.int64(keys[key + U(_FIRST_VALUE + v * _VALUE) + _NUM])
        total += count
        if count > best:
            best = count
            favourite = v
    rest = total - best
    if rest > 0 and best < 2 * rest:
        return np.int64(-1)
    return favourite


@helper
def draft_server_map(slot, tokens, n, n_max, out):
    """See slot_kernels."""
    vars = slot.vars
    size = slot.params[KEYS]
    most = slot.params[KEYS + 1]
    inp = n - 1
    vars[_SEEN] = n
    vars[_DRAFT_KEY] = 0
    if inp < 2 * size + most:
        return 0
    vars[_LAST_CHECK] = inp
    if vars[_INDEXED] < vars[_PENDING]:
        _index_keys_from(slot, tokens, size, vars[_INDEXED], inp)
    at = n - size
    mixed = _hash_at(
        tokens, size, _top_factor(size), at, vars[_KEY_AT] - 1, np.uint32(vars[_KEY_HASH])
    )
    vars[_KEY_AT] = at + 1
    vars[_KEY_HASH] = np.int64(mixed)
    match = _match(slot, tokens, size, most, inp, at, mixed)
    if match == 0:
        return 0
    keys = _keys(slot)
    place, number = _find_key(slot, tokens, size, at, mixed)
    if number < 0:
        number = _new_key(slot, tokens, size, most, match, mixed, place)
    key = U(number * KEY)
    keys[key + _HITS] = min(np.int64(keys[key + _HITS]) + 1, _COUNT_MAX)
    value = np.int64(0)
    if slot.params[KIND] == MAP_K4V:
        if keys[key + _HITS] < slot.params[KEYS + 2]:
            return 0
        _count_values(slot, tokens, size, most, inp, at, key, match)
        value = _favourite(keys, key)
        if value < 0:
            return 0
    vars[_DRAFT_KEY] = number + 1
    vars[_DRAFT_VALUE] = value
    length = np.int64(keys[key + U(_FIRST_VALUE + value * _VALUE) + _ACCEPTED])
    drafted = min(min(most, length), n_max)
    for i in range(drafted):
        out[U(i)] = tokens[U(match + size + i)]
    return drafted


@helper
def accept_server_map(slot, tokens, n, n_accepted, is_other):
    """See slot_kernels."""
    vars = slot.vars
    if is_other or vars[_DRAFT_KEY] == 0:
        return
    value = U((vars[_DRAFT_KEY] - 1) * KEY + _FIRST_VALUE + vars[_DRAFT_VALUE] * _VALUE)
    _keys(slot)[value + _ACCEPTED] = n_accepted


@helper
def grow_server_map(slot, old):
    """See slot_kernels."""
    vars = slot.vars
    copy(vars, old.vars, N_VARS)
    copy(slot.nodes, old.nodes, vars[_LOGGED])
    copy(_keys(slot), _keys(old), vars[_N_KEYS] * KEY)
    copy(_map(slot), _map(old), MAP_CELLS)
    index = _key_index(slot)
    old_index = _key_index(old)
    mask = U(index.size - 1)
    for i in range(old_index.size):
        number = np.int64(old_index[U(i)])
        if number == 0:
            continue
        place = _key_place(index, np.uint32(_keys(slot)[U((number - 1) * KEY) + _KEY_LCG]))
        while index[place] != 0:
            place = (place + U(1)) & mask
        index[place] = number
    if slot.params[KIND] == MAP_K4V:
        copy(_next(slot), _next(old), vars[DONE])
        grow_index(vars, _occurrences(slot), _occurrences(old))
