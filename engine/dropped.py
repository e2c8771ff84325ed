"""What of a conversation was left out: named, counted, and told apart where it was an answer's."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

# Names come from a file: only what looks like one is shown, and no more than so many.
_NAME = re.compile(r"[A-Za-z_][\w.:/-]{0,47}")
_MOST_KINDS = 50
OTHER_PARTS = "parts of other kinds"


class Kind(NamedTuple):
    """What was left out.

    Attributes
    ----------
    what : such as ``block 'tool_result'``.
    of_answer : the assistant had generated it, so that figures of the answer are not exact.
    """

    what: str
    of_answer: bool


class Dropped:
    """Parts of one conversation that were left out.

    Attributes
    ----------
    counts : how many of each kind; the kinds are bounded.
    """

    def __init__(self) -> None:
        self.counts: Counter[Kind] = Counter()

    def add(self, what: str, name: object = None, *, of_answer: bool = False, n: int = 1) -> None:
        """Count ``n`` parts: ``what`` they are (``block``), and the name that a file gives them."""
        if name is not None:
            shown = isinstance(name, str) and _NAME.fullmatch(name)
            what = f"{what} '{name}'" if shown else f"{what} without a plain name"
        kind = Kind(what, of_answer)
        if kind not in self.counts and len(self.counts) >= _MOST_KINDS:
            kind = Kind(OTHER_PARTS, of_answer)
        self.counts[kind] += n

    @property
    def n(self) -> int:
        """All of them."""
        return self.counts.total()
