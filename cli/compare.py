"""Drafting against plain decoding of the same prompt, in one process, in turns.

The prompt is evaluated once and kept. Each turn generates the text with and without a drafter,
every time from the same caches; which comes first alternates, so that a machine that gets slower
or faster favours neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, median_low
from time import perf_counter_ns
from typing import TYPE_CHECKING

from .session import Session, prefill_bar

if TYPE_CHECKING:
    from ..engine.generate import Drafter, Generation
    from ..engine.pacer import Pacer
    from .output import Output

STEP_SIZES = (1, 2, 4, 8, 16)
STEP_REPEATS = 9
# A drafter that knows nothing of earlier turns yet, and its pacer.
MakeDrafter = Callable[[], "tuple[Drafter, Pacer]"]


@dataclass(frozen=True)
class Comparison:
    """The turns of a comparison.

    Attributes
    ----------
    prefill : of the prompt but its last token
    drafted, plain : generations by turn
    n_past : tokens in the cache when the steps were timed
    step_ns : batch size -> its times
    """

    prefill: Generation
    drafted: Sequence[Generation]
    plain: Sequence[Generation]
    n_past: int
    step_ns: dict[int, list[int]]

    @property
    def typical(self) -> int:
        """The turn whose generation with drafts was of median length."""
        times = [run.decode_ns for run in self.drafted]
        return times.index(median_low(times))

    @property
    def identical(self) -> bool:
        """Whether all texts are the same, token for token."""
        return all(run.tokens == self.plain[0].tokens for run in (*self.drafted, *self.plain))

    def ratios(self) -> list[float | None]:
        """Speed with drafts over speed without, by turn; None: only the prompt's own token."""
        return [
            None if a is None or b is None else a / b
            for a, b in zip(speeds(self.drafted), speeds(self.plain), strict=True)
        ]


def speeds(runs: Sequence[Generation]) -> list[float | None]:
    """Return the tokens per second of decoding."""
    return [run.decode_tokens_per_s for run in runs]


def middle(samples: Sequence[float | None]) -> float | None:
    """Return the median of what is defined."""
    defined = [sample for sample in samples if sample is not None]
    return median(defined) if defined else None


def compare(
    session: Session, make_drafter: MakeDrafter, draft_max: int, n_turns: int, out: Output
) -> Comparison:
    """Generate ``n_turns`` times each way, then time steps behind the text.

    Raises
    ------
    KeyboardInterrupt : Ctrl-C; half a comparison is none
    """
    prefill = _prefill(session, out)
    drafted: list[Generation] = []
    plain: list[Generation] = []
    with out.progress("comparing", unit="tokens", after_s=1.0) as bar:
        for turn in range(n_turns):
            for drafts in ((True, False), (False, True))[turn % 2]:
                if drafts:
                    drafter, pacer = make_drafter()
                    drafted.append(_again(session, drafter, pacer, draft_max))
                else:
                    plain.append(_again(session, None, None, 0))
            n_done = sum(len(run.tokens) for run in (*drafted, *plain))
            bar.update(n_done, n_done // (turn + 1) * n_turns)
    n_past = session.cache.length
    return Comparison(prefill, drafted, plain, n_past, _step_times(session))


def _prefill(session: Session, out: Output) -> Generation:
    """Evaluate the prompt but its last token, which each turn begins with."""
    import numpy as np

    from ..engine.generate import Generation, generate
    from ..engine.sampling import Sampler

    plan = session.plan
    if plan.prompt.size == 1:
        return Generation(np.zeros(0, np.int64), np.zeros(0, np.int64))
    with prefill_bar(out) as on_prefill:
        run = generate(
            session.model,
            session.cache,
            plan.prompt[:-1],
            sampler=Sampler(plan.sampling),
            n_predict=0,
            on_prefill=on_prefill,
            n_batch=plan.n_batch,
        )
    return _whole(run)


def _again(
    session: Session, drafter: Drafter | None, pacer: Pacer | None, draft_max: int
) -> Generation:
    """Generate the text behind the prompt that the cache holds."""
    from ..engine.generate import generate
    from ..engine.sampling import Sampler

    plan = session.plan
    before = plan.prompt[:-1]
    session.cache.truncate(before.size)
    sampler = Sampler(plan.sampling)
    sampler.accept_all(before.tolist())
    if drafter is not None:
        drafter.accept(before)
    run = generate(
        session.model,
        session.cache,
        plan.prompt[-1:],
        sampler=sampler,
        n_predict=plan.n_predict if plan.n_predict >= 0 else plan.n_ctx - plan.prompt.size + 1,
        stop=plan.stop,
        drafter=drafter,
        draft_max=draft_max,
        pacer=pacer,
        n_batch=plan.n_batch,
    )
    return _whole(run)


def _whole(run: Generation) -> Generation:
    if run.stop_reason == "interrupted":
        raise KeyboardInterrupt
    return run


def _step_times(session: Session) -> dict[int, list[int]]:
    """Return the nanoseconds of batches behind the text, sizes taken in turns."""
    import numpy as np

    model, cache = session.model, session.cache
    n_past = cache.length
    tokens = np.resize(session.plan.prompt, STEP_SIZES[-1]).astype(np.int32)
    times: dict[int, list[int]] = {n: [] for n in STEP_SIZES}
    for _ in range(STEP_REPEATS):
        for n, samples in times.items():
            start_ns = perf_counter_ns()
            model.forward(tokens[:n], cache, rows="all")
            samples.append(perf_counter_ns() - start_ns)
            cache.truncate(n_past)
    return times
