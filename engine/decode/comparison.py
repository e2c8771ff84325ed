"""Drafting against plain decoding of the same prompt, in one process, in turns.

The prompt is evaluated once and kept. Each turn generates the text with and without a drafter,
every time from the same caches; which comes first alternates, so that a machine that gets slower
or faster favours neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from statistics import median, median_low
from time import perf_counter_ns
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..transformer.kv_cache import KvCache
from ..transformer.model import Model
from .drafting import DraftArguments, Drafting
from .generate import generate
from .generation import Generation, whole
from .protocols import Drafter, TextStop, TrunkReader
from .sampling import Sampler, SamplingParams

STEP_SIZES = (1, 2, 4, 8, 16)
# Of longer drafts; none that is paced is longer than 64 tokens.
STEP_SIZES_LONG = (*STEP_SIZES, 32, 64)
STEP_REPEATS = 9
# A drafter that knows nothing of earlier turns yet, and its pacer.
MakeDrafting = Callable[[], Drafting]


class TextPlan(Protocol):
    """What is to be generated, whatever drafts it."""

    @property
    def prompt(self) -> NDArray[np.int32]:
        """[n], 1 or more tokens."""

    @property
    def n_predict(self) -> int:
        """Most tokens to generate; -1: until the text ends or the context is full."""

    @property
    def n_ctx(self) -> int:
        """Most tokens of prompt and text together."""

    @property
    def n_batch(self) -> int:
        """Tokens of a batch of the prompt."""

    @property
    def sampling(self) -> SamplingParams:
        """How tokens are drawn; each text begins with its seed."""

    @property
    def stop(self) -> AbstractSet[int]:
        """Tokens that end the text."""

    def stop_stream(self) -> TextStop | None:
        """What looks for stop strings in a text that begins now; None: there are none."""


@dataclass(frozen=True, eq=False)
class PlainPlan:
    """A ``TextPlan`` without stop strings.

    Attributes
    ----------
    prompt : int32 [n], 1 or more tokens
    """

    prompt: NDArray[np.int32]
    n_predict: int
    n_ctx: int
    sampling: SamplingParams
    stop: AbstractSet[int] = frozenset()
    n_batch: int = 512

    def stop_stream(self) -> None:
        """See ``TextPlan``."""


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
    start: Start,
    make_drafting: MakeDrafting,
    n_turns: int,
    *,
    first: Drafting | None = None,
    sizes: Sequence[int] = STEP_SIZES,
    on_progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Generate ``n_turns`` times each way, then time steps of those sizes after the text.

    For a model, a prompt and a way to draft (docs/python-api.md has all of it)::

        first = make_drafting()
        start = Start(model, model.new_cache(n_tokens + max(sizes)), plan, first.drafter)
        comparison = compare(start, make_drafting, 3, first=first)
        print(median(comparison.ratios()), comparison.identical)

    Parameters
    ----------
    start : the prompt, evaluated with the drafter of the first drafting
    make_drafting : makes what the next turn drafts with; all must draft the same
    first : what the first turn drafts with; None: make it
    sizes : tokens of the steps to time
    on_progress : told (tokens generated, tokens that all turns may come to) after each turn

    Raises
    ------
    KeyboardInterrupt : Ctrl-C; half a comparison is none
    """
    drafted: list[Generation] = []
    plain: list[Generation] = []
    for turn in range(n_turns):
        for drafts in ((True, False), (False, True))[turn % 2]:
            if drafts:
                drafting = first if first is not None and turn == 0 else make_drafting()
                drafted.append(start.text(drafting))
            else:
                plain.append(start.text())
        if on_progress is not None:
            n_done = sum(len(run.tokens) for run in (*drafted, *plain))
            on_progress(n_done, n_done // (turn + 1) * n_turns)
    n_past = start.n_past
    return Comparison(start.prefill, drafted, plain, n_past, start.step_ns(sizes))


class Start:
    """A prompt of which all but the last token is evaluated, for texts that begin after it.

    Parameters
    ----------
    cache : empty, with room for the plan's text, and for the largest step to be timed
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
        model: Model,
        cache: KvCache,
        plan: TextPlan,
        drafter: Drafter | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> None:
        self.plan = plan
        self._model, self._cache = model, cache
        self._seen: _Seen | None = None
        if drafter is not None and isinstance(drafter, TrunkReader):
            self._seen = _Seen(drafter.feature_layers)
        self.prefill = self._evaluate(on_prefill)

    def _evaluate(self, on_prefill: Callable[[int, int], None] | None) -> Generation:
        plan = self.plan
        if plan.prompt.size == 1:
            return Generation(np.zeros(0, np.int64), np.zeros(0, np.int64))
        run = generate(
            self._model,
            self._cache,
            plan.prompt[:-1],
            sampler=Sampler(plan.sampling),
            n_predict=0,
            reader=self._seen,
            on_prefill=on_prefill,
            n_batch=plan.n_batch,
        )
        return whole(run)

    @property
    def n_past(self) -> int:
        """Tokens in the cache."""
        return self._cache.length

    def text(self, drafting: Drafting | None = None) -> Generation:
        """Generate the text; the drafter knows of none yet.

        Raises
        ------
        KeyboardInterrupt : Ctrl-C; half a text is none
        """
        plan = self.plan
        before = plan.prompt[:-1]
        self._cache.truncate(before.size)
        sampler = Sampler(plan.sampling)
        sampler.accept_all(before.tolist())
        more: DraftArguments = {}
        if drafting is not None:
            more = drafting.arguments
            if before.size:
                self._tell(drafting.drafter, before)
        run = generate(
            self._model,
            self._cache,
            plan.prompt[-1:],
            sampler=sampler,
            n_predict=plan.n_predict if plan.n_predict >= 0 else plan.n_ctx - plan.prompt.size + 1,
            stop=plan.stop,
            stop_text=plan.stop_stream(),
            n_batch=plan.n_batch,
            **more,
        )
        return whole(run)

    def _tell(self, drafter: Drafter, before: NDArray[np.int32]) -> None:
        """Tell a drafter of the prompt but its last token."""
        if self._seen is not None and isinstance(drafter, TrunkReader):
            for tokens, hidden, features in self._seen.passes:
                drafter.see(tokens, hidden, features)
        drafter.accept(before)

    def step_ns(self, sizes: Sequence[int]) -> dict[int, list[int]]:
        """Return the nanoseconds of passes over so many tokens after the text, by size.

        Sizes take turns. The cache needs room for the largest.
        """
        model, cache = self._model, self._cache
        n_past = cache.length
        tokens = np.resize(self.plan.prompt, max(sizes)).astype(np.int32)
        times: dict[int, list[int]] = {n: [] for n in sizes}
        for _ in range(STEP_REPEATS):
            for n, samples in times.items():
                start_ns = perf_counter_ns()
                model.forward(tokens[:n], cache, rows="all")
                samples.append(perf_counter_ns() - start_ns)
                cache.truncate(n_past)
        return times


class _Seen:
    """Keeps what passes over a prompt computed, to show it to drafters made later.

    Attributes
    ----------
    passes : (int32 [n], float32 [n, n_embd], float32 [k, n, n_embd]) of each pass
    """

    def __init__(self, feature_layers: Sequence[int]) -> None:
        self.feature_layers = feature_layers
        self.passes: list[tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]] = []

    def see(
        self,
        tokens: NDArray[np.int32],
        hidden: NDArray[np.float32],
        features: NDArray[np.float32],
    ) -> None:
        """See ``TrunkReader``; the arrays are the reader's own."""
        self.passes.append((tokens, hidden, features))
