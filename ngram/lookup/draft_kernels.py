"""Kernels that learn n-grams from a token stream, draft from them, and replay a text.

Three structures, drawn in docs/ngram.md: the *context* is a trie of the n-grams of one chunk,
walked by links; the *dynamic* cache is an open-addressed table of n-grams, asked only where the
context has nothing; the *static* cache is a table of bigrams with what the static rule drafts.

The drafting rule is that of llama.cpp's ``common/ngram-cache`` (sizes 4 down to 1, lax thresholds
for the context, strict ones for the dynamic cache, candidates weighted by the static bigrams),
except that equally good candidates are settled by the lowest token id, not by hash-map order.

One file, though long: Numba's cache of a kernel does not see edits of kernels in other files.
Kernels check nothing and raise nothing: the glue sizes the arrays and checks the tokens. Indices
are unsigned, since Numba adds code for negative ones otherwise.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np
from numba import njit, types
from numba.core.types import ExternalFunction

# Followers beyond an n-gram's only one, of context or dynamic cache.
# n_used: int64 [2]             [0] nodes or n-grams in use, [1] edges in use
# index:  int32 [power of 2]    open addressing over (owner, token): edge + 1, or 0
# edges:  int32 [n * 8]         records: owner, token, count, child, next edge of the owner
Followers = namedtuple("Followers", "n_used index edges")

# nodes:   int32 [n * 8]   the chunk's n-grams, records as below; node 0 is the empty n-gram
# unigram: int32 [n_vocab] the node of a single token, 0 where there is none
Context = namedtuple("Context", "followers nodes unigram")

# slots:  int32 [power of 2 * 8]  n-grams: four tokens (-1: unused; all -1: empty slot), record
# hint:   uint64 [power of 2]     a bit for each n-gram that ever met the strict thresholds
Dynamic = namedtuple("Dynamic", "followers slots hint")

# The static cache in its packed form, see cache/packed.py. params: int64 [4], bits of a row in a
# word of slots, rows a block of base (as a shift), the id that says "none" in verdict, rows.
Bigrams = namedtuple(
    "Bigrams", "slots first rest verdict base offset next count many_entry many_count params"
)

# What a replay counts; see replay.py for the meaning. All int64.
# total:    [7]  rounds, cut rounds, drafted, accepted, replayed, draft ns, merge ns
# position: [2, draft_max]  drafted, accepted by position
# source:   [2, 3]          by source: context, dynamic, static
# size:     [2, 4]          by n-gram size 1 to 4
Tally = namedtuple("Tally", "total position source size")

_U = np.uint64
_NGRAM_MAX = 4
_COUNT_MAX = 2**31 - 1  # llama.cpp's int32; counts stay there instead of wrapping
_HASH = _U(0x9E3779B97F4A7C15)
_SUM_CAP = 1 << 40  # above it 100 * count can't reach any percentage: counts end at 2**31 - 1
_PRODUCT_CAP = 1 << 50  # above it a boosted candidate beats every count, and 100 * it still fits
_NOWHERE = _U(0xFFFFFFFFFFFFFFFF)
_MANY = 255  # a count that lies in many_count

# A record, in nodes at once and in slots after the four tokens.
BEST = _U(0)  # the most frequent follower, lowest id among equals; -1 without one
BEST_COUNT = _U(1)
SUM = _U(2)  # of all counts; -1 where it does not fit, see sum_of
MORE = _U(3)  # owner of the n-gram's edges, -1 while it has no second follower
# Of nodes only.
_CHILD = _U(4)  # the node that the best follower leads to
SUFFIX = _U(5)  # the node one token shorter, without the first
END = _U(6)  # where in the chunk the n-gram first ended
SIZE = _U(7)
# Fields of an edge.
OWNER = _U(0)
TOKEN = _U(1)
COUNT = _U(2)
_EDGE_CHILD = _U(3)
NEXT = _U(4)

# Without Numba's reference counts: the kernels allocate nothing, and two atomic operations for each
# array of each call made the replay four times slower.
_kernel = njit(cache=True, nogil=True, _nrt=False)
# Called by kernels only, and cached within them: the wrappers that Python would need are half of
# the time to compile.
_helper = njit(nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)

_clock_gettime = ExternalFunction(
    "clock_gettime", types.int32(types.int32, types.CPointer(types.int64))
)


@_helper
def clock_ns(clock_id, timespec):
    """Monotonic time in nanoseconds; ``timespec`` is int64 scratch of size 2."""
    _clock_gettime(np.int32(clock_id), timespec.ctypes)
    return timespec[0] * 1_000_000_000 + timespec[1]


@_helper
def record_at(i):
    """Where record ``i`` of eight begins."""
    return _U(i) << _U(3)


# ---------------------------------------------------------------------------------- followers


@_helper
def find_edge(followers, owner, token):
    """(edge or -1, its place in the index or where it belongs)."""
    index = followers.index
    edges = followers.edges
    mask = _U(index.size - 1)
    mixed = ((_U(owner) << _U(32)) | _U(token)) * _HASH
    place = (mixed ^ (mixed >> _U(32))) & mask
    while True:
        edge = index[place] - 1
        if edge < 0:
            return -1, place
        at = record_at(edge)
        if edges[at + OWNER] == owner and edges[at + TOKEN] == token:
            return edge, place
        place = (place + _U(1)) & mask


@_helper
def _add_edge(followers, owner, token, child):
    """A new edge of count 0; returns it. An ``owner`` of -1: it becomes the owner itself."""
    edge = followers.n_used[1]
    followers.n_used[1] += 1
    if owner < 0:
        owner = edge
    _, place = find_edge(followers, owner, token)
    followers.index[place] = edge + 1
    edges = followers.edges
    at = record_at(edge)
    edges[at + OWNER] = owner
    edges[at + TOKEN] = token
    edges[at + COUNT] = 0
    edges[at + _EDGE_CHILD] = child
    if edge == owner:
        edges[at + NEXT] = -1
    else:  # after the first, which stays the head of the list
        head = record_at(owner)
        edges[at + NEXT] = edges[head + NEXT]
        edges[head + NEXT] = edge
    return edge


@_kernel
def index_edges(followers):
    """Fill an empty index from the edges: after arrays have grown."""
    for edge in range(followers.n_used[1]):
        at = record_at(edge)
        owner = np.int64(followers.edges[at + OWNER])
        _, place = find_edge(followers, owner, followers.edges[at + TOKEN])
        followers.index[place] = edge + 1


@_helper
def sum_of(records, at, followers):
    """The sum of a record's counts, walked where it does not fit an int32 (absurd caches only)."""
    total = np.int64(records[at + SUM])
    if total < 0:
        total = np.int64(records[at + BEST_COUNT])
        edge = np.int64(records[at + MORE])
        while edge >= 0:
            e = record_at(edge)
            if followers.edges[e + TOKEN] != records[at + BEST]:
                total += followers.edges[e + COUNT]
            edge = np.int64(followers.edges[e + NEXT])
    return total


