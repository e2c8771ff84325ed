"""A suffix automaton that grows token by token: where and how often the end of a text stood before.

The automaton is that of Blumer et al. (1985), built online: a *state* stands for all strings that
end at the same places, its *link* leads to the longest suffix of theirs that ends at more places.
Beside it stand, where ``counting``, how often each transition was taken after each string of up to
``depth`` tokens, and which of a state's transitions was taken most (the lowest token among equals).

A state's favourite transition lies in the state; the others are edges after an open-addressed
index over (state, token). Most states have one transition, so most steps read one cache line.

More than one text may go in: a text that shares its beginning with the one before goes on from
there, see ``seek``. A token costs amortised constant time, and one visit of each of the states
that end the text with up to ``depth`` tokens. Nothing here allocates: see ``automaton_sizes``.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from .slot_kernels import U, copy, helper, view

BUILT_ON = {"ngram.drafters.slot_kernels": "a574593d"}

# numbers: int64 [9 or more]  see below
# states:  int32 [n * 8]       records; state 0 is the empty string
# edges:   int32 [n * 8]       records: owner, token, target, count, next edge of the owner
# index:   int32 [power of 2]  open addressing over (owner, token): edge + 1, or 0
Automaton = namedtuple("Automaton", "numbers states edges index")

# Places in numbers. All 0: nothing is there, not even the empty string; see `clear`.
N_STATES = 0
N_EDGES = 1
N_INDEX = 2  # entries of index in use, a power of 2
LAST = 3  # the state of the whole text
DEEP = 4  # the state of its last ``depth`` tokens
N_TEXT = 5  # how many tokens of the text went in; the caller's
DEPTH = 6
COUNTING = 7  # 1: transitions are counted
IS_FULL = 8  # 1: an array was too small, what was added last is not whole
N_NUMBERS = 9

_HASH = U(0x9E3779B97F4A7C15)
_LEAST_INDEX = 64

# Fields of a state.
LENGTH = U(0)  # of its longest string
LINK = U(1)
BEST = U(2)  # the favourite token, -1 without any
TARGET = U(3)
COUNT = U(4)  # how often the favourite followed
FOLLOWED = U(5)  # how often anything did
MORE = U(6)  # the latest of its edges, or -1; the favourite may have a stale one there
FIRST = U(7)  # where the first of its places ends: the number of tokens up to there
# Fields of an edge.
_OWNER = U(0)
_TOKEN = U(1)
_TO = U(2)
_TIMES = U(3)
_NEXT = U(4)


def automaton_sizes(n_tokens):
    """(index, states and edges): int32 elements of the arrays for ``n_tokens`` of one text.

    A token makes at most two states. A text of n tokens has fewer than n transitions beyond one a
    state (Blumer et al.), and each state may have one stale edge. Texts that share beginnings may
    need more: see IS_FULL.
    """
    n = max(int(n_tokens), 1)
    size = _LEAST_INDEX
    while size < 3 * n:
        size *= 2
    return size, 2 * 8 * (2 * n + 2)


@view
def automaton_of(slot):
    """The automaton in a drafter's slot: two halves of nodes, the index in table."""
    half = slot.nodes.size >> 1
    return Automaton(slot.vars, slot.nodes[:half], slot.nodes[half:], slot.table)


@helper
def grow_automaton(a, old):
    """Take over all of ``old``, which is smaller."""
    copy(a.numbers, old.numbers, N_NUMBERS)
    copy(a.states, old.states, 8 * old.numbers[N_STATES])
    copy(a.edges, old.edges, 8 * old.numbers[N_EDGES])
    copy(a.index, old.index, old.numbers[N_INDEX])


@helper
def at(i):
    """Where record ``i`` begins."""
    return U(i) << U(3)


@helper
def clear(a, depth, counting):
    """Forget everything; takes no time, whatever the size of the arrays."""
    numbers = a.numbers
    numbers[N_STATES] = 0
    numbers[N_EDGES] = 0
    numbers[N_INDEX] = _LEAST_INDEX
    numbers[LAST] = 0
    numbers[DEEP] = 0
    numbers[N_TEXT] = 0
    numbers[DEPTH] = depth
    numbers[COUNTING] = counting
    numbers[IS_FULL] = 0
    a.index[:_LEAST_INDEX] = 0
    _new_state(a, 0)


