"""What llama-server does with its n-gram drafters, round by round, over text that is known.

Slow and obvious: the drafters are those of naive_drafters.py (llama.cpp's) and naive_repaired.py
(ours, and other people's). A drafter's state lives in a slot, from one request to the next.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import naive
import naive_drafters as upstream
import naive_repaired as repaired
import naive_suffix
from naive_drafters import Drafter, Tokens

# In the order in which llama.cpp asks them, whatever the order in which they are named.
EXACT: dict[str, Callable[..., Drafter]] = {
    "ngram-simple": upstream.NgramSimple,
    "ngram-map-k": partial(upstream.NgramMap, key_only=True),
    "ngram-map-k4v": partial(upstream.NgramMap, key_only=False),
    "ngram-mod": upstream.NgramMod,
    "ngram-cache": upstream.NgramCache,
}
REPAIRED: dict[str, Callable[..., Drafter]] = {
    "ngram-simple": repaired.NgramSimple,
    "ngram-map-k": repaired.NgramMapK,
    "ngram-map-k4v": repaired.NgramMapK4V,
    "ngram-mod": repaired.NgramMod,
    "ngram-cache": repaired.NgramCache,
    "prompt-lookup": repaired.PromptLookup,
    "vllm-ngram": repaired.VllmNgram,
    "suffix": naive_suffix.Suffix,
}
# Whose parameters have other names on the command line.
OTHERWISE = {
    "prompt-lookup-min": "n-min",
    "prompt-lookup-max": "n-max",
    "num-speculative-tokens": "k",
}


class Round(NamedTuple):
    """One round: what was drafted (and could be accepted), by which drafter (None if nothing)."""

    n_drafted: int
    n_accepted: int
    drafter: int | None


class Setting(NamedTuple):
    """A drafter's name, and its parameters as they are spelt on the command line."""

    name: str
    params: Mapping[str, int | float]


def make_slots(
    settings: Sequence[Setting],
    *,
    exact: bool,
    n_slots: int = 1,
    static: naive.Cache | None = None,
    dynamic: naive.Cache | None = None,
    end_tokens: Collection[int] = (),
) -> list[list[Drafter]]:
    """The drafters of each slot of a server; the slots share ngram-mod's pool.

    `exact` for llama.cpp's as they are, which it asks in an order of its own; else the repaired
    ones, in the order in which they are named.
    """
    ordered = list(settings)
    if exact:
        ordered.sort(key=lambda setting: list(EXACT).index(setting.name))
    shared: dict[str, Any] = {"static": static, "dynamic": dynamic, "end_tokens": end_tokens}
    for name, params in ordered:
        if name == "ngram-mod":
            shared["pool"] = (upstream if exact else repaired).Pool(int(params.get("n-match", 24)))
    return [[make(setting, exact, shared) for setting in ordered] for _ in range(n_slots)]


def make(setting: Setting, exact: bool, shared: Mapping[str, Any]) -> Drafter:
    """One drafter, from its parameters and from what it asks for of what is shared."""
    kind = EXACT[setting.name] if exact else REPAIRED[setting.name]
    params = {OTHERWISE.get(name, name): value for name, value in setting.params.items()}
    params = {name.replace("-", "_"): value for name, value in params.items()}
    wanted = inspect.signature(kind).parameters.keys() & shared.keys()
    return kind(**params, **{name: shared[name] for name in wanted})


def replay_request(
    drafters: Sequence[Drafter],
    prompt: Tokens,
    generated: Tokens,
    *,
    n_predict: int | None = None,
    n_ctx: int | None = None,
    end_tokens: Collection[int] = (),
) -> list[Round]:
    """The rounds of one request that brought `generated`, whose first token nobody drafts.

    `n_predict` is how many tokens were asked for, and `n_ctx` what the slot's context holds; None
    is without end. A round whose limit is 0 asks no drafter. `end_tokens` end a generation.
    """
    for drafter in drafters:
        drafter.begin(prompt)
    rounds: list[Round] = []
    n_done = 1
    while n_done < len(generated):
        text = prompt + generated[:n_done]
        drafted, who = first_draft(drafters, text, draft_limit(len(text), n_done, n_predict, n_ctx))
        n_accepted = count_accepted(drafted, generated[n_done:], end_tokens)
        if who is not None:
            for i, drafter in enumerate(drafters):
                drafter.accept(n_accepted, i != who)
        rounds.append(Round(len(drafted), n_accepted, who))
        n_done += n_accepted + 1
    return rounds


def draft_limit(n_text: int, n_done: int, n_predict: int | None, n_ctx: int | None) -> int:
    """How many tokens of a draft can be verified; each round brings one more than it accepts."""
    limits = [sys.maxsize]
    if n_predict is not None:
        limits.append(n_predict - n_done - 1)
    if n_ctx is not None:  # one place is left over, for the server may shift the context
        limits.append(n_ctx - n_text - 1)
    return min(limits)


def first_draft(drafters: Sequence[Drafter], text: Tokens, limit: int) -> tuple[Tokens, int | None]:
    """The first draft that is not empty, cut to `limit`; those after it are not asked."""
    if limit > 0:
        for i, drafter in enumerate(drafters):
            drafted = drafter.draft(text, limit)
            if drafted:
                return drafted[:limit], i
    return [], None


def count_accepted(drafted: Tokens, coming: Tokens, end_tokens: Collection[int]) -> int:
    """How many tokens of a draft come true.

    Verification stops at a token that ends the generation, which then counts as sampled, not as
    accepted; but at the draft's last token it does not look.
    """
    n_accepted = 0
    for token, truth in zip(drafted, coming, strict=False):
        is_last = n_accepted + 1 == len(drafted)
        if token != truth or (token in end_tokens and not is_last):
            break
        n_accepted += 1
    return n_accepted
