"""Kernels that learn n-grams from a token stream, draft from them, and replay a text.

A *trie* holds the n-grams of sizes 1 to 4 that a token stream has shown. Its nodes are n-grams,
node 0 is the empty one; an edge (node, token) says how often the token followed the n-gram, and
leads to the n-gram one token longer. One open-addressed table over (node, token) thus serves both
to find an n-gram and to count its followers. See docs/ngram.md for a drawing.

The drafting rule is that of llama.cpp's ``common/ngram-cache`` (sizes 4 down to 1, lax thresholds
for the context, strict ones for the dynamic cache, candidates weighted by the static bigrams),
except that equally good candidates are settled by the lowest token id, not by hash-map order.

Kernels check nothing and raise nothing: ``replay.py`` sizes the arrays and checks the tokens.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np
from numba import njit, types
from numba.core.types import ExternalFunction

# n_used: int64 [2]           nodes in use, edges in use
# slots:  int32 [power of 2]  open addressing over (node, token): edge + 1, or 0 where it is empty
# edges:  int32 [n, 8]        a record an edge, columns below; three are unused, so that two
#                             records fill a cache line
# nodes:  int64 [n, 4]        a record a node
Trie = namedtuple("Trie", "n_used slots edges nodes")

# Columns of edges.
_NODE = 0  # the n-gram that the edge leaves
_TOKEN = 1  # the token that followed it
_COUNT = 2  # how often; 0 for the edges of node 0, which only lead to unigrams
_CHILD = 3  # the n-gram one token longer, or -1 while nobody needs it
_NEXT = 4  # the node's next edge, or -1
# Columns of nodes.
_EDGE = 0  # the node's newest edge, or -1
_SUM = 1  # sum of the counts of its edges
_BEST = 2  # the most frequent follower, lowest id among equals; -1 without one
_BEST_COUNT = 3  # its count

# first_row:   int64 [n_vocab + 1]  rows of bigrams that begin with a token
# second:      int32 [n_rows]       second token of the bigram, ascending within the first
# entry_start: int64 [n_rows + 1]   followers of a row
# entry_token: int32 [n_entries]    ascending within a row
# entry_count: uint32 [n_entries]
# verdict:     int32 [n_rows]       the token that the static rule drafts, or -1
Bigrams = namedtuple("Bigrams", "first_row second entry_start entry_token entry_count verdict")

# What a replay counts; see replay.py for the meaning. All int64.
# total:    [7]  rounds, cut rounds, drafted, accepted, replayed, draft ns, merge ns
# position: [2, draft_max]  drafted, accepted by position
# source:   [2, 3]          by source: context, dynamic, static
# size:     [2, 4]          by n-gram size 1 to 4
Tally = namedtuple("Tally", "total position source size")

_NGRAM_MAX = 4
_COUNT_MAX = 2**31 - 1  # llama.cpp's int32; counts stay there instead of wrapping
_HASH = np.uint64(0x9E3779B97F4A7C15)
_SUM_CAP = 1 << 40  # above it 100 * count can't reach any percentage: counts end at 2**31 - 1
_PRODUCT_CAP = (
    1 << 50
)  # above it a boosted candidate beats every count, and 100 * product still fits

_clock_gettime = ExternalFunction(
    "clock_gettime", types.int32(types.int32, types.CPointer(types.int64))
)


@njit(cache=True, nogil=True)
def _clock_ns(clock_id, timespec):
    """Monotonic time in nanoseconds; ``timespec`` is int64 scratch of size 2."""
    _clock_gettime(np.int32(clock_id), timespec.ctypes)
    return timespec[0] * 1_000_000_000 + timespec[1]


@njit(cache=True, nogil=True)
def _slot(trie, node, token):
    """The slot that holds the edge (node, token), or the empty one where it belongs."""
    mask = np.uint64(trie.slots.size - 1)
    mixed = ((np.uint64(node) << np.uint64(32)) | np.uint64(token)) * _HASH
    slot = (mixed ^ (mixed >> np.uint64(32))) & mask
    while True:
        edge = trie.slots[slot] - 1
        if edge < 0 or (trie.edges[edge, _NODE] == node and trie.edges[edge, _TOKEN] == token):
            return slot
        slot = (slot + np.uint64(1)) & mask


@njit(cache=True, nogil=True)
def _find_child(trie, node, token):
    """The n-gram ``node`` + ``token``, or -1."""
    edge = trie.slots[_slot(trie, node, token)] - 1
    return trie.edges[edge, _CHILD] if edge >= 0 else np.int32(-1)


@njit(cache=True, nogil=True)
def _find_or_add_edge(trie, node, token):
    """The edge (node, token), made with count 0 and no child where it is missing."""
    slot = _slot(trie, node, token)
    edge = trie.slots[slot] - 1
    if edge < 0:
        edge = trie.n_used[1]
        trie.n_used[1] += 1
        trie.slots[slot] = edge + 1
        trie.edges[edge, _NODE] = node
        trie.edges[edge, _TOKEN] = token
        trie.edges[edge, _COUNT] = 0
        trie.edges[edge, _CHILD] = -1
        trie.edges[edge, _NEXT] = trie.nodes[node, _EDGE]
        trie.nodes[node, _EDGE] = edge
    return edge


@njit(cache=True, nogil=True)
def _open_node(trie, node):
    """Make the record of a node without followers."""
    trie.nodes[node, _EDGE] = -1
    trie.nodes[node, _SUM] = 0
    trie.nodes[node, _BEST] = -1
    trie.nodes[node, _BEST_COUNT] = 0


@njit(cache=True, nogil=True)
def _need_child(trie, edge):
    """The n-gram that the edge leads to, made without followers where it is missing."""
    child = np.int64(trie.edges[edge, _CHILD])
    if child < 0:
        child = trie.n_used[0]
        trie.n_used[0] += 1
        _open_node(trie, child)
        trie.edges[edge, _CHILD] = child
    return child


@njit(cache=True, nogil=True)
def _count(trie, edge, more):
    """Count the edge ``more`` times (saturating) and keep its node's best follower true."""
    node = trie.edges[edge, _NODE]
    old = np.int64(trie.edges[edge, _COUNT])
    count = min(old + more, _COUNT_MAX)
    trie.edges[edge, _COUNT] = count
    trie.nodes[node, _SUM] += count - old
    token = np.int64(trie.edges[edge, _TOKEN])
    best = trie.nodes[node, _BEST]
    best_count = trie.nodes[node, _BEST_COUNT]
    if best < 0 or count > best_count or (count == best_count and token < best):
        trie.nodes[node, _BEST] = token
        trie.nodes[node, _BEST_COUNT] = count


