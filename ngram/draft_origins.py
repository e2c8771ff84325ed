"""Where the drafts of a generation came from: cache and size of n-grams, or which drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..engine.decode.pacer import Pacer
from .drafters.drafter import SpecDrafter
from .lookup.drafter import NgramDrafter
from .lookup.replay import SOURCES
from .lookup.tables import SIZES

Tally = Mapping[str | int, list[int]]


class TallyPacer(Pacer):
    """A pacer that also counts drafted and accepted tokens by where they came from.

    Only those that were evaluated are counted.

    Parameters
    ----------
    drafter : its ``origins`` say where each token came from, in the order of ``tallies``
    tallies : {by what: {which: [0, 0]}}
    fixed : see ``Pacer``

    Attributes
    ----------
    tallies : {by what: {which: [drafted, accepted]}}
    """

    def __init__(
        self, drafter: NgramDrafter | SpecDrafter, tallies: Mapping[str, Tally], *, fixed: bool
    ) -> None:
        super().__init__(drafter.draft_max, fixed=fixed)
        self._drafter = drafter
        self.tallies = tallies

    def count(self, n_verified: int, n_stand: int) -> None:
        """See ``Pacer``."""
        origins: Sequence[tuple[str | int, ...]] = self._drafter.origins(n_verified)
        for i, places in enumerate(origins):
            # a drafter of drafters/settings.py has one place, and says no size
            for tally, which in zip(self.tallies.values(), places, strict=False):
                tally[which][0] += 1
                tally[which][1] += i < n_stand


class OriginPacer(TallyPacer):
    """Counts of llama-lookup's drafting by "source", the cache, and by "size" of the n-gram.

    Parameters
    ----------
    fixed : draft as much as there is room for, whether it pays or not
    """

    def __init__(self, drafter: NgramDrafter, *, fixed: bool = False) -> None:
        by_source: Tally = {source: [0, 0] for source in SOURCES}
        by_size: Tally = {size: [0, 0] for size in range(1, SIZES + 1)}
        super().__init__(drafter, {"source": by_source, "size": by_size}, fixed=fixed)


class DrafterPacer(TallyPacer):
    """Counts of a combination by "drafter", in order of priority.

    Parameters
    ----------
    fixed : draft as much as there is room for, whether it pays or not
    """

    def __init__(self, drafter: SpecDrafter, *, fixed: bool = False) -> None:
        by_drafter: Tally = {setting.name: [0, 0] for setting in drafter.spec.names}
        super().__init__(drafter, {"drafter": by_drafter}, fixed=fixed)
