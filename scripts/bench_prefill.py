#!/usr/bin/env python3
"""What speculative prefill wins to the first token: against a prefill in full, and llama.cpp's.

    scripts/bench_prefill.py [-m MODEL] [--text TEXT] [--lengths N,...] [--llama-bin DIR]

Needs the installed package. Each length and scorer is a prefill-run of its own: the part that is
kept and the whole prompt take turns in one process, warmed up, ``--repeat`` times each; llama-bench
reads as many tokens with as many threads before and after. A prompt that does not fit into the
model's context has no prefill in full. What follows ``--`` goes to prefill-run. The table is
Markdown, the last line the record as JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from pathlib import Path

import llama_lookup
from arguments import thread_count
from bench_engine import llama_bench, numbers
from bench_ngram import DRAFTSMITH, commit
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.host import describe_host, n_physical_cores
from draftsmith.engine.models import resolve_model
from draftsmith.engine.tokens.tokenizer import Tokenizer, load_tokenizer
from draftsmith.prefill.needles.niah import bundled_text

QUESTION = "Who was the father of Solomon?"
AROUND = 96  # tokens at most of question, template and the first of the answer
COLUMNS = ("tokens", "scorer", "read", "first token, ms", "in full, ms", "ratio")


def document(text: bytes, tokenizer: Tokenizer, n_tokens: int) -> str:
    """The beginning of a text, repeated if it is short, of at most so many tokens."""
    ids = tokenizer.encode(text)
    text *= -(-n_tokens // ids.size)
    low, high = 0, len(text)
    while high - low > 16:
        middle = (low + high) // 2
        if tokenizer.encode(text[:middle]).size <= n_tokens:
            low = middle
        else:
            high = middle
    return text[:low].decode(errors="ignore")


def prefill(options: argparse.Namespace, scorer: str, file: Path, *more: str) -> dict:
    """The record of one prefill-run."""
    command = [*DRAFTSMITH, "prefill-run", "-m", options.model, "-f", file, "-p", QUESTION]
    command += ["--keep", str(options.keep), "--scorer", scorer, "-n", "1", "--temp", "0", "--json"]
    done = llama_lookup.run([*command, "-t", str(options.threads), *more, *options.more])
    if done.status:
        sys.exit(f"prefill-run failed: {done.stderr.strip().splitlines()[-1]}")
    record = json.loads(done.stdout)
    if record["refused"]:
        sys.exit(f"the prompt was read in full: {record['refused_reason']}")
    return record


def measure(options: argparse.Namespace, scorer: str, file: Path, fits: bool) -> dict:
    """Times to the first token, in milliseconds, of what is kept and in full."""
    if fits:
        record = prefill(options, scorer, file, "--compare", "--repeat", str(options.repeat))
        return {
            "record": record,
            "ttft": record["ttft_samples_ms"],
            "full": record["ttft_full_samples_ms"],
        }
    records = [prefill(options, scorer, file) for _ in range(options.repeat)]
    return {"record": records[0], "ttft": [one["ttft_ms"] for one in records], "full": []}


def llama_ms(options: argparse.Namespace, model: Path, n_tokens: int) -> list[float]:
    """Milliseconds of llama.cpp's prefill; none where it is not there."""
    if not options.llama_bin:
        return []
    arguments = ("-p", str(n_tokens), "-n", "0")
    (row,) = llama_bench(options.llama_bin, model, options.threads, *arguments)
    return [1e3 * n_tokens / row["avg_ts"]]


def span(values: list[float]) -> str:
    if not values:
        return "-"
    text = f"{statistics.median(values):,.0f}"
    return text if len(values) == 1 else f"{text} ({min(values):,.0f} to {max(values):,.0f})"


def over(values: list[float], base: list[float]) -> str:
    return f"**{statistics.median(values) / statistics.median(base):.1f}**" if values else "-"


def row(found: dict) -> str:
    record = found["record"]
    cells = [f"{record['n_prompt']:,}", record["scorer"], f"{record['n_kept']:,}"]
    cells += [span(found["ttft"]), span(found["full"]), over(found["full"], found["ttft"])]
    cells += [span(found["llama"]), over(found["llama"], found["ttft"])]
    return "| " + " | ".join(cells) + " |"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--text", type=Path, help="default: verses of the King James Bible")
    parser.add_argument("--lengths", type=numbers, default=[2048, 4096, 8192, 32768])
    parser.add_argument("--scorers", default="lexical,trained,fused")
    parser.add_argument("--keep", type=float, default=0.1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("-t", "--threads", type=thread_count, default=n_physical_cores())
    parser.add_argument("--llama-bin", type=Path, help="folder of llama-bench")
    parser.add_argument("more", nargs="*", help="after --: options of prefill-run")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    model = resolve_model(options.model)
    metadata = read_metadata(model)
    tokenizer = load_tokenizer(model, metadata)
    n_ctx = metadata.values[f"{metadata.values['general.architecture']}.context_length"]
    text = options.text.read_bytes() if options.text else bundled_text().encode()
    print("| " + " | ".join((*COLUMNS, "llama.cpp, ms", "ratio")) + " |")
    print("|" + "---|" * (len(COLUMNS) + 2))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for length in options.lengths:
            file = Path(folder) / f"{length}.txt"
            file.write_text(document(text, tokenizer, length - AROUND))
            fits = length <= n_ctx
            llama = llama_ms(options, model, length) if fits else []
            those = [measure(options, one, file, fits) for one in options.scorers.split(",")]
            llama += llama_ms(options, model, length) if fits else []
            for found in those:
                found["llama"] = llama
                print(row(found), flush=True)
                rows.append({"length": length, **found})
    host = dataclasses.asdict(describe_host())
    print(json.dumps({"commit": commit(), "command": sys.argv, "host": host, "rows": rows}))


if __name__ == "__main__":
    main()
