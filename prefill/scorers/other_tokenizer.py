"""A scorer of another model, whose tokenizer cuts the text in other places."""

from __future__ import annotations

import time

import numpy as np

from ...engine.tokens.tokenizer import Tokenizer
from ..prompt.parts import PromptParts
from ..prompt.spans import carry_values
from .scores import Scorer, Scores


class OtherTokenizerScorer:
    """Scores a text by another tokenizer's tokens; each token gets what its bytes got.

    Parameters
    ----------
    scorer : what scores
    tokenizer : of the tokens that it scores
    """

    def __init__(self, scorer: Scorer, tokenizer: Tokenizer) -> None:
        self.name = scorer.name
        self._scorer = scorer
        self._tokenizer = tokenizer

    def score(self, parts: PromptParts) -> Scores:
        """Score a prompt.

        Raises
        ------
        ModelUnsupported : the other tokenizer's tokens do not spell the text
        """
        start = time.perf_counter()
        other = parts.retokenised(self._tokenizer)
        tokenised = time.perf_counter()
        scores = self._scorer.score(other)
        scored = time.perf_counter()
        if other.spans is None or parts.spans is None:
            raise ValueError("ids without a text have no other ids")
        values = carry_values(scores.values, other.spans, parts.spans)
        seconds = {"tokenise": tokenised - start, **scores.seconds}
        return Scores(
            scorer=scores.scorer,
            values=values,
            query_rows=np.arange(*parts.question, dtype=np.int32),
            n_layers=scores.n_layers,
            seconds=seconds | {"carry": time.perf_counter() - scored},
        )
