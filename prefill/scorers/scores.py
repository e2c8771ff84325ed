"""What a scorer is: a prompt in its parts goes in, a score for each of its tokens comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..prompt.parts import PromptParts


@dataclass(frozen=True, eq=False)
class Scores:
    """How much each token of a prompt matters for its question.

    Attributes
    ----------
    scorer : name of what scored.
    values : float32 [n], one for each token of the prompt, higher is better, 0: nothing speaks
        for it; a chunk's score is the sum of its tokens'. Those outside the document mean nothing.
    query_rows : int32 [n_queries], tokens of the prompt that were asked with.
    n_layers : blocks of a model that ran; 0: no model.
    seconds : wall time by stage, in the order in which they ran.
    """

    scorer: str
    values: NDArray[np.float32]
    query_rows: NDArray[np.int32]
    n_layers: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)


class Scorer(Protocol):
    """Gives the tokens of prompts their scores.

    Attributes
    ----------
    name : short, as the command line spells it.
    """

    @property
    def name(self) -> str: ...

    def score(self, parts: PromptParts) -> Scores:
        """Score a prompt.

        An empty question or document is no error: nothing is then higher than anything else.
        """
        ...


# Opens a scorer; entering may load a model, and leaving let go of it.
OpenScorer = Callable[[], AbstractContextManager[Scorer]]


def document_mass(values: NDArray[np.float32], parts: PromptParts) -> NDArray[np.float32]:
    """The values with those of the document summing to 1, and 0 elsewhere; float32 [n].

    All 0 if there is nothing to share out. What is not finite stays so.
    """
    masses = np.where(parts.is_document, values, np.float32(0)).astype(np.float64)
    total = masses.sum()
    return (masses / total if total != 0 else masses).astype(np.float32)