@njit(cache=True, nogil=True)
def clear_trie(trie):
    """Leave nothing but node 0."""
    trie.slots[:] = 0
    trie.n_used[0] = 1
    trie.n_used[1] = 0
    _open_node(trie, 0)


@njit(cache=True, nogil=True)
def index_trie(trie):
    """Fill an empty slot table from the edges: after arrays have grown."""
    for edge in range(trie.n_used[1]):
        slot = _slot(trie, np.int64(trie.edges[edge, _NODE]), trie.edges[edge, _TOKEN])
        trie.slots[slot] = edge + 1


@njit(cache=True, nogil=True)
def add_ngrams(trie, tokens, order, entry_start, entry_token, entry_count):
    """Add counted n-grams of one size, as a cache file holds them.

    tokens int32 [n_ngrams * order], entry_start int64 [n_ngrams + 1], entry_token int32 and
    entry_count uint32 [n_entries]: in; ``trie`` grows by at most n_ngrams * order + n_entries
    edges.
    """
    for row in range(entry_start.size - 1):
        node = np.int64(0)
        for i in range(order):
            edge = _find_or_add_edge(trie, node, tokens[row * order + i])
            node = _need_child(trie, edge)
        for entry in range(entry_start[row], entry_start[row + 1]):
            edge = _find_or_add_edge(trie, node, entry_token[entry])
            _count(trie, edge, np.int64(entry_count[entry]))


