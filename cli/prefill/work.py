"""The work of ``draftsmith prefill-run``: from its options to a result, for one request or many."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine.errors import UsageError
from ...prefill.score_request import ScoreRequest
from ..generate.mtp_drafting import DrafterKind, DraftRequest
from ..generate.session import RunRequest
from ..generate.stream import Color
from ..output import Output
from .options import PositionKind
from .prompt import AskRequest

if TYPE_CHECKING:
    from ...engine.stages import Stages
    from ...prefill.pipeline import Choice, Settings
    from ...prefill.planning import ScorePlan, TargetFile
    from ..generate.mtp_drafting import Material
    from ..generate.session import Target
    from .asking import AnswerRequest, AskedOnce
    from .models import Models
    from .niah import NiahRequest
    from .prompt import Ask


@dataclass(frozen=True)
class PrefillRequest:
    """The options of one call.

    Attributes
    ----------
    keeps, positions, min_tokens : see ``prefill.pipeline.Settings``; several shares for --niah
    memory_limit : bytes; None: none
    n_turns : of --compare; 0 without it
    show_kept : print the prompt with what was kept
    niah : prompts with needles; None: the one of ``ask``
    command : as the record says it
    """

    run: RunRequest
    ask: AskRequest
    niah: NiahRequest | None
    score: ScoreRequest
    draft: DraftRequest
    draft_max: int
    keeps: list[float]
    positions: PositionKind
    min_tokens: int
    memory_limit: int | None
    n_turns: int
    show_kept: bool
    color: Color
    command: str = "prefill-run"

    @property
    def settings(self) -> list[Settings]:
        """How much to keep, and where it stands then; one for each share."""
        from ...prefill.pipeline import Settings

        return [
            Settings(keep, self.positions.value, min_tokens=self.min_tokens) for keep in self.keeps
        ]


@dataclass(frozen=True)
class Prepared:
    """What is known before weights are read.

    Attributes
    ----------
    answer : of the longest prompt
    n_prompt : tokens of the longest prompt
    n_tokens : most tokens that the target's cache holds
    take_turns : hold the weights of one model at a time
    held_bytes : memory that was taken before
    """

    target: Target
    plan: ScorePlan
    answer: AnswerRequest
    n_prompt: int
    n_tokens: int
    take_turns: bool
    held_bytes: int
    material: Material


@dataclass(frozen=True)
class PrefillTexts:
    """What a call has come to.

    Attributes
    ----------
    speculative, full : by turn; the first ones' texts count
    """

    speculative: list[AskedOnce]
    full: list[AskedOnce]


def run_prefill(request: PrefillRequest, out: Output) -> None:
    """Do what the command says and print the result."""
    from ...engine.jit import CompileWatch
    from ...engine.stages import Stages
    from ..generate.session import warn_of_ends
    from ..inputs import COMPILE_NOTE, closing_keys
    from .asking import AnswerRequest
    from .prompt import read_ask
    from .report import record_of, tables_of

    with CompileWatch(on_first=lambda: out.note(COMPILE_NOTE)) as watch:
        stages = Stages(watch)
        target, plan = prepare_models(request, stages, out)
        ask = read_ask(request.ask, target, out)
        target = target.stopped_by(ask.stop)
        answer = AnswerRequest(target, request.run.n_predict, request.draft_max)
        ids = ask.parts().ids
        warn_of_ends(ids, target, out)
        prepared = prepare(request, plan, answer, ids.size, out)
        inputs = _inputs(request, prepared)
        with open_models(request, prepared, stages, out) as models:
            made = _made(request, prepared, ask, models, out)
            memory = _memory(request, prepared, models, made.speculative[0].choice.kept.size)
    record: dict[str, Any] = {"command": "prefill-run"}
    record |= record_of(made.speculative, made.full, prepared.plan, request.draft_max)
    record |= {"seed": prepared.target.sampling.seed, "n_ctx": prepared.target.n_ctx}
    record |= {"load_ms": stages.seconds("load") * 1e3, **memory}
    if request.show_kept and out.mode == "json":
        from .kept_view import kept_pieces

        record["kept"] = kept_pieces(made.speculative[0].choice)
    record |= closing_keys(_chosen(request, prepared), inputs, watch.seconds)
    out.result(record, tables_of(record), aside=not request.n_turns)
    _warn_of_limit(request, record, out)
    if made.speculative[0].run.stop_reason == "interrupted":
        raise KeyboardInterrupt


def run_niah(request: PrefillRequest, out: Output) -> None:
    """Ask about needles and print the result, also of those before Ctrl-C."""
    from ...engine.jit import CompileWatch
    from ...engine.stages import Stages
    from ...prefill.needles.figures import record_of
    from ..inputs import COMPILE_NOTE, closing_keys
    from ..plot import check_plot, draw
    from .niah import make_tasks, measure
    from .niah_report import figure_of, tables_of

    niah = request.niah
    assert niah is not None
    if niah.plot is not None:
        check_plot(niah.plot)
    with CompileWatch(on_first=lambda: out.note(COMPILE_NOTE)) as watch:
        stages = Stages(watch)
        target, plan = prepare_models(request, stages, out)
        n_predict = request.run.n_predict
        options = request.ask.template_options
        tasks = make_tasks(niah, target, n_predict, request.draft_max, options, out)
        longest = max(tasks, key=lambda task: (task.n_tokens, task.n_prompt))
        n_prompt = max(task.n_prompt for task in tasks)
        prepared = prepare(request, plan, longest.answer, n_prompt, out)
        inputs = _inputs(request, prepared)
        with open_models(request, prepared, stages, out) as models:
            found, interrupted = measure(tasks, models, request.settings, niah.full, out)
            memory = _memory(
                request, prepared, models, max((one.n_kept for one in found), default=0)
            )
    if not found:
        raise KeyboardInterrupt
    record: dict[str, Any] = {"command": request.command, "scorer": str(plan.kind)}
    record |= {"fell_back": plan.fell_back, "interrupted": interrupted, **record_of(found)}
    record |= {"seed": target.sampling.seed, "n_ctx": target.n_ctx}
    record |= {"load_ms": stages.seconds("load") * 1e3, **memory}
    record |= closing_keys(_chosen(request, prepared), inputs, watch.seconds)
    out.result(record, tables_of(record))
    if niah.plot is not None:
        draw(figure_of(record), niah.plot)
        out.note(f"wrote {niah.plot}")
    if interrupted:
        raise KeyboardInterrupt


def prepare_models(
    request: PrefillRequest, stages: Stages, out: Output
) -> tuple[Target, ScorePlan]:
    """Read vocabularies, and find what scores.

    Raises
    ------
    UsageError : options out of range, or that do not fit together
    ModelUnknown, ModelNotGguf, ModelDamaged, ModelUnsupported, ... : the models
    """
    from ...prefill.planning import plan_scoring
    from ..generate.session import read_target

    target = read_target(request.run, stages, out)
    return target, plan_scoring(request.score, _file_of(target), out.note)


def _file_of(target: Target) -> TargetFile:
    from ...prefill.planning import TargetFile

    return TargetFile(target.metadata, target.tokenizer)


def prepare(
    request: PrefillRequest, plan: ScorePlan, answer: AnswerRequest, n_prompt: int, out: Output
) -> Prepared:
    """Check that the longest prompt, its answer and the memory fit together.

    Raises
    ------
    UsageError : they do not
    CacheNotACache, ModelNotGguf, ... : what the answer is drafted from
    """
    from ...engine.host import rss_bytes

    check_room(request, answer, n_prompt)
    n_ctx, n_predict = answer.target.n_ctx, answer.n_predict
    n_tokens = n_prompt + answer.n_begin + max(0, n_predict - 1)
    n_tokens = n_ctx if n_predict < 0 else min(n_ctx, n_tokens)
    held = rss_bytes()
    take_turns = check_memory(request, plan, answer, n_prompt, held, out)
    material = find_drafts(request, answer.target, out)
    return Prepared(answer.target, plan, answer, n_prompt, n_tokens, take_turns, held, material)


def check_room(request: PrefillRequest, answer: AnswerRequest, n_prompt: int) -> None:
    """Check that the context has room for the answer, and for the prompt's positions.

    Raises
    ------
    UsageError : it has not
    """
    from ...prefill.pipeline import check_positions

    n_ctx = answer.target.n_ctx
    if answer.n_room < 1:
        raise UsageError(
            f"-n {answer.n_predict} leaves no room for a prompt in the context of {n_ctx}",
            remedy=f"give -n {n_ctx} or less, -1 for as many as there is room for, or a larger -c",
        )
    check_positions(n_prompt, request.positions.value, answer.n_room)


def check_memory(
    request: PrefillRequest,
    plan: ScorePlan,
    answer: AnswerRequest,
    n_prompt: int,
    held: int,
    out: Output,
    *,
    in_full: bool = False,
) -> bool:
    """Whether two models have to take turns to keep the memory limit.

    Parameters
    ----------
    held : bytes that are taken already
    in_full : the whole prompt is read, too

    Raises
    ------
    UsageError : it cannot be kept
    """
    from ...prefill.scoring import estimate
    from ..formats import size

    limit = request.memory_limit
    if limit is None:
        return False
    in_full = in_full or request.n_turns > 0 or (request.niah is not None and request.niah.full)
    n_ctx, n_predict = answer.target.n_ctx, answer.n_predict
    n_read = n_prompt if in_full else round(max(request.keeps) * n_prompt)
    n_tokens = n_ctx if n_predict < 0 else min(n_ctx, n_read + max(0, n_predict - 1))
    target = answer.target
    need = estimate(plan, _file_of(target), n_prompt, n_tokens, target.n_threads)
    if held + need.least > limit:
        raise UsageError(
            f"--memory-limit {size(limit)} cannot be kept"
            f"{' where the prompt is read in full' if in_full else ''}: {size(held)} are taken "
            f"already, and {size(need.least)} more will be",
            remedy=f"give {size(held + need.least)} or more, a lower -n, --keep or -c, or a "
            "smaller model",
        )
    if held + need.together <= limit:
        return False
    out.note("scorer model and model are loaded in turns, to keep the memory limit")
    return True


def find_drafts(request: PrefillRequest, target: Target, out: Output) -> Material:
    """What the answer is drafted from; see ``mtp_drafting.find_material``."""
    from ..generate.mtp_drafting import Material, find_material

    if request.draft.kind is DrafterKind.NONE:
        return Material()
    return find_material(request.draft, target, out)


def open_models(request: PrefillRequest, prepared: Prepared, stages: Stages, out: Output) -> Models:
    """The models, to be entered."""
    from .models import Models

    return Models(
        prepared.plan,
        prepared.target,
        prepared.n_tokens,
        None if request.draft.kind is DrafterKind.NONE else request.draft,
        prepared.material,
        request.draft_max,
        stages,
        out,
        take_turns=prepared.take_turns,
    )


def _memory(
    request: PrefillRequest, prepared: Prepared, models: Models, n_kept: int
) -> dict[str, int | None]:
    return {
        "program_bytes": prepared.held_bytes,
        "weights_bytes": models.weights_bytes,
        "drafter_bytes": models.reader_bytes,
        "kv_bytes": models.kv_bytes(n_kept),
        "memory_limit_bytes": request.memory_limit,
    }


def _made(
    request: PrefillRequest, prepared: Prepared, ask: Ask, models: Models, out: Output
) -> PrefillTexts:
    """Answer, and with --compare behind the whole prompt, too."""
    from ..generate.stream import TextPrinter
    from .asking import ask_in_full, ask_once

    def printer(shown: bool) -> TextPrinter:
        return TextPrinter(prepared.target.decoder(), shown=shown, color=request.color)

    def speculative() -> AskedOnce:
        shown = out.mode == "table" and not request.n_turns
        asked = ask_once(
            models, ask, request.settings[0], prepared.answer, printer(shown), out,
            on_choice=lambda choice: _tell(request, prepared, choice, out),
        )  # fmt: skip
        return _whole(asked, request.n_turns > 0)

    def full() -> AskedOnce:
        asked = ask_in_full(models, ask, prepared.answer, printer(False), out)
        return _whole(asked, True)

    made = PrefillTexts([speculative()], [])
    if request.n_turns and prepared.n_prompt > prepared.answer.n_room:
        out.warn(
            f"the context has no room for the whole prompt of {prepared.n_prompt} tokens: there "
            "is nothing to compare with"
        )
        return made
    for turn in range(request.n_turns):
        steps = [(made.full, full)] if turn == 0 else [(made.speculative, speculative)]
        if turn:
            steps.insert(turn % 2, (made.full, full))
        for done, step in steps:
            done.append(step())
    return made


def _whole(asked: AskedOnce, must_be: bool) -> AskedOnce:
    """Return what came to its end, or to a part that can be shown.

    Raises
    ------
    KeyboardInterrupt : it did not
    """
    if asked.run.stop_reason == "interrupted" and (must_be or not asked.run.tokens):
        raise KeyboardInterrupt
    return asked


def _tell(request: PrefillRequest, prepared: Prepared, choice: Choice, out: Output) -> None:
    """Say what was not as asked for; with --show-kept, what is kept.

    Raises
    ------
    UsageError : all is to be read, and the memory limit leaves no room for that
    """
    from ...prefill.select import Refused

    if isinstance(choice.outcome, Refused):
        out.warn(f"the prompt is read in full: {choice.outcome.reason}")
        n, held = prepared.n_prompt, prepared.held_bytes
        check_memory(request, prepared.plan, prepared.answer, n, held, out, in_full=True)
    elif choice.budget_cut:
        out.warn(
            f"the context has room for {choice.outcome.budget} tokens of the prompt: "
            f"{choice.budget_cut} less than --keep {request.keeps[0]:g} asks for"
        )
    _tell_of_question(choice, out)
    if request.show_kept and out.mode == "table":
        from .kept_view import show_kept

        show_kept(choice, request.color)


def _tell_of_question(choice: Choice, out: Output) -> None:
    """Warn of what is not certain about the question, and of messages that are kept whole."""
    from ...prefill.select import Refusal, Refused
    from .report import QUESTION_SOURCES, shortened

    parts, outcome = choice.parts, choice.outcome
    if isinstance(outcome, Refused) and outcome.kind in (Refusal.SHORT, Refusal.UNPLACED):
        return  # nothing is dropped, whatever the question is
    if parts.doubt:
        out.warn(
            f"the question is taken to be {shortened(parts.question_text)!r} "
            f"({QUESTION_SOURCES[parts.source]}): {parts.doubt}; --question names it"
        )
    if parts.unplaced:
        named = ", ".join(parts.unplaced[:5]) + (", ..." if len(parts.unplaced) > 5 else "")
        out.warn(f"kept whole, since the chat template changes their text: {named}")


def _warn_of_limit(request: PrefillRequest, record: dict[str, Any], out: Output) -> None:
    from ..formats import size

    peak = record["peak_rss_bytes"]
    if request.memory_limit is not None and peak > request.memory_limit:
        out.warn(f"{size(peak)} were taken, more than --memory-limit {size(request.memory_limit)}")


def _inputs(request: PrefillRequest, prepared: Prepared) -> list[dict[str, Any]]:
    from ..inputs import describe_files

    head = prepared.material.head
    named = (
        *(
            request.ask.file,
            request.ask.chat_file,
            request.ask.template.file,
            request.score.calibration,
        ),
        None if request.niah is None else request.niah.haystack,
        *(None if head is None else str(head), request.draft.static, request.draft.dynamic),
    )
    return describe_files([name for name in named if name and Path(name).is_file()])


def _chosen(request: PrefillRequest, prepared: Prepared) -> dict[str, Any]:
    """Return the options of the record, as they were understood."""
    run, ask, score, draft = request.run, request.ask, request.score, request.draft
    rule = prepared.plan.rule
    return {
        "model": run.model,
        "file": ask.file,
        "question": ask.question,
        "chat_file": ask.chat_file,
        "named_question": ask.named,
        **ask.template.record,
        "system": ask.system,
        "raw": ask.raw,
        "escape": ask.escape,
        "keep": request.keeps[0] if len(request.keeps) == 1 else request.keeps,
        "scorer": str(score.kind),
        "drafter": score.model,
        "calibration": score.calibration,
        "heads": None if rule is None else [str(head) for head in rule.heads],
        "window": prepared.plan.window,
        "positions": request.positions.value,
        "one_pass": score.one_pass,
        "min_tokens": request.min_tokens,
        "memory_limit": request.memory_limit,
        "decode_drafter": str(draft.kind),
        "mtp_head": draft.head,
        "static": draft.static,
        "dynamic": draft.dynamic,
        "draft_max": None if draft.kind is DrafterKind.NONE else request.draft_max,
        "draft_fixed": draft.fixed,
        "n_predict": run.n_predict,
        "n_ctx": prepared.target.n_ctx,
        **asdict(prepared.target.sampling),
        "ignore_eos": run.ignore_eos,
        "stop": list(prepared.target.stop_strings.texts),
        "compare": bool(request.n_turns),
        "niah": None if request.niah is None else asdict(request.niah),
        "repeat": request.n_turns or None,
        "batch": run.n_batch,
        "threads": prepared.target.n_threads,
    }
