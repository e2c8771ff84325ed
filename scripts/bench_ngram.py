#!/usr/bin/env python3
"""Measure build, open, draft and replay of n-gram caches, beside llama.cpp's tools in the same run.

    scripts/bench_ngram.py --text REPLAY.txt [--corpus CORPUS.txt]... [--llama-bin DIR]

Needs the installed package. Each corpus is built by both in turn; the text is replayed in turn,
``--repeat`` times, and medians are shown with the least and the most. The work is checked: the
same n-grams and counts in both cache files, the same figures in every repeat, and llama.cpp's
accepted tokens to within 1 % (it settles ties otherwise). The last line is the record as JSON. See
BENCHMARKS.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import llama_lookup
import numpy as np
from draftsmith.engine.host import describe_host
from draftsmith.engine.models import resolve_model
from draftsmith.engine.tokens.tokenizer import Tokenizer, load_tokenizer
from draftsmith.ngram import DrafterSpec, SpecDrafter, parse_specs
from draftsmith.ngram.cache.file import open_cache
from draftsmith.ngram.cache.ngram_cache import NgramCache
from draftsmith.ngram.lookup.drafter import NgramDrafter
from draftsmith.ngram.lookup.replay import ReplayStats, replay

Figures = dict[str, list[float]]
Row = dict[str, object]
CALL_DRAFT = 8  # tokens that a timed call drafts at most
DRAFTSMITH = [sys.executable, "-m", "draftsmith.cli"]


def resident_bytes(path: Path) -> int | None:
    """Resident memory of a mapped file, from /proc; None where there is none (not Linux)."""
    try:
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:
        return None
    total, inside = 0, False
    for line in lines:
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def read_ids(tokenizer: Tokenizer, text: Path) -> np.ndarray:
    return tokenizer.encode(text.read_bytes().removesuffix(b"\n"))


def build(corpus: Path, model: Path, folder: Path, options: argparse.Namespace) -> Figures:
    """Build the cache with both tools: seconds, peak memory and file size."""
    figures: Figures = {}
    ours = folder / f"{corpus.name}.lcs"
    command = [*DRAFTSMITH, "lookup-create", "-m", model, "-f", corpus, "-lcs", ours, "--quiet"]
    if options.max_memory:
        command += ["--max-memory", options.max_memory]
    done = llama_lookup.run(command)
    if done.status:
        sys.exit(f"lookup-create failed: {done.stderr.strip().splitlines()[-1]}")
    figures["create_s"] = [done.wall_s]
    figures["create_peak_mb"] = [done.peak_bytes / 1e6]
    figures["file_mb"] = [ours.stat().st_size / 1e6]
    if options.llama_bin and corpus.stat().st_size <= options.llama_max_mb * 1e6:
        theirs = folder / f"{corpus.name}.bin"
        done = llama_lookup.create(options.llama_bin, model, corpus, theirs)
        figures["llama_create_s"] = [done.wall_s]
        figures["llama_create_peak_mb"] = [done.peak_bytes / 1e6]
        figures["llama_file_mb"] = [theirs.stat().st_size / 1e6]
        assert_same_counts(open_cache(ours), open_cache(theirs))
    return figures


def assert_same_counts(a: NgramCache, b: NgramCache) -> None:
    for order, table in a.tables.items():
        for name in ("tokens", "entry_start", "entry_token", "entry_count"):
            assert np.array_equal(getattr(table, name), getattr(b.tables[order], name)), name


def open_and_draft(cache: Path, tokenizer: Tokenizer, ids: np.ndarray, repeat: int) -> list[float]:
    """Milliseconds from the file's name to the first draft."""
    samples = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        opened = open_cache(cache, n_vocab=tokenizer.n_vocab, fingerprint=tokenizer.fingerprint)
        drafter = NgramDrafter(tokenizer.n_vocab, static=opened)
        drafter.accept(ids[:2])
        drafter.draft()
        samples.append(1e3 * (time.perf_counter() - start))
    return samples[1:]


def replays(
    ids: np.ndarray,
    tokenizer: Tokenizer,
    cache: Path | None,
    theirs: Callable[[], llama_lookup.LookupStats] | None,
    options: argparse.Namespace,
) -> Figures:
    """Replay in turn with llama.cpp, and check that the work was the same each time."""
    figures: Figures = {}
    static: NgramCache | None = None
    if cache is not None:
        static = open_cache(cache, n_vocab=tokenizer.n_vocab, fingerprint=tokenizer.fingerprint)
    first: ReplayStats | None = None
    for _ in range(options.repeat + 1):
        stats = replay(
            ids,
            n_ctx=options.ctx_size,
            draft_max=options.draft_max,
            n_vocab=tokenizer.n_vocab,
            static=static,
        )
        if first is None:  # warm-up: pages and caches
            first = stats
            continue
        assert (stats.n_drafted, stats.n_accepted) == (first.n_drafted, first.n_accepted)
        add(figures, "draft_us_per_token", stats.draft_us_per_token)
        add(figures, "merge_ms", stats.merge_ns / 1e6)
        if theirs is not None:
            llama = theirs()
            assert abs(llama.n_accept - stats.n_accepted) <= 0.01 * llama.n_accept, llama
            add(figures, "llama_draft_us_per_token", 1e3 * llama.t_draft_ms / llama.n_drafted)
            add(figures, "llama_load_ms", llama.t_draft_flat_ms)
    assert first is not None
    add(figures, "n_drafted", first.n_drafted)
    add(figures, "n_accept", first.n_accepted)
    if cache is not None:
        resident = resident_bytes(cache)
        if resident is not None:
            add(figures, "cache_resident_mb", resident / 1e6)
    return figures