@njit(cache=True, nogil=True)
def _merge(trie, more, node_map):
    """Add the counts of ``more`` to ``trie``; node_map int32 [nodes of more] is scratch.

    Edges are walked in the order in which they were made, so a node is mapped before its edges
    come.
    """
    node_map[0] = 0
    for edge in range(more.n_used[1]):
        node = np.int64(node_map[more.edges[edge, _NODE]])
        into = _find_or_add_edge(trie, node, more.edges[edge, _TOKEN])
        if more.edges[edge, _COUNT] > 0:
            _count(trie, into, np.int64(more.edges[edge, _COUNT]))
        child = more.edges[edge, _CHILD]
        if child >= 0:
            node_map[child] = _need_child(trie, into)


@njit(cache=True, nogil=True)
def _learn(trie, suffix, token):
    """Append ``token`` to the stream: count it after its 1 to 4 last tokens.

    suffix int32 [5], in and out: the n-grams that end the stream, by size; suffix[0] is node 0, -1
    where the stream is shorter. This is llama.cpp's update() with nnew = 1.
    """
    for size in range(_NGRAM_MAX, -1, -1):  # downwards: suffix[size + 1] may be overwritten
        node = np.int64(suffix[size])
        if node < 0:
            continue
        edge = _find_or_add_edge(trie, node, token)
        if size > 0:
            _count(trie, edge, 1)
        if size < _NGRAM_MAX:
            suffix[size + 1] = _need_child(trie, edge)


@njit(cache=True, nogil=True)
def verdicts(entry_start, entry_token, entry_count, verdict):
    """The token that the static rule drafts after each bigram, or -1 (out: ``verdict``).

    Source: llama.cpp, static-only try: at least 2 samples, the most frequent at 50 % or more.
    """
    for row in range(entry_start.size - 1):
        total = np.int64(0)
        best = np.int64(0)
        pick = np.int32(-1)
        for entry in range(entry_start[row], entry_start[row + 1]):
            count = np.int64(entry_count[entry])
            total += count
            if count > best:  # ids ascend, so the lowest id keeps a tie
                best = count
                pick = entry_token[entry]
        verdict[row] = pick if total >= 2 and 2 * best >= total else -1


@njit(cache=True, nogil=True)
def _find_row(bigrams, first, second):
    """The row of the bigram, or -1."""
    low = bigrams.first_row[first]
    stop = bigrams.first_row[first + 1]
    high = stop
    while low < high:
        middle = (low + high) >> 1
        if bigrams.second[middle] < second:
            low = middle + 1
        else:
            high = middle
    if low < stop and bigrams.second[low] == second:
        return low
    return np.int64(-1)


@njit(cache=True, nogil=True)
def _static_count(bigrams, row, token):
    """How often the token follows the bigram; 0 if never."""
    low = bigrams.entry_start[row]
    stop = bigrams.entry_start[row + 1]
    high = stop
    while low < high:
        middle = (low + high) >> 1
        if bigrams.entry_token[middle] < token:
            low = middle + 1
        else:
            high = middle
    if low < stop and bigrams.entry_token[low] == token:
        return np.int64(bigrams.entry_count[low])
    return np.int64(0)


