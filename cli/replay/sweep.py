"""Replay one text with every static cache, chunk length and draft length of a sweep.

The text is tokenized once; a static cache is open only while its own rows are replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..output import Output, WorkBar

if TYPE_CHECKING:
    import numpy as np

    from ...engine.tokens.tokenizer import Tokenizer
    from ...ngram.cache.ngram_cache import NgramCache
    from ...ngram.lookup.replay import ReplayStats
    from ..inputs import Stages


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


class Caches:
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
        tokenizer: Tokenizer,
        stages: Stages,
        *,
        verify: bool = False,
    ) -> None:
        self._verify = verify
        self.n_vocab = tokenizer.n_vocab
        self._fingerprint = tokenizer.fingerprint
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
        from ...ngram.lookup.tables import bigrams_of_cache

        cache, open_ms = self._open(self._statics[i], "static")
        before = self._stages.seconds("index")
        with self._stages.stage("index"):
            if cache is not None:
                bigrams_of_cache(cache, self.n_vocab)
        return cache, open_ms + (self._stages.seconds("index") - before) * 1e3

    def _open(self, path: str | None, stage: str) -> tuple[NgramCache | None, float]:
        from ...ngram.cache.file import open_cache

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
    caches: Caches,
    n_ctxs: Sequence[int],
    draft_maxes: Sequence[int],
    repeat: int,
    out: Output,
) -> list[SweepCell]:
    """Replay ``tokens`` (int32 [n]) ``repeat`` times for each combination, in the given order."""
    cells = []
    each = repeat * len(draft_maxes)
    total = len(caches) * each * sum(_n_replayed(tokens, n_ctx) for n_ctx in n_ctxs)
    with out.progress("replaying", unit="tokens") as bar:
        work = WorkBar(bar, total)
        for path, static, caches_ms in caches.opened():
            for n_ctx in n_ctxs:
                for draft_max in draft_maxes:
                    runs = _replays(tokens, caches, static, n_ctx, draft_max, repeat, work)
                    cells.append(SweepCell(path, caches_ms, runs))
            static = None  # or it would stay open until the next one is
    return cells


def _n_replayed(tokens: np.ndarray, n_ctx: int) -> int:
    """Tokens of whole chunks; the one after the last of them is needed, too."""
    return (tokens.size - 1) // n_ctx * n_ctx


def _replays(
    tokens: np.ndarray,
    caches: Caches,
    static: NgramCache | None,
    n_ctx: int,
    draft_max: int,
    repeat: int,
    work: WorkBar,
) -> list[ReplayStats]:
    """Replay some times; the counts are the same each time, the times are not."""
    from ...ngram.lookup.replay import replay

    runs: list[ReplayStats] = []
    for _ in range(repeat):
        run = replay(
            tokens,
            n_ctx=n_ctx,
            draft_max=draft_max,
            n_vocab=caches.n_vocab,
            static=static,
            dynamic=caches.dynamic,
            on_progress=work.show,
        )
        work.settle(_n_replayed(tokens, n_ctx))
        assert not runs or (run.n_drafted, run.n_accepted, run.n_rounds) == (
            runs[0].n_drafted,
            runs[0].n_accepted,
            runs[0].n_rounds,
        ), "two replays of one text differ"
        runs.append(run)
    return runs