@_helper
def _widen_sum(records, at, more):
    total = np.int64(records[at + SUM])
    if total >= 0:
        total += more
        records[at + SUM] = total if total <= _COUNT_MAX else -1


@_helper
def _count_other(records, at, followers, token, more, child):
    """Count a follower that is not the best. Returns (child, whether it was there before).

    With the second follower both become edges; the count of the best one's edge is stale while it
    is the best, and is put right when another takes its place. ``child`` is -1 for records of the
    dynamic cache, which have none.
    """
    best = records[at + BEST]
    if best < 0:  # the first follower
        records[at + BEST] = token
        records[at + BEST_COUNT] = min(more, _COUNT_MAX)
        if child >= 0:
            records[at + _CHILD] = child
        _widen_sum(records, at, min(more, _COUNT_MAX))
        return child, False
    owner = np.int64(records[at + MORE])
    if owner < 0:
        owner = _add_edge(followers, np.int64(-1), best, child)
        records[at + MORE] = owner
        edge = np.int64(-1)
    else:
        edge, _ = find_edge(followers, owner, token)
    known = edge >= 0
    if not known:
        edge = _add_edge(followers, owner, token, child)
    edges = followers.edges
    e = record_at(edge)
    old = np.int64(edges[e + COUNT])
    count = min(old + more, _COUNT_MAX)
    edges[e + COUNT] = count
    _widen_sum(records, at, count - old)
    child = np.int64(edges[e + _EDGE_CHILD])
    best_count = records[at + BEST_COUNT]
    if count > best_count or (count == best_count and token < best):
        stale, _ = find_edge(followers, owner, best)
        s = record_at(stale)
        edges[s + COUNT] = best_count
        records[at + BEST] = token
        records[at + BEST_COUNT] = count
        if child >= 0:
            edges[s + _EDGE_CHILD] = records[at + _CHILD]
            records[at + _CHILD] = child
    return child, known


