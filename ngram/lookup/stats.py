"""What every replay counts of its drafts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False, kw_only=True)
class DraftStats:
    """Rounds and drafts of one replay; integers and nanoseconds only.

    Attributes
    ----------
    n_rounds : passes of the model over a batch of one token and a draft, if any
    n_cut_rounds : of these, those whose own token would lie past the end of the chunk or turn
    n_drafts : rounds with a draft
    n_drafted, n_accepted : drafted tokens (those past the end too), and those that were right
    drafted_at, accepted_at : int64 [draft_max], by position in the draft
    draft_ns : drafting, and learning what was accepted
    """

    n_rounds: int
    n_cut_rounds: int
    n_drafts: int
    n_drafted: int
    n_accepted: int
    drafted_at: npt.NDArray[np.int64]
    accepted_at: npt.NDArray[np.int64]
    draft_ns: int

    @property
    def accept(self) -> float | None:
        """Share of drafted tokens that were right, 0 to 1; None: none was drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Accepted tokens a draft; None: there was none."""
        return self.n_accepted / self.n_drafts if self.n_drafts else None
