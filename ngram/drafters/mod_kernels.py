"""ngram-mod: one pool from n-grams (n-match tokens) to the token that followed last.

Source: llama.cpp build 11434, common/ngram-mod.cpp and common/speculative.cpp. When tokens are
learnt is the same in both forms: a prompt at ``begin``, all of it; then, at a draft, what has come
since, once more than 32 tokens lie behind the last n-gram learnt. So is the draft: token by token,
to n-max; none, if the pool knows fewer than n-min. After five drafts in a row of which less than a
quarter was right the pool is emptied, and the text learnt anew at the next draft.

llama.cpp's own pool is 2**22 places by hash without a key: n-grams of one place give each other's
tokens; a pool of more than a quarter at ``begin`` is emptied, with the prompt; a draft that the
request's limit cuts is judged by its length before that. The repaired form keeps n-grams apart by
64 bits of hash, learns the prompt again after emptying the pool of more than 2**20 n-grams, and
judges what was really tried.

What llama.cpp learns again and again, all of the text, changes nothing but where the pool has lost
it. So each entry holds a stamp, when it was written, and emptying the pool is to say that stamps
before now count no more. Stamps are base + place + 1, the base grows with every new text.
"""

from __future__ import annotations

import numpy as np

from .gram_kernels import rolled_hash, top_of
from .slot_kernels import EXACT, KEYS, N_VARS, U, copy, helper

BUILT_ON = {"ngram.drafters.gram_kernels": "73478296", "ngram.drafters.slot_kernels": "a574593d"}

# Places in vars.
_SEEN = 0  # tokens of the text at the last call
_BASE = 1
_DONE = 2  # n-grams of the text at places below it have been written
_FLOOR = 3  # entries with this stamp or a lower one are as good as empty
_OLD_FROM = 4  # those of older texts count if their stamps are above it
_VALID = 5  # those of this text count if their places are not below it
_N_OLD = 6  # entries that older texts wrote last, and that count
_N_TEXT = 7  # entries that this text wrote last
_N_VALID = 8  # of these, those that count
_LAST = 9  # llama.cpp's i_last
_DRAFTED = 10  # its n_draft_last
_N_LOW = 11  # its n_low
_TOP = 12  # the factor of a hash's first token
_HASH = 13  # of the n-gram at _DONE - 1

_NONE = 2**62
_BASE_MAX = 2**30
_CHUNK = 32
_LOW_MOST = 5
_FULL = 1 << 20  # a quarter of llama.cpp's pool
_LCG = U(6364136223846793005)
_SPREAD = U(0xD6E8FEB86659FD93)
POOL = 1 << 22

# table int32: entries of two, token and stamp. words int64, repaired form only: their hashes.
_STAMP = U(1)


@helper
def _hash_at(slot, tokens, at):
    """The hash of the n-gram at ``at``, _DONE - 1 or later."""
    vars = slot.vars
    size = slot.params[KEYS]
    if vars[_TOP] == 0:
        vars[_TOP] = np.int64(top_of(size, _LCG))
    here = vars[_DONE] - 1
    return rolled_hash(tokens, size, at, here, U(vars[_HASH]), U(vars[_TOP]), _LCG)


@helper
def _entry(slot, mixed):
    """Where the entry of a hash begins; in the repaired form that, or the empty one for it."""
    table = slot.table
    mask = U((table.size >> 1) - 1)
    if slot.params[EXACT] != 0:
        return (mixed & mask) << U(1)
    keys = slot.words
    floor = slot.vars[_FLOOR]
    place = ((mixed * _SPREAD) >> U(32)) & mask
    while table[(place << U(1)) + _STAMP] > floor and U(keys[place]) != mixed:
        place = (place + U(1)) & mask
    return place << U(1)


@helper
def _known(slot, entry):
    """Whether an entry counts."""
    vars = slot.vars
    stamp = np.int64(slot.table[entry + _STAMP])
    if stamp > vars[_BASE]:
        return stamp - vars[_BASE] - 1 >= vars[_VALID]
    return stamp > vars[_OLD_FROM]


@helper
def _empty(slot, valid):
    """Let nothing count but the text from place ``valid`` on."""
    vars = slot.vars
    vars[_OLD_FROM] = vars[_BASE]
    vars[_N_OLD] = 0
    vars[_VALID] = valid
    vars[_N_VALID] = 0 if valid > 0 else vars[_N_TEXT]


@helper
def _new_text(slot):
    """Let the entries of this text be those of an older one."""
    vars = slot.vars
    base = vars[_BASE] + vars[_DONE]
    vars[_N_OLD] += vars[_N_VALID]
    if vars[_VALID] > 0:  # then older ones do not count
        vars[_OLD_FROM] = vars[_BASE] + min(vars[_VALID], vars[_DONE])
    if base > _BASE_MAX:
        slot.table[:] = 0
        base = 0
        vars[_N_OLD] = 0
    if vars[_N_OLD] == 0:
        vars[_OLD_FROM] = base
        vars[_FLOOR] = base
    vars[_BASE] = base
    vars[_DONE] = 0
    vars[_N_TEXT] = 0
    vars[_N_VALID] = 0
    vars[_VALID] = 0