@njit(cache=True, nogil=True)
def _weighted_best(trie, node, bigrams, row):
    """(token, count) of the best follower by count, times 100 x static count where there is one.

    Boosted and plain candidates are held apart, so that no product can overflow.
    """
    product = np.int64(0)
    boosted = np.int32(-1)
    boosted_count = np.int64(0)
    plain_count = np.int64(0)
    plain = np.int32(-1)
    edge = trie.nodes[node, _EDGE]
    while edge >= 0:
        token = trie.edges[edge, _TOKEN]
        count = np.int64(trie.edges[edge, _COUNT])
        static = _static_count(bigrams, row, token)
        if static > 0:
            score = count * static
            if score > product or (score == product and token < boosted):
                product = score
                boosted = token
                boosted_count = count
        elif count > plain_count or (count == plain_count and token < plain):
            plain_count = count
            plain = token
        edge = np.int64(trie.edges[edge, _NEXT])
    score = 100 * min(product, _PRODUCT_CAP)
    if boosted >= 0 and (
        plain < 0 or score > plain_count or (score == plain_count and boosted < plain)
    ):
        return boosted, boosted_count
    return plain, plain_count


@njit(cache=True, nogil=True)
def _try_node(trie, node, min_sample, min_percent, bigrams, row):
    """The token that the node drafts under the thresholds, or -1."""
    total = trie.nodes[node, _SUM]
    if total < min_sample:
        return np.int32(-1)
    needed = min_percent * min(total, _SUM_CAP)
    # No follower counts more than the best, whatever the weights: an early no.
    if 100 * trie.nodes[node, _BEST_COUNT] < needed:
        return np.int32(-1)
    edge = trie.nodes[node, _EDGE]
    if row < 0 or trie.edges[edge, _NEXT] < 0:
        return np.int32(trie.nodes[node, _BEST])
    token, count = _weighted_best(trie, node, bigrams, row)
    if 100 * count < needed:
        return np.int32(-1)
    return token


@njit(cache=True, nogil=True)
def _walk(trie, window, size):
    """The n-gram of the window's last ``size`` tokens, or -1."""
    node = np.int64(0)
    for i in range(_NGRAM_MAX - size, _NGRAM_MAX):
        node = np.int64(_find_child(trie, node, window[i]))
        if node < 0:
            break
    return node


@njit(cache=True, nogil=True)
def _draft_one(context, suffix, dynamic, bigrams, window, length, thresholds, found):
    """One more drafted token for a stream of ``length`` >= 2 tokens, or -1.

    suffix int32 [5]: context n-grams that end the stream (-1: unknown); window int32 [4]: its last
    tokens; thresholds int64 [4, 5]: rows lax sample, lax percent, strict sample, strict percent;
    found int64 [2], out: source (0 context, 1 dynamic, 2 static) and n-gram size.
    """
    row = _find_row(bigrams, window[_NGRAM_MAX - 2], window[_NGRAM_MAX - 1])
    longest = min(_NGRAM_MAX, length)
    for size in range(longest, 0, -1):
        node = np.int64(suffix[size])
        if node >= 0:
            token = _try_node(context, node, thresholds[0, size], thresholds[1, size], bigrams, row)
            if token >= 0:
                found[0] = 0
                found[1] = size
                return token
    for size in range(longest, 0, -1):
        node = _walk(dynamic, window, size)
        if node >= 0:
            token = _try_node(dynamic, node, thresholds[2, size], thresholds[3, size], bigrams, row)
            if token >= 0:
                found[0] = 1
                found[1] = size
                return token
    if row >= 0 and bigrams.verdict[row] >= 0:
        found[0] = 2
        found[1] = 2
        return bigrams.verdict[row]
    return np.int32(-1)


@njit(cache=True, nogil=True)
def _shift(window, token):
    """Let ``token`` follow in the window of the last four; a slice copy would allocate here."""
    for i in range(_NGRAM_MAX - 1):
        window[i] = window[i + 1]
    window[_NGRAM_MAX - 1] = token


