"""How much was drafted and accepted, by the drafter that it came from and by position."""

from __future__ import annotations

from collections.abc import Callable

from ..engine.decode.generation import Round


class DraftCounts:
    """Counts drafted and accepted tokens by origin and position; told of each round.

    Only those that were evaluated are counted.

    Parameters
    ----------
    origin : tells where the last draft came from

    Attributes
    ----------
    positions : {origin: ([drafted by position], [accepted by position])}
    """

    def __init__(self, origin: Callable[[], str]) -> None:
        self._origin = origin
        self.positions: dict[str, tuple[list[int], list[int]]] = {}

    def __call__(self, played: Round) -> None:
        """Count a round's draft."""
        if not played.n_verified:
            return
        drafted, accepted = self.positions.setdefault(self._origin(), ([], []))
        for counts in (drafted, accepted):
            counts.extend([0] * (played.n_verified - len(counts)))
        for i in range(played.n_verified):
            drafted[i] += 1
            accepted[i] += i < played.n_stand
