"""Replay one text with every static cache, chunk length and draft length of a sweep.

The text is tokenized once; a static cache is open only while its own rows are replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...engine.stages import Stages
from ..cache.file import open_cache
from ..cache.ngram_cache import NgramCache
from .replay import ReplayStats, replay
from .tables import bigrams_of_cache


@dataclass(frozen=True)
class SweepCell:
    """One combination and its replays.

    Attributes
    ----------
    static : path of the static cache, None: without one
    caches_ms : opening, checking and indexing the row's caches
    runs : one a repeat; they differ in their times only
    """

    static: str | None
    caches_ms: float
    runs: list[ReplayStats]


class SweepCaches:
    """The caches of a sweep: the dynamic one stays open, the static ones are opened in turn.

    All are opened once before any work, so that a damaged one is refused at once.

    Parameters
    ----------
    statics : paths; None is no cache.
    dynamic : path, or None.
    verify : check every invariant of the caches, not only what drafting relies on.
    """

    def __init__(
        self,
        statics: Sequence[str | None],
        dynamic: str | None,
        stages: Stages,
        *,
        n_vocab: int,
        fingerprint: bytes,
        verify: bool = False,
    ) -> None:
        self._verify = verify
        self.n_vocab = n_vocab
        self._fingerprint = fingerprint
        self._statics = statics
        self._stages = stages
        self.dynamic, self._dynamic_ms = self._open(dynamic, "dynamic")
        self._first = self._open_static(0)
        for i in range(1, len(statics)):
            if statics[i] not in statics[:i]:
                self._open_static(i)

    def __len__(self) -> int:
        return len(self._statics)

    def opened(self) -> Iterator[tuple[str | None, NgramCache | None, float]]:
        """Yield (path, static cache, milliseconds it and the dynamic one took) in turn."""
        static, static_ms = self._first
        del self._first
        for i, path in enumerate(self._statics):
            if i > 0:
                static = None  # as in sweep
                static, static_ms = self._open_static(i)
            yield path, static, self._dynamic_ms + static_ms

    def _open_static(self, i: int) -> tuple[NgramCache | None, float]:
        """Open a static cache and index it once, as each replay will."""
        cache, open_ms = self._open(self._statics[i], "static")
        before = self._stages.seconds("index")
        with self._stages.stage("index"):
            if cache is not None:
                bigrams_of_cache(cache, self.n_vocab)
        return cache, open_ms + (self._stages.seconds("index") - before) * 1e3

    def _open(self, path: str | None, stage: str) -> tuple[NgramCache | None, float]:
        before = self._stages.seconds(stage)
        with self._stages.stage(stage):
            cache = None
            if path is not None:
                cache = open_cache(
                    path,
                    n_vocab=self.n_vocab,
                    fingerprint=self._fingerprint,
                    verify=self._verify,
                )
        return cache, (self._stages.seconds(stage) - before) * 1e3


def sweep(
    tokens: np.ndarray,
    caches: SweepCaches,
    n_ctxs: Sequence[int],
    draft_maxes: Sequence[int],
    repeat: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[SweepCell]:
    """Replay ``tokens`` (int32 [n]) ``repeat`` times for each combination, in the given order.

    Parameters
    ----------
    on_progress : told (tokens replayed, of all replays)
    """
    cells = []
    each = repeat * len(draft_maxes)
    total = len(caches) * each * sum(_n_replayed(tokens, n_ctx) for n_ctx in n_ctxs)
    done = 0

    def show(n: int, _: int) -> None:
        if on_progress is not None:
            on_progress(done + n, total)

    for path, static, caches_ms in caches.opened():
        for n_ctx in n_ctxs:
            for draft_max in draft_maxes:
                runs: list[ReplayStats] = []
                for _ in range(repeat):
                    runs.append(_replay(tokens, caches, static, n_ctx, draft_max, runs, show))
                    done += _n_replayed(tokens, n_ctx)
                cells.append(SweepCell(path, caches_ms, runs))
        static = None  # or it would stay open until the next one is
    return cells


def _n_replayed(tokens: np.ndarray, n_ctx: int) -> int:
    """Tokens of whole chunks; the one after the last of them is needed, too."""
    return (tokens.size - 1) // n_ctx * n_ctx


def _replay(
    tokens: np.ndarray,
    caches: SweepCaches,
    static: NgramCache | None,
    n_ctx: int,
    draft_max: int,
    before: Sequence[ReplayStats],
    on_progress: Callable[[int, int], None],
) -> ReplayStats:
    """Replay once more; the counts are the same each time, the times are not."""
    run = replay(
        tokens,
        n_ctx=n_ctx,
        draft_max=draft_max,
        n_vocab=caches.n_vocab,
        static=static,
        dynamic=caches.dynamic,
        on_progress=on_progress,
    )
    assert not before or (run.n_drafted, run.n_accepted, run.n_rounds) == (
        before[0].n_drafted,
        before[0].n_accepted,
        before[0].n_rounds,
    ), "two replays of one text differ"
    return run