def add(figures: Figures, name: str, value: float | None) -> None:
    if value is not None:
        figures.setdefault(name, []).append(value)


def call_latency(
    make: Callable[[int], NgramDrafter | SpecDrafter], ids: np.ndarray, n_context: int
) -> Figures:
    """Microseconds of single draft() and accept() calls from Python after ``n_context`` tokens.

    ``make`` returns a drafter with room for so many tokens.
    """
    text = np.resize(ids, n_context + 4000)
    drafter = make(text.size)
    drafter.accept(text[:n_context])
    figures: Figures = {}
    for i in range(n_context, text.size):
        start = time.perf_counter_ns()
        drafter.draft()
        middle = time.perf_counter_ns()
        drafter.accept(text[i : i + 1])
        stop = time.perf_counter_ns()
        add(figures, f"draft_call_us_{n_context}", (middle - start) / 1e3)
        add(figures, f"accept_call_us_{n_context}", (stop - middle) / 1e3)
    return figures


def all_calls(options: argparse.Namespace, ids: np.ndarray, n_vocab: int) -> Iterator[Row]:
    """Yield the row of calls from Python of each drafter that is asked for."""

    def ours(n_tokens: int) -> NgramDrafter:
        return NgramDrafter(n_vocab, draft_max=CALL_DRAFT, n_tokens=n_tokens)

    makers: dict[str, Callable[[int], NgramDrafter | SpecDrafter]] = {"": ours}
    for text in options.drafter:
        for spec in parse_specs(text):
            makers[f" of {spec}"] = partial(spec_drafter, n_vocab, spec)
    for name, make in makers.items():
        calls = call_latency(make, ids, 4096) | call_latency(make, ids, 131072)
        yield row(f"calls from Python{name}", calls)


def spec_drafter(n_vocab: int, spec: DrafterSpec, n_tokens: int) -> SpecDrafter:
    return SpecDrafter(n_vocab, spec, draft_max=CALL_DRAFT, n_tokens=n_tokens)


def row(name: str, figures: Figures) -> Row:
    return {
        "case": name,
        **{
            key: {
                "median": statistics.median(values),
                "min": min(values),
                "max": max(values),
                "p99": float(np.percentile(values, 99)),
                "n": len(values),
            }
            for key, values in figures.items()
        },
    }


def show(rows: list[Row]) -> None:
    for found in rows:
        print(f"\n{found['case']}")
        medians = {}
        for key, value in found.items():
            if isinstance(value, dict):
                medians[key] = value["median"]
                # A single call may meet the scheduler: of many, not the most but the 99th of 100.
                most = value["p99"] if value["n"] > 100 else value["max"]
                spread = f"  ({value['min']:.4g} to {most:.4g})" if value["n"] > 1 else ""
                print(f"  {key:28} {value['median']:12.4f}{spread}")
        for key, value in medians.items():
            if f"llama_{key}" in medians:
                print(f"  ratio of {key:19} {medians[f'llama_{key}'] / value:12.2f}x")


def commit() -> str:
    done = subprocess.run(
        ["git", "-C", Path(__file__).parent, "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="the text to replay")
    parser.add_argument("--corpus", type=Path, action="append", default=[])
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("-c", "--ctx-size", type=int, default=4096)
    parser.add_argument("--draft-max", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument(
        "--drafter",
        action="append",
        default=[],
        metavar="NAME[:KEY=VALUE,...]",
        help="time calls of this one from Python, too; may be given many times",
    )
    parser.add_argument("--max-memory", help="for lookup-create")
    parser.add_argument("--llama-bin", type=Path, help="folder of llama.cpp's lookup tools")
    parser.add_argument(
        "--llama-max-mb", type=float, default=250, help="larger corpora are not given to llama.cpp"
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    model = resolve_model(options.model)
    tokenizer = load_tokenizer(model)
    ids = read_ids(tokenizer, options.text)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for corpus in (None, *options.corpus):
            figures: Figures = {}
            cache = theirs = None
            if corpus is not None:
                figures |= build(corpus, model, folder, options)
                cache = folder / f"{corpus.name}.lcs"
                figures["open_and_draft_ms"] = open_and_draft(cache, tokenizer, ids, options.repeat)
            if options.llama_bin and (corpus is None or "llama_create_s" in figures):
                llama_cache = None if corpus is None else folder / f"{corpus.name}.bin"

                def theirs(llama_cache: Path | None = llama_cache) -> llama_lookup.LookupStats:
                    return llama_lookup.stats(
                        options.llama_bin,
                        model,
                        options.text,
                        llama_cache,
                        n_ctx=options.ctx_size,
                        draft_max=options.draft_max,
                    )[0]

            figures |= replays(ids, tokenizer, cache, theirs, options)
            rows.append(row(corpus.name if corpus else "no static cache", figures))
            show(rows[-1:])
    for calls in all_calls(options, ids, tokenizer.n_vocab):
        rows.append(calls)
        show(rows[-1:])
    record = {
        "commit": commit(),
        "command": sys.argv,
        "host": dataclasses.asdict(describe_host()),
        "n_tokens": int(ids.size),
        "rows": rows,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
