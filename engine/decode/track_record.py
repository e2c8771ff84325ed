"""How well the drafts of one source match, and what they cost: what a pacer knows of it."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence

_MEMORY = 1 - 1 / 24  # of what a position's acceptance was, from one draft to the next
_PRIOR_ACCEPTANCE = 0.7  # of the first position; of others: that of the one before
_PRIOR_WEIGHT = 2.0  # of that, in drafts; forgotten as they are
_HEIR_WEIGHT = 6.0  # likewise, of other positions
_FIRST_DRAFTS = (1, 3)  # tokens, while a draft's time is not known; the very first is often slow
_DRAFT_GAIN = 0.1  # of a later time
_IDLE_MEMORY = 1 - 1 / 128  # of a source, each time that another one is taken instead

# Confidences between two of these count as alike.
_BIN_EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94, 0.97)
_BIN_MEMORY = 1 - 1 / 96  # of a bin's acceptance, from one token to the next
_BIN_WEIGHT = 6.0  # of a confidence taken at its word, in tokens
_WORTH_GAIN = 1 / 32  # of a later draft in what drafts are worth


class TrackRecord:
    """Acceptance of a source by position and by confidence, and the time of its drafts.

    Confidences are the drafter's own probabilities of its tokens. What a confidence of 0.8 is
    worth is learnt for the first drafted token and for later ones.

    Parameters
    ----------
    draft_max : most tokens of a draft

    Attributes
    ----------
    draft_ns : a drafted token's time; infinite before the first draft
    n_timed : drafts whose time is known
    worth, lengths : what is known of drafts with confidences, by tokens asked for, from 1 on: see
        ``remember``
    """

    def __init__(self, draft_max: int) -> None:
        self._draft_max = draft_max
        self._hits = [0.0] * draft_max
        self._tries = [0.0] * draft_max
        self._first_weight = [_PRIOR_WEIGHT] + [_HEIR_WEIGHT] * (draft_max - 1)
        self._prior_weight = list(self._first_weight)
        self._bin_hits = [[0.0] * (len(_BIN_EDGES) + 1) for _ in range(2)]
        self._bin_tries = [[0.0] * (len(_BIN_EDGES) + 1) for _ in range(2)]
        self.draft_ns = math.inf
        self.n_timed = 0
        self.worth = [0.0] * draft_max
        self.lengths = [float(n) for n in range(1, draft_max + 1)]
        self._n_remembered = 0
        self._last = [_PRIOR_ACCEPTANCE]

    @property
    def first_draft(self) -> int | None:
        """Tokens to ask for to learn what a draft costs; None: that is known."""
        return _FIRST_DRAFTS[self.n_timed] if self.n_timed < len(_FIRST_DRAFTS) else None

    def time(self, n_drafted: int, ns: int) -> None:
        """Learn that a draft of so many tokens took ``ns`` nanoseconds."""
        each = ns / max(1, n_drafted)
        self.n_timed += 1
        if self.n_timed <= len(_FIRST_DRAFTS):
            self.draft_ns = min(self.draft_ns, each)
        else:
            each = min(each, 4 * self.draft_ns + 1)
            self.draft_ns += _DRAFT_GAIN * (each - self.draft_ns)

    def score(self, position: int, hit: bool, confidence: float | None) -> None:
        """Learn whether a drafted token matched, all before it having matched."""
        self._hits[position] = self._hits[position] * _MEMORY + hit
        self._tries[position] = self._tries[position] * _MEMORY + 1
        self._prior_weight[position] *= _MEMORY
        if confidence is not None:
            later, place = position > 0, bisect(_BIN_EDGES, confidence)
            hits, tries = self._bin_hits[later], self._bin_tries[later]
            hits[place] = hits[place] * _BIN_MEMORY + hit
            tries[place] = tries[place] * _BIN_MEMORY + 1

    def pass_over(self) -> None:
        """Forget a little: what is never tried again is never known to have become better."""
        for position, weight in enumerate(self._first_weight):
            self._hits[position] *= _IDLE_MEMORY
            self._tries[position] *= _IDLE_MEMORY
            self._prior_weight[position] += (1 - _IDLE_MEMORY) * (
                weight - self._prior_weight[position]
            )

    def acceptances(self, n: int) -> list[float]:
        """Of drafted tokens [n] by position, all before having been accepted."""
        acceptances, acceptance = [], _PRIOR_ACCEPTANCE
        for position in range(n):
            weight = self._prior_weight[position]
            hits = self._hits[position] + weight * acceptance
            acceptance = hits / (self._tries[position] + weight)
            acceptances.append(acceptance)
        return acceptances

    def calibrated(self, confidences: Sequence[float]) -> list[float]:
        """Likewise, by confidence [n]."""
        acceptances = []
        for position, confidence in enumerate(confidences):
            later, place = position > 0, bisect(_BIN_EDGES, confidence)
            hits = self._bin_hits[later][place] + _BIN_WEIGHT * confidence
            acceptances.append(hits / (self._bin_tries[later][place] + _BIN_WEIGHT))
        return acceptances

    def remember(self, acceptances: Sequence[float], n_asked: int, prices: Sequence[float]) -> None:
        """Learn what drafts are worth that are cut where it is best, by the tokens asked for.

        Drafts differ, and a long one is worth more than its average token says: it can be cut.
        What a longer draft would have held is taken from the draft before.

        Parameters
        ----------
        acceptances : of the draft's tokens, by confidence
        n_asked : tokens, of which the drafter may have given fewer
        prices : [draft_max + 1] in tokens, of verifying so many more
        """
        n_given = len(acceptances)
        by_position = self.acceptances(self._draft_max)
        first = by_position[0] if by_position and by_position[0] else 1.0  # 0 after endless misses
        self._n_remembered += 1
        gain = max(_WORTH_GAIN, 1 / self._n_remembered)
        all_accepted, tokens, best = 1.0, 0.0, 0.0
        for position in range(self._draft_max):
            n_drafted = min(position + 1, n_given if n_given < n_asked else self._draft_max)
            if position < n_given:
                all_accepted *= acceptances[position]
            elif position < n_asked:
                all_accepted = 0.0
            else:
                borrowed = self._last[position % len(self._last)]
                all_accepted *= min(1.0, borrowed * by_position[position] / first)
            tokens += all_accepted
            best = max(best, tokens - prices[position + 1])
            self.worth[position] += gain * (best - self.worth[position])
            self.lengths[position] += gain * (n_drafted - self.lengths[position])
        if n_given:
            self._last = list(acceptances[:1])

    @property
    def is_confident(self) -> bool:
        """Whether drafts come with confidences."""
        return self._n_remembered > 0


def yields(acceptances: Sequence[float]) -> list[float]:
    """Expected tokens [n + 1] of a round by drafted tokens, from acceptances [n]."""
    expected, all_accepted = 1.0, 1.0
    tokens = [expected]
    for acceptance in acceptances:
        all_accepted *= acceptance
        expected += all_accepted
        tokens.append(expected)
    return tokens
