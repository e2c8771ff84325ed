"""llama.cpp's five n-gram drafters as they are in build 11434, slow and obvious, flaws included.

Written down from what its C++ does, to hold the kernels against. A drafter is told three things, as
llama-server tells it: `begin` with a request's prompt, `draft` with the text so far (the token just
sampled is its last), `accept` after a draft has been verified. A draft may be longer than the
limit: whoever asked cuts it, and only the repaired drafters (naive_repaired.py) want to know.

Where C++ reads after the end of a vector, which is anybody's guess, there is no match here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import naive

Tokens = list[int]

N_CELLS = 1 << 18  # of the hash map of ngram-map
MAX_VALUES = 4
MAX_COUNT = 16380
N_POOL = 4 << 20  # entries of the pool of ngram-mod
CACHE_DRAFT = 8  # built in, no option changes it


class Drafter:
    """What a drafter without any state does."""

    def begin(self, prompt: Tokens) -> None:
        """A request begins; nothing has been sampled yet."""

    def draft(self, text: Tokens, limit: int) -> Tokens:
        """Tokens that may follow `text`, of which at most `limit` will be verified."""
        raise NotImplementedError

    def accept(self, n_accepted: int, is_other: bool) -> None:
        """Of the last draft, `n_accepted` tokens came true; `is_other` if it was another's draft.

        Only told where there was a draft. None of these drafters listens to another's success.
        """


class NgramSimple(Drafter):
    """The tokens after the latest earlier match of the last `size_n`."""

    def __init__(self, size_n: int = 12, size_m: int = 48) -> None:
        self.n, self.m = size_n, size_m

    def draft(self, text: Tokens, limit: int) -> Tokens:
        inp, pattern = text[:-1], text[-self.n :]  # the sampled token is never drafted from
        if len(inp) <= self.n + self.m + 1:
            return []
        for start in range(len(inp) - self.n - 1, 0, -1):  # never at 0
            if inp[start : start + self.n] == pattern:
                drafted = inp[start + self.n :][: self.m]
                return drafted if len(drafted) >= self.n else []
        return []


@dataclass
class Value:
    """An m-gram that was seen after a key."""

    start: int = 0  # 0: no value
    count: int = 0
    n_accepted: int = 0  # of its last draft; at first size_m


@dataclass
class Key:
    """An n-gram that was looked for and found."""

    start: int
    counted_to: int = 0
    hits: int = 0
    values: list[Value] = field(default_factory=list)  # [MAX_VALUES]


class NgramMap(Drafter):
    """ngram-map-k (`key_only`) and ngram-map-k4v."""

    def __init__(
        self, size_n: int = 12, size_m: int = 48, min_hits: int = 1, *, key_only: bool
    ) -> None:
        self.n, self.m, self.min_hits, self.key_only = size_n, size_m, min_hits, key_only
        self.keys: list[Key] = []
        self.cells: dict[int, int] = {}  # hash of an n-gram -> where it begins; never 0
        self.cells_to = 0  # the last position that may have a cell
        self.last_begin = 0
        self.last_check = 0
        self.last_draft: Value | None = None

    def begin(self, prompt: Tokens) -> None:
        size = len(prompt)
        if size < self.last_check:
            stale_from = self.last_begin
            if stale_from > size:
                stale_from = max(size - self.n - self.m, 0)
            self._forget(stale_from)
        self.last_begin = self.last_check = size

    def _forget(self, stale_from: int) -> None:
        self.cells = {cell: start for cell, start in self.cells.items() if start < stale_from}
        self.cells_to = max(stale_from - 1, 0)
        self.keys = [key for key in self.keys if key.start < stale_from]
        if self.key_only:
            return
        for key in self.keys:
            left = [value for value in key.values if 0 < value.start < stale_from]
            key.values = left + [Value() for _ in range(MAX_VALUES - len(left))]
        self.keys = [key for key in self.keys if key.values[0].start]

    def draft(self, text: Tokens, limit: int) -> Tokens:
        self.last_draft = None
        inp, ngram = text[:-1], text[-self.n :]
        if len(inp) < 2 * self.n + self.m:
            return []
        self.last_check = len(inp)
        start = self._find(inp, ngram)
        self._index(inp)
        if not start:
            return []
        key = self._key(inp, ngram, start)
        key.hits = min(key.hits + 1, MAX_COUNT)
        if self.key_only:  # min_hits is not asked for
            value = key.values[0]
        else:
            if key.hits < self.min_hits:
                return []
            self._count(inp, ngram, key, start)
            value = max(key.values, key=lambda value: value.count)
            rest = sum(other.count for other in key.values) - value.count
            if rest and value.count < 2 * rest:
                return []
        self.last_draft = value
        # of the place that was found, not of the value
        return inp[start + self.n :][: min(self.m, value.n_accepted)]

    def accept(self, n_accepted: int, is_other: bool) -> None:
        if not is_other and self.last_draft:
            self.last_draft.n_accepted = n_accepted

    def _hash(self, ngram: Tokens) -> int:
        hashed = 0
        for token in ngram:
            hashed = (hashed * 2654435761 + token) % (1 << 32)
        return hashed % N_CELLS

    def _find(self, inp: Tokens, ngram: Tokens) -> int:
        """Where an earlier match begins; 0 for none, and the one at 0 is not seen."""
        behind = len(inp) - self.n - self.m - 1
        cell = self.cells.get(self._hash(ngram), 0)
        if 0 < cell < behind and inp[cell : cell + self.n] == ngram:
            return cell
        for start in self._unseen(inp):
            if inp[start : start + self.n] == ngram:
                return start
        return 0

    def _unseen(self, inp: Tokens) -> list[int]:
        """The positions to be searched, and to be given cells: first the prompt's, latest first.

        Those from last_begin - n - m to last_begin are in neither half.
        """
        of_prompt = range(self.last_begin - self.n - self.m - 1, self.cells_to, -1)
        stop = max(self.last_begin, self.cells_to)
        of_answer = range(len(inp) - self.n - self.m - 1, stop, -1)
        return [*of_prompt, *of_answer]

    def _index(self, inp: Tokens) -> None:
        for start in self._unseen(inp):
            self.cells.setdefault(self._hash(inp[start : start + self.n]), start)
        self.cells_to = max(self.cells_to, len(inp) - self.n - self.m - 1)

    def _key(self, inp: Tokens, ngram: Tokens, start: int) -> Key:
        for key in self.keys:
            if inp[key.start : key.start + self.n] == ngram:
                return key
        self.keys.append(Key(start, values=[Value(0, 0, self.m) for _ in range(MAX_VALUES)]))
        return self.keys[-1]

    def _count(self, inp: Tokens, ngram: Tokens, key: Key, start: int) -> None:
        """Count what follows the key, from where counting ended (which counts again) to `start`."""
        for at in range(key.counted_to, start + 1):
            if inp[at : at + self.n] == ngram:
                value = self._value(inp, key, at + self.n)
                if value:
                    value.count = min(value.count + 1, MAX_COUNT)
        key.counted_to = start

    def _value(self, inp: Tokens, key: Key, at: int) -> Value | None:
        """The key's value that equals the m-gram at `at`: known, new, or None for a fifth."""
        for i, value in enumerate(key.values):
            if not value.start:
                key.values[i] = Value(at, 0, self.m)
                return key.values[i]
            if inp[value.start : value.start + self.m] == inp[at : at + self.m]:
                return value
        return None


