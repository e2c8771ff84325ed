"""``draftsmith prefill-run``: answer a question about a long text, reading what matters of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated

import typer

from ..engine.errors import UsageError
from . import chat_options, options
from .chat_options import ChatOptions
from .generate import options as run_options
from .generate.mtp_drafting import DrafterKind, DraftRequest, Verify
from .generate.session import RunRequest
from .output import Output
from .prefill import calibrate as calibrate_run
from .prefill import niah as niah_run
from .prefill.models import ScoreRequest, ScorerKind
from .prefill.options import PositionKind, parse_shares
from .prefill.prompt import AskRequest
from .prefill.work import Request, run_niah, run_prefill

KEEP, MIN_TOKENS = "0.1", 1024
DRAFT_MAX, NGRAM_DRAFT_MAX, NGRAM_MIN = 3, 8, 2


def command(
    context: typer.Context,
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
    named: Annotated[
        str | None,
        typer.Option(
            "--question",
            metavar="TEXT",
            help="Of --chat-file: words of the user that are the question. Without it the question "
            "is found by what asks in the last turn of the user.",
        ),
    ] = None,
    system: run_options.System = None,
    chat_template_file: chat_options.TemplateFile = None,
    chat_template_kwargs: chat_options.TemplateKwargs = None,
    reasoning: chat_options.Reasoning = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="No chat template: document, blank line, question.")
    ] = False,
    escape: options.Escape = False,
    keep: Annotated[
        str,
        typer.Option(
            "--keep",
            metavar="SHARE",
            help="Share of the prompt's tokens that is read. Of --niah, several with commas "
            "between them: each prompt is scored once and answered by each.",
        ),
    ] = KEEP,
    scorer: Annotated[
        ScorerKind,
        typer.Option(
            "--scorer",
            help="What says which tokens matter: words that the question shares (lexical), "
            "attention of the first layers in a window or in chosen blocks, words and attention "
            "(fused), a trained projection of embeddings (embedded) or of the first layers "
            "(trained), or as four published projects do. auto: trained where that is known for "
            "the model, or else fused.",
        ),
    ] = ScorerKind.AUTO,
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
            metavar="FILE",
            help="Which heads retrieve (.json), or a trained projection (.gguf); by default what "
            "is known of the model.",
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
            max=options.WHOLE_MOST,
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
    one_pass: Annotated[
        bool,
        typer.Option(
            "--one-pass",
            help="Kept tokens go on from the layer where they were scored, at original positions, "
            "and are not computed again from the start.",
        ),
    ] = False,
    min_tokens: Annotated[
        int,
        typer.Option(
            "--min-tokens",
            min=0,
            max=options.WHOLE_MOST,
            metavar="N",
            help="Shorter prompts are read in full.",
        ),
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
    static: run_options.StaticCache = None,
    dynamic: run_options.DynamicCacheRead = None,
    draft_max: Annotated[
        str | None,
        typer.Option(
            "--draft-max",
            "--spec-draft-n-max",
            metavar="K",
            envvar=options.DRAFT_MAX_VARIABLES,
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
        typer.Option(
            "--repeat",
            min=1,
            max=options.REPEAT_MOST,
            metavar="K",
            help="Turns of --compare, and prompts a cell of --niah, 1 by default; documents of "
            f"--calibrate, {calibrate_run.N_DOCUMENTS} by default.",
        ),
    ] = None,
    niah: Annotated[
        bool,
        typer.Option(
            "--niah",
            help="Measure quality in place of answering: hide needles in haystacks; are they kept, "
            "and are the answers right, in part and in full?",
        ),
    ] = False,
    contexts: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="N,...",
            help=f"Of --niah: tokens of prompt and answer; {niah_run.CONTEXTS} by default. Of "
            f"--calibrate: tokens of a prompt; {calibrate_run.CONTEXT} by default.",
        ),
    ] = None,
    depths: Annotated[
        str | None,
        typer.Option(
            "--depths",
            metavar="PERCENT,...",
            help=f"Of --niah: where the needle is; {niah_run.DEPTHS} by default.",
        ),
    ] = None,
    kinds: Annotated[
        str | None,
        typer.Option(
            "--kinds",
            metavar="KIND,...",
            help=f"Of --niah: kinds of questions; {niah_run.KINDS} by default.",
        ),
    ] = None,
    haystack: Annotated[
        str | None,
        typer.Option(
            "--haystack",
            metavar="FILE",
            help="Of --niah and --calibrate: a text; a bundled one else.",
        ),
    ] = None,
    no_full: Annotated[
        bool, typer.Option("--no-full", help="Of --niah: do not read the prompts in full, too.")
    ] = False,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="FIGURE",
            help="Of --niah: draw maps by depth and context into a .png or .svg file (needs "
            "draftsmith[plot]).",
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Find the heads that retrieve in place of answering, and write them down for "
            "later calls. Takes minutes.",
        ),
    ] = False,
    n_layers: Annotated[
        int | None,
        typer.Option(
            "--layers",
            min=1,
            max=options.WHOLE_MOST,
            metavar="N",
            help="Of --calibrate: look at the first N layers; two thirds by default.",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="FILE.json",
            help="Of --calibrate: the file to write; by default one that later calls find.",
        ),
    ] = None,
    show_kept: Annotated[
        bool,
        typer.Option("--show-kept", help="Print the prompt with what was kept, on stderr."),
    ] = False,
    n_predict: run_options.NPredict = -1,
    n_ctx: run_options.CtxSize = 0,
    temperature: Annotated[
        float | None,
        run_options.temperature_option(
            f"; {run_options.TEMPERATURE} by default, with --compare and --niah 0"
        ),
    ] = None,
    top_k: run_options.TopK = 40,
    top_p: run_options.TopP = 0.95,
    min_p: run_options.MinP = 0.05,
    repeat_penalty: run_options.RepeatPenalty = 1.0,
    repeat_last_n: run_options.RepeatLastN = 64,
    seed: run_options.Seed = -1,
    ignore_eos: run_options.IgnoreEos = False,
    stop: run_options.Stop = None,
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
    from ..engine.sizes import parse_size

    out = Output.from_options(json=json, csv=False, no_header=False, quiet=quiet)
    if repeat is not None and not (compare or niah or calibrate):
        raise UsageError(
            "--repeat is for --compare, --niah and --calibrate",
            remedy="give one of them too, or leave it out",
        )
    keeps = parse_shares(keep)
    if len(keeps) > 1 and not niah:
        raise UsageError(f"--keep {keep}: several shares are for --niah", remedy="give one")
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
        temperature = 0.0 if compare or niah else run_options.TEMPERATURE
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
        seed=0 if (niah or calibrate) and seed < 0 else seed,
        ignore_eos=ignore_eos,
        n_batch=n_batch,
        n_threads=threads,
        stop_texts=tuple(stop or ()),
        escape=escape,
    )
    only_calibrate = {"--layers": n_layers, "--output": output}
    only_niah = {
        "--depths": depths,
        "--kinds": kinds,
        "--plot": plot,
        "--no-full": no_full or None,
    }
    of_both = {"--context": contexts, "--haystack": haystack}
    asked = None
    if niah:
        asked = niah_run.NiahRequest.from_options(
            contexts=niah_run.CONTEXTS if contexts is None else contexts,
            depths=niah_run.DEPTHS if depths is None else depths,
            kinds=niah_run.KINDS if kinds is None else kinds,
            haystack=haystack,
            repeat=repeat or 1,
            full=not no_full,
            plot=plot,
        )
    template = ChatOptions(chat_template_file, chat_template_kwargs, reasoning)
    if raw:
        template = template.unused(context, "leave it out, or --raw")
    ask = AskRequest(file, question, chat_file, system, raw, escape, named, template)
    request = Request(
        run=run,
        ask=ask,
        niah=asked,
        score=ScoreRequest(scorer, drafter, calibration, heads, window, one_pass).settled(),
        draft=draft,
        draft_max=_draft_max(draft_max, draft, is_typed=options.is_typed(context, "draft_max")),
        keeps=keeps,
        positions=PositionKind.ORIGINAL if one_pass else positions,
        min_tokens=min_tokens,
        memory_limit=None if memory_limit is None else parse_size("--memory-limit", memory_limit),
        n_turns=(repeat or 1) if compare else 0,
        show_kept=show_kept,
        color=color,
    )
    request.score.check()
    _check_draft(draft)
    if calibrate:
        _check_calibrate(request, only_niah)
        return partial(
            calibrate_run.run_calibrate,
            calibrate_run.CalibrateRequest.from_options(
                run,
                template=ask.template_options,
                repeat=repeat,
                context=contexts,
                haystack=haystack,
                n_layers=n_layers,
                window=window,
                output=output,
            ),
            out,
        )
    _check_unused(only_calibrate, "--calibrate")
    if one_pass and decode_drafter.has_mtp:
        raise UsageError(
            "with --one-pass an MTP head does not see the prompt",
            remedy="give --decode-drafter ngram or none",
        )
    if niah:
        _check_niah(request)
        return partial(run_niah, request, out)
    _check_unused(only_niah, "--niah")
    _check_unused(of_both, "--niah or --calibrate")
    request.ask.check()
    return partial(run_prefill, request, out)


def _check_unused(values: Mapping[str, object], wanted: str) -> None:
    """Refuse options of something that is not asked for."""
    for name, value in values.items():
        if value is not None:
            raise UsageError(
                f"{name} is for {wanted}", remedy=f"give {wanted} too, or leave it out"
            )


def _check_niah(request: Request, what: str = "--niah") -> None:
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


def _check_calibrate(request: Request, only_niah: Mapping[str, object]) -> None:
    """Refuse options that --calibrate has no use for."""
    _check_niah(request, "--calibrate")
    score = request.score
    for name, given in (
        ("--niah", request.niah is not None),
        ("--heads", score.heads is not None),
        ("--calibration", score.calibration is not None),
        ("--drafter", score.drafter is not None),
        ("--one-pass", score.one_pass),
        ("--memory-limit", request.memory_limit is not None),
        ("--decode-drafter", request.draft.kind is not DrafterKind.NONE),
        *((name, value is not None) for name, value in only_niah.items()),
    ):
        if given:
            raise UsageError(f"{name} is not for --calibrate", remedy="leave one of them out")


def _draft_max(text: str | None, draft: DraftRequest, *, is_typed: bool) -> int:
    """Return the longest draft.

    Read here and not by Typer: what the environment says for other commands, such as 0 for no
    drafting, must not end a call that drafts nothing anyway.
    """
    drafts = draft.kind is not DrafterKind.NONE
    if text is None or not (drafts or is_typed):
        return DRAFT_MAX if draft.kind.has_mtp else NGRAM_DRAFT_MAX
    if not drafts:
        raise _no_drafter("--draft-max", draft)
    values = options.numbers("--draft-max", [text], options.DRAFT_MOST)
    if len(values) > 1 or not values[0]:
        raise UsageError(
            f"--draft-max {text} is not a number from 1 to {options.DRAFT_MOST}",
            remedy="give one, or leave --decode-drafter out for no drafting",
        )
    return values[0]


def _no_drafter(name: str, draft: DraftRequest) -> UsageError:
    return UsageError(
        f"{name} cannot be used with --decode-drafter {draft.kind}",
        remedy="leave one of them out",
    )


def _check_draft(draft: DraftRequest) -> None:
    """Refuse options of a drafter that is not there."""
    for name, given, wanted in (
        ("--mtp-head", draft.head is not None, draft.kind.has_mtp),
        ("-lcs and -lcd", bool(draft.static or draft.dynamic), draft.kind.has_ngram),
        ("--draft-fixed", draft.fixed, draft.kind is not DrafterKind.NONE),
    ):
        if given and not wanted:
            raise _no_drafter(name, draft)
