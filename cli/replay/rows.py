"""Replay texts with each row's drafters; of a row only what it is shown by is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from ..output import Output, WorkBar

if TYPE_CHECKING:
    import numpy as np

    from ...ngram.advice.advise import Work
    from ...ngram.advice.step_curve import StepCurve
    from ...ngram.cache.ngram_cache import NgramCache
    from ...ngram.conversations.conversation import ReplayTexts
    from ...ngram.drafters.replay import Carry, SpecStats
    from ...ngram.drafters.settings import DrafterSpec

# Rows whose counts by conversation are held at a time: some megabytes each.
ROWS_AT_A_TIME = 64


@dataclass(frozen=True)
class Row:
    """One row and its replays.

    Attributes
    ----------
    stats : the counts; those by conversation are left out
    batches : int64 [draft_max + 2], rounds by the number of tokens they evaluated
    draft_ns : of each repeat; the counts are the same
    work : what its rounds cost; None: nothing is predicted
    """

    spec: DrafterSpec
    stats: SpecStats
    batches: np.ndarray
    draft_ns: list[int]
    work: Work | None


@dataclass(frozen=True)
class Replaying:
    """How rows are replayed.

    Attributes
    ----------
    n_side_by_side : rows at a time
    curve : None: nothing is predicted
    """

    n_vocab: int
    ends: Sequence[int]
    carry: Carry
    repeat: int
    n_side_by_side: int
    static: NgramCache | None
    dynamic: NgramCache | None
    curve: StepCurve | None

    def rows(self, texts: ReplayTexts, specs: Sequence[DrafterSpec], out: Output) -> list[Row]:
        """Replay the texts with each row, in the given order."""
        rows: list[Row] = []
        with out.progress("replaying", unit="tokens") as bar:
            work = WorkBar(bar, len(specs) * self.repeat * texts.tokens.size)
            for first in range(0, len(specs), ROWS_AT_A_TIME):
                some = specs[first : first + ROWS_AT_A_TIME]
                turns = [self._replay(texts, some, work) for _ in range(self.repeat)]
                rows += [self._row(list(runs)) for runs in zip(*turns, strict=True)]
        return rows

    def _replay(
        self, texts: ReplayTexts, specs: Sequence[DrafterSpec], work: WorkBar
    ) -> list[SpecStats]:
        from ...ngram.drafters.replay import replay_all

        done = replay_all(
            texts,
            specs,
            n_vocab=self.n_vocab,
            n_threads=self.n_side_by_side,
            carry=self.carry,
            ends=self.ends,
            static=self.static,
            dynamic=self.dynamic,
            on_progress=work.show,
        )
        work.settle(len(specs) * texts.tokens.size)
        return done

    def _row(self, runs: Sequence[SpecStats]) -> Row:
        """Put the repeats of one row together."""
        from ...ngram.advice.advise import work_of

        run = runs[0]
        assert all(_counts(one) == _counts(run) for one in runs), "two replays of one text differ"
        draft_ns = [one.draft_ns for one in runs]
        work = None
        if self.curve is not None:
            n_decoded = run.by_row[:, 1] - run.by_row[:, 0]
            work = work_of(run.batches, n_decoded, self.curve, median(draft_ns))
        light = replace(run, batches=run.batches[:0], by_row=run.by_row[:0])
        batches: np.ndarray = run.batches.sum(axis=0)
        return Row(run.spec, light, batches, draft_ns, work)


def _counts(run: SpecStats) -> tuple[int, int, int, int]:
    return run.n_rounds, run.n_drafts, run.n_drafted, run.n_accepted
