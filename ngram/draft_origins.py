"""Where the drafts of a generation came from: which cache, and n-grams of which size."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.pacer import Pacer, n_alike
from .drafter import NgramDrafter
from .replay import SOURCES
from .tables import SIZES


class OriginPacer(Pacer):
    """A pacer that also counts drafted and accepted tokens by their origin.

    It sits where the loop says which drafted tokens were evaluated: those alone are counted.

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

    def observe(
        self,
        draft: Sequence[int],
        n_verified: int,
        tokens: Sequence[int],
        *,
        verify_ns: int,
        draft_ns: int | None,
    ) -> None:
        """See ``Pacer``; the drafter still knows the draft, for it was not asked for another."""
        n_equal = n_alike(draft[:n_verified], tokens)
        for i, (source, size) in enumerate(self._drafter.origins(n_verified)):
            for counts in (self.by_source[source], self.by_size[size]):
                counts[0] += 1
                counts[1] += i < n_equal
        super().observe(draft, n_verified, tokens, verify_ns=verify_ns, draft_ns=draft_ns)
