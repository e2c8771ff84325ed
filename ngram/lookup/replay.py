"""Replay a text as llama-lookup-stats does, and count what drafting would have done.

The text is cut into chunks of ``n_ctx`` tokens; a chunk's first token is its seed. Then, round by
round: draft from the chunk so far with the context, dynamic and static caches; accept drafted
tokens while they equal the text (each goes into the context cache at once); take the text's next
token as the one that the model samples, if the chunk has room. A finished chunk's context cache
is merged into the dynamic cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...engine.errors import CacheBadToken, InputMalformed, InputTooShort, UsageError
from ..cache.ngram_cache import NgramCache
from .draft_kernels import Tally, replay_chunks
from .stats import DraftStats
from .tables import (
    SIZES,
    THRESHOLDS,
    bigrams_of_cache,
    context_bytes,
    dynamic_bytes,
    dynamic_of_cache,
    empty_context,
    static_bytes,
    with_room,
)

SOURCES = ("context", "dynamic", "static")
CTX_MULTIPLE = 256
# CLOCK_MONOTONIC of the C library: 1 on Linux, 6 on macOS.
CLOCK_ID = 6 if sys.platform == "darwin" else 1
# Tokens a kernel call: about a tenth of a second, so that Ctrl-C and progress come through.
_CALL_TOKENS = 1 << 17


def round_up_ctx(n_ctx: int) -> int:
    """The context size that llama.cpp really takes: the next multiple of 256."""
    return -(-n_ctx // CTX_MULTIPLE) * CTX_MULTIPLE


def draft_us_per_token(draft_ns: float, n_drafted: int) -> float | None:
    """Microseconds that a drafted token took; None where nothing was drafted."""
    return draft_ns / 1000 / n_drafted if n_drafted else None


@dataclass(frozen=True, eq=False, kw_only=True)
class ReplayStats(DraftStats):
    """What one replay counted; see ``DraftStats``.

    Attributes
    ----------
    n_rounds : passes of the model that yielded a token of their own
    n_predict : what llama-lookup-stats prints, n_input rounded down to whole chunks
    n_replayed : tokens really walked through, seeds included: n_seeds + n_accepted + n_rounds
    drafted_by_source, accepted_by_source : int64 [3], in the order of SOURCES
    drafted_by_size, accepted_by_size : int64 [4], by n-gram size 1 to 4 (static bigrams are size 2)
    merge_ns : merging finished chunks
    context_bytes, dynamic_bytes, static_bytes : memory of the caches at the end of the replay
    """

    n_ctx: int
    draft_max: int
    n_input: int
    n_chunks: int
    n_predict: int
    n_replayed: int
    drafted_by_source: np.ndarray
    accepted_by_source: np.ndarray
    drafted_by_size: np.ndarray
    accepted_by_size: np.ndarray
    merge_ns: int
    context_bytes: int
    dynamic_bytes: int
    static_bytes: int

    @property
    def n_seeds(self) -> int:
        """Tokens that were given: the first of each chunk."""
        return self.n_chunks

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens that one pass of the model yields: the bound of the speed-up."""
        return (self.n_rounds + self.n_accepted) / self.n_rounds if self.n_rounds else None

    @property
    def draft_us_per_token(self) -> float | None:
        return draft_us_per_token(self.draft_ns, self.n_drafted)

    @property
    def draft_tokens_per_s(self) -> float | None:
        """The other way round; None, too, where the clock saw no time pass."""
        us = self.draft_us_per_token
        return 1e6 / us if us else None


def _check(tokens: np.ndarray, n_ctx: int, draft_max: int, n_vocab: int) -> None:
    if n_ctx < 2:
        raise UsageError(f"a chunk of {n_ctx} tokens", remedy="give -c 256 or more")
    if draft_max < 0:
        raise UsageError(f"--draft-max {draft_max} is below 0", remedy="give 0 or more")
    if tokens.size <= n_ctx:
        smaller = (tokens.size - 1) // CTX_MULTIPLE * CTX_MULTIPLE
        raise InputTooShort(
            f"the text has {tokens.size} tokens, but one chunk of -c {n_ctx} needs {n_ctx + 1}",
            remedy="give a longer text" + (f", or -c {smaller}" if smaller else ""),
        )
    if int(tokens.max()) >= n_vocab or int(tokens.min()) < 0:
        raise InputMalformed(
            f"the text holds a token outside the vocabulary of {n_vocab} tokens",
            remedy="name the model whose tokenizer made the ids",
        )


