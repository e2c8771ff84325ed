"""What followed the first occurrence of the text's last tokens: prompt lookup, by two libraries.

transformers (PromptLookupCandidateGenerator in generation/candidate_generator.py, commit 00a11b6a,
without logits processors): of the n-grams that end the text, from ``ngram-max`` tokens down to one,
the longest that stood before is looked up where it stood first, and up to ``draft-max`` tokens from
after it are drafted, the text's own end included where it overlaps, but nothing from an
end-of-generation token on; shorter n-grams are not tried then.

vLLM (v1/spec_decode/ngram_proposer.py, commit adce4e9a): the same from ``prompt-lookup-max`` down
to ``prompt-lookup-min``, and end-of-generation tokens are like all others.

Both read the whole text for each draft. Here a suffix automaton has the longest n-gram and its
first place at hand, whatever the sizes, and a token of text costs amortised constant time.
"""

from __future__ import annotations

import numpy as np

from .automaton_kernels import (
    DEEP,
    FIRST,
    IS_FULL,
    LAST,
    LENGTH,
    LINK,
    N_INDEX,
    N_TEXT,
    append,
    at,
    automaton_of,
    automaton_sizes,
    clear,
    grow_automaton,
)
from .slot_kernels import ENDS, KEYS, KIND, PARTS, VLLM_NGRAM, U, helper

BUILT_ON = {
    "ngram.drafters.automaton_kernels": "3eb18efa",
    "ngram.drafters.slot_kernels": "a574593d",
}


def prompt_lookup_sizes(n_tokens):
    """(table, nodes): elements of a slot's arrays for ``n_tokens`` of one text."""
    return automaton_sizes(n_tokens)


@helper
def _keys(slot):
    """(shortest, longest n-gram, longest draft)."""
    params = slot.params
    if params[KIND] == VLLM_NGRAM:
        return params[KEYS], params[KEYS + 1], params[KEYS + 2]
    return np.int64(1), params[KEYS], params[KEYS + 1]


@helper
def forget_prompt_lookup(slot):
    """Nothing: other texts are never known."""


@helper
def begin_prompt_lookup(slot, tokens, n, same):
    a = automaton_of(slot)
    if a.numbers[N_INDEX] == 0 or same < a.numbers[N_TEXT]:
        clear(a, _keys(slot)[1], 0)
    _learn(a, tokens, n)


@helper
def _learn(a, tokens, n):
    numbers = a.numbers
    for i in range(numbers[N_TEXT], n):
        if numbers[IS_FULL] != 0:
            break
        append(a, tokens[U(i)])
    numbers[N_TEXT] = max(numbers[N_TEXT], n)


@helper
def draft_prompt_lookup(slot, tokens, n, n_max, out):
    a = automaton_of(slot)
    shortest, longest, draft_max = _keys(slot)
    _learn(a, tokens, n)
    states = a.states
    state = a.numbers[DEEP]
    size = min(longest, n)
    if state == a.numbers[LAST]:  # the longest n-gram ends here only
        state = max(np.int64(states[at(state) + LINK]), np.int64(0))
        size = np.int64(states[at(state) + LENGTH])
    if size < shortest or a.numbers[IS_FULL] != 0:
        return np.int64(0)
    start = np.int64(states[at(state) + FIRST])
    n_drafted = max(min(n - start, draft_max, n_max), np.int64(0))
    cuts = slot.params[KIND] != VLLM_NGRAM
    for i in range(n_drafted):
        token = tokens[U(start + i)]
        if cuts and _ends(slot.params, token):
            return np.int64(i)
        out[U(i)] = token
    return n_drafted


@helper
def _ends(params, token):
    """Whether the token ends a generation."""
    found = False
    for i in range(ENDS, PARTS):
        found |= params[i] == token
    return found


@helper
def accept_prompt_lookup(slot, tokens, n, n_accepted, is_other):
    """Nothing: the text tells."""


@helper
def grow_prompt_lookup(slot, old):
    grow_automaton(automaton_of(slot), automaton_of(old))
