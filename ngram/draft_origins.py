"""Where the drafts of a generation came from: which cache, and n-grams of which size."""

from __future__ import annotations

from ..engine.pacer import Pacer
from .drafter import NgramDrafter
from .replay import SOURCES
from .tables import SIZES


class OriginPacer(Pacer):
    """A pacer that also counts drafted and accepted tokens by their origin.

    Only those that were evaluated are counted.

    Parameters
    ----------
    fixed : draft as much as there is room for, whether it pays or not

    Attributes
    ----------
    by_source : {source: [drafted, accepted]}
    by_size : {n-gram size: [drafted, accepted]}
    """

    def __init__(self, drafter: NgramDrafter, *, fixed: bool = False) -> None:
        super().__init__(drafter.draft_max, fixed=fixed)
        self._drafter = drafter
        self.by_source = {source: [0, 0] for source in SOURCES}
        self.by_size = {size: [0, 0] for size in range(1, SIZES + 1)}

    def count(self, n_verified: int, n_stand: int) -> None:
        """See ``Pacer``."""
        for i, (source, size) in enumerate(self._drafter.origins(n_verified)):
            for counts in (self.by_source[source], self.by_size[size]):
                counts[0] += 1
                counts[1] += i < n_stand