def check_tokens(tokens: np.ndarray, n_vocab: int) -> None:
    """Ids are used as indices: all are of the vocabulary.

    Raises
    ------
    InputMalformed : one is not
    """
    if tokens.size and not (tokens.min() >= 0 and tokens.max() < n_vocab):
        raise InputMalformed(
            f"a token outside the vocabulary of {n_vocab}",
            remedy="name the vocabulary that the ids belong to",
        )


def check_ids(cache: NgramCache | None, n_vocab: int) -> None:
    """Ids are used as indices; ``open_cache`` has checked those of the same vocabulary."""
    if cache is not None and cache.n_vocab != n_vocab and cache.max_token() >= n_vocab:
        raise CacheBadToken(
            f"{cache.name} holds token {cache.max_token()}, outside the vocabulary of {n_vocab}",
            remedy="name the model that the cache was made with",
        )


def replay(
    tokens: np.ndarray,
    *,
    n_ctx: int,
    draft_max: int,
    n_vocab: int,
    static: NgramCache | None = None,
    dynamic: NgramCache | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ReplayStats:
    """Replay ``tokens`` (int32 [n]) in chunks of ``n_ctx``; the caches are left as they are.

    ``on_progress`` gets (tokens done, tokens in all) now and then. Source of the procedure:
    llama.cpp, examples/lookup/lookup-stats; like it, the rest after the last whole chunk is not
    replayed, nor is the last chunk when the text ends with it.

    Raises
    ------
    UsageError, InputTooShort, InputMalformed, CacheUnsuitable, CacheBadToken
    """
    tokens = np.ascontiguousarray(tokens, np.int32)
    _check(tokens, n_ctx, draft_max, n_vocab)
    check_ids(static, n_vocab)
    check_ids(dynamic, n_vocab)
    n_chunks = (tokens.size - 1) // n_ctx
    bigrams = bigrams_of_cache(static, n_vocab)
    context = empty_context(n_ctx, n_vocab)
    learned = dynamic_of_cache(dynamic)
    tally = Tally(
        np.zeros(7, np.int64),
        np.zeros((2, draft_max), np.int64),
        np.zeros((2, 3), np.int64),
        np.zeros((2, 4), np.int64),
    )
    draft = np.empty(draft_max, np.int32)
    origin = np.empty((draft_max, 2), np.int64)
    state = np.zeros(SIZES + 1, np.int32)
    chunks_per_call = max(1, _CALL_TOKENS // n_ctx)
    for first in range(0, n_chunks, chunks_per_call):
        part = tokens[first * n_ctx : min(first + chunks_per_call, n_chunks) * n_ctx]
        learned = with_room(learned, SIZES * part.size)
        replay_chunks(
            part, n_ctx, context, learned, bigrams, THRESHOLDS, draft, origin, state, tally,
            CLOCK_ID, np.zeros(2, np.int64),
        )  # fmt: skip
        if on_progress is not None:
            on_progress(first * n_ctx + part.size, n_chunks * n_ctx)
    rounds, cut, drafted, accepted, replayed, draft_ns, merge_ns = (int(n) for n in tally.total)
    return ReplayStats(
        n_ctx=n_ctx,
        draft_max=draft_max,
        n_input=tokens.size,
        n_chunks=n_chunks,
        n_predict=tokens.size - tokens.size % n_ctx,
        n_replayed=replayed,
        n_rounds=rounds,
        n_cut_rounds=cut,
        n_drafts=int(tally.position[0, 0]) if draft_max else 0,
        n_drafted=drafted,
        n_accepted=accepted,
        drafted_at=tally.position[0],
        accepted_at=tally.position[1],
        drafted_by_source=tally.source[0],
        accepted_by_source=tally.source[1],
        drafted_by_size=tally.size[0],
        accepted_by_size=tally.size[1],
        draft_ns=draft_ns,
        merge_ns=merge_ns,
        context_bytes=context_bytes(context),
        dynamic_bytes=dynamic_bytes(learned),
        static_bytes=static_bytes(bigrams) if static is not None else 0,
    )
