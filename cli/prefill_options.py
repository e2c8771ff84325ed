"""Option values that only ``prefill-run`` takes."""

from __future__ import annotations

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
