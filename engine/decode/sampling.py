"""Logits in, token out: llama.cpp's default chain of samplers, seeded.

The chain is repeat penalty, top-k, top-p, min-p, temperature, draw (common/sampling.cpp of
llama.cpp; its other samplers are off by default and not built here). Temperature comes last, so
the filters see the model's own distribution. The lowest id wins a tie. The stream of random
numbers is NumPy's PCG64, not llama.cpp's Mersenne twister: a seed gives the same text in every
run here, and another text than llama.cpp gives for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import REMEDY_DAMAGED, ModelDamaged, UsageError

WHOLE_TEXT = -1
_PENALTY_MOST = 1000.0  # so that no logit becomes infinite
# A temperature below is a greedy choice in all but name, and would divide to infinity in float32.
_COLDEST = 1e-6
# Groups of a largest-k search for each wanted value: more give a tighter bound, and cost more.
_GROUPS_EACH = 8


@dataclass(frozen=True)
class SamplingParams:
    """How to choose a token; the defaults are llama.cpp's.

    Attributes
    ----------
    temperature : 0 or less is greedy: the likeliest token, and nothing drawn
    top_k : keep that many of the likeliest; 0 or less keeps all
    top_p : keep the fewest likeliest tokens whose probabilities reach it; 1 or more keeps all
    min_p : keep tokens at least that likely compared with the likeliest (1 or more: as likely); 0
        or less keeps all
    repeat_penalty : logits of recent tokens above 0 are divided by it, others multiplied; 1 is off
    repeat_last_n : how many tokens are recent, the prompt's among them; 0 is off, -1 the whole text
    seed : of the draws; 0 or more

    Raises
    ------
    UsageError : a value that means nothing
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p"):
            if not math.isfinite(getattr(self, name)):
                raise UsageError(f"{name} is {getattr(self, name)}", remedy="give a finite number")
        if not 1 / _PENALTY_MOST <= self.repeat_penalty <= _PENALTY_MOST:
            raise UsageError(
                f"repeat_penalty is {self.repeat_penalty}",
                remedy=f"give {1 / _PENALTY_MOST:g} to {_PENALTY_MOST:g}; 1 is off",
            )
        if self.repeat_last_n < WHOLE_TEXT:
            raise UsageError(
                f"repeat_last_n is {self.repeat_last_n}", remedy="give 0 or more, or -1 for all"
            )
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}", remedy="give 0 or more")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken, with nothing drawn."""
        return self.temperature <= 0

    @property
    def penalises(self) -> bool:
        """Whether the text so far changes the logits."""
        return self.repeat_penalty != 1 and self.repeat_last_n != 0


