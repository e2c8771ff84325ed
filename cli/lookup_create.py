"""``draftsmith lookup-create``: count the n-grams of a corpus and write them as a cache."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..engine.errors import InputTooShort, UsageError
from . import chat_options, options
from .formats import number, size
from .lookup_counting import CountRequest
from .output import Output, Table

if TYPE_CHECKING:
    from ..ngram.cluster.count import ClusterCorpus
    from ..ngram.conversations.files import ChatFiles
    from ..ngram.corpus.documents import Corpus

ORDER_MAX = 4


def command(
    context: typer.Context,
    model: options.Model,
    file: options.Files,
    template: chat_options.TemplateOptions,
    corpus: options.CorpusOptions,
    shown: options.RowsOptions,
    target: Annotated[
        str,
        typer.Option("-lcs", "--lookup-cache-static", metavar="OUT", help="The cache to write."),
    ],
    more: options.MoreFiles = None,
    ngram_min: Annotated[
        int,
        typer.Option("--ngram-min", min=1, max=ORDER_MAX, metavar="N", help="Shortest n-gram."),
    ] = 2,
    ngram_max: Annotated[
        int,
        typer.Option(
            "--ngram-max",
            min=1,
            max=ORDER_MAX,
            metavar="N",
            help="Longest n-gram. 2 to 2 is llama.cpp's static cache; 1 to 4 serves as -lcd too.",
        ),
    ] = 2,
    format: options.Format = options.CacheFormat.NATIVE,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat",
            help="The files hold conversations: count them as the model's chat template writes "
            "them.",
        ),
    ] = False,
    answers: Annotated[
        bool,
        typer.Option("--answers", help="Of conversations, count what the assistant said, alone."),
    ] = False,
    threads: options.ThreadsOfCorpus = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory",
            metavar="SIZE",
            help="Memory of the whole command, such as 600M or 2G; what does not fit goes through "
            "temporary files next to OUT. Default: half of what is free.",
        ),
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(
            "--dask",
            metavar="ADDRESS",
            help="Count on the workers of this Dask scheduler (host:port). FILE may be a URL then, "
            "such as s3://bucket/*.txt.",
        ),
    ] = None,
) -> Callable[[], None]:
    """Make an n-gram cache from texts.

    Counts which tokens follow each n-gram. Each file, or JSON line, is a document of its own:
    no n-gram spans two.
    """
    from ..engine.sizes import parse_size

    out = shown.output
    if ngram_min > ngram_max:
        raise UsageError(
            f"--ngram-min {ngram_min} is above --ngram-max {ngram_max}",
            remedy="give a range from small to large",
        )
    if dask is not None and not options.is_typed(context, "threads"):
        threads = None  # those of the environment are this machine's
    if dask is not None and (threads or max_memory):
        raise UsageError(
            f"{'--threads' if threads else '--max-memory'} is for this machine, not for --dask's",
            remedy="give --nthreads and --memory-limit to dask worker instead",
        )
    if chat or answers:
        flag = "--answers" if answers else "--chat"
        _refuse_beside(flag, ("--field", corpus.field), ("--text", corpus.as_text),
                       ("--escape", corpus.escape), ("--dask", dask))  # fmt: skip
    asked = template.chosen
    if not (chat or answers):
        asked = asked.unused(context, "give --chat too, or leave it out")
    request = CountRequest(
        model=model,
        files=file + (more or []),
        target=target,
        format=format.value,
        field=corpus.field,
        escape=corpus.escape,
        is_text=corpus.as_text,
        strict=corpus.strict,
        chat=chat or answers,
        answers=answers,
        template=asked,
        n_threads=threads,
        max_memory=None if max_memory is None else parse_size("--max-memory", max_memory, least=0),
        dask=dask,
        ngram_min=ngram_min,
        ngram_max=ngram_max,
    )
    return partial(create, request, out)


def create(request: CountRequest, out: Output) -> None:
    """Do what the command says and print the result."""
    start_ns = time.perf_counter_ns()
    from ..engine.atomic_file import check_writable
    from ..engine.jit import CompileWatch
    from ..engine.models import resolve_model
    from ..engine.stages import Stages
    from ..engine.tokens.tokenizer import open_tokenizer
    from ..ngram.cache.file import write_cache
    from ..ngram.cache.run_files import check_space
    from .inputs import COMPILE_NOTE, closing_keys, describe_corpus, refuse_text_and_field
    from .lookup_counting import counted, opened

    refuse_text_and_field(request.field, is_text=request.is_text)
    check_writable(request.target)
    model = resolve_model(request.model)
    corpus = opened(request)
    _refuse_input_as_target(request.target, corpus)
    # A twentieth of the text for each size is what a cache of repetitive code takes.
    least_bytes = (corpus.total_bytes or 0) * len(request.orders) // 20
    check_space(Path(request.target).resolve().parent, least_bytes, "caches of such a corpus")
    with CompileWatch(on_first=lambda: out.note(COMPILE_NOTE)) as watch:
        stages = Stages(watch)
        with stages.stage("load"):
            metadata, tokenizer = open_tokenizer(model)
        done, text_keys = counted(request, corpus, metadata, tokenizer, stages, out)
        cache = done.cache
        if request.format == "llama.cpp" and not cache.n_entries:
            raise _too_short(request.ngram_min)
        with stages.stage("write"):
            file_bytes = write_cache(request.target, cache, format=request.format)
    counts: dict[str, Any] = {
        "output": request.target,
        "format": request.format,
        **text_keys,
        "n_tokens": done.n_tokens,
        "n_ngrams": cache.n_ngrams,
        "n_entries": cache.n_entries,
        "file_bytes": file_bytes,
        "spilled_bytes": done.spilled_bytes,
        "n_runs": done.n_runs,
        "load_ms": stages.seconds("load") * 1e3,
        "tokenize_s": stages.seconds("tokenize"),
        "count_s": stages.seconds("count"),
        "count_cpu_s": done.cpu_s,
        "write_s": stages.seconds("write"),
        "total_s": (time.perf_counter_ns() - start_ns) / 1e9,
    }
    chosen = {
        "model": request.model,
        "ngram_min": request.ngram_min,
        "ngram_max": request.ngram_max,
        "field": request.field,
        "escape": request.escape,
        "text": request.is_text,
        "strict": request.strict,
        "chat": request.chat,
        "answers": request.answers,
        **request.template.record,
        "threads": done.n_threads,
        "max_memory": done.max_memory,
        "dask": request.dask,
    }
    tail = closing_keys(chosen, describe_corpus(corpus), watch.seconds)
    record = {"command": "lookup-create", **counts, **tail}
    out.result(record, [_table(record)])


def _refuse_beside(flag: str, *others: tuple[str, object]) -> None:
    """Refuse options of plain text beside one of conversations."""
    for other, given in others:
        if given:
            raise UsageError(
                f"{flag} and {other} exclude each other",
                remedy=f"give {flag} for conversations, or {other} for plain text",
            )


def _refuse_input_as_target(target: str, corpus: Corpus | ClusterCorpus | ChatFiles) -> None:
    """Refuse to write the cache over a text that it is made from."""
    for source in corpus.sources:
        both = os.path.exists(target) and os.path.exists(source.path)
        if both and os.path.samefile(target, source.path):
            raise UsageError(
                f"-lcs {target} is one of the input files",
                remedy="name another file for the cache",
            )


def _too_short(ngram_min: int) -> InputTooShort:
    return InputTooShort(
        f"no document has the {ngram_min + 1} tokens of a {ngram_min}-gram and its follower, and "
        "llama.cpp's format has no file without n-grams",
        remedy="give a longer text" + (", or --ngram-min 1" if ngram_min > 1 else ""),
    )


def _table(record: dict[str, Any]) -> Table:
    rows: list[tuple[str, str] | None] = [("documents", number(record["n_documents"]))]
    if record["n_read"] is None:
        rows.append(("text", size(record["n_bytes"])))
    else:
        rows.append(("conversations read", number(record["n_read"])))
    if record["n_skipped"]:
        rows.append(("left out for faults", number(record["n_skipped"])))
    rows += [
        ("tokens", number(record["n_tokens"])),
        ("n-grams", number(record["n_ngrams"])),
        ("entries", number(record["n_entries"])),
        ("file size", size(record["file_bytes"])),
        None,
        ("load vocabulary", number(record["load_ms"], 0, " ms")),
        ("read, tokenize, count", number(record["tokenize_s"], 2, " s")),
        ("merge counts", number(record["count_s"], 2, " s")),
        ("write", number(record["write_s"], 2, " s")),
        ("compile kernels", number(record["compile_s"], 2, " s")),
        ("in all", number(record["total_s"], 2, " s")),
        ("peak memory", size(record["peak_rss_bytes"])),
        ("temporary files", size(record["spilled_bytes"])),
    ]
    return Table(f"{record['output']} ({record['format']})", (), rows)