@helper
def _learn(slot, tokens, start, stop):
    """Learn the n-grams at places from ``start`` up to ``stop``; each has a token after it."""
    vars = slot.vars
    table = slot.table
    size = slot.params[KEYS]
    repaired = slot.params[EXACT] == 0
    if start == 0 and vars[_VALID] > 0:
        vars[_VALID] = 0
        vars[_N_VALID] = vars[_N_TEXT]
    while vars[_DONE] < stop:
        at = vars[_DONE]
        mixed = _hash_at(slot, tokens, at)
        entry = _entry(slot, mixed)
        stamp = np.int64(table[entry + _STAMP])
        if stamp <= vars[_BASE]:
            vars[_N_TEXT] += 1
            vars[_N_VALID] += 1
            if stamp > vars[_OLD_FROM]:
                vars[_N_OLD] -= 1
            if repaired:
                slot.words[entry >> U(1)] = np.int64(mixed)
        elif stamp - vars[_BASE] - 1 < vars[_VALID]:
            vars[_N_VALID] += 1
        table[entry] = tokens[U(at + size)]
        table[entry + _STAMP] = vars[_BASE] + at + 1
        vars[_HASH] = np.int64(mixed)
        vars[_DONE] = at + 1


@helper
def forget_mod(slot):
    """See slot_kernels."""
    vars = slot.vars
    _empty(slot, _NONE)
    vars[_LAST] = 0
    vars[_DRAFTED] = 0
    vars[_N_LOW] = 0


@helper
def begin_mod(slot, tokens, n, same):
    """See slot_kernels."""
    vars = slot.vars
    size = slot.params[KEYS]
    if same < vars[_SEEN]:
        _new_text(slot)
    vars[_SEEN] = n
    vars[_LAST] = 0
    vars[_DRAFTED] = 0
    if n < size:
        return
    _learn(slot, tokens, 0, n - size)
    vars[_LAST] = n - size
    if vars[_N_OLD] + vars[_N_VALID] > _FULL:
        _empty(slot, n - size if slot.params[EXACT] != 0 else 0)


@helper
def draft_mod(slot, tokens, n, n_max, out):
    """See slot_kernels."""
    vars = slot.vars
    table = slot.table
    size = slot.params[KEYS]
    n_most = slot.params[KEYS + 2]
    vars[_SEEN] = n
    vars[_DRAFTED] = 0
    n_known = n - 1
    if n_known < size:
        return np.int64(0)
    if vars[_LAST] + _CHUNK < n_known:
        _learn(slot, tokens, vars[_LAST], n_known - size)
        vars[_LAST] = n_known - size
    mixed = _hash_at(slot, tokens, n - size)
    top = U(vars[_TOP])
    drafted = np.int64(0)
    while drafted < n_most:
        entry = _entry(slot, mixed)
        if not _known(slot, entry):
            if drafted < slot.params[KEYS + 1]:
                return np.int64(0)
            break
        first = tokens[U(n - size + drafted)] if drafted < size else out[U(drafted - size)]
        out[U(drafted)] = table[entry]
        mixed = (mixed - U(first) * top) * _LCG + U(table[entry])
        drafted += 1
    tried = min(drafted, n_max)
    vars[_DRAFTED] = drafted if slot.params[EXACT] != 0 else tried
    return tried


@helper
def accept_mod(slot, tokens, n, n_accepted, is_other):
    """See slot_kernels."""
    vars = slot.vars
    if is_other or vars[_DRAFTED] == 0:
        return
    if 4 * n_accepted >= vars[_DRAFTED]:
        vars[_N_LOW] = 0
        return
    vars[_N_LOW] += 1
    if vars[_N_LOW] >= _LOW_MOST:
        _empty(slot, _NONE)
        vars[_N_LOW] = 0
        vars[_LAST] = 0


@helper
def grow_mod(slot, old):
    """See slot_kernels."""
    vars = slot.vars
    copy(vars, old.vars, N_VARS)
    if slot.params[EXACT] != 0:
        copy(slot.table, old.table, old.table.size)
        return
    vars[_FLOOR] = 0
    for i in range(old.table.size >> 1):
        before = U(i) << U(1)
        stamp = old.table[before + _STAMP]
        if stamp > vars[_BASE] or stamp > vars[_OLD_FROM]:
            entry = _entry(slot, U(old.words[U(i)]))
            slot.table[entry] = old.table[before]
            slot.table[entry + _STAMP] = stamp
            slot.words[entry >> U(1)] = old.words[U(i)]
