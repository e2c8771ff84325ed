"""The suffix drafter: what most often followed the text's last tokens, for as long as it is likely.

After suffix decoding (Oliaro et al., 2024, arXiv:2411.04975), as Arctic Inference's
csrc/suffix_decoding/suffix_tree.cc (commit 0a11e6ad) has it for one text, and vLLM with it: every
suffix of the text that stood before is a *match*, of m tokens. From each match the most frequent
next token is taken again and again, while the path's share of all the match's occurrences is at
least ``min-token-prob``, for up to ``max-spec-factor`` times m tokens, match and draft together no
longer than ``max-tree-depth``. The draft is that of the match with the highest score, the sum of
those shares. The text's end counts among the match's occurrences, so that one that was seen once
scores half. Of equal scores that of the longer match wins; of equally frequent tokens the lowest,
where theirs is the first in a hash map. Scores are whole numbers over one denominator each, and
compared exactly (in texts of up to 2**26 tokens).

Earlier texts, where they are carried, count in the same automaton; theirs are two trees, of the
text and of earlier answers. A text that shares its beginning with the one before it is counted
from where they part. Where the arrays are full, the older half of the text and all others are
forgotten.
"""

from __future__ import annotations

import numpy as np

from .automaton_kernels import (
    BEST,
    COUNT,
    DEEP,
    DEPTH,
    FOLLOWED,
    IS_FULL,
    LENGTH,
    LINK,
    N_INDEX,
    N_NUMBERS,
    N_TEXT,
    TARGET,
    append,
    at,
    automaton_of,
    automaton_sizes,
    clear,
    grow_automaton,
    seek,
)
from .slot_kernels import KEYS, MILLION, N_VARS, U, copy, helper

BUILT_ON = {
    "ngram.drafters.automaton_kernels": "3eb18efa",
    "ngram.drafters.slot_kernels": "a574593d",
}

# Places in params: the kind's keys.
_DEPTH = KEYS
_FACTOR = KEYS + 1  # in millionths
_LEAST_SHARE = KEYS + 2  # in millionths
_DRAFT_MAX = KEYS + 3
# Places in vars, after the automaton's.
_PEAK = N_NUMBERS  # the match length that allows the longest draft
_HAS_OTHERS = N_NUMBERS + 1  # 1: the automaton holds more than the present text
_FORGETS = N_NUMBERS + 2  # 1: only what is of the present text may stay


def suffix_sizes(n_tokens):
    """(table, nodes): elements of a slot's arrays for ``n_tokens`` of all texts together."""
    return automaton_sizes(n_tokens)


@helper
def forget_suffix(slot):
    slot.vars[_FORGETS] = 1


@helper
def begin_suffix(slot, tokens, n, same):
    a = automaton_of(slot)
    known = min(same, a.numbers[N_TEXT])
    if a.numbers[N_INDEX] == 0 or (
        slot.vars[_FORGETS] != 0 and (slot.vars[_HAS_OTHERS] != 0 or known < a.numbers[N_TEXT])
    ):
        _start(slot, a)
    elif known < a.numbers[N_TEXT]:
        seek(a, tokens, known)
        a.numbers[N_TEXT] = known
        slot.vars[_HAS_OTHERS] = 1
    slot.vars[_FORGETS] = 0
    _learn(slot, a, tokens, n)


@helper
def _start(slot, a):
    depth = slot.params[_DEPTH]
    clear(a, depth, 1)
    slot.vars[_HAS_OTHERS] = 0
    peak = np.int64(1)
    for match in range(2, depth):
        if _longest(slot, depth, match) >= _longest(slot, depth, peak):
            peak = np.int64(match)
    slot.vars[_PEAK] = peak


@helper
def _longest(slot, depth, match):
    """How long a draft after a match of that length may be."""
    # The millionth is theirs, against what floating point takes away.
    return min((match * slot.params[_FACTOR] + 1) // MILLION, depth - match)


@helper
def _learn(slot, a, tokens, n):
    """Count what came since."""
    numbers = a.numbers
    i = numbers[N_TEXT]
    while i < n:
        append(a, tokens[U(i)])
        i += 1
        if numbers[IS_FULL] != 0:  # begin anew with half of the text that there is room for
            clear(a, numbers[DEPTH], 1)
            slot.vars[_HAS_OTHERS] = 0
            i = max(i - (a.states.size >> 5), 0)  # a state is 8, a token makes 2 at most
    numbers[N_TEXT] = n


@helper
def draft_suffix(slot, tokens, n, n_max, out):
    a = automaton_of(slot)
    _learn(slot, a, tokens, n)
    states = a.states
    depth = slot.params[_DEPTH]
    n_max = min(n_max, slot.params[_DRAFT_MAX])
    chosen = np.int64(0)
    chosen_size = np.int64(0)
    score = np.int64(0)
    whole = np.int64(1)
    state = a.numbers[DEEP]
    while state > 0:  # from the longest match to the shortest
        s = at(state)
        link = np.int64(states[s + LINK])
        shortest = np.int64(states[at(link) + LENGTH]) + 1
        if shortest < depth and states[s + BEST] >= 0:
            match = min(max(slot.vars[_PEAK], shortest), np.int64(states[s + LENGTH]))
            size = min(_longest(slot, depth, match), n_max)
            occurrences = np.int64(states[s + FOLLOWED]) + 1  # this one, too
            # No token of a path is more frequent than its first.
            if size * np.int64(states[s + COUNT]) * whole > score * occurrences:
                size, own = _follow(slot, states, state, size, occurrences)
                if own * whole > score * occurrences:
                    chosen = state
                    chosen_size = size
                    score = own
                    whole = occurrences
        state = link
    for i in range(chosen_size):
        s = at(chosen)
        out[U(i)] = states[s + BEST]
        chosen = np.int64(states[s + TARGET])
    return chosen_size


@helper
def _follow(slot, states, state, size, occurrences):
    """(length of the path from a match, sum of its tokens' counts); up to ``size`` tokens."""
    needed = slot.params[_LEAST_SHARE] * occurrences
    total = np.int64(0)
    for i in range(size):
        s = at(state)
        count = np.int64(states[s + COUNT])
        if states[s + BEST] < 0 or count * MILLION < needed:
            return i, total
        total += count
        state = np.int64(states[s + TARGET])
    return size, total


@helper
def accept_suffix(slot, tokens, n, n_accepted, is_other):
    """Nothing: the text tells."""


@helper
def grow_suffix(slot, old):
    copy(slot.vars, old.vars, N_VARS)
    grow_automaton(automaton_of(slot), automaton_of(old))
