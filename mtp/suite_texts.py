"""Generate the texts of a suite, plain and drafted in turns, in one process.

Each prompt is evaluated once. After it come, for each draft length, plain and drafted texts in
turns; which comes first alternates, so that a machine that gets slower or faster favours neither.

    measured = measure(tasks, model, cache, drafters, SuiteSettings([3], n_turns=1, bounds=False))
    print(figures(measured.cells)["ratio"])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ..engine.decode.comparison import Start, TextPlan
from ..engine.decode.drafting import Drafting
from ..engine.decode.generation import Generation
from ..engine.decode.protocols import Drafter
from ..engine.transformer.kv_cache import KvCache
from ..engine.transformer.model import Model
from .forced import perfect, reject_all
from .suite import SuitePrompt
from .suite_figures import Bounds, SuiteCell, rounds_by_length


class SuiteTask(Protocol):
    """A prompt of a suite and what is to be generated after it."""

    @property
    def prompt(self) -> SuitePrompt:
        """As the suite has it."""

    @property
    def plan(self) -> TextPlan:
        """Its tokens, and how the text is generated."""


class SuiteDrafters(Protocol):
    """What drafts the texts of a suite, one after another."""

    @property
    def drafter(self) -> Drafter:
        """What drafts, however long."""

    def begin(self, draft_max: int) -> Drafting:
        """How texts are drafted from now on, up to so many tokens a draft."""

    def forget(self) -> None:
        """Go on to another text."""

    def origins(self) -> Mapping[str, tuple[Sequence[int], Sequence[int]]]:
        """Drafted and accepted tokens by origin and position, since the last ``begin``."""


@dataclass(frozen=True)
class SuiteSettings:
    """What is measured of each prompt.

    Attributes
    ----------
    draft_maxes : draft lengths, 1 or more
    n_turns : of plain and drafted text, for each length
    bounds : force acceptance, too, and time passes
    """

    draft_maxes: Sequence[int]
    n_turns: int
    bounds: bool


@dataclass
class Measured:
    """What a suite came to.

    Attributes
    ----------
    cells : by prompt, then by draft length; whole prompts only
    interrupted : by Ctrl-C, so that prompts are missing
    """

    cells: list[SuiteCell] = field(default_factory=list)
    interrupted: bool = False


def measure(
    tasks: Sequence[SuiteTask],
    model: Model,
    cache: KvCache,
    drafters: SuiteDrafters,
    settings: SuiteSettings,
    on_progress: Callable[[int, int], None] | None = None,
) -> Measured:
    """Generate all texts; Ctrl-C ends it early, and a prompt that is not done is left out.

    Parameters
    ----------
    cache : with room for the longest task's text, and the longest draft with ``bounds``
    on_progress : told (tokens generated, tokens that all may come to) after each text
    """
    measured = Measured()
    work = _Work(tasks, settings, on_progress)
    try:
        for i, task in enumerate(tasks):
            cache.truncate(0)
            measured.cells += _cells(i, task, model, cache, drafters, settings, work)
    except KeyboardInterrupt:
        measured.interrupted = True
    return measured


class _Work:
    """How much is done; a text that ends early makes the rest look shorter, too."""

    def __init__(
        self,
        tasks: Sequence[SuiteTask],
        settings: SuiteSettings,
        tell: Callable[[int, int], None] | None,
    ) -> None:
        self._tell = tell
        texts = len(settings.draft_maxes) * (2 * settings.n_turns + 2 * settings.bounds)
        self._whole = texts * sum(task.plan.n_predict for task in tasks)
        self._allowed = 0
        self._done = 0

    def text(self, plan: TextPlan, run: Generation) -> Generation:
        """Count a text and return it."""
        self._allowed += plan.n_predict
        self._done += len(run.tokens)
        if self._tell is not None:
            self._tell(self._done, self._done * self._whole // self._allowed)
        return run


def _cells(
    i: int,
    task: SuiteTask,
    model: Model,
    cache: KvCache,
    drafters: SuiteDrafters,
    settings: SuiteSettings,
    work: _Work,
) -> list[SuiteCell]:
    """Measure one prompt with all draft lengths."""
    start = Start(model, cache, task.plan, drafters.drafter)
    cells = []
    for k, draft_max in enumerate(settings.draft_maxes):
        drafting = drafters.begin(draft_max)
        plain: list[Generation] = []
        drafted: list[Generation] = []
        for turn in range(settings.n_turns):
            for drafts in ((True, False), (False, True))[(i + k + turn) % 2]:
                if drafts:
                    drafters.forget()
                    drafted.append(work.text(task.plan, start.text(drafting)))
                else:
                    plain.append(work.text(task.plan, start.text()))
        bounds = None
        if settings.bounds:
            bounds = _forced(start, task.plan, drafters, drafting, plain[0], drafted, work)
        prompt = task.prompt
        cells.append(
            SuiteCell(
                prompt.name,
                prompt.category,
                draft_max,
                task.plan.prompt.size,
                start.prefill,
                plain,
                drafted,
                drafters.origins(),
                bounds,
            )
        )
    return cells


def _forced(
    start: Start,
    plan: TextPlan,
    drafters: SuiteDrafters,
    drafting: Drafting,
    plain: Generation,
    drafted: Sequence[Generation],
    work: _Work,
) -> Bounds:
    """Generate the text with no draft accepted, and with all, and time the passes there were."""
    drafter, draft_max = drafting.drafter, drafting.draft_max
    drafters.forget()
    none = start.text(Drafting(drafter, draft_max, rule=reject_all))
    text = np.concatenate([plan.prompt, np.array(plain.tokens, np.int32)])
    drafters.forget()
    every = start.text(Drafting(perfect(drafter, text), draft_max))
    sizes = {1 + n for run in drafted for n in rounds_by_length(run)} | {1}
    for run in (none, every):
        work.text(plan, run)
    return Bounds([none], [every], start.step_ns(sorted(sizes)))
