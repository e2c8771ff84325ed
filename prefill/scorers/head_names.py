"""Attention heads as a user writes them."""

from __future__ import annotations

import re

from ...engine.errors import UsageError
from .attention import Head

HEADS_MOST = 1000
_HEAD = re.compile(r"(\d{1,4})\.(\d{1,4})((?::(?:nope|max|mean))*)")


def parse_heads(text: str) -> tuple[Head, ...]:
    """Heads from "15.6,18.6:nope:mean": layer, head, and what differs from RoPE and maximum.

    Raises
    ------
    UsageError : something else, or more than HEADS_MOST
    """
    heads = []
    words = text.split(",")
    if len(words) > HEADS_MOST:
        raise UsageError(
            f"--heads names {len(words)} values, more than {HEADS_MOST}", remedy="give fewer"
        )
    for word in words:
        found = _HEAD.fullmatch(word.strip())
        if found is None:
            raise UsageError(
                f"--heads {text}: {word.strip()!r} is no head",
                remedy="give LAYER.HEAD, such as 15.6 or 18.6:nope:mean, with commas between them",
            )
        marks = found[3].split(":")
        heads.append(
            Head(
                int(found[1]),
                int(found[2]),
                "nope" not in marks,
                "mean" if "mean" in marks else "max",
            )
        )
    return tuple(heads)
