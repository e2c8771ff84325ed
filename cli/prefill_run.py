"""``draftsmith prefill-run``: answer a question about a long text, reading what matters of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated

import typer

from ..engine.errors import UsageError
from . import options
from .chat_options import TemplateOptions
from .generate import options as run_options
from .generate.mtp_drafting import DrafterKind
from .generate.stream import Color
from .option_groups import HIDDEN
from .output import Output
from .prefill.calibrate import CalibrateRequest, run_calibrate
from .prefill.options import (
    AskOptions,
    CalibrateOptions,
    DecodeOptions,
    KeepOptions,
    NeedleOptions,
    ScoreOptions,
    parse_shares,
)
from .prefill.request import check_one_pass, request_of
from .prefill.work import PrefillRequest, run_niah, run_prefill


def command(
    context: typer.Context,
    model: run_options.Model,
    ask: AskOptions,
    template: TemplateOptions,
    score: ScoreOptions,
    keep: KeepOptions,
    decode: DecodeOptions,
    run: run_options.RunOptions,
    needles: Annotated[NeedleOptions, HIDDEN],
    found: Annotated[CalibrateOptions, HIDDEN],
    shown: options.ResultOptions,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Read the prompt in full, too: how much faster does the first token come, and is "
            "it the same?",
        ),
    ] = False,
    repeat: Annotated[
        int | None,
        options.repeat_option("Turns of --compare; 1 by default."),
    ] = None,
    niah: Annotated[bool, typer.Option("--niah", hidden=True)] = False,
    calibrate: Annotated[bool, typer.Option("--calibrate", hidden=True)] = False,
    show_kept: Annotated[
        bool,
        typer.Option("--show-kept", help="Print the prompt with what was kept, on stderr."),
    ] = False,
    temperature: Annotated[
        float | None,
        run_options.temperature_option(f"; {run_options.TEMPERATURE} by default, with --compare 0"),
    ] = None,
    color: run_options.ColorOption = Color.AUTO,
) -> Callable[[], None]:
    """Answer a question about a long text, reading what matters of it.

    The answer goes to stdout as it comes, and the figures to stderr after it; with --compare or
    --json the figures go to stdout. Where nothing may be dropped, the prompt is read in full, and
    the reason is said. prefill-niah measures quality, and prefill-calibrate finds heads.
    """
    out = shown.output
    if repeat is not None and not (compare or niah or calibrate):
        raise UsageError(
            "--repeat is for --compare, --niah and --calibrate",
            remedy="give one of them too, or leave it out",
        )
    keeps = parse_shares(keep.keep)
    if len(keeps) > 1 and not niah:
        raise UsageError(f"--keep {keep.keep}: several shares are for --niah", remedy="give one")
    if temperature is None:
        temperature = 0.0 if compare or niah else run_options.TEMPERATURE
    run = run.with_seed() if niah or calibrate else run
    request = request_of(
        run.request(model, temperature, escape=ask.escape),
        ask.request(template, context),
        score,
        keep,
        keeps,
        decode,
        niah=needles.request(repeat or 1, "--niah") if niah else None,
        has_draft_max=options.is_typed(context, "draft_max"),
        n_turns=(repeat or 1) if compare else 0,
        show_kept=show_kept,
        color=color,
    )
    if calibrate:
        return _calibrate(request, needles, found, repeat, out)
    _check_unused({"--layers": found.n_layers, "--output": found.output}, "--calibrate")
    check_one_pass(request)
    if niah:
        _check_niah(request)
        return partial(_renamed, "--niah", "prefill-niah", partial(run_niah, request, out), out)
    _check_unused(_only_niah(needles), "--niah")
    of_both = {"--context": needles.contexts, "--haystack": needles.haystack}
    _check_unused(of_both, "--niah or --calibrate")
    request.ask.check()
    return partial(run_prefill, request, out)


def _calibrate(
    request: PrefillRequest,
    needles: NeedleOptions,
    found: CalibrateOptions,
    repeat: int | None,
    out: Output,
) -> Callable[[], None]:
    """What --calibrate does, which is what prefill-calibrate does."""
    _check_calibrate(request, _only_niah(needles))
    asked = CalibrateRequest.from_options(
        request.run,
        template=request.ask.template_options,
        repeat=repeat,
        context=needles.contexts,
        haystack=needles.haystack,
        n_layers=found.n_layers,
        window=request.score.window,
        output=found.output,
        command="prefill-run",
    )
    work = partial(run_calibrate, asked, out)
    return partial(_renamed, "--calibrate", "prefill-calibrate", work, out)


def _renamed(option: str, command: str, work: Callable[[], None], out: Output) -> None:
    """Do what an option asks for that has a command of its own."""
    out.note(f"{option} is a command of its own now: draftsmith {command}")
    work()


def _only_niah(needles: NeedleOptions) -> dict[str, object]:
    """Options that --calibrate has no use for, by their names; None: not given."""
    return {
        "--depths": needles.depths,
        "--kinds": needles.kinds,
        "--plot": needles.plot,
        "--no-full": needles.no_full or None,
    }


def _check_unused(values: Mapping[str, object], wanted: str) -> None:
    """Refuse options of something that is not asked for."""
    for name, value in values.items():
        if value is not None:
            raise UsageError(
                f"{name} is for {wanted}", remedy=f"give {wanted} too, or leave it out"
            )


def _check_niah(request: PrefillRequest, what: str = "--niah") -> None:
    """Refuse options that what brings its own prompts has no use for."""
    ask = request.ask
    for name, given in (
        ("-f", ask.file is not None),
        ("-p", ask.question is not None),
        ("--chat-file", ask.chat_file is not None),
        ("--question", ask.named is not None),
        ("-sys", ask.system is not None),
        ("-e", ask.escape),
        ("--stop", bool(request.run.stop_texts)),
        ("--compare", request.n_turns > 0),
        ("--show-kept", request.show_kept),
    ):
        if given:
            raise UsageError(f"{what} brings its own prompts: {name}", remedy=f"leave out {name}")


def _check_calibrate(request: PrefillRequest, only_niah: Mapping[str, object]) -> None:
    """Refuse options that --calibrate has no use for."""
    _check_niah(request, "--calibrate")
    score = request.score
    for name, given in (
        ("--niah", request.niah is not None),
        ("--heads", score.heads is not None),
        ("--calibration", score.calibration is not None),
        ("--scorer-model", score.model is not None),
        ("--one-pass", score.one_pass),
        ("--memory-limit", request.memory_limit is not None),
        ("--decode-drafter", request.draft.kind is not DrafterKind.NONE),
        *((name, value is not None) for name, value in only_niah.items()),
    ):
        if given:
            raise UsageError(f"{name} is not for --calibrate", remedy="leave one of them out")
