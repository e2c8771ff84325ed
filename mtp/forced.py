"""Acceptance forced to nothing or to everything, to measure what a drafter's parts are worth.

A text with either is plain decoding's, and the drafter works as always: its time is paid. So the
speed with nothing accepted is what drafting costs, and that with everything accepted is what the
same drafts would win, were they right. For measurements only: the second needs the text
beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from numpy.typing import NDArray

from ..engine.decode.acceptance import Verdict, match_samples
from ..engine.decode.protocols import Drafter, TrunkReader
from ..engine.decode.sampling import Sampler


def reject_all(
    sampler: Sampler,
    logits: NDArray[np.float32],
    draft: Sequence[int],
    stop: AbstractSet[int],
) -> Verdict:
    """An accept rule by which no draft stands, also one that is right."""
    return match_samples(sampler, logits[:1], (), stop)


class PerfectDrafter:
    """As many tokens as a drafter drafts, but the right ones.

    Parameters
    ----------
    drafter : is asked as always, and told of the text
    text : int32 [n], prompt and all that is generated after it
    """

    def __init__(self, drafter: Drafter, text: NDArray[np.int32]) -> None:
        self._drafter = drafter
        self._text = text
        self._n = 0

    def draft(self, n_max: int) -> NDArray[np.int32]:
        """See ``Drafter``."""
        n = len(self._drafter.draft(n_max))
        return self._text[self._n : self._n + n]

    def accept(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """See ``Drafter``."""
        self._n += len(tokens)
        self._drafter.accept(tokens)

    def reset(self) -> None:
        """See ``Drafter``."""
        self._n = 0
        self._drafter.reset()


class PerfectReader(PerfectDrafter):
    """The same of a drafter that reads the trunk."""

    def __init__(self, drafter: Drafter, text: NDArray[np.int32]) -> None:
        assert isinstance(drafter, TrunkReader)
        super().__init__(drafter, text)
        self._reader: TrunkReader = drafter

    @property
    def feature_layers(self) -> Sequence[int]:
        """See ``TrunkReader``."""
        return self._reader.feature_layers

    def see(
        self,
        tokens: NDArray[np.int32],
        hidden: NDArray[np.float32],
        features: NDArray[np.float32],
    ) -> None:
        """See ``TrunkReader``."""
        self._reader.see(tokens, hidden, features)


def perfect(drafter: Drafter, text: NDArray[np.int32]) -> PerfectDrafter:
    """Return the perfect version of a drafter."""
    kind = PerfectReader if isinstance(drafter, TrunkReader) else PerfectDrafter
    return kind(drafter, text)
