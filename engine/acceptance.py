"""How much of a draft stands: rules that turn the model's logits and a draft into tokens.

A rule is a function of the sampler, the logits after the last token and after each drafted one,
the draft, and the tokens that end a text; it tells the sampler what the text holds. Any rule may
be used whose text has the model's own distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .sampling import Sampler


class Verdict(NamedTuple):
    """What one round adds to the text.

    Attributes
    ----------
    tokens : 1 or more ids
    n_from_draft : the first so many of them are the draft's; at most one more follows
    """

    tokens: list[int]
    n_from_draft: int


class AcceptRule(Protocol):
    """The form of a rule."""

    def __call__(
        self,
        sampler: Sampler,
        logits: NDArray[np.float32],
        draft: Sequence[int],
        stop: AbstractSet[int],
    ) -> Verdict:
        """Decide about a draft of n tokens from float32 [n + 1, n_vocab] logits."""


def match_samples(
    sampler: Sampler,
    logits: NDArray[np.float32],
    draft: Sequence[int],
    stop: AbstractSet[int],
) -> Verdict:
    """Sample each position as if there were no draft, and go on while the samples equal it.

    So the text is plain decoding's, token for token, for every drafter and temperature: the same
    logits are sampled in the same order with the same random numbers. A token of ``stop`` ends
    the round, and what was drafted after it is dropped. This is llama.cpp's default.

    Raises
    ------
    ModelDamaged : the logits are not finite
    """
    tokens: list[int] = []
    for row, drafted in zip(logits, (*draft, None), strict=True):
        token = sampler.sample(row)
        sampler.accept(token)
        tokens.append(token)
        if token != drafted:
            return Verdict(tokens, len(tokens) - 1)
        if token in stop:
            break
    return Verdict(tokens, len(tokens))
