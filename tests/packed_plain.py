"""The packed layout written down a second time: plain Python, nothing from the product."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import naive

HASH = 0x9E3779B97F4A7C15
_WORDS = 2**64


def checksum(data: bytes) -> int:
    """Of bytes that are padded to a multiple of 64."""
    words = struct.unpack(f"<{len(data) // 8}Q", data)
    lanes = [HASH] * 8
    for i, word in enumerate(words):
        lanes[i % 8] = (lanes[i % 8] ^ word) * HASH % _WORDS
    total = len(words)
    for lane in lanes:
        total = (total ^ lane ^ (lane >> 31)) * HASH % _WORDS
    return total


def token_kind(n_ids: int) -> str:
    return "<u2" if n_ids < 65536 else "<u4"


def no_token(n_ids: int) -> int:
    return 0xFFFF if n_ids < 65536 else 0xFFFFFFFF


def _hash_of(first: int, second: int) -> int:
    return ((first << 32) | second) * HASH % _WORDS


def _place(mixed: int, n_slots: int) -> int:
    return (mixed >> 32) * n_slots >> 32


def _bits(n_rows: int) -> int:
    return max(1, n_rows.bit_length())


def slots_of(bigrams: Sequence[tuple[int, ...]]) -> list[int]:
    """The index of bigrams, in the order of their rows."""
    n, bits = len(bigrams), _bits(len(bigrams))
    slots = [0] * (n + n // 3 + 1)
    for row, (first, second) in enumerate(bigrams):
        mixed = _hash_of(first, second)
        place = _place(mixed, len(slots))
        while slots[place]:
            place = (place + 1) % len(slots)
        slots[place] = mixed % 2 ** (32 - bits) << bits | row + 1
    return slots


def find_row(
    slots: Sequence[int], first: Sequence[int], rest: Sequence[int], bigram: tuple[int, int]
) -> int | None:
    """The row of a bigram, as the drafter looks for it."""
    bits = _bits(len(rest))
    mixed = _hash_of(*bigram)
    place = _place(mixed, len(slots))
    while slots[place]:
        tag, row = slots[place] >> bits, slots[place] % 2**bits - 1
        own = first[bigram[0]] <= row < first[bigram[0] + 1] and rest[row] == bigram[1]
        if own and tag == mixed % 2 ** (32 - bits):
            return row
        place = (place + 1) % len(slots)
    return None


def verdict_of(part: naive.Part, n_ids: int) -> int:
    token = naive.best_token(part, *naive.STATIC_ONLY, {}, "lowest_id")
    return no_token(n_ids) if token is None else token


def _starts(starts: list[int]) -> tuple[int, list[int], list[int]]:
    for shift in range(8, -1, -1):
        base = starts[:: 2**shift]
        offset = [start - base[row >> shift] for row, start in enumerate(starts)]
        if max(offset) < 65536:
            break
    return shift, base, offset


def columns(counts: naive.Cache, order: int, n_ids: int) -> dict[str, tuple[str, list[int]]]:
    """The arrays of the n-grams of one size: name -> (dtype, items), in the order of the file."""
    ngrams = sorted(ngram for ngram in counts if len(ngram) == order)
    parts = [sorted(counts[ngram].items()) for ngram in ngrams]
    entries = [entry for part in parts for entry in part]
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + len(part))
    shift, base, offset = _starts(starts)
    first = [0] * (n_ids + 1)
    for ngram in ngrams:
        first[ngram[0] + 1] += 1
    for token in range(n_ids):
        first[token + 1] += first[token]
    many = [(entry, count) for entry, (_, count) in enumerate(entries) if count >= 255]
    kind = token_kind(n_ids)
    arrays = {
        "shape": ("<u8", [len(ngrams), len(entries), shift]),
        "first": ("<u4", first),
        "rest": (kind, [token for ngram in ngrams for token in ngram[1:]]),
        "base": ("<u4", base),
        "offset": ("<u2", offset),
        "next": (kind, [token for token, _ in entries]),
        "count": ("|u1", [min(count, 255) for _, count in entries]),
        "many_entry": ("<u4", [entry for entry, _ in many]),
        "many_count": ("<u4", [count for _, count in many]),
    }
    if order == 2:
        verdicts = [verdict_of(counts[ngram], n_ids) for ngram in ngrams]
        arrays |= {"verdict": (kind, verdicts), "slots": ("<u4", slots_of(ngrams))}
    return arrays
