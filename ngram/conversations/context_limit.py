"""What of conversations a server's context has room for.

As llama-server does it with a slot of so many tokens and without context shift: a request whose
prompt fills the slot is refused, and an answer ends where the slot is full.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .conversation import Conversation, Joined, ReplayTexts


@dataclass(frozen=True)
class Beyond:
    """How much does not fit.

    Attributes
    ----------
    n_refused : answers whose prompt leaves no room
    n_stopped : answers that end early
    longest : tokens of the longest request, prompt and answer
    """

    n_refused: int
    n_stopped: int
    longest: int

    def __bool__(self) -> bool:
        """Whether anything does not fit."""
        return self.n_refused > 0 or self.n_stopped > 0


def beyond(texts: ReplayTexts, n_ctx: int) -> Beyond:
    """Count the answers that a context of ``n_ctx`` tokens has no room for."""
    n_prompts = texts.turns[:, 0] - texts.prompts
    n_tokens = texts.turns[:, 1] - texts.prompts
    refused = n_prompts >= n_ctx
    stopped = ~refused & (n_tokens > n_ctx)
    return Beyond(int(refused.sum()), int(stopped.sum()), int(n_tokens.max(initial=0)))


def within(texts: ReplayTexts, n_ctx: int) -> ReplayTexts:
    """Return the texts with what a context of ``n_ctx`` tokens has room for.

    Answers that would be refused are no turns any more, others end with the context; conversations
    without an answer are left out. The text after an answer that ends early stays as it is: that
    is what the next request holds.
    """
    joined = Joined()
    for one in texts:
        fits = one.turns[:, 0] - one.prompts < n_ctx
        if fits.any():
            joined.add(_cut(one, fits, n_ctx))
    return joined.texts()


def _cut(one: Conversation, fits: np.ndarray, n_ctx: int) -> Conversation:
    """Return the turns that fit, each as far as it does, and no token after the last one."""
    turns, prompts = one.turns[fits], one.prompts[fits]
    stops = np.minimum(turns[:, 1], prompts + n_ctx)
    turns = np.stack([turns[:, 0], stops], axis=1)
    return Conversation(one.tokens[: stops[-1]], turns, prompts)
