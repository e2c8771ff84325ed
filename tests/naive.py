"""The slow, obvious n-gram core: plain dicts and loops, to hold the fast one against.

A cache is a dict of dicts, `{(token, ...): {next token: count}}`, n-grams of all sizes together.
A part (an inner dict) keeps the order in which its tokens first came: that order is all one has to
know to tell how a libstdc++ `std::unordered_map` would iterate over it. Everything is an exact
Python int: nothing wraps, nothing saturates.

The algorithm is that of llama.cpp's lookup tools, written down from what they do. Equally good
tokens are told apart by one of two rules: `lowest_id`, the rule of this project, or `libstdcxx`,
which is what llama.cpp does where its C++ library is libstdc++.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

NGram = tuple[int, ...]
Part = dict[int, int]
Cache = dict[NGram, Part]
Key = TypeVar("Key")

SOURCES = ("context", "dynamic", "static")
ALL_SIZES = (1, 2, 3, 4)
STATIC_SIZE = 2

# By n-gram size: how many samples a part must hold, and what percentage its token must have.
LAX = {1: (2, 66), 2: (2, 50), 3: (1, 50), 4: (1, 50)}  # context
STRICT = {1: (4, 75), 2: (3, 66), 3: (2, 66), 4: (2, 66)}  # dynamic
STATIC_ONLY = LAX[STATIC_SIZE]

# Bucket counts that libstdc++'s unordered_map goes through as it grows by one element at a time:
# each is the first in the library's list of primes that is at least twice its predecessor.
# Read off the real container (g++ 12).
BUCKET_COUNTS = (
    *(13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933, 351061),
    *(712697, 1447153, 2938679, 5967347, 12117689),
)


# --------------------------------------------------------------------------------------------------
# The order in which libstdc++ iterates


def libstdcxx_order(keys: Iterable[Key], hash_of: Callable[[Key], int] | None = None) -> list[Key]:
    """Iteration order of a `std::unordered_map` into which distinct `keys` went one by one.

    `hash_of` is the map's hash; None is the identity, libstdc++'s hash of an int.

    The elements hang in one list. The first element of a bucket goes to the front of the list, a
    later one to the front of its bucket; so the latest bucket comes first, and in a bucket the
    latest element. A full map takes the next bucket count and inserts its elements anew, in the
    order of the list as it stands. A copy iterates, and grows, like its original.
    """
    keys = list(keys)
    order: list[Key] = []
    for n_buckets in BUCKET_COUNTS:
        arrivals = order + keys[len(order) : n_buckets]
        order = _bucket_order(arrivals, n_buckets, hash_of)
        if len(order) == len(keys):
            return order
    raise ValueError(f"{len(keys)} keys, at most {BUCKET_COUNTS[-1]} expected")


def _bucket_order(
    arrivals: list[Key], n_buckets: int, hash_of: Callable[[Key], int] | None
) -> list[Key]:
    buckets: dict[int, list[Key]] = {}
    for key in arrivals:
        hashed = hash_of(key) if hash_of else key
        buckets.setdefault(hashed % n_buckets, []).append(key)  # type: ignore[operator]
    return [key for bucket in reversed(buckets.values()) for key in reversed(bucket)]


def ngram_hash(ngram: NGram) -> int:
    """llama.cpp's hash of an n-gram, unused slots being -1."""
    hashed = 0
    for token in _padded(ngram):
        hashed ^= token * 11400714819323198485 % 2**64
    return hashed


def _padded(ngram: NGram) -> NGram:
    return ngram + (-1,) * (4 - len(ngram))


# --------------------------------------------------------------------------------------------------
# Counting and merging


def update(cache: Cache, sizes: Iterable[int], tokens: NGram, n_new: int) -> None:
    """Count the n-grams that the last `n_new` of `tokens` follow."""
    for size in sizes:
        for i in range(max(len(tokens) - n_new, size), len(tokens)):
            part = cache.setdefault(tokens[i - size : i], {})
            part[tokens[i]] = part.get(tokens[i], 0) + 1


