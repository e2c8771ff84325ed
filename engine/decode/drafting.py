"""What a generation drafts with: the drafter, how long its drafts are, what stands of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from .acceptance import AcceptRule, match_samples
from .generation import Round
from .pacer import Pacer
from .protocols import Drafter


class DraftArguments(TypedDict, total=False):
    """The arguments of ``generate`` that say how to draft; none: do not."""

    drafter: Drafter
    draft_max: int
    pacer: Pacer | None
    accept_rule: AcceptRule
    on_round: Callable[[Round], None] | None


@dataclass(frozen=True)
class Drafting:
    """How a text is drafted.

    Attributes
    ----------
    draft_max : most tokens of a draft
    pacer : shortens drafts to what pays; None: always draft_max
    rule : decides how much of a draft stands
    on_round : told of each round
    """

    drafter: Drafter
    draft_max: int
    pacer: Pacer | None = None
    rule: AcceptRule = match_samples
    on_round: Callable[[Round], None] | None = None

    @property
    def arguments(self) -> DraftArguments:
        """What ``generate`` is told of it."""
        return {
            "drafter": self.drafter,
            "draft_max": self.draft_max,
            "pacer": self.pacer,
            "accept_rule": self.rule,
            "on_round": self.on_round,
        }
