"""Which drafter is the fastest: speeds predicted from replays, and how sure the choice is.

A replay says how many rounds evaluated how many tokens, a ``StepCurve`` what each such pass
takes: their product, and the time of drafting, is the time of decoding. Conversations differ, so
the choice is tried again on samples of them, drawn with replacement, the same for all rows
(Efron's bootstrap, paired): how often the best stays before the next is how sure it is. Of many
conversations groups are drawn. Choosing among many settings flatters the one that is chosen: what
was chosen on one half of the conversations is therefore timed on the other half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .step_curve import StepCurve

N_SAMPLES = 2000
_SEED = 1
_TAILS = (2.5, 97.5)  # of a 95 % interval

# Instead of a row's number: not to draft.
PLAIN = -1

Floats = npt.NDArray[np.float64]
RoundCounts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Work:
    """What decoding the conversations costs with one row.

    Attributes
    ----------
    cost : float64 [g], of each group of conversations, in the curve's unit
    n_decoded : int64 [g], tokens that rounds yielded
    guessed : share of the cost, 0 to 1, in passes over more tokens than the curve knows
    """

    cost: Floats
    n_decoded: RoundCounts
    guessed: float


def work_of(
    batches: RoundCounts, n_decoded: RoundCounts, curve: StepCurve, draft_ns: float = 0.0
) -> Work:
    """Return what rounds cost.

    Parameters
    ----------
    batches : int64 [g, m], rounds of each group of conversations by the tokens they evaluated.
    n_decoded : int64 [g], tokens that those rounds yielded: all but the first of each turn, which
        the pass over its prompt yields.
    draft_ns : of all rounds, shared out evenly; counts where the curve is in milliseconds.
    """
    costs = curve.up_to(batches.shape[1] - 1)
    n_rounds = batches.sum(axis=1)
    cost = batches @ costs
    by_size = batches.sum(axis=0) * costs
    guessed = by_size[curve.largest + 1 :].sum() / by_size.sum() if by_size.any() else 0.0
    if curve.is_ms:
        cost = cost + draft_ns / 1e6 * n_rounds / max(1, int(n_rounds.sum()))
    return Work(cost, n_decoded, float(guessed))


@dataclass(frozen=True)
class AdvisedRow:
    """The fastest of some rows, plain decoding among them.

    Attributes
    ----------
    best, next : numbers of the rows; PLAIN: not to draft. ``next`` is None where there is none
    margin : by which the best is faster than the next, 0.1 for 10 %
    margin_range : 95 % of the samples are in between; None: too few conversations
    sure : share of the samples in which the best is faster than the next, 0 to 1; None likewise
    held_out : speed over plain decoding of what each half of the conversations chooses, on the
        other half; None likewise
    """

    best: int
    next: int | None
    margin: float | None
    margin_range: tuple[float, float] | None
    sure: float | None
    held_out: float | None


class Speeds:
    """Predicted speeds of some rows, and of plain decoding.

    Parameters
    ----------
    works : a row each, 1 or more, of the same conversations; one that yields no token has no speed.
    curve : what they were timed with.

    Attributes
    ----------
    ratios : float64 [n], of each row to plain decoding; nan where nothing was decoded.
    tokens_per_s : float64 [n], None where the curve is not in milliseconds.
    plain_tokens_per_s : of plain decoding, likewise.
    n_groups : groups of conversations that decoded anything.
    """

    def __init__(self, works: Sequence[Work], curve: StepCurve) -> None:
        decoded = np.stack([work.n_decoded for work in works]).astype(np.float64)
        cost = np.stack([work.cost for work in works])
        self._n = len(works)
        # The last row is plain decoding.
        self._decoded = np.vstack([decoded, decoded[:1]])
        self._cost = np.vstack([cost, decoded[:1] * curve.plain])
        self.n_groups = int(self._decoded[-1].astype(bool).sum())
        speeds = _ratio(self._decoded.sum(axis=1), self._cost.sum(axis=1))
        self._totals = speeds / speeds[-1]
        self.ratios = self._totals[:-1]
        self.tokens_per_s = 1000 * speeds[:-1] if curve.is_ms else None
        self.plain_tokens_per_s = float(1000 * speeds[-1]) if curve.is_ms else None
        self._samples = self._sampled()

    def _sampled(self) -> Floats:
        """Return the ratios in samples of the conversations, float64 [N_SAMPLES, n + 1]."""
        n_groups = self._cost.shape[1]
        drawn = np.random.default_rng(_SEED).multinomial(
            n_groups, np.full(n_groups, 1 / n_groups), N_SAMPLES
        )
        speeds = _ratio(drawn @ self._decoded.T, drawn @ self._cost.T)
        sampled: Floats = speeds / speeds[:, -1:]
        return sampled

    def ranges(self) -> list[tuple[float, float] | None]:
        """Return between what 95 % of each row's ratios lie; None: too few conversations."""
        return [self._range(self._samples[:, i]) for i in range(self._n)]

    def _range(self, samples: Floats) -> tuple[float, float] | None:
        samples = samples[np.isfinite(samples)]
        if self.n_groups < 2 or not samples.size:
            return None
        least, most = np.percentile(samples, _TAILS)
        return float(least), float(most)

    def choose(self, among: Sequence[int] | None = None) -> AdvisedRow:
        """Return the fastest of some rows (default: all); of equals plain, or the first."""
        rows = [self._n, *(range(self._n) if among is None else among)]
        totals = self._totals[rows]
        if not np.isfinite(totals).all():
            return AdvisedRow(PLAIN, None, None, None, None, None)
        order = np.argsort(-totals, kind="stable")
        best = rows[order[0]]
        other = rows[order[1]]
        samples = self._samples[:, best] / self._samples[:, other]
        samples = samples[np.isfinite(samples)]
        sure = float((samples > 1).mean() + (samples == 1).mean() / 2) if samples.size else None
        margin_range = self._range(samples - 1)
        return AdvisedRow(
            best=self._number(best),
            next=self._number(other),
            margin=float(totals[order[0]] / totals[order[1]] - 1),
            margin_range=margin_range,
            sure=None if margin_range is None else sure,
            held_out=self._held_out(rows),
        )

    def _number(self, row: int) -> int:
        return PLAIN if row == self._n else row

    def _held_out(self, rows: Sequence[int]) -> float | None:
        """Return the ratio on the one half of what is best on the other, over both halves."""
        if self.n_groups < 2:
            return None
        cost = plain = 0.0
        for half, other in ((0, 1), (1, 0)):
            speeds = _ratio(
                self._decoded[rows, half::2].sum(axis=1), self._cost[rows, half::2].sum(axis=1)
            )
            chosen = rows[int(np.argmax(np.nan_to_num(speeds)))]
            cost += self._cost[chosen, other::2].sum()
            plain += self._cost[-1, other::2].sum()
        return float(plain / cost) if cost else None


def _ratio(above: Floats, below: Floats) -> Floats:
    """Divide; nan where there is nothing below."""
    result = np.full(above.shape, np.nan)
    np.divide(above, below, out=result, where=below > 0)
    return result
