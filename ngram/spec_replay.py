"""Replay texts through any drafters, round by round as llama-server does, and count.

Turn by turn: the request's prompt begins it; the pass over the prompt yields the first token; then
each round drafts behind the text so far, takes drafted tokens while they equal the text, and the
text's next token as the one that the model samples. A turn ends as a generation does that sampled
its last token: where a draft reaches beyond the last token, that one counts as sampled. Source:
llama.cpp build 11434, tools/server/server-context.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from .cache import NgramCache
from .conversations import ReplayTexts
from .spec import DrafterSpec

Carry = Literal["none", "conversation", "all"]
# Conversations are counted in so many groups at most: enough for a bootstrap over them, and
# 100,000 of them do not take gigabytes.
ROWS_MOST = 2048


@dataclass(frozen=True, eq=False)
class SpecStats:
    """What one replay counted; all arrays int64.

    Attributes
    ----------
    spec : the row that was replayed
    n_turns, n_generated : turns, and their tokens; the first of each is not a round's
    rounds : passes of the model over a batch of one token and a draft, if any
    cut_rounds : of these, those whose own token would lie behind the end of the turn
    drafts : rounds with a draft
    drafted, accepted : tokens
    drafted_at, accepted_at : [draft_max], by position in the draft
    by_drafter : [k, 3], in the order of spec.names: drafts, drafted, accepted
    by_row : [R, 5], by groups of conversations: turns, generated, rounds, drafted, accepted.
        Conversation c of C is of row ``c * R // C``, and R is C up to 2048.
    batches : [R, draft_max + 2], rounds that evaluated a batch of that many tokens
    draft_ns : time of beginning, drafting and learning
    memory_bytes : of the drafters; caches are shared and not counted
    longest, costliest : drafts with most accepted, and with most refused tokens, the first of
        equals first; see ``Example``
    """

    spec: DrafterSpec
    n_turns: int
    n_generated: int
    rounds: int
    cut_rounds: int
    drafts: int
    drafted: int
    accepted: int
    drafted_at: npt.NDArray[np.int64]
    accepted_at: npt.NDArray[np.int64]
    by_drafter: npt.NDArray[np.int64]
    by_row: npt.NDArray[np.int64]
    batches: npt.NDArray[np.int64]
    draft_ns: int
    memory_bytes: int
    longest: tuple[Example, ...]
    costliest: tuple[Example, ...]

    @property
    def accept(self) -> float | None:
        """Share of drafted tokens that were right, 0 to 1."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens that a round yields: the bound of the speed-up."""
        n = self.n_generated - self.n_turns
        return n / self.rounds if self.rounds else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Accepted tokens a draft."""
        return self.accepted / self.drafts if self.drafts else None

    @property
    def us_per_token(self) -> float | None:
        """Microseconds that the drafters took for a token of the turns."""
        return self.draft_ns / 1000 / self.n_generated if self.n_generated else None


@dataclass(frozen=True, eq=False)
class Example:
    """A draft of a replay.

    Attributes
    ----------
    at : place in ``ReplayTexts.tokens`` that the draft begins at
    drafted : int32 [n], the draft
    accepted : how many of them were right
    drafter : index into spec.names
    """

    at: int
    drafted: npt.NDArray[np.int32]
    accepted: int
    drafter: int


def replay_texts(
    texts: ReplayTexts,
    spec: DrafterSpec,
    *,
    n_vocab: int,
    carry: Carry = "conversation",
    n_predict: int | None = None,
    n_ctx: int | None = None,
    ends: Sequence[int] = (),
    static: NgramCache | None = None,
    dynamic: NgramCache | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> SpecStats:
    """Replay all turns with the drafters of one row; the caches are left as they are.

    Parameters
    ----------
    carry : what drafters know when a request begins: of "all" requests before it, as a server slot
        does; of those of its "conversation"; or "none"
    n_predict, n_ctx : the limits that the requests had, which cut drafts; None: none
    ends : ids that end a generation, for drafters that draft none behind them
    on_progress : gets (tokens done, tokens in all) now and then

    Raises
    ------
    UsageError, InputMalformed, CacheUnsuitable, CacheBadToken
    """
    raise NotImplementedError


def replay_all(
    texts: ReplayTexts,
    specs: Sequence[DrafterSpec],
    *,
    n_vocab: int,
    n_threads: int = 2,
    carry: Carry = "conversation",
    n_predict: int | None = None,
    n_ctx: int | None = None,
    ends: Sequence[int] = (),
    static: NgramCache | None = None,
    dynamic: NgramCache | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[SpecStats]:
    """``replay_texts`` of each row, several at a time; parameters and errors as there.

    ``on_progress`` gets (tokens done, tokens in all) of all rows together.
    """
    raise NotImplementedError
