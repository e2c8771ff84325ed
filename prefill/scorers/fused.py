"""Scores of several scorers in one: each shares a mass of 1 out over the document, and the mean
counts. So words that question and document share find what a question names, and attention what
it only means.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..prompt.parts import PromptParts
from .scores import Scorer, Scores, document_mass


class FusedScorer:
    """The scorer "fused"; see the module.

    Parameters
    ----------
    scorers : one or more, usually the lexical one and one by attention
    """

    name = "fused"

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        self.scorers = list(scorers)

    def score(self, parts: PromptParts) -> Scores:
        """Score a prompt. One that finds nothing leaves the choice to the others."""
        found = [scorer.score(parts) for scorer in self.scorers]
        masses = np.stack([document_mass(scores.values, parts) for scores in found])
        queries = np.unique(np.concatenate([scores.query_rows for scores in found]))
        return Scores(
            scorer=self.name,
            values=masses.mean(axis=0),
            query_rows=queries.astype(np.int32),
            n_layers=max(scores.n_layers for scores in found),
            seconds={
                f"{scores.scorer} {stage}": seconds
                for scores in found
                for stage, seconds in scores.seconds.items()
            },
        )