@helper
def _new_state(a, length):
    state = a.numbers[N_STATES]
    a.numbers[N_STATES] += 1
    states = a.states
    s = at(state)
    states[s + LENGTH] = length
    states[s + LINK] = -1
    states[s + BEST] = -1
    states[s + TARGET] = -1
    states[s + COUNT] = 0
    states[s + FOLLOWED] = 0
    states[s + MORE] = -1
    states[s + FIRST] = length
    return state


# -------------------------------------------------------------------------------------- edges


@helper
def _find_edge(a, owner, token):
    """(edge or -1, its place in the index or where it belongs)."""
    index = a.index
    edges = a.edges
    mask = U(a.numbers[N_INDEX] - 1)
    mixed = ((U(owner) << U(32)) | U(token)) * _HASH
    place = (mixed ^ (mixed >> U(32))) & mask
    while True:
        edge = np.int64(index[place]) - 1
        if edge < 0:
            return edge, place
        e = at(edge)
        if edges[e + _OWNER] == owner and edges[e + _TOKEN] == token:
            return edge, place
        place = (place + U(1)) & mask


@helper
def _widen_index(a):
    """Twice as many entries: a short text stays within few cache lines."""
    numbers = a.numbers
    numbers[N_INDEX] *= 2
    a.index[: numbers[N_INDEX]] = 0
    for edge in range(numbers[N_EDGES]):
        e = at(edge)
        _, place = _find_edge(a, np.int64(a.edges[e + _OWNER]), a.edges[e + _TOKEN])
        a.index[place] = edge + 1


@helper
def _add_edge(a, owner, token, target, count):
    """A new edge, first in its owner's list; none where there is no room."""
    numbers = a.numbers
    edge = numbers[N_EDGES]
    if at(edge) >= U(a.edges.size):
        numbers[IS_FULL] = 1
        return
    if 2 * edge >= numbers[N_INDEX] and 2 * numbers[N_INDEX] <= a.index.size:
        _widen_index(a)
    numbers[N_EDGES] += 1
    _, place = _find_edge(a, owner, token)
    a.index[place] = edge + 1
    edges = a.edges
    e = at(edge)
    more = at(owner) + MORE
    edges[e + _OWNER] = owner
    edges[e + _TOKEN] = token
    edges[e + _TO] = target
    edges[e + _TIMES] = count
    edges[e + _NEXT] = a.states[more]
    a.states[more] = edge


@helper
def _edge_of(a, state, token):
    """The edge of a transition that is not the state's favourite, or -1."""
    if a.states[at(state) + MORE] < 0:
        return np.int64(-1)
    edge, _ = _find_edge(a, state, token)
    return edge


@helper
def step(a, state, token):
    """The state after ``token``, or -1."""
    s = at(state)
    if a.states[s + BEST] == token:
        return np.int64(a.states[s + TARGET])
    edge = _edge_of(a, state, token)
    if edge < 0:
        return edge
    return np.int64(a.edges[at(edge) + _TO])


@helper
def _prefer(a, state, edge):
    """Make an edge's transition the favourite. Its edge stays, stale until they change again."""
    states = a.states
    s = at(state)
    e = at(edge)
    token = states[s + BEST]
    target = states[s + TARGET]
    count = states[s + COUNT]
    states[s + BEST] = a.edges[e + _TOKEN]
    states[s + TARGET] = a.edges[e + _TO]
    states[s + COUNT] = a.edges[e + _TIMES]
    stale, _ = _find_edge(a, state, token)
    if stale < 0:
        _add_edge(a, state, token, target, count)
    else:
        a.edges[at(stale) + _TO] = target
        a.edges[at(stale) + _TIMES] = count


# ------------------------------------------------------------------------------------- growing


@helper
def _count(a, state, token):
    """Count a transition once more after each suffix of up to ``depth`` tokens, from ``state``."""
    states = a.states
    deep = a.numbers[DEEP]
    if states[at(state) + LENGTH] > states[at(deep) + LENGTH]:
        state = deep
    while state > 0:
        s = at(state)
        states[s + FOLLOWED] += 1
        if states[s + BEST] == token:
            states[s + COUNT] += 1
        else:
            edge = _edge_of(a, state, token)
            if edge >= 0:
                e = at(edge)
                times = a.edges[e + _TIMES] + 1
                a.edges[e + _TIMES] = times
                best = states[s + COUNT]
                if times > best or (times == best and token < states[s + BEST]):
                    _prefer(a, state, edge)
        state = np.int64(states[s + LINK])


