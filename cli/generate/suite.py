"""The prompts of a suite as plans of what to generate, and the bar of measuring them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...engine.errors import UsageError
from .session import Plan, Session, Target

if TYPE_CHECKING:
    from ...engine.stages import Stages
    from ...mtp.suite import SuitePrompt
    from ...mtp.suite_texts import Measured, SuiteSettings
    from ..chat_options import ChatOptions
    from ..output import Output
    from .mtp_drafting import Drafters


@dataclass(frozen=True)
class SuitePlan:
    """A prompt of the suite and what is to be generated after it."""

    prompt: SuitePrompt
    plan: Plan


def tasks_of(
    prompts: Sequence[SuitePrompt],
    target: Target,
    options: ChatOptions,
    n_predict: int,
    stages: Stages,
    out: Output,
) -> list[SuitePlan]:
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
            tasks.append(SuitePlan(prompt, target.plan(ids, n_most)))
    return tasks


def longest(tasks: Sequence[SuitePlan]) -> Plan:
    """Return the plan that needs the most room."""
    return max((task.plan for task in tasks), key=lambda plan: plan.n_tokens)


def measure(
    tasks: Sequence[SuitePlan],
    session: Session,
    drafters: Drafters,
    settings: SuiteSettings,
    out: Output,
) -> Measured:
    """Generate all texts, with a bar; see ``mtp.suite_texts``."""
    from ...mtp.suite_texts import measure

    with out.progress("running the suite", unit="tokens") as bar:
        return measure(tasks, session.model, session.cache, drafters, settings, bar.update)