# ------------------------------------------------------------------------------------ context


@_helper
def new_node(context, suffix, size, end):
    node = context.followers.n_used[0]
    context.followers.n_used[0] += 1
    nodes = context.nodes
    at = record_at(node)
    nodes[at + BEST] = -1
    nodes[at + BEST_COUNT] = 0
    nodes[at + SUM] = 0
    nodes[at + MORE] = -1
    nodes[at + _CHILD] = 0
    nodes[at + SUFFIX] = suffix
    nodes[at + END] = end
    nodes[at + SIZE] = size
    return node


@_helper
def _clear_context(context, chunk):
    """Forget a chunk: it alone says which unigrams are to be emptied."""
    for i in range(chunk.size):
        context.unigram[_U(chunk[i])] = 0
    context.followers.index[:] = 0
    context.followers.n_used[0] = 0
    context.followers.n_used[1] = 0
    nothing = np.int64(0)
    new_node(context, nothing, nothing, nothing)


@_helper
def learn(context, state, token, end):
    """Append ``token`` to the chunk at ``end``: count it after the 1 to 4 tokens before it.

    state int32 [5], in and out: nodes that end the chunk, by size; 0 where the chunk is shorter.
    This is llama.cpp's update() with nnew = 1.
    """
    nodes = context.nodes
    shorter = np.int64(context.unigram[_U(token)])
    if shorter == 0:
        shorter = new_node(context, np.int64(0), np.int64(1), end)
        context.unigram[_U(token)] = shorter
    for size in range(1, _NGRAM_MAX + 1):
        node = state[_U(size)]
        state[_U(size)] = shorter
        if node == 0:
            break
        at = record_at(node)
        if nodes[at + BEST] == token:
            nodes[at + BEST_COUNT] += 1
            nodes[at + SUM] += 1
            shorter = np.int64(nodes[at + _CHILD])
            continue
        # If the edge is new, so is the n-gram that it leads to: the next free node.
        child = shorter if size == _NGRAM_MAX else context.followers.n_used[0]
        child, known = _count_other(nodes, at, context.followers, token, np.int64(1), child)
        if not known and size < _NGRAM_MAX:
            new_node(context, shorter, np.int64(size + 1), end)
        shorter = child


@_helper
def _child(context, node, token):
    """The node after ``node`` and ``token``, or 0; of a 4-gram: the next 4-gram."""
    nodes = context.nodes
    at = record_at(node)
    if nodes[at + BEST] == token:
        return np.int64(nodes[at + _CHILD])
    owner = np.int64(nodes[at + MORE])
    if owner < 0:
        return np.int64(0)
    edge, _ = find_edge(context.followers, owner, token)
    if edge < 0:
        return np.int64(0)
    return np.int64(context.followers.edges[record_at(edge) + _EDGE_CHILD])


@_helper
def follow_token(context, node, token):
    """The longest known n-gram that ends with ``token``, coming from the longest before it."""
    while node != 0:
        child = _child(context, node, token)
        if child != 0:
            return child
        node = np.int64(context.nodes[record_at(node) + SUFFIX])
    return np.int64(context.unigram[_U(token)])


# ------------------------------------------------------------------------------------ dynamic


@_helper
def mix(mixed, token):
    """The hash of an n-gram, from that without its first token; the last token comes first."""
    mixed = (mixed ^ _U(token + 2)) * _HASH
    return mixed ^ (mixed >> _U(29))


@_helper
def _hash_of(a, b, c, d):
    """The hash of the n-gram a b c d; -1: unused, from the left."""
    mixed = mix(_U(0), d)
    if c >= 0:
        mixed = mix(mixed, c)
    if b >= 0:
        mixed = mix(mixed, b)
    if a >= 0:
        mixed = mix(mixed, a)
    return mixed


