"""Two drafters as one: looked up in the text where that has something, else drafted by MTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .drafter import MtpDrafter

_NO_CONFIDENCES = np.empty(0, np.float32)


class LookupDrafter(Protocol):
    """What is needed of an n-gram drafter (``ngram.drafter.NgramDrafter`` is one)."""

    def draft(self, n_max: int) -> NDArray[np.int32]:
        """Up to ``n_max`` tokens that may follow the text."""

    def origins(self, n: int) -> list[tuple[str, int]]:
        """(cache, n-gram size) of each of the last draft's first ``n`` tokens."""

    def accept(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Append tokens to the text."""

    def reset(self) -> None:
        """Forget the text."""


class CombinedDrafter:
    """Drafts by lookup where the text ends in an n-gram that it knows, else with an MTP head.

    A lookup costs next to nothing and, where it finds a long n-gram, is right more often.

    Parameters
    ----------
    ngram, mtp : both hear of the whole text
    n_gram_min : tokens of an n-gram whose draft counts, by that of the draft's first token

    Attributes
    ----------
    last_origin : of the last draft: "ngram", "mtp", or "" where it is empty
    """

    def __init__(self, ngram: LookupDrafter, mtp: MtpDrafter, *, n_gram_min: int = 2) -> None:
        self.ngram = ngram
        self.mtp = mtp
        self.n_gram_min = n_gram_min
        self.last_origin = ""

    @property
    def feature_layers(self) -> Sequence[int]:
        """Layers of the model whose input ``see`` wants."""
        return self.mtp.feature_layers

    def see(
        self,
        tokens: NDArray[np.int32],
        hidden: NDArray[np.float32],
        features: NDArray[np.float32],
    ) -> None:
        """Take what a pass of the model computed; see ``TrunkReader``."""
        self.mtp.see(tokens, hidden, features)

    def accept(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Append tokens to the text; raises as the two drafters do."""
        self.ngram.accept(tokens)
        self.mtp.accept(tokens)

    def reset(self) -> None:
        """Forget the text."""
        self.ngram.reset()
        self.mtp.reset()
        self.last_origin = ""

    def draft(self, n_max: int) -> NDArray[np.int32]:
        """Up to ``n_max`` tokens that may follow the text: int32 [n], valid until the next call."""
        return self.draft_from(self.offers()[0], n_max)

    def offers(self) -> list[str]:
        """Return the sources of the next draft; see ``SourcedDrafter``.

        N-grams of each size are a source of their own: the longer, the more often they are right.
        """
        size = self.ngram.origins(1)[0][1] if self.ngram.draft(1).size else 0
        return [f"ngram {size}", "mtp"] if size >= self.n_gram_min else ["mtp"]

    def draft_from(self, origin: str, n_max: int) -> NDArray[np.int32]:
        """As ``draft``, from one of what was offered."""
        kind = origin.split()[0]
        drafted = (self.mtp if kind == "mtp" else self.ngram).draft(n_max)
        self.last_origin = kind if drafted.size else ""
        return drafted

    @property
    def confidences(self) -> NDArray[np.float32]:
        """Those of a head's draft; empty: lookups have none."""
        return self.mtp.confidences if self.last_origin == "mtp" else _NO_CONFIDENCES

    def proposals(self, n: int) -> tuple[NDArray[np.int32], NDArray[np.float32]] | None:
        """As ``MtpDrafter.proposals``, of a draft of that origin; None of others."""
        return self.mtp.proposals(n) if self.last_origin == "mtp" else None
