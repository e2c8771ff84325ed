"""From a request to what the target reads of it: parts, scores, a selection, ids and positions.

Whatever speaks against dropping anything ends in a prefill in full, with the reason; what cannot
be, since the context has no room for the whole prompt, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..engine.errors import UsageError
from .defaults import KEEP, MIN_TOKENS
from .meter import Meter
from .prompt.parts import CHUNK, PromptParts
from .scorers.scores import OpenScorer, Scores
from .select import Refusal, Refused, Selection, select

TOKENISE, SCORE, SELECT = "tokenise", "score", "select"

Positions = Literal["repacked", "original"]


@dataclass(frozen=True)
class Settings:
    """How much to keep, and where it stands then.

    Attributes
    ----------
    keep : share of the prompt's tokens, above 0, at most 1
    positions : of kept tokens: one after the other, or as in the whole prompt
    chunk, min_tokens, neighbours, widen : see ``select``
    """

    keep: float = KEEP
    positions: Positions = "repacked"
    chunk: int = CHUNK
    min_tokens: int = MIN_TOKENS
    neighbours: bool = True
    widen: bool = True


@dataclass(frozen=True, eq=False)
class Choice:
    """What the target reads of a prompt.

    Attributes
    ----------
    parts : the whole prompt
    scores : None: there was no need for any
    outcome : a selection; or why all is kept
    kept : int32 [n_kept], places in the prompt, ascending
    positions : int64 [n_kept], for RoPE; None: one after the other
    budget_cut : tokens that were to be kept and did not fit into the context; 0: all did
    answer_begin : int32 [n_begin], tokens that the answer is to begin with
    """

    parts: PromptParts
    scores: Scores | None
    outcome: Selection | Refused
    kept: NDArray[np.int32]
    positions: NDArray[np.int64] | None = None
    budget_cut: int = 0
    answer_begin: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))

    @property
    def ids(self) -> NDArray[np.int32]:
        """Tokens that the target reads, int32 [n_kept + n_begin]."""
        return np.concatenate((self.parts.ids[self.kept], self.answer_begin))

    @property
    def places(self) -> NDArray[np.int64] | None:
        """Their positions, int64 [n_kept + n_begin]; None: one after the other."""
        if self.positions is None:
            return None
        behind = self.parts.n + np.arange(self.answer_begin.size, dtype=np.int64)
        return np.concatenate((self.positions, behind))

    def beginning(self, answer_begin: NDArray[np.int32]) -> Choice:
        """The same, with an answer that begins so; no scorer has seen that."""
        return replace(self, answer_begin=answer_begin)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is dropped."""
        return self.kept.size == self.parts.n


def share_that_fits(n: int, keep: float, n_room: int) -> tuple[float, int]:
    """The share to keep of ``n`` tokens, and by how many tokens less that is than was asked for.

    Parameters
    ----------
    n_room : most tokens of a prompt, 1 or more
    """
    asked = round(keep * n)
    if asked <= n_room:
        return keep, 0
    return n_room / n, asked - n_room


def choose(
    parts: PromptParts, open_scorer: OpenScorer, settings: Settings, n_room: int, meter: Meter
) -> Choice:
    """Choose what to read of a prompt.

    Parameters
    ----------
    open_scorer : not called where no score could change the outcome
    n_room : most tokens of the prompt that the target's context has room for, 1 or more
    meter : gets the stages "score" and "select"

    Raises
    ------
    UsageError : a share out of range; or nothing may be dropped, and the whole does not fit; or
        original positions that are not in the context
    InputMalformed, ModelUnsupported, ... : see the scorer
    """
    check_positions(parts.n, settings.positions, n_room)
    keep, budget_cut = share_that_fits(parts.n, settings.keep, n_room)
    with meter.stage(SELECT):
        outcome = _select(parts, _nothing(parts), settings, keep)
    scores = None
    # Scores of 0 are refused for being flat when nothing else speaks against a choice.
    if isinstance(outcome, Refused) and outcome.kind is Refusal.FLAT:
        with open_scorer() as scorer, meter.stage(SCORE):
            scores = scorer.score(parts)
        with meter.stage(SELECT):
            outcome = _select(parts, scores, settings, keep)
    if isinstance(outcome, Refused):
        _check_room(parts.n, n_room, outcome)
        return Choice(parts, scores, outcome, np.arange(parts.n, dtype=np.int32))
    positions = None
    if settings.positions == "original":
        positions = outcome.kept.astype(np.int64)
    return Choice(parts, scores, outcome, outcome.kept, positions, budget_cut)


def whole(parts: PromptParts) -> Choice:
    """All of a prompt, without a look at it."""
    outcome = Selection(
        kept=np.arange(parts.n, dtype=np.int32),
        reasons=np.ones(parts.n, np.uint8),
        n_tokens=parts.n,
        budget=parts.n,
        n_document=parts.n_document,
        mass_kept=1.0,
    )
    return Choice(parts, None, outcome, outcome.kept)


def check_positions(n: int, positions: Positions, n_room: int) -> None:
    """Check that a prompt of ``n`` tokens has original positions, where they are wanted.

    Raises
    ------
    UsageError : they are not in the context
    """
    if positions == "original" and n > n_room:
        raise UsageError(
            f"original positions reach up to {n}, but the context has room for {n_room} tokens of "
            "a prompt",
            remedy="give re-packed positions, a shorter prompt or a larger -c",
        )


def _check_room(n: int, n_room: int, refused: Refused) -> None:
    if n > n_room:
        raise UsageError(
            f"the prompt has {n} tokens, the context has room for {n_room}, and none can be "
            f"dropped: {refused.reason}",
            remedy="give a shorter prompt, a larger -c or a lower -n, or mend what is said",
        )


def _nothing(parts: PromptParts) -> Scores:
    """Scores that tell nothing."""
    return Scores("", np.zeros(parts.n, np.float32), np.empty(0, np.int32))


def _select(
    parts: PromptParts, scores: Scores, settings: Settings, keep: float
) -> Selection | Refused:
    return select(
        parts,
        scores,
        keep=keep,
        chunk=settings.chunk,
        min_tokens=settings.min_tokens,
        neighbours=settings.neighbours,
        widen=settings.widen,
    )
