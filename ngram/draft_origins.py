"""Where the drafts of a generation came from: cache and size of n-grams, or which drafter."""

from __future__ import annotations

from collections.abc import Mapping

from ..engine.pacer import Pacer
from .drafter import NgramDrafter
from .replay import SOURCES
from .spec_drafter import SpecDrafter
from .tables import SIZES

Tally = Mapping[str | int, list[int]]


class TallyPacer(Pacer):
    """A pacer that also counts drafted and accepted tokens by where they came from.

    Only those that were evaluated are counted.

    Parameters
    ----------
    draft_max, fixed : see ``Pacer``
    tallies : {by what: {which: [0, 0]}}

    Attributes
    ----------
    tallies : {by what: {which: [drafted, accepted]}}
    """

    def __init__(self, draft_max: int, tallies: Mapping[str, Tally], *, fixed: bool) -> None:
        super().__init__(draft_max, fixed=fixed)
        self.tallies = tallies


class OriginPacer(TallyPacer):
    """Counts of llama-lookup's drafting by "source", the cache, and by "size" of the n-gram.

    Parameters
    ----------
    fixed : draft as much as there is room for, whether it pays or not
    """

    def __init__(self, drafter: NgramDrafter, *, fixed: bool = False) -> None:
        self._drafter = drafter
        by_source: Tally = {source: [0, 0] for source in SOURCES}
        by_size: Tally = {size: [0, 0] for size in range(1, SIZES + 1)}
        super().__init__(drafter.draft_max, {"source": by_source, "size": by_size}, fixed=fixed)

    def count(self, n_verified: int, n_stand: int) -> None:
        """See ``Pacer``."""
        for i, (source, size) in enumerate(self._drafter.origins(n_verified)):
            for counts in (self.tallies["source"][source], self.tallies["size"][size]):
                counts[0] += 1
                counts[1] += i < n_stand


class DrafterPacer(TallyPacer):
    """Counts of a combination by "drafter", in order of priority.

    Parameters
    ----------
    fixed : draft as much as there is room for, whether it pays or not
    """

    def __init__(self, drafter: SpecDrafter, *, fixed: bool = False) -> None:
        self._drafter = drafter
        by_drafter: Tally = {setting.name: [0, 0] for setting in drafter.spec.names}
        super().__init__(drafter.draft_max, {"drafter": by_drafter}, fixed=fixed)

    def count(self, n_verified: int, n_stand: int) -> None:
        """See ``Pacer``."""
        if n_verified:
            name = self._drafter.origins(1)[0][0]  # one has drafted them all
            counts = self.tallies["drafter"][name]
            counts[0] += n_verified
            counts[1] += n_stand