@helper
def _add_transitions(a, state, token, target):
    """Let ``state`` and its suffixes lead to ``target``, up to the first that has the token.

    Returns the latter, or -1.
    """
    states = a.states
    while state >= 0:
        s = at(state)
        best = states[s + BEST]
        if best == token:
            return state
        if best < 0:
            states[s + BEST] = token
            states[s + TARGET] = target
            states[s + COUNT] = 1
        else:
            if _edge_of(a, state, token) >= 0:
                return state
            edge = a.numbers[N_EDGES]
            _add_edge(a, state, token, target, 1)
            if a.numbers[IS_FULL] != 0:
                return np.int64(-1)
            if states[s + COUNT] == 1 and token < best and a.numbers[COUNTING] != 0:
                _prefer(a, state, edge)
        states[s + FOLLOWED] += 1
        state = np.int64(states[s + LINK])
    return state


@helper
def _split(a, state, token, target):
    """The state of the longest string of ``state`` with ``token`` after it, made from ``target``.

    Its other strings are longer and end at fewer places from now on.
    """
    states = a.states
    length = states[at(state) + LENGTH] + 1
    t = at(target)
    if states[t + LENGTH] == length:
        return target
    upper = _new_state(a, length)
    u = at(upper)
    for field in range(1, 6):
        states[u + U(field)] = states[t + U(field)]
    states[u + FIRST] = states[t + FIRST]
    edge = np.int64(states[t + MORE])
    while edge >= 0:
        e = at(edge)
        _add_edge(a, upper, a.edges[e + _TOKEN], a.edges[e + _TO], a.edges[e + _TIMES])
        edge = np.int64(a.edges[e + _NEXT])
    states[t + LINK] = upper
    while state >= 0:
        s = at(state)
        if states[s + BEST] == token:
            if states[s + TARGET] != target:
                break
            states[s + TARGET] = upper
        else:
            edge = _edge_of(a, state, token)
            if edge < 0 or a.edges[at(edge) + _TO] != target:
                break
            a.edges[at(edge) + _TO] = upper
        state = np.int64(states[s + LINK])
    return upper


@helper
def append(a, token):
    """Let the text go on by a token. Where an array is too small, IS_FULL says so."""
    numbers = a.numbers
    states = a.states
    last = numbers[LAST]
    if at(numbers[N_STATES] + 2) > U(states.size):
        numbers[IS_FULL] = 1
        return
    known = step(a, last, token)
    if known >= 0:  # a text that goes over known ground
        _count(a, last, token)
        numbers[LAST] = _split(a, last, token, known)
    else:
        new = _new_state(a, states[at(last) + LENGTH] + 1)
        state = _add_transitions(a, last, token, new)
        link = np.int64(0)
        if state >= 0:
            if numbers[COUNTING] != 0:
                _count(a, state, token)
            link = _split(a, state, token, step(a, state, token))
        states[at(new) + LINK] = link
        numbers[LAST] = new
    # The last depth + 1 tokens lie behind the last depth ones; one token less is one link at most.
    deep = max(step(a, numbers[DEEP], token), np.int64(0))
    link = np.int64(states[at(deep) + LINK])
    if link >= 0 and states[at(link) + LENGTH] >= numbers[DEPTH]:
        deep = link
    numbers[DEEP] = deep


@helper
def seek(a, tokens, n):
    """Stand at the end of tokens[:n], known ground, for a text that goes on otherwise from here.

    Only its last ``depth`` tokens matter: strings are counted to that length.
    """
    state = np.int64(0)
    for i in range(max(n - a.numbers[DEPTH], 0), n):
        after = step(a, state, tokens[U(i)])
        while after < 0 and state > 0:  # something was forgotten
            state = np.int64(a.states[at(state) + LINK])
            after = step(a, state, tokens[U(i)])
        state = max(after, np.int64(0))
    a.numbers[LAST] = state
    a.numbers[DEEP] = state