def count_ngrams(documents: Iterable[Sequence[int]], sizes: Iterable[int] = ALL_SIZES) -> Cache:
    """Count the n-grams of all documents; none spans two documents."""
    cache: Cache = {}
    for document in documents:
        tokens = tuple(document)
        update(cache, sizes, tokens, len(tokens))
    return cache


def merge(target: Cache, addend: Cache) -> None:
    """Add the counts of `addend` to `target`, in place.

    New tokens come in the order in which libstdc++ iterates over the part that is added.
    """
    for ngram, part in addend.items():
        if ngram not in target:
            target[ngram] = dict(part)
            continue
        old = target[ngram]
        for token in part if len(part) == 1 else libstdcxx_order(part):
            old[token] = old.get(token, 0) + part[token]


def copy_cache(cache: Cache) -> Cache:
    return {ngram: dict(part) for ngram, part in cache.items()}


# --------------------------------------------------------------------------------------------------
# llama.cpp's cache file: records of int32 tokens[4], n, then n pairs (token, count); no header


def parse_llama_cache(data: bytes) -> Cache:
    """The cache in a file of llama.cpp. The first of two equal n-grams, or tokens, is kept.

    Raises ValueError where llama.cpp aborts: a cut record, or a number of tokens or a count < 1.
    As in llama.cpp, 1 to 15 bytes after the last record are ignored.
    """
    cache: Cache = {}
    at = 0
    while len(data) - at >= 16:
        tokens = struct.unpack_from("<4i", data, at)
        at += 16
        if len(data) - at < 4:
            raise ValueError(f"cut after the n-gram at byte {at - 16}")
        (n_tokens,) = struct.unpack_from("<i", data, at)
        at += 4
        if n_tokens < 1 or len(data) - at < 8 * n_tokens:
            raise ValueError(f"{n_tokens} tokens at byte {at - 4}, {len(data) - at} bytes follow")
        part: Part = {}
        for _ in range(n_tokens):
            token, count = struct.unpack_from("<2i", data, at)
            at += 8
            if count < 1:
                raise ValueError(f"count {count} at byte {at - 4}")
            part.setdefault(token, count)
        cache.setdefault(tuple(token for token in tokens if token != -1), part)
    return cache


def llama_cache_bytes(cache: Cache) -> bytes:
    """The file, records and entries in the order of the dicts."""
    parts = []
    for ngram, part in cache.items():
        pairs = [number for entry in part.items() for number in entry]
        parts.append(struct.pack(f"<5i{len(pairs)}i", *_padded(ngram), len(part), *pairs))
    return b"".join(parts)


def in_libstdcxx_order(cache: Cache) -> Cache:
    """The cache as llama.cpp iterates over it; its saved file has this order."""
    ngrams = libstdcxx_order(cache, ngram_hash)
    return {n: {token: cache[n][token] for token in libstdcxx_order(cache[n])} for n in ngrams}


def in_sorted_order(cache: Cache) -> Cache:
    """N-grams sorted as their four int32, the unused ones being -1; tokens sorted."""
    return {ngram: dict(sorted(cache[ngram].items())) for ngram in sorted(cache, key=_padded)}


def records_sha256(cache: Cache) -> str:
    """SHA-256 of the file with everything sorted: equal for equal caches."""
    return hashlib.sha256(llama_cache_bytes(in_sorted_order(cache))).hexdigest()


# --------------------------------------------------------------------------------------------------
# Drafting


class Drafted(NamedTuple):
    token: int
    source: int  # index into SOURCES
    size: int  # of the n-gram that it was found by


