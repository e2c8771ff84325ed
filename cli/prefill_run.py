"""``draftsmith prefill-run``: answer a question about a long text, reading what matters of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..engine.errors import UsageError
from . import options, run_options
from .mtp_drafting import DrafterKind, DraftRequest, Verify
from .output import Output
from .prefill_models import ScoreRequest, ScorerKind
from .prefill_options import PositionKind, parse_bytes
from .prefill_prompt import AskRequest
from .session import RunRequest

if TYPE_CHECKING:
    from ..prefill.memory import Need
    from ..prefill.pipeline import Choice, Settings
    from .inputs import Stages
    from .mtp_drafting import Material
    from .prefill_asking import AnswerRequest, Asked
    from .prefill_models import Models, ScorePlan
    from .prefill_prompt import Ask
    from .session import Target

KEEP, MIN_TOKENS = 0.1, 1024
TEMPERATURE = 0.8
DRAFT_MAX, NGRAM_DRAFT_MAX, NGRAM_MIN = 3, 8, 2


@dataclass(frozen=True)
class Request:
    """The options of one call.

    Attributes
    ----------
    keep, positions, min_tokens : see ``prefill.pipeline.Settings``
    memory_limit : bytes; None: none
    n_turns : of --compare; 0 without it
    show_kept : print the prompt with what was kept
    """

    run: RunRequest
    ask: AskRequest
    score: ScoreRequest
    draft: DraftRequest
    draft_max: int
    keep: float
    positions: PositionKind
    min_tokens: int
    memory_limit: int | None
    n_turns: int
    show_kept: bool
    color: run_options.Color

    @property
    def settings(self) -> Settings:
        """How much to keep, and where it stands then."""
        from ..prefill.pipeline import Settings

        return Settings(keep=self.keep, positions=self.positions.value, min_tokens=self.min_tokens)


def command(
    model: run_options.Model,
    file: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="The document, - for stdin. One final newline is dropped.",
        ),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option("-p", "--prompt", metavar="QUESTION", help="What is asked of it."),
    ] = None,
    chat_file: Annotated[
        str | None,
        typer.Option(
            "--chat-file",
            metavar="FILE.json",
            help="A conversation in place of both: a list of messages, or an object with "
            '"messages", "tools" and the like. The last user turn holds the question.',
        ),
    ] = None,
    system: run_options.System = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="No chat template: document, blank line, question.")
    ] = False,
    escape: options.Escape = False,
    keep: Annotated[
        float,
        typer.Option(
            "--keep",
            min=0.0,
            max=1.0,
            metavar="SHARE",
            help="Share of the prompt's tokens that is read.",
        ),
    ] = KEEP,
    scorer: Annotated[
        ScorerKind,
        typer.Option(
            "--scorer",
            help="What says which tokens matter: words that the question shares (lexical), "
            "attention of the first layers in a window or in chosen blocks, words and attention "
            "(fused), or as four published projects do.",
        ),
    ] = ScorerKind.FUSED,
    drafter: Annotated[
        str | None,
        typer.Option(
            "--drafter",
            metavar="MODEL",
            help="Another model that scores; by default the first layers of the model itself.",
        ),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            "--calibration",
            metavar="FILE.json",
            help="Which heads retrieve; by default what is known of the model.",
        ),
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(
            "--heads",
            metavar="LAYER.HEAD,...",
            help="Heads to look at, such as 15.6 or, before RoPE and with the mean over the "
            "question, 18.6:nope:mean.",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            "--window",
            min=0,
            metavar="N",
            help="Tokens that a token of the document sees while scoring; 0: all before it.",
        ),
    ] = None,
    positions: Annotated[
        PositionKind,
        typer.Option(
            "--positions", help="Of kept tokens: one behind the other, or as in the whole prompt."
        ),
    ] = PositionKind.REPACKED,
    min_tokens: Annotated[
        int,
        typer.Option("--min-tokens", min=0, metavar="N", help="Shorter prompts are read in full."),
    ] = MIN_TOKENS,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit",
            metavar="SIZE",
            help="Most memory, such as 800M or 2G: where needed, the weights of drafter and model "
            "are held in turns.",
        ),
    ] = None,
    decode_drafter: Annotated[
        DrafterKind,
        typer.Option("--decode-drafter", help="What drafts the answer, as in mtp-run."),
    ] = DrafterKind.NONE,
    mtp_head: Annotated[
        str | None,
        typer.Option("--mtp-head", metavar="FILE", help="The MTP head, as in mtp-run."),
    ] = None,
    static: Annotated[
        str | None,
        typer.Option("-lcs", "--lookup-cache-static", metavar="CACHE", help="Static n-gram cache."),
    ] = None,
    dynamic: Annotated[
        str | None,
        typer.Option(
            "-lcd",
            "--lookup-cache-dynamic",
            metavar="CACHE",
            help="Dynamic n-gram cache; not written.",
        ),
    ] = None,
    draft_max: Annotated[
        int | None,
        typer.Option(
            "--draft-max",
            "--spec-draft-n-max",
            min=1,
            max=options.DRAFT_MOST,
            metavar="K",
            envvar="LLAMA_ARG_SPEC_DRAFT_N_MAX",
            help=f"Longest draft; by default {DRAFT_MAX} of the head, {NGRAM_DRAFT_MAX} of "
            "n-grams.",
        ),
    ] = None,
    draft_fixed: run_options.DraftFixed = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Read the prompt in full, too: how much sooner does the first token come, and is "
            "it the same?",
        ),
    ] = False,
    repeat: Annotated[
        int | None,
        typer.Option("--repeat", min=1, metavar="K", help="Turns of --compare; 1 by default."),
    ] = None,
    show_kept: Annotated[
        bool,
        typer.Option("--show-kept", help="Print the prompt with what was kept, on stderr."),
    ] = False,
    n_predict: run_options.NPredict = -1,
    n_ctx: run_options.CtxSize = 0,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temp",
            "--temperature",
            min=0.0,
            metavar="T",
            help=f"Temperature; 0: the likeliest token; {TEMPERATURE} by default, with --compare "
            "0.",
        ),
    ] = None,
    top_k: run_options.TopK = 40,
    top_p: run_options.TopP = 0.95,
    min_p: run_options.MinP = 0.05,
    repeat_penalty: run_options.RepeatPenalty = 1.0,
    repeat_last_n: run_options.RepeatLastN = 64,
    seed: run_options.Seed = -1,
    ignore_eos: run_options.IgnoreEos = False,
    n_batch: run_options.BatchSize = 512,
    threads: run_options.Threads = None,
    color: run_options.ColorOption = run_options.Color.AUTO,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> Callable[[], None]:
    """Answer a question about a long text, reading what matters of it.

    The answer goes to stdout as it comes, and the figures to stderr behind it; with --compare or
    --json the figures go to stdout. Where nothing may be dropped, the prompt is read in full, and
    the reason is said.
    """
    out = Output.from_options(json=json, csv=False, no_header=False, quiet=quiet)
    if repeat is not None and not compare:
        raise UsageError("--repeat is for --compare", remedy="give --compare too, or neither")
    if keep == 0:
        raise UsageError("--keep 0 keeps nothing", remedy="give a share above 0, and at most 1")
    draft = DraftRequest(
        kind=decode_drafter,
        head=mtp_head,
        static=static,
        dynamic=dynamic,
        ngram_max=NGRAM_DRAFT_MAX,
        ngram_min=NGRAM_MIN,
        p_min=0.0,
        fixed=draft_fixed,
        verify=Verify.MATCH,
    )
    if temperature is None:
        temperature = 0.0 if compare else TEMPERATURE
    run = RunRequest(
        model=model,
        n_ctx=n_ctx,
        n_predict=n_predict,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        repeat_last_n=repeat_last_n,
        seed=seed,
        ignore_eos=ignore_eos,
        n_batch=n_batch,
        n_threads=threads,
    )
    request = Request(
        run=run,
        ask=AskRequest(file, question, chat_file, system, raw, escape),
        score=ScoreRequest(scorer, drafter, calibration, heads, window),
        draft=draft,
        draft_max=draft_max or (DRAFT_MAX if decode_drafter.has_mtp else NGRAM_DRAFT_MAX),
        keep=keep,
        positions=positions,
        min_tokens=min_tokens,
        memory_limit=None if memory_limit is None else parse_bytes(memory_limit),
        n_turns=(repeat or 1) if compare else 0,
        show_kept=show_kept,
        color=color,
    )
    request.ask.check()
    request.score.check()
    _check_draft(draft, draft_max)
    return partial(run_prefill, request, out)


def _check_draft(draft: DraftRequest, draft_max: int | None) -> None:
    """Refuse options of a drafter that is not there."""
    for name, given, wanted in (
        ("--mtp-head", draft.head is not None, draft.kind.has_mtp),
        ("-lcs and -lcd", bool(draft.static or draft.dynamic), draft.kind.has_ngram),
        ("--draft-max", draft_max is not None, draft.kind is not DrafterKind.NONE),
        ("--draft-fixed", draft.fixed, draft.kind is not DrafterKind.NONE),
    ):
        if given and not wanted:
            raise UsageError(
                f"{name} cannot be used with --decode-drafter {draft.kind}",
                remedy="leave one of them out",
            )


@dataclass(frozen=True)
class Prepared:
    """What is known before weights are read.

    Attributes
    ----------
    n_prompt : tokens of the prompt
    n_tokens : most tokens that the target's cache holds
    take_turns : hold the weights of one model at a time
    held_bytes : memory that was taken before
    """

    target: Target
    plan: ScorePlan
    ask: Ask
    answer: AnswerRequest
    n_prompt: int
    n_tokens: int
    take_turns: bool
    held_bytes: int
    material: Material


@dataclass(frozen=True)
class Made:
    """What a call has come to.

    Attributes
    ----------
    speculative, full : by turn; the first ones' texts count
    """

    speculative: list[Asked]
    full: list[Asked]


def run_prefill(request: Request, out: Output) -> None:
    """Do what the command says and print the result."""
    from ..engine.jit import CompileWatch
    from .inputs import COMPILE_NOTE, Stages, closing_keys
    from .prefill_report import record_of, tables_of

    with CompileWatch(on_first=lambda: out.note(COMPILE_NOTE)) as watch:
        stages = Stages(watch)
        prepared = prepare(request, stages, out)
        inputs = _inputs(request, prepared)
        with open_models(request, prepared, stages, out) as models:
            made = _made(request, prepared, models, out)
            memory = {
                "weights_bytes": models.weights_bytes,
                "drafter_bytes": models.reader_bytes,
                "kv_bytes": models.kv_bytes(made.speculative[0].choice.kept.size),
                "memory_limit_bytes": request.memory_limit,
            }
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


def prepare(request: Request, stages: Stages, out: Output) -> Prepared:
    """Read vocabularies and texts, and check that all fits together.

    Raises
    ------
    UsageError : options out of range, or that do not fit the prompt, the model or the memory
    InputEmpty, InputUnreadable, ... : the prompt
    ModelUnknown, ModelNotGguf, ModelDamaged, ModelUnsupported, ... : the models
    """
    from ..engine.host import rss_bytes
    from .prefill_models import plan_scoring
    from .prefill_prompt import read_ask
    from .session import read_target

    target = read_target(request.run, stages, out)
    plan = plan_scoring(request.score, target, out)
    ask = read_ask(request.ask, target, out)
    n_prompt = ask.parts().n
    answer = check_room(request, target, n_prompt)
    n_tokens = min(target.n_ctx, n_prompt + max(0, request.run.n_predict - 1))
    if request.run.n_predict < 0:
        n_tokens = target.n_ctx
    held = rss_bytes()
    take_turns = check_memory(request, plan, answer, n_prompt, held, out)
    material = find_drafts(request, target)
    return Prepared(target, plan, ask, answer, n_prompt, n_tokens, take_turns, held, material)


def check_room(request: Request, target: Target, n_prompt: int) -> AnswerRequest:
    """Check that the context has room for the answer, and for the prompt's positions.

    Raises
    ------
    UsageError : it has not
    """
    from ..prefill.pipeline import check_positions
    from .prefill_asking import AnswerRequest

    answer = AnswerRequest(target, request.run.n_predict, request.draft_max)
    if answer.n_room < 1:
        raise UsageError(
            f"-n {request.run.n_predict} leaves no room for a prompt in the context of "
            f"{target.n_ctx}",
            remedy=f"give -n {target.n_ctx} or less, -1 for as many as there is room for, or a "
            "larger -c",
        )
    check_positions(n_prompt, request.positions.value, answer.n_room)
    return answer


def check_memory(
    request: Request,
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
    from .output import size
    from .prefill_models import estimate

    limit = request.memory_limit
    if limit is None:
        return False
    in_full = in_full or request.n_turns > 0
    n_ctx, n_predict = answer.target.n_ctx, answer.n_predict
    n_read = n_prompt if in_full else round(request.keep * n_prompt)
    n_tokens = n_ctx if n_predict < 0 else min(n_ctx, n_read + max(0, n_predict - 1))
    need: Need = estimate(plan, answer.target, n_prompt, n_tokens)
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
    out.note("drafter and model are loaded in turns, to keep the memory limit")
    return True


def find_drafts(request: Request, target: Target) -> Material:
    """What the answer is drafted from; see ``mtp_drafting.find_material``."""
    from .mtp_drafting import Material, find_material

    if request.draft.kind is DrafterKind.NONE:
        return Material()
    return find_material(request.draft, request.run.model, target)


def open_models(request: Request, prepared: Prepared, stages: Stages, out: Output) -> Models:
    """The models, to be entered."""
    from .prefill_models import Models

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


def _made(request: Request, prepared: Prepared, models: Models, out: Output) -> Made:
    """Answer, and with --compare behind the whole prompt, too."""
    from ..engine.detokenise import TextStream
    from .prefill_asking import ask_in_full, ask_once
    from .stream import TextPrinter

    def printer(shown: bool) -> TextPrinter:
        decoder = TextStream(prepared.target.tokenizer)
        return TextPrinter(decoder, shown=shown, color=request.color)

    def speculative() -> Asked:
        shown = out.mode == "table" and not request.n_turns
        asked = ask_once(
            models, prepared.ask, request.settings, prepared.answer, printer(shown), out,
            on_choice=lambda choice: _tell(request, prepared, choice, out),
        )  # fmt: skip
        return _whole(asked, request.n_turns > 0)

    def full() -> Asked:
        asked = ask_in_full(models, prepared.ask, prepared.answer, printer(False), out)
        return _whole(asked, True)

    made = Made([speculative()], [])
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


def _whole(asked: Asked, must_be: bool) -> Asked:
    """Return what came to its end, or to a part that can be shown.

    Raises
    ------
    KeyboardInterrupt : it did not
    """
    if asked.run.stop_reason == "interrupted" and (must_be or not asked.run.tokens):
        raise KeyboardInterrupt
    return asked


def _tell(request: Request, prepared: Prepared, choice: Choice, out: Output) -> None:
    """Say what was not as asked for; with --show-kept, what is kept.

    Raises
    ------
    UsageError : all is to be read, and the memory limit leaves no room for that
    """
    from ..prefill.select import Refused

    if isinstance(choice.outcome, Refused):
        out.warn(f"the prompt is read in full: {choice.outcome.reason}")
        n, held = prepared.n_prompt, prepared.held_bytes
        check_memory(request, prepared.plan, prepared.answer, n, held, out, in_full=True)
    elif choice.budget_cut:
        out.warn(
            f"the context has room for {choice.outcome.budget} tokens of the prompt: "
            f"{choice.budget_cut} less than --keep {request.keep:g} asks for"
        )
    if request.show_kept and out.mode == "table":
        from .kept_view import show_kept

        show_kept(choice, request.color)


def _warn_of_limit(request: Request, record: dict[str, Any], out: Output) -> None:
    from .output import size

    peak = record["peak_rss_bytes"]
    if request.memory_limit is not None and peak > request.memory_limit:
        out.warn(f"{size(peak)} were taken, more than --memory-limit {size(request.memory_limit)}")


def _inputs(request: Request, prepared: Prepared) -> list[dict[str, Any]]:
    from .inputs import describe_files

    head = prepared.material.head
    named = (
        *(request.ask.file, request.ask.chat_file, request.score.calibration),
        *(None if head is None else str(head), request.draft.static, request.draft.dynamic),
    )
    return describe_files([name for name in named if name and Path(name).is_file()])


def _chosen(request: Request, prepared: Prepared) -> dict[str, Any]:
    """Return the options of the record, as they were understood."""
    run, ask, score, draft = request.run, request.ask, request.score, request.draft
    rule = prepared.plan.rule
    return {
        "model": run.model,
        "file": ask.file,
        "question": ask.question,
        "chat_file": ask.chat_file,
        "system": ask.system,
        "raw": ask.raw,
        "escape": ask.escape,
        "keep": request.keep,
        "scorer": str(score.kind),
        "drafter": score.drafter,
        "calibration": score.calibration,
        "heads": None if rule is None else [str(head) for head in rule.heads],
        "window": None if rule is None or rule.blocks is not None else rule.window,
        "positions": request.positions.value,
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
        "compare": bool(request.n_turns),
        "repeat": request.n_turns or None,
        "batch": run.n_batch,
        "threads": prepared.target.n_threads,
    }
