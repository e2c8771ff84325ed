"""How much of a draft stands: rules that turn the model's logits and a draft into tokens.

A rule is a function of the sampler, the logits after the last token and after each drafted one,
the draft, and the tokens that end a text; it tells the sampler what the text holds. Any rule may
be used whose text has the model's own distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import REMEDY_DAMAGED, ModelDamaged
from .sampling import Sampler, place_drawn

# Beside a seed: the stream is then not that of a sampler or drafter which has the same seed.
_STREAM_OF_RULE = 0x72656A656374


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


class ProposalSource(Protocol):
    """A drafter that draws its tokens at random, and knows from what."""

    def proposals(self, n: int) -> tuple[NDArray[np.int32], NDArray[np.float32]] | None:
        """What the first ``n`` tokens of the last draft were drawn from; None: nothing was drawn.

        Returns
        -------
        int32 [n_draft] ascending ids, float32 [n, n_draft] their probabilities
        """


class RejectSamples:
    """Speculative sampling: the model's distribution, and more of a draft than matching accepts.

    A drafted token x stands with probability min(1, p(x) / q(x)), p being what the sampler would
    draw from and q what the drafter drew from; in place of one that falls comes a token drawn in
    proportion to max(0, p - q); after a draft that stands comes one drawn from p (Leviathan et
    al. 2023, Chen et al. 2023). A token that was not drawn at random is its own q, of
    probability 1. Greedy, this is ``match_samples``.

    The text has plain decoding's distribution, but is another text than plain decoding's; the
    same seed gives the same text where drafts are the same and cut at the same places, which with
    a pacer depends on measured times. How many drafted tokens are verified may depend on the text
    and on q, but never on the drawn tokens themselves: to drop a token for what it is spoils the
    distribution (``Pacer``, drawn).

    Parameters
    ----------
    source : the drafter, where it draws at random; None: it does not
    seed : of the random numbers, which are none of the sampler's; 0 or more
    """

    def __init__(self, source: ProposalSource | None, seed: int) -> None:
        self._source = source
        self._seed = seed
        self.reset()

    def reset(self) -> None:
        """Begin the random stream anew."""
        seeds = np.random.SeedSequence((self._seed, _STREAM_OF_RULE))
        self._stream = np.random.Generator(np.random.PCG64(seeds))

    def __call__(
        self,
        sampler: Sampler,
        logits: NDArray[np.float32],
        draft: Sequence[int],
        stop: AbstractSet[int],
    ) -> Verdict:
        """See ``AcceptRule``.

        Raises
        ------
        ModelDamaged : the logits are not finite, or the drafter's probabilities are none
        """
        if sampler.params.is_greedy:
            return match_samples(sampler, logits, draft, stop)
        tokens: list[int] = []
        proposed = None
        if self._source is not None and draft:
            proposed = self._source.proposals(len(draft))
        for place, drafted in enumerate(draft):
            ids, p = sampler.probabilities(logits[place])
            q = None if proposed is None else _at(ids, drafted, proposed[0], proposed[1][place])
            token = self._settle(ids, p, drafted, q)
            sampler.accept(token)
            tokens.append(token)
            if token != drafted:
                return Verdict(tokens, place)
            if token in stop:
                return Verdict(tokens, place + 1)
        ids, p = sampler.probabilities(logits[len(draft)])
        tokens.append(self._drawn(ids, p))
        sampler.accept(tokens[-1])
        return Verdict(tokens, len(draft))

    def _settle(
        self,
        ids: NDArray[np.int32],
        p: NDArray[np.float64],
        drafted: int,
        q: tuple[float, NDArray[np.float64]] | None,
    ) -> int:
        """The drafted token, or another in its place; ``q`` of it and of ``ids``, None: one-hot."""
        place = int(ids.searchsorted(drafted))
        is_candidate = place < ids.size and ids[place] == drafted
        p_drafted = float(p[place]) if is_candidate else 0.0
        if self._stream.random() * (1.0 if q is None else q[0]) < p_drafted:
            return drafted
        if q is not None:
            rest = np.maximum(p - q[1], 0)
        else:
            rest = p.copy()
            rest[place : place + is_candidate] = 0
        # Only by rounding is nothing left where a token fell: p and q are then the same.
        return self._drawn(ids, rest if rest.any() else p)

    def _drawn(self, ids: NDArray[np.int32], weights: NDArray[np.float64]) -> int:
        return int(ids[place_drawn(weights, self._stream.random())])


def _at(
    ids: NDArray[np.int32],
    drafted: int,
    q_ids: NDArray[np.int32],
    q: NDArray[np.float32],
) -> tuple[float, NDArray[np.float64]] | None:
    """Probabilities of a drafted token and of ``ids``; None: the token cannot come from there."""
    total = float(q.sum(dtype=np.float64))  # 1, but for rounding
    if not 0 < total < math.inf:
        raise ModelDamaged(
            f"the probabilities of a draft sum to {total}, not to 1", remedy=REMEDY_DAMAGED
        )
    place = int(q_ids.searchsorted(drafted))
    if place == q_ids.size or q_ids[place] != drafted or not q[place] > 0:
        return None
    places = q_ids.searchsorted(ids)
    is_there = q_ids.take(places, mode="clip") == ids
    return float(q[place]) / total, np.where(is_there, q.take(places, mode="clip"), 0) / total