@_helper
def find_ngram(slots, mixed, a, b, c, d):
    """Where the n-gram's slot begins, or the empty one where it belongs (token 0 .. -1)."""
    mask = _U((slots.size >> 3) - 1)
    slot = mixed & mask
    while True:
        at = slot << _U(3)
        if slots[at + _U(3)] == d:
            if slots[at + _U(2)] == c and slots[at + _U(1)] == b and slots[at] == a:
                return at
        elif slots[at + _U(3)] < 0:
            return at
        slot = (slot + _U(1)) & mask


@_helper
def _need_ngram(dynamic, mixed, a, b, c, d):
    """Where the n-gram's record begins, made empty where it is missing."""
    slots = dynamic.slots
    at = find_ngram(slots, mixed, a, b, c, d)
    if slots[at + _U(3)] < 0:
        dynamic.followers.n_used[0] += 1
        slots[at] = a
        slots[at + _U(1)] = b
        slots[at + _U(2)] = c
        slots[at + _U(3)] = d
        slots[at + _U(4) + BEST] = -1
        slots[at + _U(4) + BEST_COUNT] = 0
        slots[at + _U(4) + SUM] = 0
        slots[at + _U(4) + MORE] = -1
    return at + _U(4)


@_helper
def _give_hint(dynamic, mixed, at, least, percent):
    """Set the hint of a record that meets the strict thresholds, whatever the weights."""
    slots = dynamic.slots
    total = sum_of(slots, at, dynamic.followers)
    if total >= least and 100 * np.int64(slots[at + BEST_COUNT]) >= percent * min(total, _SUM_CAP):
        hint = dynamic.hint
        bit = mixed >> _U(20)
        hint[(bit >> _U(6)) & _U(hint.size - 1)] |= _U(1) << (bit & _U(63))


@_helper
def hinted(hint, mixed):
    bit = mixed >> _U(20)
    return (hint[(bit >> _U(6)) & _U(hint.size - 1)] >> (bit & _U(63))) & _U(1) != _U(0)


@_helper
def _add(dynamic, at, token, more):
    """Count a follower of a record ``more`` times."""
    slots = dynamic.slots
    if slots[at + BEST] == token:
        old = np.int64(slots[at + BEST_COUNT])
        count = min(old + more, _COUNT_MAX)
        slots[at + BEST_COUNT] = count
        _widen_sum(slots, at, count - old)
    else:
        _count_other(slots, at, dynamic.followers, token, more, np.int64(-1))


@_helper
def _ngram_record(dynamic, tokens, stop, size):
    """(record, hash) of the n-gram of ``size`` tokens before ``stop``, made where it is missing."""
    none = np.int32(-1)
    a = tokens[_U(stop - 4)] if size > 3 else none
    b = tokens[_U(stop - 3)] if size > 2 else none
    c = tokens[_U(stop - 2)] if size > 1 else none
    d = tokens[_U(stop - 1)]
    mixed = _hash_of(a, b, c, d)
    return _need_ngram(dynamic, mixed, a, b, c, d), mixed


@_kernel
def add_ngrams(dynamic, tokens, size, entry_start, entry_token, entry_count, thresholds):
    """Add counted n-grams of one size, as a cache file holds them.

    tokens int32 [n_ngrams * size], entry_start int64 [n_ngrams + 1], entry_token int32 and
    entry_count uint32 [n_entries]: in.
    """
    for row in range(entry_start.size - 1):
        at, mixed = _ngram_record(dynamic, tokens, (row + 1) * size, size)
        for entry in range(entry_start[row], entry_start[row + 1]):
            _add(dynamic, at, entry_token[entry], np.int64(entry_count[entry]))
        _give_hint(dynamic, mixed, at, thresholds[2, size], thresholds[3, size])


