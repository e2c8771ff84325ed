"""Option values that only ``prefill-run`` takes."""

from __future__ import annotations

import math
import re
from enum import Enum

from ..engine.errors import UsageError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


class PositionKind(Enum):
    """Positions of kept tokens."""

    REPACKED = "repacked"
    ORIGINAL = "original"


def parse_bytes(text: str) -> int:
    """Bytes from "800M": powers of 1000, as sizes are shown.

    Raises
    ------
    UsageError : something else
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise UsageError(
            f"--memory-limit {text}: no size", remedy="give a number of bytes, or 800M or 2G"
        )
    return round(float(found[1]) * _UNITS[found[2].lower()])


def parse_shares(text: str) -> list[float]:
    """Shares from "0.1,0.2", each once, in order.

    Raises
    ------
    UsageError : something else, or one that is not above 0 and at most 1
    """
    shares = []
    for word in text.split(","):
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
