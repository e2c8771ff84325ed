"""What of a comparison's ratio its rounds explain, and what only noise does.

Drafting is faster where a pass over several tokens takes less than as many passes over one. So no
ratio can be above the tokens that a round yields, over what the passes of a round cost. Where one
is, something else made the machine faster or slower meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

import numpy as np

from .comparison import Comparison, middle
from .generation import Generation

# By how much a median of turns may be above the tokens of a round, and above what is explained:
# passes were timed at another time than texts, when the machine may have been slower.
TOLERANCE, TOLERANCE_TIMED = 1.05, 1.25


@dataclass(frozen=True)
class Reliability:
    """How sure a ratio is.

    Attributes
    ----------
    explained : largest ratio that the rounds allow, drafting taking no time; None: nothing was
        decoded
    is_unexplained : the measured one is a gain, and clearly more than that, or than the tokens of
        a round
    is_within_spread : the turns say both, that drafting is faster and that it is slower
    """

    explained: float | None
    is_unexplained: bool
    is_within_spread: bool


def judge(comparison: Comparison) -> Reliability:
    """Say how sure a comparison's ratio is."""
    ratios = [ratio for ratio in comparison.ratios() if ratio is not None]
    plain = [run.decode_ns / (len(run.tokens) - 1) for run in comparison.plain if _decoded(run)]
    if not ratios or not plain:
        return Reliability(None, False, False)
    explained = middle(
        [_explained(run, comparison.step_ns, median(plain)) for run in comparison.drafted]
    )
    per_round = middle([run.tokens_per_round for run in comparison.drafted])
    most = min(
        TOLERANCE * (per_round or math.inf),
        TOLERANCE_TIMED * (math.inf if explained is None else explained),
    )
    return Reliability(
        explained,
        median(ratios) > max(1.0, most),
        min(ratios) < 1 < max(ratios),
    )


def _decoded(run: Generation) -> bool:
    return len(run.tokens) > 1 and run.decode_ns > 0


def _explained(run: Generation, step_ns: dict[int, list[int]], plain_ns: float) -> float | None:
    """Tokens a round over the cost of a round, in plain tokens; None: there was no round.

    Parameters
    ----------
    step_ns : times of passes by their tokens
    plain_ns : of a token of plain decoding, all that it takes
    """
    if not run.n_rounds:
        return None
    reached = run.drafted_by_position  # rounds with a draft of so many tokens or more
    rounds = -np.diff(np.concatenate(([run.n_rounds], reached, [0])))  # [1 + k] of 0, 1, ... drafts
    sizes = sorted(step_ns)
    # What a pass takes more than one over a token: the least that the samples say, and never less.
    more = [
        max(0, min(least(step_ns[n]) - least(step_ns[sizes[0]]) for least in (min, median)))
        for n in sizes
    ]
    more_ns = np.interp(np.arange(1, rounds.size + 1), sizes, more)
    return (len(run.tokens) - 1) / float(rounds @ (1 + more_ns / plain_ns))
