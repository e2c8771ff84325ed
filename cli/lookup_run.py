"""``draftsmith lookup-run``: generate a text with the n-gram drafter, and say what that wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..engine.errors import DraftsmithError, UsageError
from . import chat_options, drafter_options, options
from .generate import options as run_options
from .generate.drafting import NgramDrafting, tally_keys
from .generate.prompt import PromptRequest
from .generate.session import RunRequest
from .generate.stream import Color
from .output import Output

if TYPE_CHECKING:
    from ..engine.decode.comparison import Comparison
    from ..engine.decode.drafting import Drafting
    from ..engine.decode.generation import Generation
    from ..ngram.drafters.counts import OriginCounts
    from ..ngram.drafters.drafter import SpecDrafter
    from ..ngram.lookup.drafter import NgramDrafter
    from .generate.session import Plan, Session

    AnyDrafter = NgramDrafter | SpecDrafter


@dataclass(frozen=True)
class LookupRequest:
    """The options of one call.

    Attributes
    ----------
    n_turns : of --compare; 0 without it
    """

    run: RunRequest
    prompt: PromptRequest
    drafting: NgramDrafting
    color: Color
    n_turns: int


def command(
    context: typer.Context,
    model: run_options.Model,
    prompt: run_options.PromptOptions,
    template: chat_options.TemplateOptions,
    run: run_options.RunOptions,
    shown: options.ResultOptions,
    static: Annotated[
        str | None,
        typer.Option(
            "-lcs", "--lookup-cache-static", metavar="CACHE", help="Static cache (its bigrams)."
        ),
    ] = None,
    dynamic: Annotated[
        str | None,
        typer.Option(
            "-lcd",
            "--lookup-cache-dynamic",
            metavar="CACHE",
            help="Dynamic cache: what is generated is added to it at the end. It is made where "
            "there is none.",
        ),
    ] = None,
    draft_max: run_options.DraftMax = 8,
    draft_fixed: run_options.DraftFixed = False,
    drafter: drafter_options.DrafterOfText = None,
    upstream_exact: drafter_options.UpstreamExactOfText = False,
    temperature: run_options.Temperature = run_options.TEMPERATURE,
    compare: run_options.Compare = False,
    repeat: run_options.Repeat = None,
    color: run_options.ColorOption = Color.AUTO,
) -> Callable[[], None]:
    """Generate a text with n-gram drafting.

    The text goes to stdout as it comes, accepted draft tokens coloured, and the figures to stderr
    after it; with --compare or --json the figures go to stdout.
    """
    out = shown.output
    if repeat is not None and not compare:
        raise UsageError("--repeat is for --compare", remedy="give --compare too, or neither")
    drafting = NgramDrafting.from_options(
        drafter,
        upstream_exact=upstream_exact,
        static=static,
        dynamic=dynamic,
        draft_max=draft_max,
        has_draft_max=options.is_typed(context, "draft_max"),
        fixed=draft_fixed,
    )
    if compare and not drafting.draft_max:
        raise UsageError(
            "--compare with --draft-max 0 compares nothing",
            remedy="give a --draft-max of 1 or more",
        )
    asked = prompt.request(template, context)
    wanted = run.request(model, temperature, escape=prompt.escape)
    n_turns = (repeat or run_options.TURNS) if compare else 0
    return partial(run_lookup, LookupRequest(wanted, asked, drafting, color, n_turns), out)


@dataclass(frozen=True)
class LookupText:
    """What a call has generated.

    Attributes
    ----------
    run : the generation, or the typical one of a comparison
    counts : where its drafts came from; None: nothing was to be drafted
    text : of it
    comparison : with --compare
    dynamic_bytes : size of the dynamic cache that was written; None: it was not
    failure : to be raised when the result has been printed
    """

    run: Generation
    counts: OriginCounts | None
    text: str
    comparison: Comparison | None = None
    dynamic_bytes: int | None = None
    failure: BaseException | None = None


def run_lookup(request: LookupRequest, out: Output) -> None:
    """Do what the command says and print the result."""
    from ..engine.decode.comparison import step_sizes
    from ..engine.jit import CompileWatch
    from ..engine.stages import Stages
    from .generate.noise import warn_of_noise
    from .generate.report import comparison_keys, generation_keys, tables_of
    from .generate.session import opened, plan
    from .inputs import COMPILE_NOTE, closing_keys, describe_files

    with CompileWatch(on_first=lambda: out.note(COMPILE_NOTE)) as watch:
        stages = Stages(watch)
        planned = plan(request.run, request.prompt, stages, out)
        with stages.stage("caches"):
            # A comparison measures, and leaves what it measures with as it is.
            drafter = request.drafting.open(planned, out, learns=not request.n_turns)
        asked = request.prompt
        files = (asked.file, asked.chat_file, asked.template.file)
        named = (*files, request.drafting.static, request.drafting.dynamic)
        inputs = describe_files([name for name in named if name and Path(name).is_file()])
        n_extra = step_sizes(request.drafting.draft_max)[-1] if request.n_turns else 0
        with opened(planned, stages, out, n_extra) as session:
            make = _compared if request.n_turns else _generated
            made = make(request, session, drafter, out)
            weights_bytes, kv_bytes = session.model.n_bytes, session.cache.n_bytes
    record: dict[str, Any] = {"command": "lookup-run"}
    before = made.comparison.prefill if made.comparison is not None else None
    record |= generation_keys(made.run, request.drafting.draft_max, before)
    record |= _drafter_keys(request, made)
    record |= {
        "text": made.text,
        "seed": planned.sampling.seed,
        "n_ctx": planned.n_ctx,
        "dynamic_file_bytes": made.dynamic_bytes,
        "t_draft_flat_ms": stages.seconds("caches") * 1e3,
        "load_ms": stages.seconds("load") * 1e3,
        "tokenize_ms": stages.seconds("tokenize") * 1e3,
        "program_bytes": stages.memory("program"),
        "weights_bytes": weights_bytes,
        "kv_bytes": kv_bytes,
    }
    record |= comparison_keys(made.comparison)
    record |= closing_keys(_chosen(request, planned), inputs, watch.seconds)
    out.result(record, tables_of(record), aside=not request.n_turns)
    if made.comparison is not None:
        warn_of_noise(record, out)
    if made.failure is not None:
        raise made.failure


def _generated(
    request: LookupRequest, session: Session, drafter: AnyDrafter, out: Output
) -> LookupText:
    """Generate once, and teach the dynamic cache what was generated."""
    from .generate.stream import TextPrinter

    drafting, counts = None, None
    if request.drafting.draft_max:
        drafting, counts = request.drafting.drafting(drafter)
    printer = TextPrinter(session.plan.decoder(), shown=out.mode == "table", color=request.color)
    try:
        run = session.run(drafting, printer, out)
        printer.finish()
    except BrokenPipeError:  # who reads has enough; what was generated is learnt all the same
        _learn(request, session.plan, printer.tokens, out)
        raise
    failure: BaseException | None = None
    dynamic_bytes = None
    try:
        dynamic_bytes = _learn(request, session.plan, run.tokens, out)
    except DraftsmithError as error:
        failure = error
    if run.stop_reason == "interrupted":
        failure = failure or KeyboardInterrupt()
        if not run.tokens:
            raise failure
    return LookupText(run, counts, printer.text, None, dynamic_bytes, failure)


def _learn(request: LookupRequest, plan: Plan, tokens: Sequence[int], out: Output) -> int | None:
    """Add what was generated to the dynamic cache, and return its bytes; None: nothing to add."""
    from ..ngram.cache.shared import add_counts, count_generated

    path = request.drafting.dynamic
    if path is None or not tokens:
        return None
    new = count_generated(
        plan.prompt,
        tokens,
        n_vocab=plan.tokenizer.n_vocab,
        fingerprint=plan.tokenizer.fingerprint,
    )
    return add_counts(path, new, on_wait=lambda: out.note(f"waiting for another run: {path}"))


def _compared(
    request: LookupRequest, session: Session, drafter: AnyDrafter, out: Output
) -> LookupText:
    """Generate with and without drafts in turns; nothing is shown or learnt."""
    from ..engine.decode.comparison import step_sizes
    from .generate.comparison import compare

    counted: list[OriginCounts] = []

    def afresh() -> Drafting:
        drafter.reset()
        drafting, counts = request.drafting.drafting(drafter)
        counted.append(counts)
        return drafting

    sizes = step_sizes(request.drafting.draft_max)
    comparison = compare(session, afresh, request.n_turns, out, sizes)
    run = comparison.drafted[comparison.typical]
    decoder = session.plan.decoder()
    text = decoder.feed(run.tokens) + decoder.finish()
    return LookupText(run, counted[comparison.typical], text, comparison)


def _drafter_keys(request: LookupRequest, made: LookupText) -> dict[str, Any]:
    """Return what drafted, if that has a name, and what each part of it came to."""
    keys = tally_keys(made.counts)
    spec = request.drafting.spec
    if spec is not None:
        keys |= {"drafter": str(spec), "upstream_exact": spec.upstream_exact}
    return keys


def _chosen(request: LookupRequest, plan: Plan) -> dict[str, Any]:
    """Return the options of the record, as they were understood."""
    run = request.run
    return {
        "model": run.model,
        "file": request.prompt.file,
        "chat_file": request.prompt.chat_file,
        "chat": request.prompt.chat,
        "system": request.prompt.system,
        **request.prompt.template.record,
        "escape": request.prompt.escape,
        **request.drafting.options,
        "n_predict": run.n_predict,
        "n_ctx": plan.n_ctx,
        **asdict(plan.sampling),
        "ignore_eos": run.ignore_eos,
        "stop": list(plan.stop_strings.texts),
        "compare": bool(request.n_turns),
        "repeat": request.n_turns or None,
        "batch": run.n_batch,
        "threads": plan.n_threads,
    }
