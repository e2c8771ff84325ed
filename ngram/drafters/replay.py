"""Replay texts through any drafters, round by round as llama-server does, and count.

Turn by turn: the request's prompt begins it; the pass over the prompt yields the first token; then
each round drafts after the text so far, takes drafted tokens while they equal the text, and the
text's next token as the one that the model samples. A turn ends as a generation does that sampled
its last token: where a draft reaches beyond the last token, that one counts as sampled. Source:
llama.cpp build 11434, tools/server/server-context.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...engine.errors import InputMalformed
from ..cache.ngram_cache import NgramCache
from ..conversations.conversation import ReplayTexts
from ..lookup.replay import CLOCK_ID, check_ids
from ..lookup.stats import DraftStats
from ..lookup.tables import THRESHOLDS, bigrams_of_cache, dynamic_of_cache
from .server_cache_kernels import Caches
from .session_kernels import N_CURSOR, Tally, Texts, replay_turns
from .settings import DrafterSpec
from .slots import Room, bank_bytes, make_bank

Carry = Literal["none", "conversation", "all"]
CARRY: tuple[Carry, ...] = ("none", "conversation", "all")  # in the kernels' order
# Conversations are counted in so many groups at most: enough for a bootstrap over them, and
# 100,000 of them do not take gigabytes.
ROWS_MOST = 2048
EXAMPLES = 5
# Tokens a kernel call: about a tenth of a second, so that Ctrl-C and progress come through.
_CALL_TOKENS = 1 << 17


@dataclass(frozen=True, eq=False, kw_only=True)
class SpecStats(DraftStats):
    """What one replay counted, all arrays int64; see ``DraftStats``.

    Attributes
    ----------
    spec : the row that was replayed
    n_turns, n_generated : turns, and their tokens; the first of each is not a round's
    by_drafter : [k, 3], in the order of spec.names: drafts, drafted, accepted
    by_row : [R, 5], by groups of conversations: turns, generated, rounds, drafted, accepted.
        Conversation c of C is of row ``c * R // C``, and R is C up to 2048.
    batches : [R, draft_max + 2], rounds that evaluated a batch of that many tokens
    memory_bytes : of the drafters; caches are shared and not counted
    longest, costliest : drafts with most accepted, and with most refused tokens, the first of
        equals first; see ``Example``
    """

    spec: DrafterSpec
    n_turns: int
    n_generated: int
    by_drafter: npt.NDArray[np.int64]
    by_row: npt.NDArray[np.int64]
    batches: npt.NDArray[np.int64]
    memory_bytes: int
    longest: tuple[Example, ...]
    costliest: tuple[Example, ...]

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens that a round yields: the bound of the speed-up."""
        n = self.n_generated - self.n_turns
        return n / self.n_rounds if self.n_rounds else None

    @property
    def us_per_token(self) -> float | None:
        """Microseconds that the drafters took for a token of the turns."""
        return self.draft_ns / 1000 / self.n_generated if self.n_generated else None


@dataclass(frozen=True, eq=False)
class Example:
    """A draft of a replay.

    Attributes
    ----------
    at : place in ``ReplayTexts.tokens`` that the draft begins at
    drafted : int32 [n], the draft
    accepted : how many of them were right
    drafter : index into spec.names
    """

    at: int
    drafted: npt.NDArray[np.int32]
    accepted: int
    drafter: int


@dataclass(frozen=True, eq=False)
class _Plan:
    """What all rows of a replay share."""

    texts: Texts
    caches: Caches
    room: Room
    limits: npt.NDArray[np.int64]
    carry: int
    ends: tuple[int, ...]
    n_rows: int
    n_tokens: int
    n_generated: int

    @property
    def n_turns(self) -> int:
        return len(self.texts.turns)