class Sampler:
    """Chooses tokens of one text; ``accept`` tells it what the text holds, ``sample`` draws.

    A sampled token takes exactly one number from the random stream (a greedy one none), so a
    draft that is verified by sampling consumes the stream as plain decoding does.
    """

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._temperature = np.float32(max(params.temperature, _COLDEST))
        # at 0, what is on or off is decided elsewhere
        min_p = min(params.min_p, 1.0)
        self._min_logit_below = np.float32(math.log(min_p) if min_p > 0 else 0)
        self.reset()

    def reset(self) -> None:
        """Forget the text, and begin the random stream anew."""
        self._stream = np.random.Generator(np.random.PCG64(self.params.seed))
        self._n_accepted = 0
        self._recent: deque[int] = deque()
        self._count: dict[int, int] = {}  # of the recent tokens

    def accept(self, token: int) -> None:
        """Append a token to the text."""
        self._n_accepted += 1
        if not self.params.penalises:
            return
        token = int(token)
        self._count[token] = self._count.get(token, 0) + 1
        self._recent.append(token)
        if len(self._recent) > self.params.repeat_last_n >= 0:
            oldest = self._recent.popleft()
            self._count[oldest] -= 1
            if not self._count[oldest]:
                del self._count[oldest]

    def accept_all(self, tokens: Iterable[int]) -> None:
        """Append tokens, as of a prompt, to the text."""
        for token in tokens:
            self.accept(token)

    def sample(self, logits: NDArray[np.float32]) -> int:
        """Draw a token from float32 [n_vocab] logits, which stay as they are.

        Raises
        ------
        ModelDamaged : the logits are NaN, or none of them is finite
        """
        if self.params.is_greedy:
            return self._likeliest(self._penalised(logits))
        ids, weights = self._candidates(logits)
        place = place_drawn(weights, self._stream.random())
        return place if ids is None else int(ids[place])

    def probabilities(
        self, logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """What ``sample`` draws from; draws nothing itself.

        Returns
        -------
        int32 [k] ascending ids that the filters keep, float64 [k] their probabilities

        Raises
        ------
        ModelDamaged : the logits are NaN, or none of them is finite
        """
        if self.params.is_greedy:
            return np.array([self._likeliest(self._penalised(logits))], np.int32), np.ones(1)
        ids, weights = self._candidates(logits)
        if ids is None:
            ids = np.arange(weights.size)
        p = weights.astype(np.float64)
        return ids.astype(np.int32), p / p.sum()

    def _penalised(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self._count:
            return logits
        logits = logits.copy()
        ids = np.fromiter(self._count, np.int64, len(self._count))
        penalty = np.float32(self.params.repeat_penalty)
        # Dividing a logit below 0 would make the token likelier.
        values = logits[ids]
        logits[ids] = np.where(values <= 0, values * penalty, values / penalty)
        return logits

    def _likeliest(self, logits: NDArray[np.float32]) -> int:
        best = int(logits.argmax())  # the first NaN, where there is one
        self._check(float(logits[best]))
        return best

    def _check(self, largest: float) -> None:
        if not math.isfinite(largest):
            raise ModelDamaged(
                f"the model's logits are {largest} after {self._n_accepted} tokens of text",
                remedy=REMEDY_DAMAGED,
            )

    def _candidates(
        self, logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64] | None, NDArray[np.float32]]:
        """Ids that the filters keep (None: all), and weights [k] in proportion to probability."""
        logits = self._penalised(logits)
        best = logits[self._likeliest(logits)]
        ids = self._filtered(logits, best)
        kept = logits if ids is None else logits[ids]
        with np.errstate(over="ignore"):  # to -inf, which is right
            return ids, np.exp((kept - best) / self._temperature)

    def _filtered(self, logits: NDArray[np.float32], best: np.float32) -> NDArray[np.int64] | None:
        """Ascending ids that top-k, top-p and min-p leave; None where all three are off.

        Each of the three leaves the beginning of the list sorted by logit, so it is enough to sort
        values, and to find out how long a beginning is left.
        """
        params = self.params
        keep_all = not 0 < params.top_k < logits.size
        if keep_all and params.top_p >= 1:
            if params.min_p <= 0:
                return None
            return np.flatnonzero(logits >= best + self._min_logit_below)
        ids = None if keep_all else _k_or_more_largest(logits, params.top_k)
        values = logits if ids is None else logits[ids]
        ordered = np.sort(values)[::-1]
        if ids is not None:
            ordered = ordered[: params.top_k]
        n_kept = ordered.size
        if params.top_p < 1:
            cumulated = np.exp(ordered - best).cumsum(dtype=np.float64)
            n_kept = int(cumulated.searchsorted(params.top_p * cumulated[-1], "left")) + 1
        if params.min_p > 0:
            n_likely = int(np.count_nonzero(ordered >= best + self._min_logit_below))
            n_kept = max(1, min(n_kept, n_likely))
        return _n_largest(values, ids, n_kept, ordered[n_kept - 1])


def place_drawn(weights: NDArray[np.float32] | NDArray[np.float64], number: float) -> int:
    """The place of [k] weights, some above 0, on which a random number of [0, 1) falls."""
    cumulated = weights.cumsum(dtype=np.float64)
    # A number below 1 times the sum rounds to below the sum, so a weight of 0 is passed over
    # wherever it stands.
    return int(cumulated.searchsorted(number * cumulated[-1], "right"))


def _k_or_more_largest(values: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Ascending places of the k largest values [n], and perhaps of some more; 0 < k < n.

    The k-th largest of many groups' maxima has k values at or above it: a bound that leaves few
    candidates, at a third of the price of np.argpartition.
    """
    n_groups = _GROUPS_EACH * k
    n_grouped = values.size // n_groups * n_groups
    maxima = values[:n_grouped].reshape(-1, n_groups).max(axis=0) if n_grouped else values
    bound = np.partition(maxima, maxima.size - k)[maxima.size - k]
    return np.flatnonzero(values >= bound)


def _n_largest(
    values: NDArray[np.float32], ids: NDArray[np.int64] | None, n: int, smallest: np.float32
) -> NDArray[np.int64]:
    """Ascending ids of the n largest of ``values`` [m], the lowest ids among equals.

    Parameters
    ----------
    ids : int64 [m] ascending, of the values; None: their places
    smallest : the n-th largest value
    """
    kept = values >= smallest
    n_surplus = int(np.count_nonzero(kept)) - n
    if n_surplus:
        kept[np.flatnonzero(values == smallest)[-n_surplus:]] = False
    places = np.flatnonzero(kept)
    return places if ids is None else ids[places]
