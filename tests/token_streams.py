"""Token streams that drafters find hard, for tests of theirs."""

from __future__ import annotations

import random
from collections.abc import Callable

HUGE = 2**31 - 1


def de_bruijn(n_symbols: int, size: int) -> list[int]:
    """Every n-gram of ``size`` symbols once, as a cycle (the least one; Lyndon words)."""
    found: list[int] = []
    word = [-1]
    while word:
        word[-1] += 1
        if size % len(word) == 0:
            found += word
        word = (word * size)[:size]
        while word and word[-1] == n_symbols - 1:
            word.pop()
    return found


def copying(rng: random.Random, n: int, n_vocab: int) -> list[int]:
    """A text that quotes itself."""
    tokens = [rng.randrange(n_vocab) for _ in range(8)]
    while len(tokens) < n:
        start = rng.randrange(len(tokens) - 4)
        tokens += tokens[start : start + rng.randrange(1, 20)]
        tokens.append(rng.randrange(n_vocab))
    return tokens[:n]


def _huge(rng: random.Random) -> list[int]:
    return [HUGE - token for token in copying(rng, 150, 6)]


STREAMS: dict[str, Callable[[random.Random], list[int]]] = {
    "empty": lambda rng: [],
    "one": lambda rng: [7],
    "two": lambda rng: [7, 7],
    "one_token": lambda rng: [5] * 130,
    "one_token_then_another": lambda rng: [5] * 70 + [4] + [5] * 70 + [6],
    "period_2": lambda rng: [3, 9] * 70,
    "period_7": lambda rng: [3, 9, 3, 3, 1, 9, 4] * 20,
    "de_bruijn_2": lambda rng: de_bruijn(2, 7),
    "de_bruijn_3": lambda rng: de_bruijn(3, 4) * 2,
    "no_repeats": lambda rng: rng.sample(range(10_000), 120),
    "huge_ids": _huge,
    "binary": lambda rng: [rng.randrange(2) for _ in range(150)],
    "few_tokens": lambda rng: [rng.randrange(4) for _ in range(150)],
    "many_tokens": lambda rng: [rng.randrange(40) for _ in range(150)],
    "quotes": lambda rng: copying(rng, 250, 12),
    "long_quotes": lambda rng: copying(rng, 60, 30) * 4,
}