@_helper
def _merge(dynamic, context, chunk, thresholds):
    """Add the counts of a finished chunk."""
    nodes = context.nodes
    edges = context.followers.edges
    for node in range(1, context.followers.n_used[0]):
        n = record_at(node)
        best = nodes[n + BEST]
        if best < 0:
            continue
        size = np.int64(nodes[n + SIZE])
        at, mixed = _ngram_record(dynamic, chunk, np.int64(nodes[n + END]) + 1, size)
        _add(dynamic, at, best, np.int64(nodes[n + BEST_COUNT]))
        edge = np.int64(nodes[n + MORE])
        while edge >= 0:
            e = record_at(edge)
            if edges[e + TOKEN] != best:
                _add(dynamic, at, edges[e + TOKEN], np.int64(edges[e + COUNT]))
            edge = np.int64(edges[e + NEXT])
        _give_hint(dynamic, mixed, at, thresholds[2, size], thresholds[3, size])


@_kernel
def index_dynamic(grown, slots, thresholds):
    """Move all n-grams of ``slots`` into the larger, empty table of ``grown``."""
    for slot in range(slots.size >> 3):
        old = record_at(slot)
        d = slots[old + _U(3)]
        if d < 0:
            continue
        a = slots[old]
        b = slots[old + _U(1)]
        c = slots[old + _U(2)]
        size = 4 if a >= 0 else 3 if b >= 0 else 2 if c >= 0 else 1
        mixed = _hash_of(a, b, c, d)
        at = find_ngram(grown.slots, mixed, a, b, c, d)
        for i in range(8):
            grown.slots[at + _U(i)] = slots[old + _U(i)]
        _give_hint(grown, mixed, at + _U(4), thresholds[2, size], thresholds[3, size])


# ------------------------------------------------------------------------------------- static


@_helper
def find_row(bigrams, first, second):
    """The row of the bigram, or -1.

    A crafted index leads to wrong rows at most: it is followed for as many steps as it has places,
    and a row counts only where ``first`` and ``rest`` say that it is the bigram's.
    """
    slots = bigrams.slots
    n_slots = _U(slots.size)
    bits = _U(bigrams.params[0])
    mixed = ((_U(first) << _U(32)) | _U(second)) * _HASH
    place = ((mixed >> _U(32)) * n_slots) >> _U(32)
    tag = mixed & ((_U(1) << (_U(32) - bits)) - _U(1))
    mask = (_U(1) << bits) - _U(1)
    steps = n_slots
    while steps > _U(0):
        word = _U(slots[place])
        if word == _U(0):
            return np.int64(-1)
        if word >> bits == tag:
            row = np.int64(word & mask) - 1
            if (
                row >= np.int64(bigrams.first[_U(first)])
                and row < np.int64(bigrams.first[_U(first) + _U(1)])
                and bigrams.rest[_U(row)] == second
            ):
                return row
        place += _U(1)
        if place == n_slots:
            place = _U(0)
        steps -= _U(1)
    return np.int64(-1)


@_helper
def row_start(bigrams, row):
    """Where the followers of a row begin, and those of the row before it end."""
    block = _U(row) >> _U(bigrams.params[1])
    return np.int64(bigrams.base[block]) + np.int64(bigrams.offset[_U(row)])


@_helper
def _find_sorted(ids, low, stop, wanted):
    """Where ``wanted`` stands in ids[low:stop], ascending, or -1."""
    high = stop
    while low < high:
        middle = (low + high) >> 1
        if ids[_U(middle)] < wanted:
            low = middle + 1
        else:
            high = middle
    if low < stop and ids[_U(low)] == wanted:
        return low
    return np.int64(-1)


@_helper
def static_count(bigrams, row, token):
    """How often the token follows the bigram; 0 if never."""
    stop = min(row_start(bigrams, row + 1), np.int64(bigrams.next.size))
    entry = _find_sorted(bigrams.next, row_start(bigrams, row), stop, token)
    if entry < 0:
        return np.int64(0)
    count = np.int64(bigrams.count[_U(entry)])
    if count == _MANY:
        at = _find_sorted(bigrams.many_entry, np.int64(0), np.int64(bigrams.many_entry.size), entry)
        if at >= 0:
            count = np.int64(bigrams.many_count[_U(at)])
    return count


# ------------------------------------------------------------------------------------- drafts