@njit(cache=True, nogil=True)
def draft_tokens(
    context, suffix, dynamic, bigrams, window, length, thresholds, draft, origin, scratch
):
    """Draft up to ``draft.size`` tokens after a stream; returns how many.

    suffix int32 [5] and window int32 [4] describe the stream and are left as they are; draft int32
    [draft_max] and origin int64 [draft_max, 2] (source, size) are filled; scratch int32 [9].
    """
    nodes = scratch[:5]
    last = scratch[5:9]
    for i in range(_NGRAM_MAX):
        nodes[i] = suffix[i]
        last[i] = window[i]
    nodes[_NGRAM_MAX] = suffix[_NGRAM_MAX]
    n_drafted = 0
    while n_drafted < draft.size and length >= 2:
        token = _draft_one(
            context, nodes, dynamic, bigrams, last, length, thresholds, origin[n_drafted]
        )
        if token < 0:
            break
        draft[n_drafted] = token
        n_drafted += 1
        length += 1
        for size in range(_NGRAM_MAX - 1, -1, -1):
            node = np.int64(nodes[size])
            nodes[size + 1] = _find_child(context, node, token) if node >= 0 else -1
        _shift(last, token)
    return n_drafted


@njit(cache=True, nogil=True)
def _append(context, suffix, window, token):
    _learn(context, suffix, token)
    _shift(window, token)


@njit(cache=True, nogil=True)
def _replay_chunk(chunk, context, dynamic, bigrams, thresholds, draft, origin, scratch, tally):
    """Replay one chunk: draft, compare, accept, then take the true next token. See replay.py."""
    suffix = scratch[:5]
    window = scratch[5:9]
    clear_trie(context)
    suffix[:] = -1
    suffix[0] = 0
    # The seed token opens the stream and is counted nowhere, for nothing stands before it.
    suffix[1] = _need_child(context, _find_or_add_edge(context, np.int64(0), chunk[0]))
    window[:] = -1
    window[-1] = chunk[0]
    at = 1
    while at < chunk.size:
        n_drafted = draft_tokens(
            context, suffix, dynamic, bigrams, window, at, thresholds, draft, origin, scratch[9:]
        )
        for i in range(n_drafted):
            tally.position[0, i] += 1
            tally.source[0, origin[i, 0]] += 1
            tally.size[0, origin[i, 1] - 1] += 1
        n_accepted = 0
        while n_accepted < n_drafted and at < chunk.size and draft[n_accepted] == chunk[at]:
            tally.position[1, n_accepted] += 1
            tally.source[1, origin[n_accepted, 0]] += 1
            tally.size[1, origin[n_accepted, 1] - 1] += 1
            _append(context, suffix, window, chunk[at])
            n_accepted += 1
            at += 1
        tally.total[2] += n_drafted
        tally.total[3] += n_accepted
        if at < chunk.size:
            tally.total[0] += 1
            _append(context, suffix, window, chunk[at])
            at += 1
        else:
            tally.total[1] += 1
    tally.total[4] += chunk.size


@njit(cache=True, nogil=True)
def replay_chunks(
    tokens, n_ctx, context, dynamic, bigrams, thresholds, draft, origin, scratch, tally, clock_id
):
    """Replay whole chunks of ``n_ctx`` tokens, merging each into the dynamic trie.

    tokens int32 [n_chunks * n_ctx]; scratch int32 [18 + nodes of context]; clock_id: the
    platform's CLOCK_MONOTONIC. tally.total[5] gets the time of drafting and context updates,
    total[6] that of merging: the clock is read inside, for a call per chunk from Python would
    cost as much as a chunk.
    """
    timespec = np.zeros(2, np.int64)
    for start in range(0, tokens.size, n_ctx):
        begin = _clock_ns(clock_id, timespec)
        _replay_chunk(
            tokens[start : start + n_ctx],
            context,
            dynamic,
            bigrams,
            thresholds,
            draft,
            origin,
            scratch,
            tally,
        )
        middle = _clock_ns(clock_id, timespec)
        _merge(dynamic, context, scratch[18:])
        tally.total[5] += middle - begin
        tally.total[6] += _clock_ns(clock_id, timespec) - middle
