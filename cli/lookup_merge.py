"""``draftsmith lookup-merge``: sum the counts of n-gram caches into one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import typer

from ..engine.errors import UsageError
from . import options
from .formats import number, size
from .output import Output, Table


def command(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="IN... OUT", help="Caches to sum, in either format; OUT comes last."
        ),
    ],
    format: options.Format = options.CacheFormat.NATIVE,
    json: options.Json = False,
    csv: options.Csv = False,
    no_header: options.NoHeader = False,
    quiet: options.Quiet = False,
) -> Callable[[], None]:
    """Sum n-gram caches into one.

    They have to be of one vocabulary. With a single IN this converts between the formats.
    """
    out = Output.from_options(json=json, csv=csv, no_header=no_header, quiet=quiet)
    if len(files) < 2:
        raise UsageError(
            f"only {files[0]} is named", remedy="name the caches to sum, then the file to write"
        )
    return partial(merge, files[:-1], files[-1], format.value, out)


def merge(
    sources: Sequence[str], target: str, format: Literal["native", "llama.cpp"], out: Output
) -> None:
    """Do what the command says and print the result."""
    start_ns = time.perf_counter_ns()
    from ..engine.atomic_file import check_writable
    from ..engine.jit import CompileWatch
    from ..engine.stages import Stages
    from ..ngram.cache.file import open_cache, write_cache
    from ..ngram.cache.ngram_cache import merge_caches
    from .inputs import COMPILE_NOTE, closing_keys, describe_files

    check_writable(target)
    with CompileWatch(on_first=lambda: out.note(COMPILE_NOTE)) as watch:
        stages = Stages(watch)
        with stages.stage("load"):
            caches = [open_cache(path) for path in sources]
        inputs = describe_files(sources)  # before OUT is written: it may be one of them
        with stages.stage("merge"):
            merged = merge_caches(caches)
        with stages.stage("write"):
            file_bytes = write_cache(target, merged, format=format)
    if any(not cache.fingerprint for cache in caches) and len(sources) > 1:
        out.note("llama.cpp's files do not name their vocabulary: that it is the same is your word")
    record: dict[str, Any] = {
        "command": "lookup-merge",
        "output": target,
        "format": format,
        "n_caches": len(caches),
        "n_ngrams": merged.n_ngrams,
        "n_entries": merged.n_entries,
        "n_vocab": merged.n_vocab or None,
        "file_bytes": file_bytes,
        "load_ms": stages.seconds("load") * 1e3,
        "merge_ms": stages.seconds("merge") * 1e3,
        "write_s": stages.seconds("write"),
        "total_s": (time.perf_counter_ns() - start_ns) / 1e9,
    }
    record |= closing_keys({}, inputs, watch.seconds)
    each = [
        (path, number(cache.n_ngrams), number(cache.n_entries), size(file["bytes"]))
        for path, cache, file in zip(sources, caches, inputs, strict=True)
    ]
    total = (target, number(merged.n_ngrams), number(merged.n_entries), size(file_bytes))
    columns = ("cache", "n-grams", "entries", "file size")
    out.result(record, [Table("merged", columns, [*each, None, total])])
