"""What a generation loop calls, a few tokens at a time: learn what was accepted, draft.

To hand over all arrays one by one would take longer than to draft, so a session is one array of
int64: address and size of each array, in the order of ``Session`` (``tables.session_of`` writes
it). Arrays have their places by name. Only these functions are compiled with reference counts,
without which no array can be returned; the arrays they make own nothing, so there is nothing to
count.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

from .draft_kernels import (
    Bigrams,
    Context,
    Dynamic,
    Followers,
    draft_tokens,
    learn,
    longest,
)

BUILT_ON = {"ngram.lookup.draft_kernels": "84291cfc"}

# The arrays of a session: Context, Dynamic, Bigrams; then
# tokens:     int32 [n]             the text, and room for more of it
# state:      int32 [5]             the nodes where the text ends, by n-gram size
# thresholds: int64 [4, 5]          of tables.py
# draft:      int32 [draft_max]     out
# origin:     int64 [draft_max, 2]  out: cache and n-gram size of each drafted token
Session = namedtuple("Session", "context dynamic bigrams tokens state thresholds draft origin")

# Places of arrays within Context and Dynamic, whose followers come first, and within Bigrams.
_NODES, _UNIGRAM, N_CONTEXT = range(len(Followers._fields), len(Followers._fields) + 3)
_SLOTS, _HINT, N_DYNAMIC = range(len(Followers._fields), len(Followers._fields) + 3)
(
    _WORDS,
    _FIRST,
    _REST,
    _VERDICT,
    _BASE,
    _OFFSET,
    _NEXT,
    _COUNT,
    _MANY_ENTRY,
    _MANY_COUNT,
    _PARAMS,
    N_BIGRAMS,
) = range(len(Bigrams._fields) + 1)
# Places of arrays within a session.
_CONTEXT = 0
_DYNAMIC = _CONTEXT + N_CONTEXT
_TOKENS = _DYNAMIC + N_DYNAMIC + N_BIGRAMS
_STATE, _THRESHOLDS, _DRAFT, _ORIGIN, N_ARRAYS = range(_TOKENS + 1, _TOKENS + 6)

# Columns of arrays of rows.
N_THRESHOLDS = 5
N_ORIGIN = 2

session_helper = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


@intrinsic
def _pointer(typingctx, address):
    """An int64 address as a pointer."""

    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), codegen


@session_helper
def size_at(session, place):
    """Items of the array at a place."""
    return session[2 * place + 1]


@session_helper
def array_at(session, place, dtype):
    """The array at a place; one of rows as if it had one."""
    return carray(_pointer(session[2 * place]), (size_at(session, place),), dtype)


@session_helper
def rows_at(session, place, n_columns, dtype):
    """The array at a place, of rows."""
    shape = (size_at(session, place) // n_columns, n_columns)
    return carray(_pointer(session[2 * place]), shape, dtype)


@session_helper
def followers_at(session, place):
    """Followers, whose first array is at a place."""
    return Followers(
        array_at(session, place, np.int64),
        array_at(session, place + 1, np.int32),
        array_at(session, place + 2, np.int32),
    )


@session_helper
def tables_at(session, place, ids):
    """The dynamic and the static cache, from the session's array at ``place`` on."""
    dynamic = Dynamic(
        followers_at(session, place),
        array_at(session, place + _SLOTS, np.int32),
        array_at(session, place + _HINT, np.uint64),
    )
    place += N_DYNAMIC
    bigrams = Bigrams(
        array_at(session, place + _WORDS, np.uint32),
        array_at(session, place + _FIRST, np.uint32),
        array_at(session, place + _REST, ids.dtype),
        array_at(session, place + _VERDICT, ids.dtype),
        array_at(session, place + _BASE, np.uint32),
        array_at(session, place + _OFFSET, np.uint16),
        array_at(session, place + _NEXT, ids.dtype),
        array_at(session, place + _COUNT, np.uint8),
        array_at(session, place + _MANY_ENTRY, np.uint32),
        array_at(session, place + _MANY_COUNT, np.uint32),
        array_at(session, place + _PARAMS, np.int64),
    )
    return dynamic, bigrams


@session_helper
def _context(session):
    return Context(
        followers_at(session, _CONTEXT),
        array_at(session, _CONTEXT + _NODES, np.int32),
        array_at(session, _CONTEXT + _UNIGRAM, np.int32),
    )


@njit(cache=True, nogil=True)
def accept_in_session(session, n_known, n_more):
    """Learn tokens[n_known : n_known + n_more] of the session's text."""
    context = _context(session)
    tokens = array_at(session, _TOKENS, np.int32)
    state = array_at(session, _STATE, np.int32)
    for at in range(n_known, n_known + n_more):
        learn(context, state, tokens[at], at)


@njit(cache=True, nogil=True)
def draft_in_session(session, n_known, draft_max, ids):
    """Draft after the first ``n_known`` tokens of the text; returns how many.

    ids: an empty array of the type in which the static cache holds tokens.
    """
    dynamic, bigrams = tables_at(session, _DYNAMIC, ids)
    return draft_tokens(
        _context(session),
        longest(array_at(session, _STATE, np.int32)),
        dynamic,
        bigrams,
        array_at(session, _TOKENS, np.int32)[:n_known],
        rows_at(session, _THRESHOLDS, N_THRESHOLDS, np.int64),
        array_at(session, _DRAFT, np.int32)[:draft_max],
        rows_at(session, _ORIGIN, N_ORIGIN, np.int64),
    )
