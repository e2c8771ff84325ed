"""Where the drafts of a generation came from: cache and size of n-grams, or which drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...engine.decode.generation import Round
from ..lookup.drafter import NgramDrafter
from ..lookup.replay import SOURCES
from ..lookup.tables import SIZES
from .drafter import SpecDrafter

Tally = Mapping[str | int, list[int]]


class OriginCounts:
    """Counts drafted and accepted tokens by where they came from; told of each round.

    Only those that were evaluated are counted: of llama-lookup's drafting by "source", the cache,
    and by "size" of the n-gram; of a combination by "drafter", in order of priority.

    Parameters
    ----------
    drafter : its ``origins`` say where each token came from

    Attributes
    ----------
    tallies : {by what: {which: [drafted, accepted]}}
    """

    def __init__(self, drafter: NgramDrafter | SpecDrafter) -> None:
        self._drafter = drafter
        self.tallies: dict[str, Tally] = {}
        if isinstance(drafter, SpecDrafter):
            self.tallies["drafter"] = {setting.name: [0, 0] for setting in drafter.spec.names}
        else:
            self.tallies["source"] = {source: [0, 0] for source in SOURCES}
            self.tallies["size"] = {size: [0, 0] for size in range(1, SIZES + 1)}

    def __call__(self, played: Round) -> None:
        """Count a round's draft; the drafter has not been asked for another yet."""
        origins: Sequence[tuple[str | int, ...]] = self._drafter.origins(played.n_verified)
        for i, places in enumerate(origins):
            # a combination's tokens have one place, and no size
            for tally, which in zip(self.tallies.values(), places, strict=False):
                tally[which][0] += 1
                tally[which][1] += i < played.n_stand
