"""What a pass of the model costs by the number of tokens in it: given, measured, interpolated.

A round of drafting evaluates the last token and the drafted ones in one pass. Between two
measured sizes the time is taken to be linear; past the largest it goes on as between the last two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...engine.errors import UsageError

EXAMPLE = "1:1.0,2:1.1,4:1.3"
_POINT = re.compile(r"\s*(\d{1,9})\s*:\s*([0-9][0-9.eE+-]*)\s*(ms)?\s*")
LEAST, MOST = 1e-9, 1e12  # costs: what is computed from others would not be finite
REMEDY = f"give --cost {EXAMPLE} (times over that of one token), 1:25ms,2:27ms, or a file"


@dataclass(frozen=True, eq=False)
class StepCurve:
    """Time of a pass by its size.

    Attributes
    ----------
    sizes : int64 [k], tokens of a pass, ascending, the first one 1.
    costs : float64 [k], milliseconds, or plain steps where those are not known (the first is 1).
    is_ms : which of the two.
    origin : what it comes from, for people.
    """

    sizes: npt.NDArray[np.int64]
    costs: npt.NDArray[np.float64]
    is_ms: bool
    origin: str

    @classmethod
    def of(cls, points: Mapping[int, float], *, is_ms: bool, origin: str) -> StepCurve:
        """Return the curve through points; without milliseconds, as multiples of one token's.

        Raises
        ------
        UsageError : no time of one token, or of nothing else
        """
        if 1 not in points or len(points) < 2:
            what = "no pass over one token" if 1 not in points else "passes over one token only"
            raise UsageError(
                f"{origin} tells of {what}, and drafting pays or not by the difference",
                remedy="measure 1 token and some more, as llama-bench -p 1,2,4,8,16,32,64 -n 0",
            )
        sizes = np.array(sorted(points), np.int64)
        costs = np.array([points[size] for size in sizes.tolist()])
        return cls(sizes, costs if is_ms else costs / costs[0], is_ms, origin)

    @property
    def largest(self) -> int:
        """The largest size that is known, not guessed."""
        return int(self.sizes[-1])

    @property
    def plain(self) -> float:
        """The cost of a pass over one token."""
        return float(self.costs[0])

    def up_to(self, most: int) -> npt.NDArray[np.float64]:
        """Costs by size, float64 [most + 1]; that of 0 tokens is 0."""
        asked = np.arange(most + 1)
        costs = np.interp(asked, self.sizes, self.costs)
        run, rise = self.sizes[-1] - self.sizes[-2], self.costs[-1] - self.costs[-2]
        # A pass over more tokens is no faster but by chance.
        costs += np.maximum(asked - self.sizes[-1], 0) * max(0.0, rise / run)
        costs[0] = 0.0
        return costs

    def points(self) -> dict[str, float]:
        """Costs by size, for a record."""
        return {str(n): float(cost) for n, cost in zip(self.sizes, self.costs, strict=True)}


def parse_curve(text: str) -> StepCurve:
    """Return the curve that ``SIZE:COST[ms],...`` says.

    Raises
    ------
    UsageError : anything else, a cost of 0 or below, a size twice, some in ms and some not
    """
    points: dict[int, float] = {}
    units = set()
    for word in text.split(","):
        found = _POINT.fullmatch(word)
        size, cost = (int(found[1]), _number(found[2])) if found else (0, math.nan)
        if found is None or size < 1 or not LEAST <= cost <= MOST:
            raise UsageError(f"--cost {text}: {word!r} is no SIZE:COST", remedy=REMEDY)
        if size in points:
            raise UsageError(f"--cost {text}: {size} is given twice", remedy="give it once")
        points[size] = cost
        units.add(found[3])
    if len(units) > 1:
        raise UsageError(
            f"--cost {text} is in milliseconds in part", remedy="write ms after all, or none"
        )
    return StepCurve.of(points, is_ms="ms" in units, origin=f"--cost {text}")


def is_curve_text(word: str) -> bool:
    """Whether what is given with --cost is a curve, not the name of a file."""
    return re.match(r"\s*\d+\s*:", word) is not None


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan
