"""Any drafter, or several in order of priority: what a replay and a generation loop call.

A round, as llama-server has it (build 11434, tools/server/server-context.cpp): the drafters are
asked in their order until one drafts; what it drafts is cut to the room that the request has left;
all are told how much of it was right. Without room for a draft no drafter is asked.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np
from numba import njit

from ..lookup.draft_kernels import clock_ns
from ..lookup.session_kernels import (
    N_BIGRAMS,
    N_DYNAMIC,
    N_ORIGIN,
    N_THRESHOLDS,
    array_at,
    rows_at,
    session_helper,
    tables_at,
)
from .map_kernels import (
    accept_map,
    accept_simple,
    begin_map,
    begin_simple,
    draft_map,
    draft_simple,
    forget_map,
    forget_simple,
    grow_map,
    grow_simple,
)
from .mod_kernels import accept_mod, begin_mod, draft_mod, forget_mod, grow_mod
from .prompt_lookup_kernels import (
    accept_prompt_lookup,
    begin_prompt_lookup,
    draft_prompt_lookup,
    forget_prompt_lookup,
    grow_prompt_lookup,
)
from .server_cache_kernels import (
    Caches,
    accept_cache,
    begin_cache,
    draft_cache,
    forget_cache,
    grow_cache,
)
from .server_map_kernels import (
    accept_server_map,
    begin_server_map,
    draft_server_map,
    forget_server_map,
    grow_server_map,
)
from .slot_kernels import (
    CACHE,
    EXACT,
    KIND,
    MAP_K,
    MAP_K4V,
    MOD,
    N_PARAMS,
    N_VARS,
    PROMPT_LOOKUP,
    SIMPLE,
    SUFFIX,
    VLLM_NGRAM,
    Bank,
    U,
    helper,
    kernel,
    slot_of,
    view,
)
from .suffix_kernels import (
    accept_suffix,
    begin_suffix,
    draft_suffix,
    forget_suffix,
    grow_suffix,
)

BUILT_ON = {
    "ngram.drafters.map_kernels": "309075b0",
    "ngram.drafters.mod_kernels": "e49479f9",
    "ngram.drafters.prompt_lookup_kernels": "d39d1230",
    "ngram.drafters.server_cache_kernels": "4ad504b5",
    "ngram.drafters.server_map_kernels": "0d8c11d8",
    "ngram.drafters.slot_kernels": "a574593d",
    "ngram.drafters.suffix_kernels": "18cb81fa",
    "ngram.lookup.draft_kernels": "84291cfc",
    "ngram.lookup.session_kernels": "55f7c604",
}

# What a replay counts, see replay.py. All int64 but example_ids.
# total: [6]  rounds, cut rounds, drafts, drafted, accepted, ns
# length: [2, draft_max + 1]  drafts by their length, and by how much of them was right
# drafter: [k, 3]  drafts, drafted, accepted
# row: [R, 5]  turns, generated, rounds, drafted, accepted
# batches: [R, draft_max + 2]  rounds by the tokens that they evaluated
# example: [2, E, 4]  place, drafted, accepted, drafter: most accepted, most refused
# example_ids: int32 [2, E, draft_max]
Tally = namedtuple("Tally", "total length drafter row batches example example_ids")

# Conversations, as conversations.ReplayTexts has them.
Texts = namedtuple("Texts", "tokens turns prompts turn_of_conversation")

# Places in the cursor of a replay, int64 [6].
TURN, PLACE, CONVERSATION, BEFORE, BEFORE_END = range(5)
N_CURSOR = 6
CARRY_NONE, CARRY_CONVERSATION, CARRY_ALL = range(3)


# ---------------------------------------------------------------------------------- any kind


_SERVER_MAP = 64  # beside the kinds: llama.cpp's own form of both maps


@view
def _form(slot):
    """The kind whose kernels a slot takes."""
    kind = slot.params[KIND]
    if kind == MAP_K4V:
        kind = MAP_K
    if kind == VLLM_NGRAM:
        kind = PROMPT_LOOKUP
    if kind == MAP_K and slot.params[EXACT] != 0:
        return _SERVER_MAP
    return kind


@view
def _forget(slot):
    kind = _form(slot)
    if kind == SIMPLE:
        forget_simple(slot)
    elif kind == MAP_K:
        forget_map(slot)
    elif kind == _SERVER_MAP:
        forget_server_map(slot)
    elif kind == MOD:
        forget_mod(slot)
    elif kind == CACHE:
        forget_cache(slot)
    elif kind == SUFFIX:
        forget_suffix(slot)
    elif kind == PROMPT_LOOKUP:
        forget_prompt_lookup(slot)


@view
def _begin(slot, tokens, n, same):
    kind = _form(slot)
    if kind == SIMPLE:
        begin_simple(slot, tokens, n, same)
    elif kind == MAP_K:
        begin_map(slot, tokens, n, same)
    elif kind == _SERVER_MAP:
        begin_server_map(slot, tokens, n, same)
    elif kind == MOD:
        begin_mod(slot, tokens, n, same)
    elif kind == CACHE:
        begin_cache(slot, tokens, n, same)
    elif kind == SUFFIX:
        begin_suffix(slot, tokens, n, same)
    elif kind == PROMPT_LOOKUP:
        begin_prompt_lookup(slot, tokens, n, same)


@view
def _draft(slot, tokens, n, n_max, out, caches):
    kind = _form(slot)
    drafted = np.int64(0)
    if kind == SIMPLE:
        drafted = np.int64(draft_simple(slot, tokens, n, n_max, out))
    elif kind == MAP_K:
        drafted = np.int64(draft_map(slot, tokens, n, n_max, out))
    elif kind == _SERVER_MAP:
        drafted = np.int64(draft_server_map(slot, tokens, n, n_max, out))
    elif kind == MOD:
        drafted = draft_mod(slot, tokens, n, n_max, out)
    elif kind == CACHE:
        drafted = np.int64(draft_cache(slot, tokens, n, n_max, out, caches))
    elif kind == SUFFIX:
        drafted = draft_suffix(slot, tokens, n, n_max, out)
    elif kind == PROMPT_LOOKUP:
        drafted = draft_prompt_lookup(slot, tokens, n, n_max, out)
    return drafted


@view
def _accept(slot, tokens, n, n_accepted, is_other):
    kind = _form(slot)
    if kind == SIMPLE:
        accept_simple(slot, tokens, n, n_accepted, is_other)
    elif kind == MAP_K:
        accept_map(slot, tokens, n, n_accepted, is_other)
    elif kind == _SERVER_MAP:
        accept_server_map(slot, tokens, n, n_accepted, is_other)
    elif kind == MOD:
        accept_mod(slot, tokens, n, n_accepted, is_other)
    elif kind == CACHE:
        accept_cache(slot, tokens, n, n_accepted, is_other)
    elif kind == SUFFIX:
        accept_suffix(slot, tokens, n, n_accepted, is_other)
    elif kind == PROMPT_LOOKUP:
        accept_prompt_lookup(slot, tokens, n, n_accepted, is_other)


@kernel
def grow_bank(bank, old):
    """Take over all that the slots of ``old`` know into larger ones that are still all zeros."""
    for i in range(bank.params.shape[0]):
        slot = slot_of(bank, i)
        before = slot_of(old, i)
        kind = _form(slot)
        if kind == SIMPLE:
            grow_simple(slot, before)
        elif kind == MAP_K:
            grow_map(slot, before)
        elif kind == _SERVER_MAP:
            grow_server_map(slot, before)
        elif kind == MOD:
            grow_mod(slot, before)
        elif kind == CACHE:
            grow_cache(slot, before)
        elif kind == SUFFIX:
            grow_suffix(slot, before)
        elif kind == PROMPT_LOOKUP:
            grow_prompt_lookup(slot, before)


# ------------------------------------------------------------------------------ combinations


@view
def _forget_all(bank):
    for i in range(bank.params.shape[0]):
        _forget(slot_of(bank, i))


@view
def _begin_all(bank, tokens, n, same):
    for i in range(bank.params.shape[0]):
        _begin(slot_of(bank, i), tokens, n, same)


@view
def _draft_any(bank, tokens, n, n_max, out, caches):
    """(how many ids, by which drafter); the first that drafts any."""
    for i in range(bank.params.shape[0]):
        drafted = _draft(slot_of(bank, i), tokens, n, n_max, out, caches)
        if drafted > 0:
            return drafted, i
    return np.int64(0), np.int64(-1)


@view
def _accept_all(bank, tokens, n, n_accepted, drafter):
    for i in range(bank.params.shape[0]):
        _accept(slot_of(bank, i), tokens, n, n_accepted, i != drafter)


# ------------------------------------------------------------------------------------ replay


@helper
def _room(n, start, n_most, n_predict, n_ctx):
    """How long a draft after the first ``n`` tokens may be; 0 or less: the drafters rest."""
    room = n_most
    if n_ctx > 0:
        room = min(room, n_ctx - n - 1)
    remaining = n_predict - (n - start)
    if remaining > 0:
        room = min(room, remaining - 1)
    return room


@helper
def _right(tokens, n, out, drafted):
    """How many of the drafted tokens stand; the text's last token ends the generation."""
    left = tokens.size - n
    right = np.int64(0)
    while right < min(drafted, left) and out[U(right)] == tokens[U(n + right)]:
        right += 1
    if right == left and drafted > left:
        right -= 1
    return right