@_helper
def _weighted_best(records, at, followers, bigrams, row):
    """(token, count) of the best follower by count, times 100 x static count where there is one.

    Boosted and plain candidates are held apart, so that no product can overflow.
    """
    product = np.int64(0)
    boosted = np.int32(-1)
    boosted_count = np.int64(0)
    plain_count = np.int64(0)
    plain = np.int32(-1)
    best = records[at + BEST]
    edge = np.int64(records[at + MORE])
    while edge >= 0:
        e = record_at(edge)
        token = followers.edges[e + TOKEN]
        count = np.int64(followers.edges[e + COUNT])
        if token == best:  # its edge is stale
            count = np.int64(records[at + BEST_COUNT])
        static = static_count(bigrams, row, token)
        if static > 0:
            score = count * static
            if score > product or (score == product and token < boosted):
                product = score
                boosted = token
                boosted_count = count
        elif count > plain_count or (count == plain_count and token < plain):
            plain_count = count
            plain = token
        edge = np.int64(followers.edges[e + NEXT])
    score = 100 * min(product, _PRODUCT_CAP)
    if boosted >= 0 and (
        plain < 0 or score > plain_count or (score == plain_count and boosted < plain)
    ):
        return boosted, boosted_count
    return plain, plain_count


@_helper
def _try(records, at, followers, least, percent, bigrams, first, second):
    """The token that a record drafts under the thresholds, or -1; first, second end the text."""
    total = sum_of(records, at, followers)
    if total < least:
        return np.int32(-1)
    needed = percent * min(total, _SUM_CAP)
    # No follower counts more than the best, whatever the weights: an early no.
    if 100 * np.int64(records[at + BEST_COUNT]) < needed:
        return np.int32(-1)
    best = records[at + BEST]
    if records[at + MORE] < 0:
        return best
    row = find_row(bigrams, first, second)
    # Where the static cache would draft the best one too, no other's product can exceed its own.
    if row < 0 or bigrams.verdict[_U(row)] == best:
        return best
    token, count = _weighted_best(records, at, followers, bigrams, row)
    if 100 * count < needed:
        return np.int32(-1)
    return token


@_helper
def _try_dynamic(dynamic, bigrams, a, b, c, d, thresholds, origin):
    """A token from the dynamic cache, or -1; the n-gram a b c d ends the text (-1: unused)."""
    hint = dynamic.hint
    one = mix(_U(0), d)
    two = mix(one, c)
    three = mix(two, b)
    four = mix(three, a)
    none = np.int32(-1)
    # The four bits are read before any is used, so that their cache misses overlap.
    in_four = hinted(hint, four) and a >= 0
    in_three = hinted(hint, three) and b >= 0
    in_two = hinted(hint, two)
    in_one = hinted(hint, one)
    token = none
    size = np.int64(_NGRAM_MAX)
    while size > 0 and token < 0:
        at = _NOWHERE
        if size == 4 and in_four:
            at = find_ngram(dynamic.slots, four, a, b, c, d)
        elif size == 3 and in_three:
            at = find_ngram(dynamic.slots, three, none, b, c, d)
        elif size == 2 and in_two:
            at = find_ngram(dynamic.slots, two, none, none, c, d)
        elif size == 1 and in_one:
            at = find_ngram(dynamic.slots, one, none, none, none, d)
        if at != _NOWHERE and dynamic.slots[at + _U(3)] >= 0:
            token = _try(
                dynamic.slots,
                at + _U(4),
                dynamic.followers,
                thresholds[2, size],
                thresholds[3, size],
                bigrams,
                c,
                d,
            )
        size -= 1
    origin[0] = 1
    origin[1] = size + 1
    return token


@_helper
def _try_context(context, node, bigrams, c, d, thresholds, origin):
    """A token from the n-grams that end the text, the longest being ``node``, or -1."""
    nodes = context.nodes
    while node != 0:
        at = record_at(node)
        size = nodes[at + SIZE]
        token = _try(
            nodes,
            at,
            context.followers,
            thresholds[0, _U(size)],
            thresholds[1, _U(size)],
            bigrams,
            c,
            d,
        )
        if token >= 0:
            origin[0] = 0
            origin[1] = size
            return token
        node = np.int64(nodes[at + SUFFIX])
    return np.int32(-1)


