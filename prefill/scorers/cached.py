"""Scores of a prompt that is asked for again, with more or less of it kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..prompt.parts import PromptParts
from .scores import OpenScorer, Scores


class CachedScores:
    """A scorer that scores the same prompt once; calling it opens it, as ``OpenScorer`` is called.

    Parameters
    ----------
    open_scorer : of the scorer that does the work; opened only where there is some

    Attributes
    ----------
    spared_s : time that the last prompt's scores had taken, where they were kept; else 0
    """

    name = "cached"

    def __init__(self, open_scorer: OpenScorer) -> None:
        self._open_scorer = open_scorer
        self._parts: PromptParts | None = None
        self._scores: Scores | None = None
        self._took_s = 0.0
        self.spared_s = 0.0

    @contextmanager
    def __call__(self) -> Iterator[CachedScores]:
        self.spared_s = 0.0
        yield self

    def score(self, parts: PromptParts) -> Scores:
        """Score a prompt; raises as the scorer does."""
        if self._scores is not None and self._knows(parts):
            self.spared_s = self._took_s
            return self._scores
        with self._open_scorer() as scorer:
            start = time.perf_counter()
            self._scores = scorer.score(parts)
            self._took_s = time.perf_counter() - start
        self._parts = parts
        return self._scores

    def _knows(self, parts: PromptParts) -> bool:
        known = self._parts
        return (
            known is not None
            and known.question == parts.question
            and known.document == parts.document
            and np.array_equal(known.ids, parts.ids)
        )
