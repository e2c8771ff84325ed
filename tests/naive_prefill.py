"""Speculative prefill's choices, slow and obvious; the kernels are held to it. Standard library."""

from __future__ import annotations

import math
from collections.abc import Sequence

Span = tuple[int, int]
CLOSERS = ")]\"'*_\u201d\u2019\u00bb\u300d\u300f\uff09"
BLANKS = " \t\n\v\f\r"


def chunks(document: Sequence[Span], size: int) -> list[list[int]]:
    """The tokens of each chunk."""
    result = []
    for start, stop in document:
        tokens = list(range(start, stop))
        while tokens:
            result.append(tokens[:size])
            tokens = tokens[size:]
    return result


def overlap(words: Sequence[str], asked: Sequence[str], parts: list[list[int]]) -> list[float]:
    """A value for each token: its word's rarity, where a chunk has a word of the question first.

    Words are "" for tokens that are none.
    """
    values = [0.0] * len(words)
    for part in parts:
        seen = set()
        for token in part:
            word = words[token]
            if word and word in asked and word not in seen:
                seen.add(word)
                n = sum(any(words[t] == word for t in other) for other in parts)
                values[token] = math.log(1 + (len(parts) - n + 0.5) / (n + 0.5))
    return values


def pick(
    n: int, document: Sequence[Span], values: Sequence[float], budget: int, size: int, near: bool
) -> dict[int, str]:
    """Why each kept token is kept, before any widening."""
    reasons = {t: "MANDATORY" for t in range(n) if not any(a <= t < b for a, b in document)}
    parts = chunks(document, size)
    scored = []
    for index, part in enumerate(parts):
        total = 0.0
        for token in part:
            total += values[token]
        scored.append((-total, index))
    for score, index in sorted(scored):
        part = parts[index]
        if score == 0:
            continue
        if part[0] not in reasons and len(reasons) + len(part) > budget:
            continue
        reasons.update((token, "PICKED") for token in part if token not in reasons)
        if not near or index + 1 == len(parts) or parts[index + 1][0] != part[-1] + 1:
            continue
        right = [token for token in parts[index + 1] if token not in reasons]
        if len(reasons) + len(right) <= budget:
            reasons.update((token, "NEIGHBOUR") for token in right)
    return reasons


def widen(
    reasons: dict[int, str],
    n: int,
    document: Sequence[Span],
    values: Sequence[float],
    budget: int,
    size: int,
    borders: Sequence[bool],
    most: int,
) -> None:
    """Let each run of the document grow to a border on its right, then on its left."""
    parts = chunks(document, size)
    order = sorted(range(len(parts)), key=lambda i: (-sum(values[t] for t in parts[i]), i))
    rank = {token: order.index(i) for i, part in enumerate(parts) for token in part}
    kept = sorted(token for token in reasons if token in rank)
    runs: list[list[int]] = []
    for token in kept:
        if runs and runs[-1][-1] == token - 1:
            runs[-1].append(token)
        else:
            runs.append([token])
    for run in sorted(runs, key=lambda run: min(rank[token] for token in run)):
        for step, edge in ((1, run[-1] + 1), (-1, run[0])):
            new: list[int] = []
            at = edge
            while (
                not (borders[at] or (at if step > 0 else at - 1) in reasons or at in (0, n))
                and len(new) < most
            ):
                new.append(at if step > 0 else at - 1)
                at += step
            ends = borders[at] or (at if step > 0 else at - 1) in reasons or at in (0, n)
            if ends and len(reasons) + len(new) <= budget:
                reasons.update((token, "WIDENED") for token in new)


def sentence_ends(text: str) -> set[int]:
    """Bytes of a text behind which a sentence or a line is over."""
    ends = set()
    for at, c in enumerate(text):
        behind = text[at + 1 :]
        if c == "\n" and not behind.startswith("\n"):
            ends.add(at + 1)
        if c in "\u3002\uff01\uff1f\u2026":
            ends.add(at + 1 + len(behind) - len(behind.lstrip(CLOSERS)))
        if c in ".!?":
            closed = behind.lstrip(CLOSERS)
            if closed and closed[0] in BLANKS:
                ends.add(at + 1 + len(behind) - len(closed))
    return {len(text[:end].encode()) for end in ends}


def sentence_borders(text: str, spans: Sequence[Span]) -> list[bool]:
    """Whether a sentence or line ended since the token before began; for each token and the end."""
    ends = sentence_ends(text)
    found, behind = [], -1
    for start, _ in spans:
        found.append(any(behind < end <= start for end in ends))
        behind = max(behind, start)
    return [*found, True]


def word_borders(text: bytes, spans: Sequence[Span]) -> list[bool]:
    """Whether a blank stands on either side of each token's start, or a character of the East."""
    blanks = BLANKS.encode()
    found = []
    for start, _ in spans:
        behind, before = text[start : start + 1], text[max(0, start - 1) : start]
        at_end = not behind or not before
        found.append(at_end or behind in blanks or before in blanks or behind >= b"\xe3")
    return [*found, True]