def replay_texts(
    texts: ReplayTexts,
    spec: DrafterSpec,
    *,
    n_vocab: int,
    carry: Carry = "conversation",
    n_predict: int | None = None,
    n_ctx: int | None = None,
    ends: Sequence[int] = (),
    static: NgramCache | None = None,
    dynamic: NgramCache | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> SpecStats:
    """Replay all turns with the drafters of one row; the caches are left as they are.

    Parameters
    ----------
    carry : what drafters know when a request begins: of "all" requests before it, as a server slot
        does; of those of its "conversation"; or "none"
    n_predict, n_ctx : the limits that the requests had, which cut drafts; None: none
    ends : ids that end a generation, for drafters that draft none after them
    on_progress : gets (tokens done, tokens in all) now and then

    Raises
    ------
    UsageError, InputMalformed, CacheUnsuitable, CacheBadToken
    """
    (stats,) = replay_all(
        texts,
        [spec],
        n_vocab=n_vocab,
        n_threads=1,
        carry=carry,
        n_predict=n_predict,
        n_ctx=n_ctx,
        ends=ends,
        static=static,
        dynamic=dynamic,
        on_progress=on_progress,
    )
    return stats


def replay_all(
    texts: ReplayTexts,
    specs: Sequence[DrafterSpec],
    *,
    n_vocab: int,
    n_threads: int = 2,
    carry: Carry = "conversation",
    n_predict: int | None = None,
    n_ctx: int | None = None,
    ends: Sequence[int] = (),
    static: NgramCache | None = None,
    dynamic: NgramCache | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[SpecStats]:
    """``replay_texts`` of each row, several at a time; parameters and errors as there.

    ``on_progress`` gets (tokens done, tokens in all) of all rows together.
    """
    tokens = texts.tokens
    if tokens.size and (int(tokens.max()) >= n_vocab or int(tokens.min()) < 0):
        raise InputMalformed(
            f"the text holds a token outside the vocabulary of {n_vocab} tokens",
            remedy="name the model whose tokenizer made the ids",
        )
    plan = _Plan(
        texts=Texts(tokens, texts.turns, texts.prompts, texts.turn_of_conversation),
        caches=caches_of(static, dynamic, n_vocab),
        room=room_of(texts, n_vocab, carry),
        limits=np.array([n_predict or 0, n_ctx or 0], np.int64),
        carry=CARRY.index(carry),
        ends=tuple(ends),
        n_rows=max(1, min(texts.n_conversations, ROWS_MOST)),
        n_tokens=max(1, tokens.size),
        n_generated=texts.n_generated,
    )
    progress = _Progress(len(specs) * plan.n_tokens, on_progress)
    if n_threads < 2 or len(specs) < 2:
        return [_replay(plan, spec, progress) for spec in specs]
    with ThreadPoolExecutor(n_threads) as pool:
        try:
            return list(pool.map(partial(_replay, plan, progress=progress), specs))
        except BaseException:  # Ctrl-C, too
            progress.stopped.set()
            pool.shutdown(cancel_futures=True)
            raise


def room_of(texts: ReplayTexts, n_vocab: int, carry: Carry) -> Room:
    """What drafters must hold: a prompt that does not go on from the last one is a text anew."""
    sizes = texts.turns[:, 1] - texts.prompts
    longest = int(sizes.max(initial=1))
    if carry == "none":
        return Room(longest, longest, n_vocab)
    goes_on = np.zeros(sizes.size, np.bool_)
    goes_on[:-1] = texts.prompts[1:] == texts.prompts[:-1]
    sums = np.append(0, np.cumsum(np.where(goes_on, 0, sizes)))
    if carry == "conversation":
        return Room(longest, int(np.diff(sums[texts.turn_of_conversation]).max(initial=1)), n_vocab)
    return Room(longest, max(1, int(sums[-1])), n_vocab)


class _Progress:
    """What all rows have done so far; ``stopped``: no row need go on."""

    def __init__(self, n_all: int, on_progress: Callable[[int, int], None] | None) -> None:
        self.stopped = Event()
        self._n_all = n_all
        self._n_done = 0
        self._on_progress = on_progress
        self._lock = Lock()

    def add(self, n: int) -> None:
        with self._lock:
            self._n_done = min(self._n_done + n, self._n_all)
            if self._on_progress is not None:
                self._on_progress(self._n_done, self._n_all)


def caches_of(
    static: NgramCache | None, dynamic: NgramCache | None, n_vocab: int, draft_max: int = 0
) -> Caches:
    """What ngram-cache reads besides the text.

    Raises
    ------
    CacheUnsuitable, CacheBadToken
    """
    check_ids(static, n_vocab)
    check_ids(dynamic, n_vocab)
    # Without a static cache any vocabulary will do, and one type of kernel.
    bigrams = bigrams_of_cache(static, 2 if static is None else n_vocab)
    origin = np.empty((draft_max, 2), np.int64)
    return Caches(dynamic_of_cache(dynamic), bigrams, THRESHOLDS, origin)


def new_tally(spec: DrafterSpec, n_rows: int) -> Tally:
    """What the replay kernel counts in, all zeros."""
    draft_max = spec.draft_max
    return Tally(
        total=np.zeros(6, np.int64),
        length=np.zeros((2, draft_max + 1), np.int64),
        drafter=np.zeros((len(spec.names), 3), np.int64),
        row=np.zeros((n_rows, 5), np.int64),
        batches=np.zeros((n_rows, draft_max + 2), np.int64),
        example=np.zeros((2, EXAMPLES, 4), np.int64),
        example_ids=np.zeros((2, EXAMPLES, draft_max), np.int32),
    )


def _replay(plan: _Plan, spec: DrafterSpec, progress: _Progress) -> SpecStats:
    draft_max = spec.draft_max
    bank = make_bank(spec, plan.room, plan.ends)
    tally = new_tally(spec, plan.n_rows)
    caches = plan.caches._replace(origin=np.empty((draft_max, 2), np.int64))
    cursor = np.zeros(N_CURSOR, np.int64)
    out = np.empty(draft_max, np.int32)
    timespec = np.zeros(2, np.int64)
    while cursor[0] < plan.n_turns and not progress.stopped.is_set():
        progress.add(
            replay_turns(
                bank, caches, plan.texts, plan.limits, plan.carry, cursor, _CALL_TOKENS, out, tally,
                CLOCK_ID, timespec,
            )
        )  # fmt: skip
    return _stats(plan, spec, tally, bank_bytes(bank))


def _stats(plan: _Plan, spec: DrafterSpec, tally: Tally, memory_bytes: int) -> SpecStats:
    rounds, cut_rounds, drafts, drafted, accepted, draft_ns = (int(n) for n in tally.total)
    # A draft of n tokens has one at each of the first n positions.
    drafted_at, accepted_at = tally.length[:, :0:-1].cumsum(axis=1)[:, ::-1]
    longest, costliest = (
        tuple(
            Example(int(at), ids[:n].copy(), int(right), int(drafter))
            for (at, n, right, drafter), ids in zip(rows, all_ids, strict=True)
            if n
        )
        for rows, all_ids in zip(tally.example, tally.example_ids, strict=True)
    )
    return SpecStats(
        spec=spec,
        n_turns=plan.n_turns,
        n_generated=plan.n_generated,
        n_rounds=rounds,
        n_cut_rounds=cut_rounds,
        n_drafts=drafts,
        n_drafted=drafted,
        n_accepted=accepted,
        drafted_at=drafted_at,
        accepted_at=accepted_at,
        by_drafter=tally.drafter,
        by_row=tally.row,
        batches=tally.batches,
        draft_ns=draft_ns,
        memory_bytes=memory_bytes,
        longest=longest,
        costliest=costliest,
    )