@helper
def _keep_example(tally, which, key, place, drafted, right, drafter, out):
    """Put a draft among the best of one sort; of equals the earlier one stays ahead."""
    example = tally.example[which]
    ids = tally.example_ids[which]
    at = example.shape[0]
    while at > 0:
        other = example[at - 1, 2] if which == 0 else example[at - 1, 1] - example[at - 1, 2]
        if other >= key:
            break
        at -= 1
    if at == example.shape[0]:
        return
    for i in range(example.shape[0] - 1, at, -1):
        for j in range(4):
            example[i, j] = example[i - 1, j]
        for j in range(example[i, 1]):
            ids[i, j] = ids[i - 1, j]
    example[at, 0] = place
    example[at, 1] = drafted
    example[at, 2] = right
    example[at, 3] = drafter
    for j in range(drafted):
        ids[at, j] = out[U(j)]


@helper
def _count_draft(tally, place, drafted, right, drafter, out):
    tally.total[2] += 1
    tally.total[3] += drafted
    tally.total[4] += right
    tally.length[0, drafted] += 1
    tally.length[1, right] += 1
    tally.drafter[drafter, 0] += 1
    tally.drafter[drafter, 1] += drafted
    tally.drafter[drafter, 2] += right
    if right > 0:
        _keep_example(tally, 0, right, place, drafted, right, drafter, out)
    if right < drafted:
        _keep_example(tally, 1, drafted - right, place, drafted, right, drafter, out)


