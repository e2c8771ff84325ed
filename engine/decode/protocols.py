"""What the loop asks of a drafter, of a model and of its cache: the forms, and nothing that runs.

A drafter is anything with the methods of ``Drafter``. It may be more: a ``TrunkReader``, a
``ConfidentDrafter``, a ``SourcedDrafter``, by having their methods too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..transformer.model import Taps


class TargetCache(Protocol):
    """What the loop needs of a KV cache."""

    @property
    def n_ctx(self) -> int:
        """Most tokens it can hold."""

    @property
    def length(self) -> int:
        """Tokens it holds."""

    def truncate(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""


CacheOfModel = TypeVar("CacheOfModel", bound=TargetCache, contravariant=True)


class TargetPass(Protocol):
    """What the loop needs of the result of a forward pass."""

    @property
    def logits(self) -> NDArray[np.float32]:
        """[n_rows, n_vocab]; valid until the next pass."""

    @property
    def all_hidden(self) -> NDArray[np.float32] | None:
        """[n, n_embd] of all tokens, before the last norm, where it was asked for."""

    @property
    def taps(self) -> Taps | None:
        """What ``taps`` asked for."""


class TargetModel(Protocol[CacheOfModel]):
    """What the loop needs of a model."""

    def forward(
        self,
        tokens: NDArray[np.int32],
        cache: CacheOfModel,
        *,
        rows: Literal["last", "all", "none"] = "last",
        positions: NDArray[np.int64] | None = None,
        taps: Taps | None = None,
        all_hidden: bool = False,
    ) -> TargetPass:
        """Evaluate tokens [n] after those of the cache, and append them to it; logits of rows.

        The loop gives ``positions``, ``taps`` and ``all_hidden`` only where there are positions or
        a ``TrunkReader``: a model that is used with neither may do without them.
        """


class Drafter(Protocol):
    """Guesses how a text goes on. It holds the text that the loop tells it of."""

    def draft(self, n_max: int) -> NDArray[np.int32]:
        """Up to ``n_max`` tokens that may follow; what is more, or no token, is cut off.

        The array may be overwritten by the next call.
        """

    def accept(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Append tokens to the text: first the prompt, then what each round yields."""

    def reset(self) -> None:
        """Forget the text. The loop itself never asks for it."""


class TextStop(Protocol):
    """What looks for stop strings in a text, token by token: ``stop_strings.StopStream``."""

    @property
    def found(self) -> str | None:
        """The one that ended the text; None: none did so far."""

    def n_until_stop(self, ids: Sequence[int]) -> int | None:
        """How many of the next ``ids`` belong to the text, the one that completes a stop string
        included; None: all."""


@runtime_checkable
class TrunkReader(Protocol):
    """A drafter that drafts from what the model's layers computed, besides the text.

    ``see`` comes after every forward pass of the loop: each batch of the prompt, each round.
    What was seen does not stand before ``accept`` says so:

    - The batches of a prompt are seen one after the other; then the whole prompt is accepted, and
      then the first token of the model's, which no pass has seen.
    - A round is draft, see, accept. Its batch is the last token of the text and after it what is
      verified of the draft. When n tokens are accepted, its first n rows belong to the text, and
      the last of the n tokens is seen in the next round.

    A prompt whose evaluation did not come to its end is never accepted, nor is a round that was
    interrupted. As the cache does, a text that goes on begins with the token that no pass has seen.
    """

    @property
    def feature_layers(self) -> Sequence[int]:
        """Layers of the model whose input ``see`` wants."""

    def see(
        self,
        tokens: NDArray[np.int32],
        hidden: NDArray[np.float32],
        features: NDArray[np.float32],
    ) -> None:
        """Take what a pass computed for all of its tokens; the arrays are the reader's own.

        Parameters
        ----------
        tokens : int32 [n]
        hidden : float32 [n, n_embd], before the last norm
        features : float32 [len(feature_layers), n, n_embd]
        """


@runtime_checkable
class ConfidentDrafter(Protocol):
    """A drafter that knows how sure it is of each token."""

    @property
    def confidences(self) -> NDArray[np.float32]:
        """[n] of 0 to 1, of the tokens of the last draft; empty: nothing is known of them."""


@runtime_checkable
class SourcedDrafter(Protocol):
    """A drafter of several sources, which differ in what a draft costs and how often it stands.

    Where there is a pacer it takes the choice; ``draft`` chooses by itself.
    """

    def offers(self) -> Sequence[str]:
        """1 or more sources that would give the next draft, the preferred first; takes no time."""

    def draft_from(self, origin: str, n_max: int) -> NDArray[np.int32]:
        """As ``draft``, from one of what was offered."""
