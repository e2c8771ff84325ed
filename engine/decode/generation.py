"""What a generation came to, and what its loop tells of each round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

StopReason = Literal["length", "eog", "stop", "context", "interrupted"]


class Round(NamedTuple):
    """One round of a generation: a draft, the pass that verified it, and what stands.

    Attributes
    ----------
    draft : all that the drafter gave
    n_verified : how many of the first of them were evaluated
    n_stand : how many of the first of those are in the text
    tokens : ids that the text got
    verify_ns : time of the forward pass and the sampling
    draft_ns : time that the drafter took; None: it was not asked
    """

    draft: Sequence[int]
    n_verified: int
    n_stand: int
    tokens: Sequence[int]
    verify_ns: int
    draft_ns: int | None


@dataclass
class Generation:
    """What one call of ``generate`` came to: counters and nanoseconds.

    Attributes
    ----------
    prompt_tokens : of the prompt, those in the cache: all, or none where prefill was interrupted
    tokens : what was generated, and handed to ``on_tokens``; an end-of-generation token included
    stop_reason : "length": n_predict tokens are there; "eog": the last token ends the text;
        "stop": it completes a stop string; "context": the next token would not fit;
        "interrupted": KeyboardInterrupt
    stop_string : the one that ended the text; None: something else did
    n_rounds : forward passes of decoding; the first token comes from the prefill and needs none
    n_drafted, n_accepted : tokens of drafts that were evaluated, and those that stand
    drafted_by_position, accepted_by_position : int64 [draft_max, or n_ctx if less], likewise
    first_token_ns : from the call to the first token; None: there is none
    prefill_ns : forward passes over the prompt
    learn_ns : the drafter's taking in the prompt and the first token
    decode_ns : all that comes after the first token
    first_logits : float32 [n_vocab], after the prompt, before any sampling; None: not asked for
    draft_ns, verify_ns, emit_ns : of decode_ns, the drafter, choosing it included; forward passes
        and sampling; on_tokens
    """

    drafted_by_position: NDArray[np.int64]
    accepted_by_position: NDArray[np.int64]
    prompt_tokens: int = 0
    tokens: list[int] = field(default_factory=list)
    stop_reason: StopReason = "interrupted"
    stop_string: str | None = None
    first_logits: NDArray[np.float32] | None = None
    n_rounds: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    first_token_ns: int | None = None
    prefill_ns: int = 0
    learn_ns: int = 0
    decode_ns: int = 0
    draft_ns: int = 0
    verify_ns: int = 0
    emit_ns: int = 0

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Tokens of the prompt a second; None: nothing was evaluated."""
        return self.prompt_tokens / self.prefill_ns * 1e9 if self.prompt_tokens else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first a second; None: there is none."""
        return self._n_decoded / self.decode_ns * 1e9 if self._n_decoded else None

    @property
    def acceptance(self) -> float | None:
        """Share of drafted tokens that stand; None: none was drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted else None

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens that a pass of decoding yields; None: there was no pass."""
        return self._n_decoded / self.n_rounds if self.n_rounds else None

    @property
    def _n_decoded(self) -> int:
        return max(0, len(self.tokens) - 1)


def whole(run: Generation) -> Generation:
    """Return a generation that came to its end.

    Raises
    ------
    KeyboardInterrupt : it did not; half a text measures nothing
    """
    if run.stop_reason == "interrupted":
        raise KeyboardInterrupt
    return run
