"""Speculative prefill's choices, slow and obvious; the kernels are held to it. Standard library."""

from __future__ import annotations

import math
from collections.abc import Sequence

Span = tuple[int, int]
CLOSERS = ")]\"'*_\u201d\u2019\u00bb\u300d\u300f\uff09"
BLANKS = " \t\n\v\f\r"


def chunks(
    document: Sequence[Span], size: int, begins: Sequence[bool] | None = None
) -> list[list[int]]:
    """The tokens of each chunk; ``begins``: whether each token begins a character, None: all do."""
    result = []
    for start, stop in document:
        chunk: list[int] = []
        is_due = False
        for token in range(start, stop):
            is_due = is_due or (token > start and (token - start) % size == 0)
            if is_due and (begins is None or begins[token]):
                result.append(chunk)
                chunk, is_due = [], False
            chunk.append(token)
        if chunk:
            result.append(chunk)
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
    n: int,
    document: Sequence[Span],
    values: Sequence[float],
    budget: int,
    size: int,
    share: float,
    borders: Sequence[tuple[Sequence[bool], int]],
    begins: Sequence[bool],
) -> dict[int, str]:
    """Why each kept token is kept; ``borders`` and how far they may be, the better ones first.

    ``begins``: whether each token begins a character.
    """
    reasons = {t: "MANDATORY" for t in range(n) if not any(a <= t < b for a, b in document)}
    parts = chunks(document, size, begins)
    sums = [sum((float(values[token]) for token in part), 0.0) for part in parts]
    scored = []
    for index, own in enumerate(sums):
        has_left = index > 0 and parts[index - 1][-1] + 1 == parts[index][0]
        inherited = share * sums[index - 1] if has_left and share * sums[index - 1] > 0 else own
        scored.append((-max(own, inherited), index, "NEIGHBOUR" if inherited > own else "PICKED"))
    for score, index, why in sorted(scored):
        new = [token for token in parts[index] if token not in reasons]
        if score == 0 or len(reasons) == budget or len(reasons) + len(new) > budget:
            continue
        reasons.update((token, why) for token in new)
        widen(reasons, n, parts[index], budget, borders)
    return reasons


def widen(
    reasons: dict[int, str],
    n: int,
    part: Sequence[int],
    budget: int,
    borders: Sequence[tuple[Sequence[bool], int]],
) -> None:
    """Keep what is between a chunk and the first borders that are near enough, right then left."""
    for step in (1, -1):
        for ends, most in borders:
            new: list[int] = []
            at = part[-1] + 1 if step > 0 else part[0]
            while not (at in (0, n) or ends[at] or (at if step > 0 else at - 1) in reasons):
                new.append(at if step > 0 else at - 1)
                at += step
            if len(new) <= most and len(reasons) + len(new) <= budget:
                reasons.update((token, "WIDENED") for token in new)
                break


def sentence_ends(text: str) -> set[int]:
    """Bytes of a text after which a sentence or a line is over."""
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
    ends, raw = sentence_ends(text), text.encode()
    found, behind = [], -1
    for start, _ in spans:
        ended = any(behind < end <= start for end in ends)
        found.append(ended and begins_character(raw, start))
        behind = max(behind, start)
    return [*found, True]


def begins_character(text: bytes, at: int) -> bool:
    """Whether a byte is no later one of a character; the end is none."""
    return at >= len(text) or not 0x80 <= text[at] < 0xC0


def word_borders(text: bytes, spans: Sequence[Span]) -> list[bool]:
    """Whether a blank stands on either side of each token's start, or a character of the East."""
    blanks = BLANKS.encode()
    found = []
    for start, _ in spans:
        behind, before = text[start : start + 1], text[max(0, start - 1) : start]
        at_end = not behind or not before
        found.append(at_end or behind in blanks or before in blanks or behind >= b"\xe3")
    return [*found, True]