def best_token(
    part: Part, min_samples: int, min_percent: int, static_part: Part, ties: str
) -> int | None:
    """The part's best token if the thresholds hold for it, else None.

    A token that the static part knows has its count multiplied by 100 times its static count. This
    decides which token is best; the thresholds are for its own, plain count.
    """
    total = sum(part.values())
    if total < min_samples or 100 * max(part.values()) < min_percent * total:
        return None  # too few samples, or no token that could pass
    if len(part) == 1:
        return next(iter(part))
    scores = dict(part)
    for token in part.keys() & static_part.keys():
        scores[token] = part[token] * 100 * static_part[token]
    best_score = max(scores.values())
    best = [token for token, score in scores.items() if score == best_score]
    if ties == "lowest_id":
        winner = min(best)
    else:
        winner = min(best, key=libstdcxx_order(part).index) if len(best) > 1 else best[0]
    return winner if 100 * part[winner] >= min_percent * total else None


def draft(
    history: NGram,
    draft_max: int,
    context: Cache,
    dynamic: Cache,
    static: Cache,
    ties: str,
) -> list[Drafted]:
    """Draft up to `draft_max` tokens after `history`; with less than two tokens, none."""
    drafted: list[Drafted] = []
    if len(history) < 2:
        return drafted
    tail = history[-4:]
    while len(drafted) < draft_max:
        found = _draft_one(tail, context, dynamic, static, ties)
        if found is None:
            break
        drafted.append(found)
        tail = (*tail, found.token)[-4:]
    return drafted


def _draft_one(
    tail: NGram, context: Cache, dynamic: Cache, static: Cache, ties: str
) -> Drafted | None:
    static_part = static.get(tail[-STATIC_SIZE:], {})
    ngrams = [(size, tail[-size:]) for size in range(len(tail), 0, -1)]  # at most 4, longest first
    for source, cache, thresholds in ((0, context, LAX), (1, dynamic, STRICT)):
        for size, ngram in ngrams:
            part = cache.get(ngram)
            if part:
                token = best_token(part, *thresholds[size], static_part, ties)
                if token is not None:
                    return Drafted(token, source, size)
    if static_part:
        token = best_token(static_part, *STATIC_ONLY, {}, ties)
        if token is not None:
            return Drafted(token, 2, STATIC_SIZE)
    return None


# --------------------------------------------------------------------------------------------------
# Replay


@dataclass
class Stats:
    """What a replay counted; the lists by source stand in the order of SOURCES."""

    n_ctx: int
    draft_max: int
    n_input: int
    n_predict: int  # as llama.cpp prints it, which is not what was replayed
    drafted_at: list[int]  # [draft_max] how often a draft had a token at this position
    accepted_at: list[int]  # [draft_max] how often that token was accepted
    n_chunks: int = 0
    n_seeds: int = 0  # tokens that begin a chunk
    n_rounds: int = 0
    n_cut_rounds: int = 0  # rounds that ended with their chunk, before a token could be sampled
    n_drafted: int = 0
    n_accepted: int = 0
    drafted_by_source: list[int] = field(default_factory=lambda: [0] * 3)
    accepted_by_source: list[int] = field(default_factory=lambda: [0] * 3)
    drafted_by_size: list[int] = field(default_factory=lambda: [0] * 4)  # n-gram sizes 1..4
    accepted_by_size: list[int] = field(default_factory=lambda: [0] * 4)

    def count_drafted(self, drafted: list[Drafted]) -> None:
        self.n_rounds += 1
        self.n_drafted += len(drafted)
        for i, one in enumerate(drafted):
            self.drafted_at[i] += 1
            self.drafted_by_source[one.source] += 1
            self.drafted_by_size[one.size - 1] += 1

    def count_accepted(self, i: int, accepted: Drafted) -> None:
        self.n_accepted += 1
        self.accepted_at[i] += 1
        self.accepted_by_source[accepted.source] += 1
        self.accepted_by_size[accepted.size - 1] += 1


def _new_stats(tokens: NGram, n_ctx: int, draft_max: int) -> Stats:
    n = len(tokens)
    return Stats(n_ctx, draft_max, n, n - n % n_ctx, [0] * draft_max, [0] * draft_max)


def _chunks(tokens: NGram, n_ctx: int) -> list[NGram]:
    """The chunks replayed: one that ends with the last token is not."""
    starts = range(0, len(tokens) - n_ctx, n_ctx)
    return [tokens[start : start + n_ctx] for start in starts]


