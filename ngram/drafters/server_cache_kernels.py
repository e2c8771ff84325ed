"""ngram-cache as llama-server has it, and repaired: the structures of draft_kernels, in a slot.

The repaired form learns every n-gram of the text once, the sampled token included, and drafts by
draft_kernels' rule. llama.cpp's own (build 11434, common/speculative.cpp, common/ngram-cache.cpp)
learns at each draft what came since the last one, as if it were a text of its own: n-grams across
two rounds are never counted. Nothing begins anew with a request: the counts of older ones stay, and
of a prompt only what lies after the length of the older text is learnt.

Equally good tokens: repaired, the lowest id; llama.cpp's own, the first that libstdc++'s
unordered_map comes upon (the last to arrive of the first bucket, where its buckets come in the
opposite order of their first arrivals), which takes the order in which followers were learnt: that
of their edges. Static and dynamic caches are read as from files with ascending ids.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from ..lookup.draft_kernels import (
    BEST,
    BEST_COUNT,
    COUNT,
    END,
    MORE,
    NEXT,
    SIZE,
    SUFFIX,
    TOKEN,
    Context,
    Followers,
    draft_tokens,
    find_edge,
    find_ngram,
    find_row,
    follow_token,
    hinted,
    learn,
    longest,
    mix,
    new_node,
    record_at,
    row_start,
    static_count,
    sum_of,
)
from .slot_kernels import EXACT, KEYS, N_VARS, PARTS, U, copy, helper, view

BUILT_ON = {"ngram.drafters.slot_kernels": "a574593d", "ngram.lookup.draft_kernels": "84291cfc"}

# What ngram-cache reads besides the text; never changed, shared by all slots.
# dynamic, bigrams: of draft_kernels; thresholds: int64 [4, 5]; origin: int64 [draft-max, 2], out
Caches = namedtuple("Caches", "dynamic bigrams thresholds origin")

# Places in vars.
_SEEN = 0  # tokens of the text at the last call
_LEARNT = 1  # llama.cpp's cache_size
_N_USED = 30  # and 31: of the context's followers

# table: the index of edges; then the unigrams. nodes: the state of draft_kernels.learn; nodes;
# edges; scratch of llama.cpp's own form. params[PARTS:]: elements of index, of nodes, of edges.
STATE = 16
_CONTEXT_SIZES = 5
_TAIL = 8  # in the state's part: the last four tokens, -1 where there are fewer
_BUCKETS = np.array(
    [13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933, 351061,
     712697, 1447153, 2938679, 5967347, 12117689], np.int64,
)  # fmt: skip


@view
def _context(slot):
    """The context that lies in a slot."""
    n_index = slot.params[PARTS]
    n_nodes = STATE + slot.params[PARTS + 1]
    n_edges = n_nodes + slot.params[PARTS + 2]
    followers = Followers(
        slot.vars[_N_USED : _N_USED + 2], slot.table[:n_index], slot.nodes[n_nodes:n_edges]
    )
    return Context(followers, slot.nodes[STATE:n_nodes], slot.table[n_index:])


@view
def _scratch(slot):
    return slot.nodes[STATE + slot.params[PARTS + 1] + slot.params[PARTS + 2] :]


@helper
def _clear(context, state):
    """Forget everything; in time that depends on what was learnt."""
    followers = context.followers
    index = followers.index
    edges = followers.edges
    n_edges = followers.n_used[1]
    if 4 * n_edges > index.size:
        index[:] = 0
    else:  # the last to come is never in the way of an earlier one
        for edge in range(n_edges - 1, -1, -1):
            at = record_at(edge)
            _, place = find_edge(followers, np.int64(edges[at]), edges[at + TOKEN])
            index[place] = 0
    for node in range(1, followers.n_used[0]):
        at = record_at(node)
        if context.nodes[at + SIZE] == 1:
            context.unigram[U(context.nodes[at + END])] = 0
    followers.n_used[0] = 0
    followers.n_used[1] = 0
    state[:] = 0
    nothing = np.int64(0)
    new_node(context, nothing, nothing, nothing)


@helper
def _learn_to(slot, context, tokens, n):
    """Learn what the text has gained."""
    state = slot.nodes[:_CONTEXT_SIZES]
    if context.followers.n_used[0] == 0:
        _clear(context, state)
    if slot.params[EXACT] != 0:
        state[:] = 0
    for at in range(slot.vars[_LEARNT], n):
        # A node remembers the token that it was first seen with, not a place: texts change.
        learn(context, state, tokens[U(at)], np.int64(tokens[U(at)]))
    slot.vars[_LEARNT] = max(slot.vars[_LEARNT], n)


@helper
def forget_cache(slot):
    """See slot_kernels; the repaired form knows nothing but the text."""
    if slot.params[EXACT] != 0:
        _clear(_context(slot), slot.nodes[:_CONTEXT_SIZES])
        slot.vars[_LEARNT] = 0


@helper
def begin_cache(slot, tokens, n, same):
    """See slot_kernels."""
    if slot.params[EXACT] == 0 and same < slot.vars[_SEEN]:
        _clear(_context(slot), slot.nodes[:_CONTEXT_SIZES])
        slot.vars[_LEARNT] = 0
    slot.vars[_SEEN] = n


@helper
def draft_cache(slot, tokens, n, n_max, out, caches):
    """See slot_kernels; caches: a ``Caches``."""
    slot.vars[_SEEN] = n
    most = slot.params[KEYS]
    context = _context(slot)
    _learn_to(slot, context, tokens, n)
    if slot.params[EXACT] != 0:
        return _draft_exact(slot, context, tokens, n, min(most, n_max), out, caches)
    return draft_tokens(
        context,
        longest(slot.nodes[:_CONTEXT_SIZES]),
        caches.dynamic,
        caches.bigrams,
        tokens[:n],
        caches.thresholds,
        out[: min(most, n_max)],
        caches.origin,
    )


@helper
def accept_cache(slot, tokens, n, n_accepted, is_other):
    """See slot_kernels; nothing is learnt from it."""


@helper
def grow_cache(slot, old):
    """See slot_kernels."""
    copy(slot.vars, old.vars, N_VARS)
    copy(slot.nodes, old.nodes, STATE)
    context = _context(slot)
    before = _context(old)
    copy(context.nodes, before.nodes, 8 * before.followers.n_used[0])
    copy(context.followers.edges, before.followers.edges, 8 * before.followers.n_used[1])
    copy(context.unigram, before.unigram, before.unigram.size)
    for edge in range(before.followers.n_used[1]):
        at = record_at(edge)
        edges = context.followers.edges
        _, place = find_edge(context.followers, np.int64(edges[at]), edges[at + TOKEN])
        context.followers.index[place] = edge + 1


# --------------------------------------------------------------------------- llama.cpp's own


@helper
def _order(followers, owner, scratch):
    """Put the edges of a list into libstdc++'s order.

    Returns (the first edge's number by arrival or -1, how many there are). scratch: [0 : k] edges
    by arrival, [k : 2k] what comes after each, [2k :] what stands before each bucket's first + 2.
    """
    edges = followers.edges
    k = np.int64(0)
    # The list has the owner first, the others after it, latest first.
    edge = np.int64(edges[record_at(owner) + NEXT])
    while edge >= 0:
        k += 1
        edge = np.int64(edges[record_at(edge) + NEXT])
    n_items = k + 1
    scratch[0] = owner
    edge = np.int64(edges[record_at(owner) + NEXT])
    while edge >= 0:
        scratch[U(k)] = edge
        k -= 1
        edge = np.int64(edges[record_at(edge) + NEXT])
    succ = scratch[n_items : 2 * n_items]
    buckets = scratch[2 * n_items :]
    head = np.int64(-1)
    n_in = np.int64(0)
    for b in range(_BUCKETS.size):
        n_buckets = _BUCKETS[b]
        buckets[:n_buckets] = 0
        # First what is there, in its order, then what arrives until the next size is due.
        old = head
        head = np.int64(-1)
        stop = min(n_items, n_buckets)
        n_old = n_in
        while n_in < stop or n_old > 0:
            if n_old > 0:
                item = old
                old = np.int64(succ[U(item)])
                n_old -= 1
            else:
                item = n_in
                n_in += 1
            head = _insert(edges, scratch, succ, buckets, n_buckets, head, item)
        if n_in == n_items:
            break
    return head, n_items


@helper
def _bucket(edges, scratch, item, n_buckets):
    token = np.int64(edges[record_at(np.int64(scratch[U(item)])) + TOKEN])
    return U(token % n_buckets)


@helper
def _insert(edges, scratch, succ, buckets, n_buckets, head, item):
    """Put an item at the front of its bucket, or of the list; returns the list's head."""
    bucket = _bucket(edges, scratch, item, n_buckets)
    before = np.int64(buckets[bucket]) - 2  # -2: an empty bucket, -1: the list's own beginning
    if before == -2:
        succ[U(item)] = head
        if head >= 0:
            buckets[_bucket(edges, scratch, head, n_buckets)] = item + 2
        buckets[bucket] = 1
        return item
    if before == -1:
        succ[U(item)] = head
        return item
    succ[U(item)] = succ[U(before)]
    succ[U(before)] = item
    return head


@helper
def _weight(bigrams, row, token, count):
    """llama.cpp's product of an int32 count and static count, as it wraps."""
    factor = np.int64(1)
    if row >= 0:
        static = static_count(bigrams, row, token)
        if static > 0:
            factor = np.int64(np.int32(100 * static))
    return np.int64(np.int32(count * factor))


@helper
def _edge_count(records, at, edges, e):
    """An edge's count; that of the best follower is stale there."""
    if edges[e + TOKEN] == records[at + BEST]:
        return np.int64(records[at + BEST_COUNT])
    return np.int64(edges[e + COUNT])


@helper
def _heaviest(records, at, followers, bigrams, row, scratch):
    """(token, count) of the first of the heaviest followers, -1 where all weigh nothing."""
    edges = followers.edges
    owner = np.int64(records[at + MORE])
    most = np.int64(0)
    n_most = 0
    token = np.int32(-1)
    count = np.int64(0)
    edge = owner
    while edge >= 0:
        e = record_at(edge)
        its_count = _edge_count(records, at, edges, e)
        weight = _weight(bigrams, row, edges[e + TOKEN], its_count)
        if weight > most:
            most = weight
            n_most = 0
            token = edges[e + TOKEN]
            count = its_count
        n_most += weight == most
        edge = np.int64(edges[e + NEXT])
    if n_most < 2 or most == 0:
        return token, count
    item, n_items = _order(followers, owner, scratch)
    while item >= 0:
        e = record_at(np.int64(scratch[U(item)]))
        its_count = _edge_count(records, at, edges, e)
        if _weight(bigrams, row, edges[e + TOKEN], its_count) == most:
            return edges[e + TOKEN], its_count
        item = np.int64(scratch[U(n_items + item)])
    return token, count


@helper
def _try(records, at, followers, least, percent, bigrams, row, scratch):
    """The token that a record drafts under the thresholds, or -1."""
    total = sum_of(records, at, followers)
    if total < least or total == 0:
        return np.int32(-1)
    best_count = np.int64(records[at + BEST_COUNT])
    if 100 * best_count < percent * total:
        return np.int32(-1)
    best = records[at + BEST]
    if row < 0 and (records[at + MORE] < 0 or 2 * best_count > total):
        return best
    if records[at + MORE] < 0:
        return best if _weight(bigrams, row, best, best_count) > 0 else np.int32(-1)
    token, count = _heaviest(records, at, followers, bigrams, row, scratch)
    if 100 * count < percent * total:
        return np.int32(-1)
    return token


@helper
def _try_context(context, node, bigrams, row, thresholds, scratch):
    nodes = context.nodes
    while node != 0:
        at = record_at(node)
        size = U(nodes[at + SIZE])
        token = _try(
            nodes,
            at,
            context.followers,
            thresholds[0, size],
            thresholds[1, size],
            bigrams,
            row,
            scratch,
        )
        if token >= 0:
            return token
        node = np.int64(nodes[at + SUFFIX])
    return np.int32(-1)


@helper
def _try_dynamic(dynamic, bigrams, row, tail, thresholds, scratch):
    """tail int32 [4]: what ends the text, -1 where it is shorter."""
    none = np.int32(-1)
    for size in range(4, 0, -1):
        if tail[U(4 - size)] < 0:
            continue
        mixed = U(0)
        for i in range(3, 3 - size, -1):
            mixed = mix(mixed, tail[U(i)])
        if not hinted(dynamic.hint, mixed):
            continue
        a = tail[0] if size > 3 else none
        b = tail[1] if size > 2 else none
        c = tail[2] if size > 1 else none
        at = find_ngram(dynamic.slots, mixed, a, b, c, tail[3])
        if dynamic.slots[at + U(3)] < 0:
            continue
        token = _try(
            dynamic.slots,
            at + U(4),
            dynamic.followers,
            thresholds[2, size],
            thresholds[3, size],
            bigrams,
            row,
            scratch,
        )
        if token >= 0:
            return token
    return none


@helper
def _try_static(bigrams, row):
    """The static rule; of two that are equally frequent, the later one in the file."""
    if row < 0 or bigrams.verdict[U(row)] == bigrams.params[2]:
        return np.int32(-1)
    token = np.int32(bigrams.verdict[U(row)])
    start = row_start(bigrams, row)
    if row_start(bigrams, row + 1) - start == 2 and start + 1 < np.int64(bigrams.next.size):
        other = np.int32(bigrams.next[U(start + 1)])
        if static_count(bigrams, row, token) == static_count(bigrams, row, other):
            return other
    return token


@helper
def _draft_exact(slot, context, tokens, n, n_max, out, caches):
    if n < 2:
        return np.int64(0)
    scratch = _scratch(slot)
    tail = slot.nodes[_TAIL : _TAIL + 4]
    node = np.int64(0)
    for i in range(4):
        tail[U(i)] = tokens[U(n - 4 + i)] if n - 4 + i >= 0 else np.int32(-1)
        if tail[U(i)] >= 0:
            node = follow_token(context, node, tail[U(i)])
    drafted = np.int64(0)
    while drafted < n_max:
        row = find_row(caches.bigrams, tail[2], tail[3])
        token = _try_context(context, node, caches.bigrams, row, caches.thresholds, scratch)
        if token < 0:
            token = _try_dynamic(
                caches.dynamic, caches.bigrams, row, tail, caches.thresholds, scratch
            )
        if token < 0:
            token = _try_static(caches.bigrams, row)
        if token < 0:
            break
        out[U(drafted)] = token
        drafted += 1
        node = follow_token(context, node, token)
        for i in range(3):
            tail[U(i)] = tail[U(i + 1)]
        tail[3] = token
    return drafted
