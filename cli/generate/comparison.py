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

from .session import BAR_AFTER_S, Drafting, Session, prefill_bar

if TYPE_CHECKING:
    import numpy as np

    from ...engine.decode.generate import Drafter, Generation
    from ..output import Output

STEP_SIZES = (1, 2, 4, 8, 16)
# Of longer drafts; none that is paced is longer than 64 tokens.
STEP_SIZES_LONG = (*STEP_SIZES, 32, 64)
STEP_REPEATS = 9
# A drafter that knows nothing of earlier turns yet, and its pacer.
MakeDrafting = Callable[[], Drafting]


def step_sizes(draft_max: int) -> tuple[int, ...]:
    """Return the sizes of passes to time where drafts are up to that long."""
    return STEP_SIZES if draft_max < STEP_SIZES[-1] else STEP_SIZES_LONG


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
    session: Session,
    make_drafting: MakeDrafting,
    n_turns: int,
    out: Output,
    sizes: Sequence[int] = STEP_SIZES,
) -> Comparison:
    """Generate ``n_turns`` times each way, then time steps of those sizes behind the text.

    The session's cache needs room for the largest of them beyond the text.

    Raises
    ------
    KeyboardInterrupt : Ctrl-C; half a comparison is none
    """
    first = make_drafting()
    with prefill_bar(out) as on_prefill:
        start = Start(session, first.drafter, on_prefill)
    drafted: list[Generation] = []
    plain: list[Generation] = []
    with out.progress("comparing", unit="tokens", after_s=BAR_AFTER_S) as bar:
        for turn in range(n_turns):
            for drafts in ((True, False), (False, True))[turn % 2]:
                if drafts:
                    drafted.append(start.text(first if turn == 0 else make_drafting()))
                else:
                    plain.append(start.text())
            n_done = sum(len(run.tokens) for run in (*drafted, *plain))
            bar.update(n_done, n_done // (turn + 1) * n_turns)
    n_past = session.cache.length
    return Comparison(start.prefill, drafted, plain, n_past, start.step_ns(sizes))


class Start:
    """A prompt of which all but the last token is evaluated, for texts that begin behind it.

    Parameters
    ----------
    session : its cache is empty
    drafter : of the texts; None: none of them is drafted
    on_prefill : told (tokens done, n) as the prompt is evaluated

    Attributes
    ----------
    prefill : of the prompt but its last token

    Raises
    ------
    KeyboardInterrupt : Ctrl-C
    """

    def __init__(
        self,
        session: Session,
        drafter: Drafter | None,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> None:
        self._session = session
        self._recorder = _recorder(drafter)
        self.prefill = self._evaluate(on_prefill)

    def _evaluate(self, on_prefill: Callable[[int, int], None] | None) -> Generation:
        import numpy as np

        from ...engine.decode.generate import Generation, generate
        from ...engine.decode.sampling import Sampler

        plan = self._session.plan
        if plan.prompt.size == 1:
            return Generation(np.zeros(0, np.int64), np.zeros(0, np.int64))
        run = generate(
            self._session.model,
            self._session.cache,
            plan.prompt[:-1],
            sampler=Sampler(plan.sampling),
            n_predict=0,
            drafter=self._recorder,
            on_prefill=on_prefill,
            n_batch=plan.n_batch,
        )
        return whole(run)

    def text(self, drafting: Drafting | None = None) -> Generation:
        """Generate the text; the drafter knows of none yet.

        Raises
        ------
        KeyboardInterrupt : Ctrl-C; half a text is none
        """
        from ...engine.decode.generate import generate
        from ...engine.decode.sampling import Sampler

        session, plan = self._session, self._session.plan
        before = plan.prompt[:-1]
        session.cache.truncate(before.size)
        sampler = Sampler(plan.sampling)
        sampler.accept_all(before.tolist())
        if drafting is not None and before.size:
            self._tell(drafting.drafter, before)
        run = generate(
            session.model,
            session.cache,
            plan.prompt[-1:],
            sampler=sampler,
            n_predict=plan.n_predict if plan.n_predict >= 0 else plan.n_ctx - plan.prompt.size + 1,
            stop=plan.stop,
            stop_text=plan.stop_stream(),
            n_batch=plan.n_batch,
            **({} if drafting is None else drafting.arguments),
        )
        return whole(run)

    def _tell(self, drafter: Drafter, before: np.ndarray) -> None:
        """Tell a drafter of the prompt but its last token."""
        from ...engine.decode.generate import TrunkReader

        if self._recorder is not None and isinstance(drafter, TrunkReader):
            for tokens, hidden, features in self._recorder.seen:
                drafter.see(tokens, hidden, features)
        drafter.accept(before)

    def step_ns(self, sizes: Sequence[int]) -> dict[int, list[int]]:
        """Return the nanoseconds of passes over so many tokens behind the text, by size.

        Sizes take turns. The session's cache needs room for the largest.
        """
        import numpy as np

        model, cache = self._session.model, self._session.cache
        n_past = cache.length
        tokens = np.resize(self._session.plan.prompt, max(sizes)).astype(np.int32)
        times: dict[int, list[int]] = {n: [] for n in sizes}
        for _ in range(STEP_REPEATS):
            for n, samples in times.items():
                start_ns = perf_counter_ns()
                model.forward(tokens[:n], cache, rows="all")
                samples.append(perf_counter_ns() - start_ns)
                cache.truncate(n_past)
        return times


class _Recorder:
    """A drafter that drafts nothing, and keeps what passes over a prompt computed.

    Attributes
    ----------
    seen : (int32 [n], float32 [n, n_embd], float32 [k, n, n_embd]) of each pass
    """

    def __init__(self, feature_layers: Sequence[int]) -> None:
        self.feature_layers = feature_layers
        self.seen: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def draft(self, n_max: int) -> np.ndarray:
        """See ``Drafter``."""
        import numpy as np

        return np.zeros(0, np.int32)

    def accept(self, tokens: Sequence[int] | np.ndarray) -> None:
        """See ``Drafter``."""

    def reset(self) -> None:
        """See ``Drafter``."""
        self.seen.clear()

    def see(self, tokens: np.ndarray, hidden: np.ndarray, features: np.ndarray) -> None:
        """See ``TrunkReader``; the arrays are the reader's own."""
        self.seen.append((tokens, hidden, features))


def _recorder(drafter: Drafter | None) -> _Recorder | None:
    """A recorder of what a drafter wants to see; None: it sees nothing but tokens."""
    from ...engine.decode.generate import TrunkReader

    return _Recorder(drafter.feature_layers) if isinstance(drafter, TrunkReader) else None


def whole(run: Generation) -> Generation:
    """Return a generation that came to its end.

    Raises
    ------
    KeyboardInterrupt : it did not
    """
    if run.stop_reason == "interrupted":
        raise KeyboardInterrupt
    return run
