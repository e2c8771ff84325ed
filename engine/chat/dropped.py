"""What of a conversation was left out: named, counted, and told apart where it was an answer's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

# Names come from a file: only what looks like one is shown, and no more than so many.
_NAME = re.compile(r"[A-Za-z_][\w.:/-]{0,47}")
_MOST_KINDS = 50
PLACES_SHOWN = 10
OTHER_PARTS = "parts of other kinds"


class DroppedKind(NamedTuple):
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
    places : of each kind the first PLACES_SHOWN, where they are not the conversation's own.
    here : where what is counted next stands, if it is not the conversation's own place.
    """

    def __init__(self) -> None:
        self.counts: Counter[DroppedKind] = Counter()
        self.places: dict[DroppedKind, list[str]] = {}
        self.here = ""

    def add(
        self, what: str, name: object = None, *,
        of_answer: bool = False, n: int = 1, place: str = "",
    ) -> None:  # fmt: skip
        """Count ``n`` parts: ``what`` they are (``block``), and the name that a file gives them."""
        if name is not None:
            shown = isinstance(name, str) and _NAME.fullmatch(name)
            what = f"{what} '{name}'" if shown else f"{what} without a plain name"
        kind = DroppedKind(what, of_answer)
        place = place or self.here
        self._add(kind, n, [place] if place else [])

    def take(self, other: Dropped) -> None:
        """Count what another has counted."""
        for kind, n in other.counts.items():
            self._add(kind, n, other.places.get(kind, []))

    def begin_places(self, name: str) -> None:
        """Put the name of their file before the places."""
        self.places = {kind: [name + one for one in at] for kind, at in self.places.items()}

    def _add(self, kind: DroppedKind, n: int, places: Sequence[str]) -> None:
        if kind not in self.counts and len(self.counts) >= _MOST_KINDS:
            kind = DroppedKind(OTHER_PARTS, kind.of_answer)
        self.counts[kind] += n
        if places:
            known = self.places.setdefault(kind, [])
            known += places[: PLACES_SHOWN - len(known)]

    @property
    def n(self) -> int:
        """All of them."""
        return self.counts.total()
