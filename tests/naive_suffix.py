"""Prompt lookup and the suffix drafter, slow and obvious, to hold the kernels against.

A drafter is told two things: `begin` with a request's prompt, `draft` with the text so far.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from fractions import Fraction

Tokens = list[int]


class PromptLookup:
    """transformers' PromptLookupCandidateGenerator."""

    def __init__(self, ngram_max: int = 2, draft_max: int = 10, ends: Collection[int] = ()) -> None:
        self.shortest, self.longest = 1, ngram_max
        self.draft_max = draft_max
        self.ends = ends

    def begin(self, prompt: Tokens) -> None:
        """Nothing: the text tells."""

    def draft(self, text: Tokens, limit: int) -> Tokens:
        for size in range(min(self.longest, len(text) - 1), self.shortest - 1, -1):
            for start in range(len(text) - size):  # the text's end itself is not among them
                if text[start : start + size] == text[-size:]:
                    found = text[start + size :][: self.draft_max][:limit]
                    cut = [i for i, token in enumerate(found) if token in self.ends]
                    return found[: cut[0]] if cut else found
        return []


class VllmNgram(PromptLookup):
    """vLLM's NgramProposer."""

    def __init__(
        self,
        prompt_lookup_min: int = 5,
        prompt_lookup_max: int = 5,
        num_speculative_tokens: int = 5,
    ) -> None:
        super().__init__(prompt_lookup_max, num_speculative_tokens)
        self.shortest = prompt_lookup_min


class Suffix:
    """Suffix decoding by counting what followed every string of up to `max_tree_depth` tokens."""

    def __init__(
        self,
        max_tree_depth: int = 24,
        max_spec_factor: float = 1.0,
        min_token_prob: float = 0.1,
        num_speculative_tokens: int = 24,
    ) -> None:
        self.depth = max_tree_depth
        self.factor = Fraction(str(max_spec_factor))
        self.least = Fraction(str(min_token_prob))
        self.draft_max = num_speculative_tokens
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
