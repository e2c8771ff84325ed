"""``draftsmith lookup-stats``: replay a text and say what n-gram drafting would have saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from . import chat_options, drafter_options, options
from .drafter_request import DrafterOptions, DrafterRequest
from .output import Output

if TYPE_CHECKING:
    import numpy as np

    from ..engine.stages import Stages
    from ..engine.tokens.tokenizer import Tokenizer
    from ..ngram.corpus.documents import Corpus

NO_CACHE = "none"


@dataclass(frozen=True)
class SweepRequest:
    """The options of one call; every static cache, chunk length and draft length meets every other.

    A static cache of None is the row without one.
    """

    model: str
    files: list[str]
    statics: list[str | None]
    dynamic: str | None
    n_ctxs: list[int]
    draft_maxes: list[int]
    repeat: int
    verify: bool
    field: str | None
    escape: bool
    is_text: bool
    strict: bool
    n_threads: int | None
    plot: str | None


def command(
    context: typer.Context,
    model: options.Model,
    file: options.Files,
    drafters: drafter_options.DraftersOptions,
    template: chat_options.TemplateOptions,
    corpus: options.CorpusOptions,
    shown: options.RowsOptions,
    more: options.MoreFiles = None,
    static: Annotated[
        list[str] | None,
        typer.Option(
            "-lcs",
            "--lookup-cache-static",
            metavar="CACHE",
            help="Static cache (its bigrams). May be given many times, for a row each; "
            "none: the row without one.",
        ),
    ] = None,
    dynamic: Annotated[
        str | None,
        typer.Option(
            "-lcd", "--lookup-cache-dynamic", metavar="CACHE", help="Dynamic cache; not written."
        ),
    ] = None,
    n_ctx: Annotated[
        list[str] | None,
        typer.Option(
            "-c",
            "--ctx-size",
            metavar="N,...",
            envvar="LLAMA_ARG_CTX_SIZE",
            help="Tokens a chunk, rounded up to a multiple of 256; 0, the default: the model's "
            "own. Several: a row each.",
        ),
    ] = None,
    draft_max: Annotated[
        list[str] | None,
        typer.Option(
            "--draft-max",
            "--spec-draft-n-max",
            metavar="N,...",
            envvar=options.DRAFT_MAX_VARIABLES,
            help=f"Longest draft, 0 to {options.DRAFT_MOST}; 3 by default. Several: a row each.",
        ),
    ] = None,
    repeat: Annotated[
        int,
        options.repeat_option("Replays to time; medians are shown."),
    ] = 1,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Check every invariant of the caches first, not only checksums, ids and counts.",
        ),
    ] = False,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="FIGURE",
            help="Draw the rows over the size of their caches into a .png or .svg file "
            "(needs draftsmith[plot]).",
        ),
    ] = None,
    threads: options.Threads = None,
) -> Callable[[], None]:
    """Replay a text: what would drafting save?

    Goes step by step as llama-lookup-stats does, and reports what that leaves out as well. Of
    equally good tokens the one with the lowest id is drafted.
    """
    out = shown.output
    asked = DrafterRequest.from_options(
        DrafterOptions(
            drafters=drafters.drafter,
            upstream_exact=drafters.upstream_exact,
            carry=drafters.carry,
            server_like=drafters.server_like,
            chat=drafters.chat,
            template=template.chosen,
            context=context,
            advise=drafters.advise,
            cost=drafters.cost,
            show_examples=drafters.show_examples,
        ),
        model=model,
        files=file + (more or []),
        statics=[path for path in static or [] if path != NO_CACHE],
        dynamic=dynamic,
        n_ctxs=options.numbers("-c", n_ctx or ["0"], options.CTX_MOST),
        has_draft_max=options.is_typed(context, "draft_max"),
        repeat=repeat,
        verify=verify,
        field=corpus.field,
        escape=corpus.escape,
        is_text=corpus.as_text,
        strict=corpus.strict,
        n_threads=threads,
        plot=plot,
        csv=shown.csv,
    )
    if asked is not None:
        return partial(_stats_of_drafters, asked, out)
    request = SweepRequest(
        model=model,
        files=file + (more or []),
        statics=[None if path == NO_CACHE else path for path in static or [NO_CACHE]],
        dynamic=dynamic,
        n_ctxs=options.numbers("-c", n_ctx or ["0"], options.CTX_MOST),
        draft_maxes=options.numbers("--draft-max", draft_max or ["3"], options.DRAFT_MOST),
        repeat=repeat,
        verify=verify,
        field=corpus.field,
        escape=corpus.escape,
        is_text=corpus.as_text,
        strict=corpus.strict,
        n_threads=threads,
        plot=plot,
    )
    n_rows = len(request.statics) * len(request.n_ctxs) * len(request.draft_maxes)
    if n_rows > options.GRID_MOST:
        raise options.too_many("the sweep", n_rows, options.GRID_MOST, "rows")
    return partial(stats, request, out)


def _stats_of_drafters(request: DrafterRequest, out: Output) -> None:
    """Do what --drafter says; what that takes is not imported for anything else."""
    from .replay.drafter_stats import stats

    stats(request, out)


def stats(request: SweepRequest, out: Output) -> None:
    """Do what the command says and print the result."""
    from ..engine.host import n_usable_threads
    from ..engine.jit import CompileWatch
    from ..engine.models import resolve_model
    from ..engine.stages import Stages
    from ..engine.tokens.tokenizer import open_tokenizer
    from ..ngram.corpus.documents import open_corpus
    from ..ngram.lookup.sweep import SweepCaches, sweep
    from .inputs import (
        COMPILE_NOTE,
        closing_keys,
        corpus_keys,
        describe_corpus,
        describe_files,
        refuse_text_and_field,
        warn_of_repairs,
    )
    from .memory_report import ReplayMemory, sweep_line
    from .plot import check_plot, draw
    from .replay.inputs import chunk_tokens
    from .replay.report import figure_of, records_of, sweep_table, tables_of

    if request.plot is not None:
        check_plot(request.plot)
    model = resolve_model(request.model)
    refuse_text_and_field(request.field, is_text=request.is_text)
    corpus = open_corpus(
        request.files,
        field=request.field,
        escape=request.escape,
        is_text=request.is_text,
        strict=request.strict,
    )
    n_threads = request.n_threads or n_usable_threads()
    with CompileWatch(on_first=lambda: out.note(COMPILE_NOTE)) as watch:
        stages = Stages(watch)
        with stages.stage("load"):
            metadata, tokenizer = open_tokenizer(model)
        stages.keep_memory("program")
        n_ctxs = [chunk_tokens(wanted, metadata, out) for wanted in request.n_ctxs]
        caches = SweepCaches(
            request.statics,
            request.dynamic,
            stages,
            n_vocab=tokenizer.n_vocab,
            fingerprint=tokenizer.fingerprint,
            verify=request.verify,
        )
        named = [path for path in (*request.statics, request.dynamic) if path is not None]
        opened = {one["path"]: one for one in describe_files(named)}
        tokens = _tokens(corpus, tokenizer, n_threads, stages, out)
        stages.keep_memory("read")
        with out.progress("replaying", unit="tokens") as bar:
            cells = sweep(tokens, caches, n_ctxs, request.draft_maxes, request.repeat, bar.update)
    warn_of_repairs(corpus, out)
    chosen = {
        "model": request.model,
        "static": None,
        "dynamic": request.dynamic,
        "n_ctx": 0,
        "draft_max": 0,
        "repeat": request.repeat,
        "field": request.field,
        "escape": request.escape,
        "text": request.is_text,
        "strict": request.strict,
        "threads": n_threads,
    }
    tail = closing_keys(chosen, describe_corpus(corpus), watch.seconds)
    records = records_of(cells, stages, corpus_keys(corpus), tail, opened)
    if len(records) == 1:
        out.result(records[0], tables_of(records[0], ReplayMemory.of(stages)))
    else:
        line = sweep_line(records[0], ReplayMemory.of(stages), "the static cache")
        out.results("lookup-stats", records, [sweep_table(records)], lines=[line])
    if request.plot is not None:
        draw(figure_of(records), request.plot)
        out.note(f"wrote {request.plot}")


def _tokens(
    corpus: Corpus, tokenizer: Tokenizer, n_threads: int, stages: Stages, out: Output
) -> np.ndarray:
    """Return the ids of all documents, joined in order: int32 [n]."""
    import numpy as np

    from ..engine.tokens.prompt_ends import TextEnds
    from .inputs import show_read, token_pieces, warn_of_ends

    ends = TextEnds(tokenizer)
    pieces = [np.empty(0, np.int32)]
    with out.progress("tokenizing", unit="bytes") as bar, stages.stage("tokenize"):
        for document, tokens in token_pieces(corpus, tokenizer, n_threads):
            ends.add(document, tokens)
            pieces.append(tokens)
            show_read(bar, corpus)
        joined = np.concatenate(pieces)
    warn_of_ends(ends, out)
    return joined
