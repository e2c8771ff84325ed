"""How much was drafted and accepted, by the drafter that it came from and by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..engine.pacer import Pacer, n_alike


class CountingPacer(Pacer):
    """A pacer that also counts drafted and accepted tokens by origin and position.

    It sits where the loop says which drafted tokens were evaluated: those alone are counted.

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
        if n_verified:
            self._count(draft[:n_verified], tokens)
        super().observe(draft, n_verified, tokens, verify_ns=verify_ns, draft_ns=draft_ns)

    def _count(self, draft: Sequence[int], tokens: Sequence[int]) -> None:
        drafted, accepted = self.positions.setdefault(self._origin(), ([], []))
        for counts in (drafted, accepted):
            counts.extend([0] * (len(draft) - len(counts)))
        n_stand = n_alike(draft, tokens)
        for i in range(len(draft)):
            drafted[i] += 1
            accepted[i] += i < n_stand
