"""``draftsmith mtp-run``: generate with multi-token prediction, and say what that wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..engine.errors import UsageError
from . import chat_options, options
from .chat_options import ChatOptions
from .generate import options as run_options
from .generate.mtp_drafting import (
    DRAFT_MAX,
    NGRAM_DRAFT_MAX,
    NGRAM_MIN,
    DrafterKind,
    DraftRequest,
    Verify,
)
from .generate.prompt import PromptRequest
from .generate.session import RunRequest
from .generate.stream import Color
from .output import Output

if TYPE_CHECKING:
    from ..engine.decode.comparison import Comparison
    from ..engine.decode.drafting import Drafting
    from ..engine.decode.generation import Generation
    from ..engine.stages import Stages
    from .generate.mtp_drafting import Drafters, Material
    from .generate.session import Session, Target

SUITE_TURNS = 1


@dataclass(frozen=True)
class MtpRequest:
    """The options of one call.

    Attributes
    ----------
    prompt : None: a suite
    template : what the options say about the chat template
    suite : file of the suite; None: the bundled one, or no suite
    draft_maxes : several with a suite only
    n_turns : of --compare and of a suite; 0: neither
    bounds : force acceptance, too
    plot : figure to draw
    """

    run: RunRequest
    draft: DraftRequest
    prompt: PromptRequest | None
    template: ChatOptions
    suite: str | None
    draft_maxes: list[int]
    n_turns: int
    bounds: bool
    plot: str | None
    color: Color


def command(
    context: typer.Context,
    model: run_options.Model,
    prompt: run_options.PromptOptions,
    template: chat_options.TemplateOptions,
    caches: run_options.CacheOptions,
    run: run_options.RunOptions,
    shown: options.RowsOptions,
    suite_file: Annotated[
        str | None, typer.Argument(metavar="FILE.jsonl", help="Prompts for --suite.")
    ] = None,
    mtp_head: Annotated[
        str | None,
        typer.Option(
            "--mtp-head",
            metavar="FILE",
            help="A GGUF with the MTP layers; by default the model's own, or the head that comes "
            "along for smollm2.",
        ),
    ] = None,
    drafter: Annotated[
        DrafterKind,
        typer.Option("--drafter", help="What drafts; mtp+ngram: the head where n-grams don't."),
    ] = DrafterKind.BOTH,
    suite: Annotated[
        bool,
        typer.Option(
            "--suite",
            help="Measure many prompts, plain and drafted in turns: 40 bundled ones of ten kinds, "
            "or those of FILE.jsonl.",
        ),
    ] = False,
    draft_max: Annotated[
        str | None,
        typer.Option(
            "--draft-max",
            "--spec-draft-n-max",
            metavar="K,...",
            envvar=options.DRAFT_MAX_VARIABLES,
            help=f"Longest draft of the head; 0: no drafting; {DRAFT_MAX} by default. Several "
            "with --suite: measure each, and say which is best.",
        ),
    ] = None,
    p_min: Annotated[
        float,
        typer.Option(
            "--draft-p-min",
            "--spec-draft-p-min",
            min=0.0,
            max=1.0,
            callback=options.finite,
            metavar="P",
            envvar="LLAMA_ARG_SPEC_DRAFT_P_MIN",
            help="The head drafts no token that it gives a lower probability.",
        ),
    ] = 0.0,
    draft_fixed: run_options.DraftFixed = False,
    ngram_draft_max: Annotated[
        int,
        typer.Option(
            "--ngram-draft-max",
            min=1,
            max=options.DRAFT_MOST,
            metavar="K",
            help="Longest draft from n-grams along with the head.",
        ),
    ] = NGRAM_DRAFT_MAX,
    ngram_min: Annotated[
        int,
        typer.Option(
            "--ngram-min",
            min=1,
            max=4,
            metavar="N",
            help="Size from which on n-grams go before the head.",
        ),
    ] = NGRAM_MIN,
    verify: Annotated[
        Verify,
        typer.Option(
            "--verify",
            help="match: drafts stand as far as they are what plain decoding samples; rejection: "
            "speculative sampling, another text of the same distribution.",
        ),
    ] = Verify.MATCH,
    temperature: Annotated[
        float | None,
        run_options.temperature_option(f"; {run_options.TEMPERATURE} by default, with --suite 0"),
    ] = None,
    compare: run_options.Compare = False,
    repeat: Annotated[
        int | None,
        options.repeat_option(
            f"Turns of --compare, {run_options.TURNS} by default, and of --suite, {SUITE_TURNS}."
        ),
    ] = None,
    bounds: Annotated[
        bool,
        typer.Option(
            "--bounds",
            help="An experiment for --suite: force that no draft is accepted, and that all are, "
            "and say how much of the gain each part makes; implies --draft-fixed.",
        ),
    ] = False,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="FIGURE",
            help="With --suite: draw acceptance by position and speed by draft length into a "
            ".png or .svg file (needs draftsmith[plot]).",
        ),
    ] = None,
    color: run_options.ColorOption = Color.AUTO,
) -> Callable[[], None]:
    """Generate with multi-token prediction: what does it win?

    The text goes to stdout as it comes, accepted draft tokens coloured, and the figures to stderr
    after it; with --compare, --suite or --json the figures go to stdout.
    """
    out = shown.output
    draft = DraftRequest(
        kind=drafter,
        head=mtp_head,
        static=caches.static,
        dynamic=caches.dynamic,
        ngram_max=ngram_draft_max,
        ngram_min=ngram_min,
        p_min=p_min,
        fixed=draft_fixed or bounds,
        verify=verify,
    )
    asked = None
    if not suite:
        asked = prompt.request(template, context)
    elif prompt.is_given:
        raise UsageError(
            "--suite brings its own prompts, and always uses the chat template",
            remedy="leave out -p, -f, --chat-file, --chat, -sys and -e",
        )
    if temperature is None:
        temperature = 0.0 if suite else run_options.TEMPERATURE
    lengths = options.numbers(
        "--draft-max", [str(DRAFT_MAX) if draft_max is None else draft_max], options.DRAFT_MOST
    )
    turns = (repeat or SUITE_TURNS) if suite else (repeat or run_options.TURNS) if compare else 0
    request = MtpRequest(
        run=run.request(model, temperature, escape=prompt.escape),
        draft=draft,
        prompt=asked,
        template=template.chosen if asked is None else asked.template,
        suite=suite_file,
        draft_maxes=list(dict.fromkeys(lengths)),
        n_turns=turns,
        bounds=bounds,
        plot=plot,
        color=color,
    )
    _check(request, out, compare=compare, repeat=repeat)
    return partial(run_mtp if asked is not None else run_suite, request, out)


def _check(request: MtpRequest, out: Output, *, compare: bool, repeat: int | None) -> None:
    """Refuse options that do not go together."""
    draft, suite = request.draft, request.prompt is None

    def refuse(what: str, remedy: str) -> None:
        raise UsageError(what, remedy=remedy)

    if request.suite is not None and not suite:
        refuse(f"{request.suite} is a file of prompts, but there is no --suite", "give --suite too")
    if compare and suite:
        refuse("--suite compares already", "leave out --compare")
    if suite and request.run.n_predict == 0:
        refuse("--suite has nothing to measure with -n 0", "give a larger -n, or leave it out")
    if repeat is not None and not request.n_turns:
        refuse("--repeat is for --compare and --suite", "give one of them too, or neither")
    if suite and request.run.stop_texts:
        refuse("--suite compares whole texts", "leave out --stop")
    for name, given in (
        ("--bounds", request.bounds),
        ("--plot", request.plot is not None),
        ("--csv", out.mode == "csv"),
        ("several --draft-max", len(request.draft_maxes) > 1),
    ):
        if given and not suite:
            refuse(f"{name} is for --suite", "give --suite too, or leave it out")
    if request.n_turns and (draft.kind is DrafterKind.NONE or 0 in request.draft_maxes):
        what = "--drafter none" if draft.kind is DrafterKind.NONE else "--draft-max 0"
        refuse(f"there is nothing to compare with {what}", "give a drafter and lengths from 1 on")
    if draft.head is not None and not draft.kind.has_mtp:
        refuse(f"--mtp-head is not for --drafter {draft.kind}", "leave one of them out")
    if (draft.static or draft.dynamic) and not draft.kind.has_ngram:
        refuse(f"-lcs and -lcd are not for --drafter {draft.kind}", "leave them out")
    if request.bounds and draft.verify is not Verify.MATCH:
        refuse("--bounds needs a text that drafts do not change", "leave out --verify rejection")


@dataclass(frozen=True)
class MtpText:
    """What a call without a suite has generated.

    Attributes
    ----------
    run : the generation, or the typical one of a comparison
    origins : origin -> (drafted, accepted) tokens by position
    text : of it
    comparison : with --compare
    """

    run: Generation
    origins: dict[str, tuple[list[int], list[int]]]
    text: str
    comparison: Comparison | None = None


def run_mtp(request: MtpRequest, out: Output) -> None:
    """Generate one text, or compare, and print the result."""
    from ..engine.decode.comparison import STEP_SIZES
    from ..engine.jit import CompileWatch
    from ..engine.stages import Stages
    from ..mtp.suite_figures import draft_keys
    from .generate.noise import warn_of_noise
    from .generate.report import comparison_keys, generation_keys, tables_of
    from .generate.session import opened, plan
    from .inputs import COMPILE_NOTE, closing_keys

    assert request.prompt is not None
    with CompileWatch(on_first=lambda: out.note(COMPILE_NOTE)) as watch:
        stages = Stages(watch)
        planned = plan(request.run, request.prompt, stages, out)
        material = _material(request, planned, stages, out)
        inputs = _inputs(request, material)
        n_extra = STEP_SIZES[-1] if request.n_turns else 0
        with opened(planned, stages, out, n_extra) as session:
            drafters = _drafters(request, session, material, stages, out)
            made = (_compared if request.n_turns else _generated)(request, session, drafters, out)
            memory = _memory(session, drafters, stages)
    (draft_max,) = request.draft_maxes
    before = made.comparison.prefill if made.comparison is not None else None
    record: dict[str, Any] = {"command": "mtp-run"}
    record |= generation_keys(made.run, draft_max, before)
    record |= draft_keys(made.run, made.origins)
    record |= {"text": made.text, "seed": planned.sampling.seed, "n_ctx": planned.n_ctx}
    record |= _stage_keys(stages) | memory
    record |= comparison_keys(made.comparison)
    record |= closing_keys(_chosen(request, planned), inputs, watch.seconds)
    out.result(record, tables_of(record), aside=not request.n_turns)
    if made.comparison is not None:
        warn_of_noise(record, out)
    if made.run.stop_reason == "interrupted":
        raise KeyboardInterrupt


def run_suite(request: MtpRequest, out: Output) -> None:
    """Measure the prompts of a suite and print the result, also of those before Ctrl-C."""
    from ..engine.jit import CompileWatch
    from ..engine.stages import Stages
    from ..mtp.suite import read_suite
    from ..mtp.suite_texts import SuiteSettings
    from .generate.session import opened, read_target
    from .generate.suite import longest, measure, tasks_of
    from .generate.suite_report import csv_rows, figure_of, record_of, tables_of
    from .inputs import COMPILE_NOTE, closing_keys
    from .plot import check_plot, draw

    if request.plot is not None:
        check_plot(request.plot)
    prompts = read_suite(request.suite)
    with CompileWatch(on_first=lambda: out.note(COMPILE_NOTE)) as watch:
        stages = Stages(watch)
        target = read_target(request.run, stages, out)
        material = _material(request, target, stages, out)
        inputs = _inputs(request, material)
        tasks = tasks_of(prompts, target, request.template, request.run.n_predict, stages, out)
        n_extra = 1 + _longest_draft(request) if request.bounds else 0
        with opened(longest(tasks), stages, out, n_extra) as session:
            drafters = _drafters(request, session, material, stages, out)
            assert drafters is not None
            settings = SuiteSettings(request.draft_maxes, request.n_turns, request.bounds)
            measured = measure(tasks, session, drafters, settings, out)
            memory = _memory(session, drafters, stages)
    if not measured.cells:
        raise KeyboardInterrupt
    record: dict[str, Any] = {"command": "mtp-run", "n_suite": len(tasks)}
    record |= {"interrupted": measured.interrupted, **record_of(measured.cells)}
    record |= {"seed": target.sampling.seed, "n_ctx": target.n_ctx, **_stage_keys(stages), **memory}
    record |= closing_keys(_chosen(request, target), inputs, watch.seconds)
    if out.mode == "csv":
        out.results("mtp-run", csv_rows(record), [])
    else:
        out.result(record, tables_of(record))
    if len(request.draft_maxes) > 1 and record["best_draft_max"] is not None:
        out.note(_verdict(record))
    if request.plot is not None:
        draw(figure_of(record), request.plot)
        out.note(f"wrote {request.plot}")
    if measured.interrupted:
        raise KeyboardInterrupt


def _verdict(record: dict[str, Any]) -> str:
    best, ratio = record["best_draft_max"], record["overall"]["ratio"]
    return f"best draft length: {best}, {ratio:.3f} times plain decoding over all prompts"


def _longest_draft(request: MtpRequest) -> int:
    longest = max(request.draft_maxes)
    if request.draft.kind is DrafterKind.BOTH:
        longest = max(longest, request.draft.ngram_max)
    return longest


def _drafts(request: MtpRequest) -> bool:
    return request.draft.kind is not DrafterKind.NONE and max(request.draft_maxes) > 0


def _material(request: MtpRequest, target: Target, stages: Stages, out: Output) -> Material:
    """Open what is drafted from, as far as that goes without the weights."""
    from .generate.mtp_drafting import Material, find_material

    if not _drafts(request):
        return Material()
    with stages.stage("drafter"):
        return find_material(request.draft, target, out)


def _drafters(
    request: MtpRequest, session: Session, material: Material, stages: Stages, out: Output
) -> Drafters | None:
    """Return drafters that have run, so that their kernels are compiled; None: nothing drafts."""
    from .generate.mtp_drafting import open_drafters, warm_up

    if not _drafts(request):
        return None
    with stages.stage("drafter"):
        longest = max(request.draft_maxes)
        drafters = open_drafters(request.draft, session, material, longest, out)
    with stages.stage("load"), out.busy("compiling kernels"):
        warm_up(drafters, session)
    return drafters


def _generated(
    request: MtpRequest, session: Session, drafters: Drafters | None, out: Output
) -> MtpText:
    """Generate once."""
    from .generate.stream import TextPrinter

    printer = TextPrinter(session.plan.decoder(), shown=out.mode == "table", color=request.color)
    drafting = None if drafters is None else drafters.begin(request.draft_maxes[0])
    run = session.run(drafting, printer, out)
    printer.finish()
    if run.stop_reason == "interrupted" and not run.tokens:
        raise KeyboardInterrupt
    return MtpText(run, {} if drafters is None else drafters.origins(), printer.text)


def _compared(
    request: MtpRequest, session: Session, drafters: Drafters | None, out: Output
) -> MtpText:
    """Generate with and without drafts in turns; nothing is shown."""
    from ..engine.decode.comparison import STEP_SIZES
    from .generate.comparison import compare

    assert drafters is not None
    origins = []

    def afresh() -> Drafting:
        drafting = drafters.begin(request.draft_maxes[0], afresh=True)
        origins.append(drafters.origins())
        return drafting

    comparison = compare(session, afresh, request.n_turns, out, STEP_SIZES)
    run = comparison.drafted[comparison.typical]
    decoder = session.plan.decoder()
    text = decoder.feed(run.tokens) + decoder.finish()
    return MtpText(run, origins[comparison.typical], text, comparison)


def _memory(session: Session, drafters: Drafters | None, stages: Stages) -> dict[str, int]:
    return {
        "program_bytes": stages.memory("program"),
        "weights_bytes": session.model.n_bytes,
        "head_bytes": 0 if drafters is None else drafters.head_bytes,
        "kv_bytes": session.cache.n_bytes,
    }


def _stage_keys(stages: Stages) -> dict[str, float]:
    return {
        "t_draft_flat_ms": stages.seconds("drafter") * 1e3,
        "load_ms": stages.seconds("load") * 1e3,
        "tokenize_ms": stages.seconds("tokenize") * 1e3,
    }


def _inputs(request: MtpRequest, material: Material) -> list[dict[str, Any]]:
    from .inputs import describe_files

    prompt = request.prompt
    files = () if prompt is None else (prompt.file, prompt.chat_file)
    head = None if material.head is None else str(material.head)
    named = (
        *files,
        request.template.file,
        request.suite,
        head,
        request.draft.static,
        request.draft.dynamic,
    )
    return describe_files([name for name in named if name and Path(name).is_file()])


def _chosen(request: MtpRequest, target: Target) -> dict[str, Any]:
    """Return the options of the record, as they were understood."""
    run, draft, prompt = request.run, request.draft, request.prompt
    lengths = request.draft_maxes
    return {
        "model": run.model,
        "mtp_head": draft.head,
        "drafter": str(draft.kind),
        "suite": None if prompt is not None else request.suite or "bundled",
        "file": prompt and prompt.file,
        "chat_file": prompt and prompt.chat_file,
        "chat": prompt is None or prompt.chat,
        "system": prompt and prompt.system,
        **request.template.record,
        "escape": prompt is not None and prompt.escape,
        "static": draft.static,
        "dynamic": draft.dynamic,
        "draft_max": lengths[0] if len(lengths) == 1 else lengths,
        "draft_p_min": draft.p_min,
        "draft_fixed": draft.fixed,
        "ngram_draft_max": draft.ngram_max,
        "ngram_min": draft.ngram_min,
        "verify": str(draft.verify),
        "n_predict": run.n_predict,
        "n_ctx": target.n_ctx,
        **asdict(target.sampling),
        "ignore_eos": run.ignore_eos,
        "stop": list(target.stop_strings.texts),
        "compare": prompt is not None and bool(request.n_turns),
        "repeat": request.n_turns or None,
        "bounds": request.bounds,
        "batch": run.n_batch,
        "threads": target.n_threads,
    }