class Pool:
    """ngram-mod's table, one for all slots: where an n-gram falls, the token that followed it."""

    def __init__(self, n_match: int, size: int = N_POOL) -> None:
        self.n, self.size = n_match, size
        self.entries: dict[int, int] = {}  # a next token of -1 is an empty entry

    def _entry(self, ngram: Sequence[int]) -> int:
        hashed = 0
        for token in ngram:
            hashed = (hashed * 6364136223846793005 + token) % (1 << 64)
        return hashed % self.size

    def add(self, tokens: Tokens, start: int) -> None:
        self.entries[self._entry(tokens[start : start + self.n])] = tokens[start + self.n]

    def get(self, ngram: Sequence[int]) -> int | None:
        return self.entries.get(self._entry(ngram))

    def is_crowded(self) -> bool:
        return 4 * len(self.entries) > self.size


class NgramMod(Drafter):
    """ngram-mod: one token after the other out of a table without keys."""

    def __init__(
        self, n_match: int = 24, n_min: int = 48, n_max: int = 64, pool: Pool | None = None
    ) -> None:
        self.n, self.n_min, self.n_max = n_match, n_min, n_max
        self.pool = pool or Pool(n_match)
        self.added_to = 0
        self.n_drafted = 0
        self.n_low = 0  # bad rounds in a row; lives on from request to request

    def begin(self, prompt: Tokens) -> None:
        self.added_to = self.n_drafted = 0
        if len(prompt) < self.n:
            return
        for start in range(len(prompt) - self.n):
            self.pool.add(prompt, start)
        self.added_to = len(prompt) - self.n
        if self.pool.is_crowded():
            self.pool.entries.clear()  # the prompt goes too, and is not added again

    def draft(self, text: Tokens, limit: int) -> Tokens:
        self.n_drafted = 0
        inp = text[:-1]
        if len(inp) < self.n:
            return []
        if self.added_to + 32 < len(inp):
            for start in range(self.added_to, len(inp) - self.n):
                self.pool.add(inp, start)
            self.added_to = len(inp) - self.n
        drafted = self._roll(text[-self.n :])
        self.n_drafted = len(drafted)
        return drafted

    def _roll(self, tail: Tokens) -> Tokens:
        drafted: Tokens = []
        while len(drafted) < self.n_max:
            token = self.pool.get((tail + drafted)[-self.n :])
            if token is None:
                return drafted if len(drafted) >= self.n_min else []
            drafted.append(token)
        return drafted

    def accept(self, n_accepted: int, is_other: bool) -> None:
        if is_other or not self.n_drafted:
            return
        self.n_low = self.n_low + 1 if 4 * n_accepted < self.n_drafted else 0
        if self.n_low == 5:
            self.pool.entries.clear()
            self.n_low = self.added_to = 0


class NgramCache(Drafter):
    """ngram-cache: the lookup tools' drafting, with a context that is fed in pieces."""

    def __init__(
        self,
        static: naive.Cache | None = None,
        dynamic: naive.Cache | None = None,
        *,
        draft_max: int = CACHE_DRAFT,
    ) -> None:
        self.static, self.dynamic = static or {}, dynamic or {}
        self.draft_max = draft_max
        self.context: naive.Cache = {}
        self.n_seen = 0  # of any request: a later one is not seen before it is longer

    def draft(self, text: Tokens, limit: int) -> Tokens:
        if self.n_seen < len(text):
            piece = tuple(text[self.n_seen :])  # n-grams into it from before are lost
            naive.update(self.context, naive.ALL_SIZES, piece, len(piece))
            self.n_seen = len(text)
        caches = self.context, self.dynamic, self.static
        drafted = naive.draft(tuple(text), self.draft_max, *caches, "libstdcxx")
        return [one.token for one in drafted]