@_kernel
def draft_tokens(context, node, dynamic, bigrams, tokens, thresholds, draft, origin):
    """Draft up to ``draft.size`` tokens after a text; returns how many.

    node: the longest context n-gram that ends the text, 0 without one; tokens int32 [n]: the text,
    of which the last four matter; thresholds int64 [4, 5]: rows lax sample, lax percent, strict
    sample, strict percent; draft int32 [draft_max], origin int64 [draft_max, 2] (source 0 context,
    1 dynamic, 2 static; n-gram size): out.
    """
    length = tokens.size
    n_drafted = 0
    if length < 2:
        return n_drafted
    a = tokens[_U(length - 4)] if length > 3 else np.int32(-1)
    b = tokens[_U(length - 3)] if length > 2 else np.int32(-1)
    c = tokens[_U(length - 2)]
    d = tokens[_U(length - 1)]
    while n_drafted < draft.size:
        from_where = origin[n_drafted]
        token = _try_context(context, node, bigrams, c, d, thresholds, from_where)
        if token < 0:
            token = _try_dynamic(dynamic, bigrams, a, b, c, d, thresholds, from_where)
        if token < 0:
            row = find_row(bigrams, c, d)
            if row < 0 or bigrams.verdict[_U(row)] == bigrams.params[2]:
                break
            token = np.int32(bigrams.verdict[_U(row)])
            from_where[0] = 2
            from_where[1] = 2
        draft[_U(n_drafted)] = token
        n_drafted += 1
        if n_drafted < draft.size:
            node = follow_token(context, node, token)
        a = b
        b = c
        c = d
        d = token
    return n_drafted


@_helper
def longest(state):
    """The longest n-gram that ends the chunk."""
    size = _NGRAM_MAX
    while size > 0 and state[_U(size)] == 0:
        size -= 1
    return np.int64(state[_U(size)])


@_helper
def _replay_chunk(chunk, context, dynamic, bigrams, thresholds, draft, origin, state, tally):
    """Replay one chunk: draft, compare, accept, then take the true next token. See replay.py."""
    position = tally.position
    source = tally.source
    sizes = tally.size
    state[:] = 0
    at = np.int64(0)
    rounds = -1  # the first turn only takes the seed: no pass of the model
    drafted = 0
    accepted = 0
    while at < chunk.size:
        n_drafted = draft_tokens(
            context, longest(state), dynamic, bigrams, chunk[:at], thresholds, draft, origin
        )
        room = chunk.size - at
        n_accepted = 0
        while n_accepted < min(n_drafted, room) and draft[n_accepted] == chunk[at + n_accepted]:
            position[1, n_accepted] += 1
            source[1, origin[n_accepted, 0]] += 1
            sizes[1, origin[n_accepted, 1] - 1] += 1
            n_accepted += 1
        for i in range(n_drafted):
            position[0, i] += 1
            source[0, origin[i, 0]] += 1
            sizes[0, origin[i, 1] - 1] += 1
        drafted += n_drafted
        accepted += n_accepted
        if n_accepted < room:
            rounds += 1
        else:
            tally.total[1] += 1
        for _ in range(min(n_accepted + 1, room)):
            learn(context, state, chunk[at], at)
            at += 1
    tally.total[0] += rounds
    tally.total[2] += drafted
    tally.total[3] += accepted
    tally.total[4] += chunk.size


@_kernel
def replay_chunks(
    tokens,
    n_ctx,
    context,
    dynamic,
    bigrams,
    thresholds,
    draft,
    origin,
    state,
    tally,
    clock_id,
    timespec,
):
    """Replay whole chunks of ``n_ctx`` tokens, merging each into the dynamic cache.

    tokens int32 [n_chunks * n_ctx]; context: empty, in and out; state int32 [5] and timespec int64
    [2]: scratch; clock_id: the platform's CLOCK_MONOTONIC. tally.total[5] gets the time of drafting
    and context updates, total[6] that of merging: the clock is read inside, for a call a chunk from
    Python would cost as much as a chunk.
    """
    for start in range(0, tokens.size, n_ctx):
        chunk = tokens[start : start + n_ctx]
        begin = clock_ns(clock_id, timespec)
        _replay_chunk(chunk, context, dynamic, bigrams, thresholds, draft, origin, state, tally)
        middle = clock_ns(clock_id, timespec)
        _merge(dynamic, context, chunk, thresholds)
        _clear_context(context, chunk)
        tally.total[5] += middle - begin
        tally.total[6] += clock_ns(clock_id, timespec) - middle
