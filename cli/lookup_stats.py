"""``draftsmith lookup-stats``: replay a text and say what n-gram drafting would have saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..engine.errors import UsageError
from . import options
from .output import Output

if TYPE_CHECKING:
    import numpy as np

    from ..engine.tokenizer import Tokenizer
    from ..ngram.cache import NgramCache
    from ..ngram.corpus import Corpus
    from ..ngram.replay import ReplayStats
    from .inputs import Stages

DRAFT_MOST = 4096


@dataclass(frozen=True)
class Request:
    """The options of one call."""

    model: str
    files: list[str]
    static: str | None
    dynamic: str | None
    n_ctx: int
    draft_max: int
    repeat: int
    field: str | None
    escape: bool
    n_threads: int | None


def command(
    model: options.Model,
    file: options.Files,
    more: options.MoreFiles = None,
    static: Annotated[
        str | None,
        typer.Option(
            "-lcs", "--lookup-cache-static", metavar="CACHE", help="Static cache (its bigrams)."
        ),
    ] = None,
    dynamic: Annotated[
        str | None,
        typer.Option(
            "-lcd", "--lookup-cache-dynamic", metavar="CACHE", help="Dynamic cache; not written."
        ),
    ] = None,
    n_ctx: Annotated[
        int,
        typer.Option(
            "-c",
            "--ctx-size",
            min=0,
            metavar="N",
            envvar="LLAMA_ARG_CTX_SIZE",
            help="Tokens a chunk, rounded up to a multiple of 256; 0: the model's own.",
        ),
    ] = 0,
    draft_max: Annotated[
        int,
        typer.Option(
            "--draft-max",
            "--spec-draft-n-max",
            min=0,
            max=DRAFT_MOST,
            metavar="N",
            envvar="LLAMA_ARG_SPEC_DRAFT_N_MAX",
            help="Longest draft.",
        ),
    ] = 3,
    repeat: Annotated[
        int,
        typer.Option("--repeat", min=1, metavar="K", help="Replays to time; medians are shown."),
    ] = 1,
    field: options.Field = None,
    escape: options.Escape = False,
    threads: options.Threads = None,
    json: options.Json = False,
    csv: options.Csv = False,
    no_header: options.NoHeader = False,
    quiet: options.Quiet = False,
) -> Callable[[], None]:
    """Replay a text: what would drafting save?

    Goes step by step as llama-lookup-stats does, and reports what that leaves out as well. Of
    equally good tokens the one with the lowest id is drafted.
    """
    out = Output.from_options(json=json, csv=csv, no_header=no_header, quiet=quiet)
    request = Request(
        model=model,
        files=file + (more or []),
        static=static,
        dynamic=dynamic,
        n_ctx=n_ctx,
        draft_max=draft_max,
        repeat=repeat,
        field=field,
        escape=escape,
        n_threads=threads,
    )
    return partial(stats, request, out)


def stats(request: Request, out: Output) -> None:
    """Do what the command says and print the result."""
    from ..engine.host import n_usable_threads
    from ..engine.jit import CompileWatch
    from ..engine.models import resolve_model
    from ..engine.tokenizer import load_tokenizer
    from ..ngram.cache_file import open_cache
    from ..ngram.corpus import open_corpus
    from .inputs import (
        COMPILE_NOTE,
        Stages,
        closing_keys,
        describe_corpus,
        describe_files,
        warn_of_repairs,
    )
    from .replay_report import record_of, tables_of

    model = resolve_model(request.model)
    corpus = open_corpus(request.files, field=request.field, escape=request.escape)
    n_threads = request.n_threads or n_usable_threads()
    with CompileWatch(on_first=lambda: out.note(COMPILE_NOTE)) as watch:
        stages = Stages(watch)
        with stages.stage("load"):
            tokenizer = load_tokenizer(model)
        n_ctx = _n_ctx(request.n_ctx, model, out)
        with stages.stage("caches"):
            static, dynamic = (
                open_cache(path, n_vocab=tokenizer.n_vocab, fingerprint=tokenizer.fingerprint)
                if path is not None
                else None
                for path in (request.static, request.dynamic)
            )
        tokens = _tokens(corpus, tokenizer, n_threads, stages, out)
        runs = _replays(request, tokens, n_ctx, tokenizer.n_vocab, static, dynamic, out)
    warn_of_repairs(corpus, out)
    chosen = {
        "model": request.model,
        "static": request.static,
        "dynamic": request.dynamic,
        "n_ctx": request.n_ctx,
        "draft_max": request.draft_max,
        "repeat": request.repeat,
        "field": request.field,
        "escape": request.escape,
        "threads": n_threads,
    }
    named = [path for path in (request.static, request.dynamic) if path is not None]
    inputs = describe_corpus(corpus) + describe_files(named)
    record: dict[str, Any] = {"command": "lookup-stats", **record_of(runs, stages)}
    record["n_documents"] = corpus.stats.n_documents
    record["n_bytes"] = corpus.stats.n_bytes
    record["n_invalid_utf8"] = corpus.stats.n_invalid_utf8
    record |= closing_keys(chosen, inputs, watch.seconds)
    out.result(record, tables_of(record))


def _n_ctx(wanted: int, model: Path, out: Output) -> int:
    """Return the chunk length: what is wanted or the model's own, rounded up as llama.cpp does."""
    from ..engine.gguf_file import read_metadata
    from ..ngram.replay import round_up_ctx

    n_ctx = wanted
    if n_ctx == 0:
        values = read_metadata(model).values
        trained = values.get(f"{values.get('general.architecture')}.context_length")
        n_ctx = trained if isinstance(trained, int) else 0
        if n_ctx < 1:
            raise UsageError(
                f"{model} does not say what context it was trained on", remedy="give -c N"
            )
    rounded = round_up_ctx(n_ctx)
    if rounded != n_ctx:
        out.note(f"-c {n_ctx} is rounded up to {rounded}, a multiple of 256, as llama.cpp does")
    return rounded


def _tokens(
    corpus: Corpus, tokenizer: Tokenizer, n_threads: int, stages: Stages, out: Output
) -> np.ndarray:
    """Return the ids of all documents, joined in order: int32 [n]."""
    import numpy as np

    from .inputs import show_read, token_pieces

    pieces = [np.empty(0, np.int32)]
    with out.progress("tokenizing", unit="bytes") as bar, stages.stage("tokenize"):
        for _, tokens in token_pieces(corpus, tokenizer, n_threads):
            pieces.append(tokens)
            show_read(bar, corpus)
        return np.concatenate(pieces)


def _replays(
    request: Request,
    tokens: np.ndarray,
    n_ctx: int,
    n_vocab: int,
    static: NgramCache | None,
    dynamic: NgramCache | None,
    out: Output,
) -> list[ReplayStats]:
    """Replay --repeat times; the counts are the same each time, the times are not."""
    from ..ngram.replay import replay

    runs: list[ReplayStats] = []
    with out.progress("replaying", unit="tokens") as bar:
        for turn in range(request.repeat):

            def show(done: int, total: int, turn: int = turn) -> None:
                bar.update(turn * total + done, request.repeat * total)

            run = replay(
                tokens,
                n_ctx=n_ctx,
                draft_max=request.draft_max,
                n_vocab=n_vocab,
                static=static,
                dynamic=dynamic,
                on_progress=show,
            )
            assert not runs or (run.n_drafted, run.n_accepted, run.n_rounds) == (
                runs[0].n_drafted,
                runs[0].n_accepted,
                runs[0].n_rounds,
            ), "two replays of one text differ"
            runs.append(run)
    return runs
