"""Generate the texts of a suite, plain and drafted in turns, in one process.

Each prompt is evaluated once. After it come, for each draft length, plain and drafted texts in
turns; which comes first alternates, so that a machine that gets slower or faster favours neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...engine.errors import UsageError
from .session import Plan, Session, Target
from .suite_figures import Bounds, SuiteCell, rounds_by_length

if TYPE_CHECKING:
    from ...engine.decode.comparison import Start
    from ...engine.decode.drafting import Drafting
    from ...engine.decode.generation import Generation
    from ...mtp.suite import SuitePrompt
    from ..chat_options import ChatOptions
    from ..inputs import Stages
    from ..output import Bar, Output
    from .mtp_drafting import Drafters


@dataclass(frozen=True)
class SuiteTask:
    """A prompt of the suite and what is to be generated after it."""

    prompt: SuitePrompt
    plan: Plan


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


def tasks_of(
    prompts: Sequence[SuitePrompt],
    target: Target,
    options: ChatOptions,
    n_predict: int,
    stages: Stages,
    out: Output,
) -> list[SuiteTask]:
    """Put the prompts into the model's chat template.

    Parameters
    ----------
    n_predict : most tokens of any text; -1: what the prompts say

    Raises
    ------
    UsageError : a prompt and its text do not fit into the context
    ChatTemplateUnusable : the model has no template, or it does not like the messages
    """
    from .chat_input import warn_of_lost

    tasks = []
    with stages.stage("tokenize"):
        template = options.prompt_template(target.metadata, target.tokenizer.vocabulary, out)
        for prompt in prompts:
            text = template.with_values(prompt.values).render(prompt.messages)
            warn_of_lost(prompt.messages, text, template, f"prompt {prompt.name}", out)
            ids = template.encode(text, target.tokenizer)
            n_most = prompt.max_tokens if n_predict < 0 else min(n_predict, prompt.max_tokens)
            if ids.size + n_most - 1 > target.n_ctx:
                raise UsageError(
                    f"prompt {prompt.name} has {ids.size} tokens, and with {n_most} to generate "
                    f"does not fit into the context of {target.n_ctx}",
                    remedy="give a larger -c or a smaller -n, or shorten the prompt",
                )
            tasks.append(SuiteTask(prompt, target.plan(ids, n_most)))
    return tasks


def longest(tasks: Sequence[SuiteTask]) -> Plan:
    """Return the plan that needs the most room."""
    return max((task.plan for task in tasks), key=lambda plan: plan.n_tokens)


def measure(
    tasks: Sequence[SuiteTask],
    session: Session,
    drafters: Drafters,
    settings: SuiteSettings,
    out: Output,
) -> Measured:
    """Generate all texts; Ctrl-C ends it early, and a prompt that is not done is left out."""
    measured = Measured()
    with out.progress("running the suite", unit="tokens") as bar:
        work = _Work(bar, tasks, settings)
        try:
            for i, task in enumerate(tasks):
                session.take(task.plan)
                measured.cells += _cells(i, task, session, drafters, settings, work)
        except KeyboardInterrupt:
            measured.interrupted = True
    return measured


class _Work:
    """How much is done, on a bar; a text that ends early makes the rest look shorter, too."""

    def __init__(self, bar: Bar, tasks: Sequence[SuiteTask], settings: SuiteSettings) -> None:
        self._bar = bar
        texts = len(settings.draft_maxes) * (2 * settings.n_turns + 2 * settings.bounds)
        self._whole = texts * sum(task.plan.n_predict for task in tasks)
        self._allowed = 0
        self._done = 0

    def text(self, plan: Plan, run: Generation) -> Generation:
        """Count a text and return it."""
        self._allowed += plan.n_predict
        self._done += len(run.tokens)
        self._bar.update(self._done, self._done * self._whole // self._allowed)
        return run


def _cells(
    i: int,
    task: SuiteTask,
    session: Session,
    drafters: Drafters,
    settings: SuiteSettings,
    work: _Work,
) -> list[SuiteCell]:
    """Measure one prompt with all draft lengths."""
    from ...engine.decode.comparison import Start

    start = Start(session.model, session.cache, task.plan, drafters.drafter)
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
    plan: Plan,
    drafters: Drafters,
    drafting: Drafting,
    plain: Generation,
    drafted: Sequence[Generation],
    work: _Work,
) -> Bounds:
    """Generate the text with no draft accepted, and with all, and time the passes there were."""
    import numpy as np

    from ...engine.decode.drafting import Drafting
    from ...mtp.forced import perfect, reject_all

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
