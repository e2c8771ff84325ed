"""The suffix drafter, slow and obvious, to hold its kernels against."""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction

from naive_drafters import Drafter, Tokens


class Suffix(Drafter):
    """Suffix decoding by counting what followed every string of up to `max_tree_depth` tokens."""

    def __init__(
        self,
        max_tree_depth: int = 24,
        max_spec_factor: float = 1.0,
        min_token_prob: float = 0.1,
        k: int = 24,
    ) -> None:
        self.depth = max_tree_depth
        self.factor = Fraction(str(max_spec_factor))
        self.least = Fraction(str(min_token_prob))
        self.draft_max = k
        self.text: Tokens = []
        self.followers: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    def begin(self, prompt: Tokens) -> None:
        same = 0
        while same < min(len(prompt), len(self.text)) and prompt[same] == self.text[same]:
            same += 1
        self.text = self.text[:same]
        self.read(prompt)

    def read(self, text: Tokens) -> None:
        for n in range(len(self.text), len(text)):
            for size in range(1, min(self.depth, n) + 1):
                self.followers[tuple(text[n - size : n])][text[n]] += 1
        self.text = list(text)

    def draft(self, text: Tokens, limit: int) -> Tokens:
        self.read(text)
        best_score, best = Fraction(0), Tokens()
        for match in range(min(self.depth - 1, len(text)), 0, -1):
            longest = min(
                int(match * self.factor + Fraction(1, 1_000_000)),
                self.depth - match,
                self.draft_max,
                limit,
            )
            score, drafted = self.follow(tuple(text[-match:]), longest)
            if score > best_score:
                best_score, best = score, drafted
        return best

    def follow(self, match: tuple[int, ...], longest: int) -> tuple[Fraction, Tokens]:
        """(score, draft) from one match."""
        occurrences = self.followers[match].total() + 1  # and where the text ends
        score, drafted = 0, Tokens()
        while len(drafted) < longest and (counts := self.followers[(*match, *drafted)]):
            token = min(counts, key=lambda one: (-counts[one], one))
            if counts[token] < self.least * occurrences:
                break
            score += counts[token]
            drafted.append(token)
        return Fraction(score, occurrences), drafted
