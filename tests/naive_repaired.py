"""llama.cpp's n-gram drafters without their flaws, and those of other people, slow and obvious.

Each repaired form differs from that in naive_drafters.py by what its docstring says. A draft is cut
to `limit` here, so that a drafter judges itself by what was verified.
"""

from __future__ import annotations

from collections.abc import Collection

import naive
import naive_drafters as upstream
from naive_drafters import Drafter, Tokens

NGram = tuple[int, ...]

MAX_NGRAMS = 1 << 20  # in ngram-mod's pool


def earlier(text: Tokens, size: int, n_behind: int) -> list[int]:
    """Where the last `size` tokens occur before, with `n_behind` tokens or more after them."""
    ngram = text[-size:]
    starts = range(len(text) - size - n_behind + 1)
    return [start for start in starts if text[start : start + size] == ngram]


class NgramSimple(Drafter):
    """Drafts are as long as they can be, and come from position 0 and the sampled token too."""

    def __init__(self, size_n: int = 12, size_m: int = 48) -> None:
        self.n, self.m = size_n, size_m

    def draft(self, text: Tokens, limit: int) -> Tokens:
        found = earlier(text, self.n, 1)
        return text[found[-1] + self.n :][: min(self.m, limit)] if found else []


class _Lengths:
    """How long the next draft of a key, or of a key's value, is to be."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.of: dict[NGram, int] = {}

    def get(self, key: NGram) -> int:
        return self.of.get(key, self.longest)

    def judge(self, key: NGram, n_drafted: int, n_accepted: int) -> None:
        """As long as what was accepted; never 0, and longer again when all was."""
        length = max(1, n_accepted)
        if n_accepted == n_drafted:
            length = min(self.longest, max(self.get(key), 2 * n_drafted))
        self.of[key] = length


class NgramMapK(Drafter):
    """A key whose draft was refused comes back, `min_hits` counts, and no position is left out.

    Keys are remembered by what they are, not by where they stood, as long as requests continue one
    text.
    """

    def __init__(self, size_n: int = 12, size_m: int = 48, min_hits: int = 1) -> None:
        self.n, self.m, self.min_hits = size_n, size_m, min_hits
        self.seen: Tokens = []
        self._forget()

    def _forget(self) -> None:
        self.hits: dict[NGram, int] = {}
        self.lengths = _Lengths(self.m)
        self.last: tuple[NGram, int] | None = None  # what was drafted for, and how many

    def begin(self, prompt: Tokens) -> None:
        if prompt[: len(self.seen)] != self.seen:
            self._forget()
        self.seen = list(prompt)

    def draft(self, text: Tokens, limit: int) -> Tokens:
        self.seen = list(text)
        self.last = None
        found = earlier(text, self.n, self.m)
        if not found:
            return []
        key = tuple(text[-self.n :])
        self.hits[key] = self.hits.get(key, 0) + 1
        value = self._value(text, found) if self.hits[key] >= self.min_hits else None
        if value is None:
            return []
        judged = self._judged(key, value)
        drafted = list(value[: min(self.lengths.get(judged), limit)])
        self.last = judged, len(drafted)
        return drafted

    def _value(self, text: Tokens, found: list[int]) -> NGram | None:
        """The m-gram to draft: that after the key's latest place."""
        return tuple(text[found[-1] + self.n :][: self.m])

    def _judged(self, key: NGram, value: NGram) -> NGram:
        return key

    def accept(self, n_accepted: int, is_other: bool) -> None:
        if not is_other and self.last:
            self.lengths.judge(*self.last, n_accepted)


class NgramMapK4V(NgramMapK):
    """Drafts the value that it found best; counts each place where a key occurs, once."""

    def _value(self, text: Tokens, found: list[int]) -> NGram | None:
        counts: dict[NGram, int] = {}
        for start in found:
            value = tuple(text[start + self.n :][: self.m])
            if value in counts or len(counts) < upstream.MAX_VALUES:
                counts[value] = counts.get(value, 0) + 1
        best = max(counts, key=lambda value: counts[value])
        rest = sum(counts.values()) - counts[best]
        return best if counts[best] >= 2 * rest else None

    def _judged(self, key: NGram, value: NGram) -> NGram:
        return key + value


class Pool(upstream.Pool):
    """A pool that knows its n-grams, so that no two of them fall together."""

    def __init__(self, n_match: int, size: int = MAX_NGRAMS) -> None:
        super().__init__(n_match, size)

    def _entry(self, ngram: Collection[int]) -> NGram:  # type: ignore[override]
        return tuple(ngram)

    def is_crowded(self) -> bool:
        return len(self.entries) > self.size


class NgramMod(upstream.NgramMod):
    """Proposes what did follow, keeps the prompt when it clears its pool, and judges cut drafts."""

    def __init__(
        self,
        n_match: int = 24,
        n_min: int = 48,
        n_max: int = 64,
        pool: Pool | None = None,
    ) -> None:
        super().__init__(n_match, n_min, n_max, pool or Pool(n_match))

    def begin(self, prompt: Tokens) -> None:
        super().begin(prompt)
        if len(prompt) > self.n and not self.pool.entries:  # cleared: it was crowded
            for start in range(len(prompt) - self.n):
                self.pool.add(prompt, start)

    def draft(self, text: Tokens, limit: int) -> Tokens:
        drafted = super().draft(text, limit)[:limit]
        self.n_drafted = len(drafted)
        return drafted


class NgramCache(Drafter):
    """The context is all of the text and nothing else; the lowest id wins a tie."""

    def __init__(
        self,
        draft_max: int = upstream.CACHE_DRAFT,
        static: naive.Cache | None = None,
        dynamic: naive.Cache | None = None,
    ) -> None:
        self.draft_max, self.static, self.dynamic = draft_max, static or {}, dynamic or {}

    def draft(self, text: Tokens, limit: int) -> Tokens:
        caches = naive.count_ngrams([text]), self.dynamic, self.static
        n_draft = min(self.draft_max, limit)
        return [one.token for one in naive.draft(tuple(text), n_draft, *caches, "lowest_id")]


class PromptLookup(Drafter):
    """transformers' PromptLookupCandidateGenerator: the earliest match of the longest n-gram.

    A draft ends before a token that ends the text; if it would begin with one there is none, and
    no shorter n-gram is tried.
    """

    def __init__(
        self, ngram_max: int = 2, draft_max: int = 10, end_tokens: Collection[int] = ()
    ) -> None:
        self.ngram_max, self.draft_max, self.end_tokens = ngram_max, draft_max, end_tokens

    def draft(self, text: Tokens, limit: int) -> Tokens:
        for size in range(min(self.ngram_max, len(text) - 1), 0, -1):
            found = earlier(text, size, 1)
            if found:
                drafted = text[found[0] + size :][: min(self.draft_max, limit)]
                ends = [i for i, token in enumerate(drafted) if token in self.end_tokens]
                return drafted[: ends[0]] if ends else drafted
        return []


class VllmNgram(Drafter):
    """vLLM's NgramProposer: the earliest match of the longest n-gram of `n_min` to `n_max`."""

    def __init__(self, n_min: int = 5, n_max: int = 5, k: int = 5) -> None:
        self.n_min, self.n_max, self.k = n_min, n_max, k

    def draft(self, text: Tokens, limit: int) -> Tokens:
        for size in range(min(self.n_max, len(text) - 1), self.n_min - 1, -1):
            found = earlier(text, size, 1)
            if found:
                return text[found[0] + size :][: min(self.k, limit)]
        return []
