"""Sizes in bytes as people write them: the one parser of ``800M``, ``1.5 GiB`` and the like."""

from __future__ import annotations

import re
from decimal import Decimal

from .errors import UsageError

# More than any machine has, and what fits into an int64.
SIZE_MOST = 2**62
_UNITS = "KMGT"
# No more digits than a size can have: what follows is worked out exactly, however long it is.
_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?) ?(?:([KMGT])(i?)B?|B)?", re.IGNORECASE)


def parse_size(option: str, text: str, *, least: int = 1) -> int:
    """Return the bytes of a size, rounded down: a number, and B, KB, K, KiB, Ki and so on to T.

    K, M, G and T are powers of 1000, as sizes are shown; with an i, of 1024. The case does not
    matter.

    Parameters
    ----------
    option : what the size was given to, for the message
    least : smallest that is a size here; the caller has something better to say of those above it

    Raises
    ------
    UsageError : something else; a size below ``least`` or above SIZE_MOST
    """
    found = _SIZE.fullmatch(text.strip())
    n_bytes = -1
    if found is not None:
        digits, unit, binary = found.groups()
        power = _UNITS.index(unit.upper()) + 1 if unit else 0
        n_bytes = int(Decimal(digits) * (1024 if binary else 1000) ** power)
    if not least <= n_bytes <= SIZE_MOST:
        raise UsageError(
            f"{option} {text}: no size",
            remedy="give a number of bytes, or one with K, M, G or T, such as 600M or 2GiB",
        )
    return n_bytes
