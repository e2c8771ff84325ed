"""What all drafters of a replay share: the arrays of one, and the functions that each kind has.

A drafter is a ``Slot``: arrays of the same types for every kind, so that one compiled kernel serves
all kinds and any combination of them. It is named after the slot of a server: it has the state of
one sequence of requests. All arrays begin as zeros, and kernels never allocate: slots.py knows how
large they must be. Each kind has these kernels (``@helper``), in a file of its own;
session_kernels.py calls those of ``slot.params[0]``:

``forget_KIND(slot)``
    Nothing came before: forget what came of earlier drafts and of other texts. What is known of
    the present text alone may stay, for ``begin`` says how much of it goes on. In time that depends
    on what was learnt, not on the size of the arrays: it is called for each short conversation.
``begin_KIND(slot, tokens, n, same)``
    A request begins, its prompt is ``tokens[:n]``. ``same``: so many of its first tokens are those
    of the text that the slot was last called with; n_seen (all of that text) or more where the text
    has only grown, and a kind then need not read them again.
``draft_KIND(slot, tokens, n, n_max, out) -> int64``
    The text is ``tokens[:n]``, ``tokens[n - 1]`` being the token that was just sampled. Writes at
    most ``n_max`` (1 or more) ids and returns how many; ``out`` has room for the kind's longest.
    Nothing after ``n`` may be read: in a replay ``tokens`` holds what is still to come. No call is
    made in a round in which a drafter before this one drafted, or which has no room for a draft.
``accept_KIND(slot, tokens, n, n_accepted, is_other)``
    After a round with a draft: ``n_accepted`` of its ids were right; ``n`` as in ``draft``.
    ``is_other``: another drafter's draft it was.
``grow_KIND(slot, old)``
    Take over all that ``old`` knows into a slot that is larger and still all zeros.

Token ids are 0 to 2**31 - 1. Kernels check nothing and raise nothing; indices are unsigned, since
Numba adds code for negative ones otherwise.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np
from numba import njit

# params: int64 [24]  [0] kind, [1] whether as llama.cpp has it, flaws included; from [2] on the
#                     values of the kind's keys in the order of spec.KINDS, fractions in millionths;
#                     [8] room for that many tokens of one text, [9] of all texts together,
#                     [10] ids are below it; [12:16] ids that end a generation, -1: none;
#                     [16:24] the kind's own: how it parts its arrays, as slots.py says
# vars:   int64 [32]  whatever the kind counts
# table:  int32 [*]   \
# nodes:  int32 [*]    | whatever the kind needs
# words:  int64 [*]   /
Slot = namedtuple("Slot", "params vars table nodes words")

# The slots of a combination, in order of priority, one after the other in the same arrays.
# params int64 [k, 24], vars int64 [k, 32]; starts int64 [3, k + 1]: where the parts of table,
# nodes and words begin.
Bank = namedtuple("Bank", "params vars table nodes words starts")

N_PARAMS = 24
N_VARS = 32
# The codes of spec.KINDS.
SIMPLE, MAP_K, MAP_K4V, MOD, CACHE, SUFFIX, PROMPT_LOOKUP, VLLM_NGRAM = range(8)
# Places in params.
KIND, EXACT, KEYS, ROOM, ROOM_ALL, N_VOCAB, ENDS, PARTS = 0, 1, 2, 8, 9, 10, 12, 16
MILLION = 1_000_000  # a fraction of 1 in params

# As in draft_kernels: no reference counts, and no wrappers for what Python does not call.
kernel = njit(cache=True, nogil=True, _nrt=False)
helper = njit(nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)
# For what returns parts of arrays, which without reference counts no function can: it is written
# into its caller.
view = njit(nogil=True, _nrt=False, inline="always")

U = np.uint64


@helper
def copy(target, source, n):
    """Copy the first ``n`` elements. Between slices Numba would allocate, which kernels may not."""
    for i in range(n):
        target[U(i)] = source[U(i)]


@view
def slot_of(bank, i):
    """The i-th slot of a bank."""
    starts = bank.starts
    return Slot(
        bank.params[i],
        bank.vars[i],
        bank.table[starts[0, i] : starts[0, i + 1]],
        bank.nodes[starts[1, i] : starts[1, i + 1]],
        bank.words[starts[2, i] : starts[2, i + 1]],
    )
