"""How much was drafted and accepted, by the drafter that it came from and by position."""

from __future__ import annotations

from collections.abc import Callable

from ..engine.decode.pacer import Pacer


class CountingPacer(Pacer):
    """A pacer that also counts drafted and accepted tokens by origin and position.

    Only those that were evaluated are counted.

    Parameters
    ----------
    draft_max, drawn, fixed : see ``Pacer``
    origin : tells where the last draft came from

    Attributes
    ----------
    positions : {origin: ([drafted by position], [accepted by position])}
    """

    def __init__(
        self,
        draft_max: int,
        origin: Callable[[], str],
        *,
        drawn: bool = False,
        fixed: bool = False,
    ) -> None:
        super().__init__(draft_max, drawn=drawn, fixed=fixed)
        self._origin = origin
        self.count_afresh()

    def count_afresh(self) -> None:
        """Forget what was counted; what was learnt of costs and acceptance stays."""
        self.positions: dict[str, tuple[list[int], list[int]]] = {}

    def count(self, n_verified: int, n_stand: int) -> None:
        """See ``Pacer``."""
        if not n_verified:
            return
        drafted, accepted = self.positions.setdefault(self._origin(), ([], []))
        for counts in (drafted, accepted):
            counts.extend([0] * (n_verified - len(counts)))
        for i in range(n_verified):
            drafted[i] += 1
            accepted[i] += i < n_stand