def replay(
    tokens: Sequence[int],
    *,
    n_ctx: int,
    draft_max: int,
    static: Cache | None = None,
    dynamic: Cache | None = None,
    ties: str = "lowest_id",
) -> Stats:
    """Replay `tokens` step by step as llama-lookup-stats does. `n_ctx` is not rounded up here."""
    tokens = tuple(tokens)
    stats = _new_stats(tokens, n_ctx, draft_max)
    dynamic = copy_cache(dynamic or {})
    for chunk in _chunks(tokens, n_ctx):
        context: Cache = {}
        _replay_chunk(stats, chunk, context, dynamic, static or {}, ties)
        merge(dynamic, context)
    return stats


def _replay_chunk(
    stats: Stats, chunk: NGram, context: Cache, dynamic: Cache, static: Cache, ties: str
) -> None:
    stats.n_chunks += 1
    stats.n_seeds += 1
    n_done = 1  # chunk[:n_done] is written, the rest is to come
    while n_done < len(chunk):
        drafted = draft(chunk[:n_done], stats.draft_max, context, dynamic, static, ties)
        stats.count_drafted(drafted)
        for i, candidate in enumerate(drafted):
            if n_done == len(chunk) or candidate.token != chunk[n_done]:
                break
            stats.count_accepted(i, candidate)
            n_done += 1
            update(context, ALL_SIZES, chunk[:n_done], 1)
        if n_done == len(chunk):
            stats.n_cut_rounds += 1
        else:  # the token that the model would sample
            n_done += 1
            update(context, ALL_SIZES, chunk[:n_done], 1)


class Setting(NamedTuple):
    draft_max: int
    static: Cache
    ties: str


def replay_settings(
    tokens: Sequence[int],
    settings: Sequence[Setting],
    *,
    n_ctx: int,
    dynamic: Cache | None = None,
) -> list[Stats]:
    """`replay` for each of the settings, in one pass, several times as fast.

    What is learnt depends on the text alone, not on what was drafted, so all settings can share one
    context and one dynamic cache; and a shorter draft is the beginning of a longer one.
    """
    tokens = tuple(tokens)
    all_stats = [_new_stats(tokens, n_ctx, setting.draft_max) for setting in settings]
    runs = list(zip(settings, all_stats, strict=True))
    runs.sort(key=lambda run: -run[0].draft_max)  # the longest draft of a position is made first
    dynamic = copy_cache(dynamic or {})
    for chunk in _chunks(tokens, n_ctx):
        context: Cache = {}
        next_round = [1] * len(runs)  # where in the chunk each run begins its next round
        for n_done in range(1, n_ctx):
            drafts: dict[tuple[int, str], list[Drafted]] = {}
            history = chunk[max(0, n_done - 4) : n_done]
            for r, (setting, stats) in enumerate(runs):
                if next_round[r] == n_done:
                    key = (id(setting.static), setting.ties)
                    if key not in drafts:
                        drafts[key] = draft(
                            history, setting.draft_max, context, dynamic, *setting[1:]
                        )
                    drafted = drafts[key][: setting.draft_max]
                    next_round[r] = _judge_round(stats, drafted, chunk, n_done)
            update(context, ALL_SIZES, chunk[max(0, n_done - 4) : n_done + 1], 1)
        for stats in all_stats:
            stats.n_chunks += 1
            stats.n_seeds += 1
        merge(dynamic, context)
    return all_stats


def _judge_round(stats: Stats, drafted: list[Drafted], chunk: NGram, n_done: int) -> int:
    """Count one round that begins after `chunk[:n_done]`; return where the next one begins."""
    stats.count_drafted(drafted)
    for i, (candidate, truth) in enumerate(zip(drafted, chunk[n_done:], strict=False)):
        if candidate.token != truth:
            break
        stats.count_accepted(i, candidate)
        n_done += 1
    stats.n_cut_rounds += n_done == len(chunk)
    return n_done + 1
