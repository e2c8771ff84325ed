"""Option values that only ``prefill-run`` takes."""

from __future__ import annotations

import math
from enum import Enum

from ...engine.errors import UsageError
from ..options import LIST_MOST, too_many


class PositionKind(Enum):
    """Positions of kept tokens."""

    REPACKED = "repacked"
    ORIGINAL = "original"


def parse_shares(text: str) -> list[float]:
    """Shares from "0.1,0.2", each once, in order.

    Raises
    ------
    UsageError : something else, one that is not above 0 and at most 1, or too many
    """
    shares = []
    words = text.split(",")
    if len(words) > LIST_MOST:
        raise too_many("--keep", len(words), LIST_MOST)
    for word in words:
        try:
            share = float(word)
        except ValueError:
            share = math.nan
        if not 0 < share <= 1:
            raise UsageError(
                f"--keep {text}: {word.strip()!r} is no share",
                remedy="give a number above 0, and at most 1, such as 0.1",
            )
        shares.append(share)
    return list(dict.fromkeys(shares))