@view
def _rounds(bank, caches, text, start, n, stop, limits, row, place, out, tally):
    """Replay rounds of a turn until ``stop`` tokens or more stand; returns how many do.

    text: prompt and turn, no more; place: where it begins in all tokens; start: its prompt's end.
    """
    n_most = np.int64(out.size)
    while n < min(stop, text.size):
        room = _room(n, start, n_most, limits[0], limits[1])
        drafted = np.int64(0)
        right = np.int64(0)
        if room > 0:
            drafted, drafter = _draft_any(bank, text, n, room, out, caches)
            if drafted > 0:
                right = _right(text, n, out, drafted)
                _accept_all(bank, text, n, right, drafter)
                _count_draft(tally, place + n, drafted, right, drafter, out)
        tally.total[0] += 1
        tally.row[row, 2] += 1
        tally.row[row, 3] += drafted
        tally.row[row, 4] += right
        tally.batches[row, drafted + 1] += 1
        n += right + 1
        if n > text.size:
            tally.total[1] += 1
            n = np.int64(text.size)
    return n


@helper
def _same(tokens, before, before_end, prompt, end):
    """How many tokens the texts tokens[before:before_end] and tokens[prompt:end] begin alike."""
    most = min(before_end - before, end - prompt)
    if before == prompt:
        return most
    same = np.int64(0)
    while same < most and tokens[U(before + same)] == tokens[U(prompt + same)]:
        same += 1
    return same


@view
def _begin_turn(bank, texts, cursor, carry, tally):
    """Begin the cursor's turn."""
    turn = cursor[TURN]
    prompt = texts.prompts[turn]
    start = texts.turns[turn, 0]
    conversation = cursor[CONVERSATION]
    while texts.turn_of_conversation[conversation + 1] <= turn:
        conversation += 1
    is_new = conversation > cursor[CONVERSATION] or turn == 0
    cursor[CONVERSATION] = conversation
    same = np.int64(0)
    if carry == CARRY_ALL or not is_new:
        same = _same(texts.tokens, cursor[BEFORE], cursor[BEFORE_END], prompt, start)
    if carry == CARRY_NONE or (carry == CARRY_CONVERSATION and is_new):
        _forget_all(bank)
    text = texts.tokens[prompt : texts.turns[turn, 1]]
    _begin_all(bank, text, start - prompt, same)
    cursor[PLACE] = start - prompt + 1
    row = _row(texts, conversation, tally)
    tally.row[row, 0] += 1
    tally.row[row, 1] += texts.turns[turn, 1] - start


@helper
def _row(texts, conversation, tally):
    return conversation * tally.row.shape[0] // (texts.turn_of_conversation.size - 1)


@kernel
def replay_turns(
    bank, caches, texts, limits, carry, cursor, n_tokens, out, tally, clock_id, timespec
):
    """Replay about ``n_tokens`` tokens from the cursor on; returns how many those were.

    caches: a ``Caches``; limits int64 [2]: n_predict and n_ctx of the requests, 0: none;
    cursor int64 [N_CURSOR]: zeros at first; out int32 [draft_max]: scratch; clock_id: the
    platform's CLOCK_MONOTONIC; timespec int64 [2]: scratch.
    """
    done = np.int64(0)
    n_turns = texts.turns.shape[0]
    while cursor[TURN] < n_turns and done < n_tokens:
        turn = cursor[TURN]
        prompt = texts.prompts[turn]
        start = texts.turns[turn, 0] - prompt
        begin = clock_ns(clock_id, timespec)
        if cursor[PLACE] == 0:
            before = cursor[BEFORE_END] if cursor[BEFORE] == prompt else prompt
            done += max(texts.turns[turn, 0] - before, 0) + 1  # the turn's first token, too
            _begin_turn(bank, texts, cursor, carry, tally)
        text = texts.tokens[prompt : texts.turns[turn, 1]]
        n = cursor[PLACE]
        stop = n + n_tokens - done
        row = _row(texts, cursor[CONVERSATION], tally)
        n = _rounds(bank, caches, text, start, n, stop, limits, row, prompt, out, tally)
        done += n - cursor[PLACE]
        cursor[PLACE] = n
        if n == text.size:
            cursor[TURN] += 1
            cursor[PLACE] = 0
            cursor[BEFORE] = prompt
            cursor[BEFORE_END] = texts.turns[turn, 1]
        tally.total[5] += clock_ns(clock_id, timespec) - begin
    return done


# ------------------------------------------------------------------------------------ session
#
# One array with address and size of each array: see lookup/session_kernels.py.

# The arrays of a session: Bank, Dynamic, Bigrams; then
# thresholds: int64 [4, 5]          of lookup/tables.py
# origin:     int64 [draft-max, 2]  out
# tokens:     int32 [n]             the text, and room for more of it
# out:        int32 [draft-max]     the draft
Session = namedtuple("Session", "bank dynamic bigrams thresholds origin tokens out")

_PARAMS, _VARS, _TABLE, _NODES, _WORDS, _STARTS, _DYNAMIC = range(len(Bank._fields) + 1)
_THRESHOLDS = _DYNAMIC + N_DYNAMIC + N_BIGRAMS
_ORIGIN, _TOKENS, _OUT, N_ARRAYS = range(_THRESHOLDS + 1, _THRESHOLDS + 5)


@session_helper
def _bank(session):
    params = rows_at(session, _PARAMS, N_PARAMS, np.int64)
    return Bank(
        params,
        rows_at(session, _VARS, N_VARS, np.int64),
        array_at(session, _TABLE, np.int32),
        array_at(session, _NODES, np.int32),
        array_at(session, _WORDS, np.int64),
        rows_at(session, _STARTS, params.shape[0] + 1, np.int64),
    )


@session_helper
def _caches(session, ids):
    dynamic, bigrams = tables_at(session, _DYNAMIC, ids)
    thresholds = rows_at(session, _THRESHOLDS, N_THRESHOLDS, np.int64)
    return Caches(dynamic, bigrams, thresholds, rows_at(session, _ORIGIN, N_ORIGIN, np.int64))


@njit(cache=True, nogil=True)
def forget_in_session(session):
    """Forget all."""
    _forget_all(_bank(session))


@njit(cache=True, nogil=True)
def begin_in_session(session, n, same):
    """Begin a request with the session's first ``n`` tokens as its prompt."""
    _begin_all(_bank(session), array_at(session, _TOKENS, np.int32), n, same)


@njit(cache=True, nogil=True)
def draft_in_session(session, pending, n, n_max, ids):
    """Draft after the session's first ``n`` tokens; returns how many.

    pending int64 [3], in and out: the last draft, on which it is judged first by what has come
    since: its length, its drafter, and how many tokens stood before it. ids: an empty array of the
    type in which the static cache holds tokens.
    """
    bank = _bank(session)
    tokens = array_at(session, _TOKENS, np.int32)
    out = array_at(session, _OUT, np.int32)
    if pending[0] > 0:
        right = _right(tokens[:n], pending[2], out, pending[0])
        _accept_all(bank, tokens, pending[2], right, pending[1])
        pending[0] = 0
    if n_max < 1:
        return np.int64(0)
    drafted, drafter = _draft_any(bank, tokens, n, n_max, out, _caches(session, ids))
    pending[0] = drafted
    pending[1] = drafter
    pending[2] = n
    return drafted
