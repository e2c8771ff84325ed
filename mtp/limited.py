"""An MTP drafter whose drafts are shorter than what may be drafted otherwise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .drafter import MtpDrafter


class LimitedMtpDrafter(MtpDrafter):
    """Beside a drafter of longer drafts: guesses of a head get worse sooner than n-grams do.

    Attributes
    ----------
    draft_max : most tokens of a draft, whatever is asked for; 1 until it is set
    """

    draft_max = 1

    def draft(self, n_max: int) -> NDArray[np.int32]:
        """See ``MtpDrafter``."""
        return super().draft(min(n_max, self.draft_max))
