#!/usr/bin/env python3
"""Measure prefill, decode, batches, loading and memory of the engine, beside llama-bench.

    scripts/bench_engine.py [-m MODEL] [--text TEXT] [--llama-bin DIR]

Needs the installed package. llama-bench and ours take turns, ``--repeat`` times, with the same GGUF
and as many threads; medians are shown with the least and the most. Our prefill is checked in the
run: a prompt in pieces gives the same logits. The last line is the record as JSON. See
BENCHMARKS.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import llama_lookup
import numpy as np
from arguments import thread_count
from bench_ngram import Figures, add, commit
from draftsmith.engine.host import describe_host, n_physical_cores
from draftsmith.engine.models import resolve_model
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from draftsmith.engine.transformer.model import Model, load_model

BATCHES = (1, 2, 4, 8, 16)
# What a process of its own does from its start to the first token of a 10-token prompt.
FIRST_TOKEN = """
import json, sys, time
start = time.perf_counter()
from draftsmith.engine.host import peak_rss_bytes
from draftsmith.engine.transformer.model import load_model
imported = time.perf_counter()
model = load_model(sys.argv[1], n_threads=int(sys.argv[2]))
loaded = time.perf_counter()
n = int(sys.argv[3])
ids = [(7 * i) % 1000 + 20 for i in range(n)]
model.forward(ids, model.new_cache(n + 16)).logits.argmax()
stop = time.perf_counter()
print(json.dumps({
    "import_ms": 1e3 * (imported - start), "load_ms": 1e3 * (loaded - imported),
    "load_and_first_token_ms": 1e3 * (stop - imported), "peak_mb": peak_rss_bytes() / 1e6,
}))
"""


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def prefill(model: Model, ids: np.ndarray) -> float:
    """Tokens a second of a prompt evaluated at once."""
    cache = model.new_cache(ids.size)
    return ids.size / timed(lambda: model.forward(ids, cache))


def decode(model: Model, ids: np.ndarray, n_steps: int) -> float:
    """Tokens a second of single steps after ``ids``."""
    cache = model.new_cache(ids.size + n_steps + 1)
    token = int(model.forward(ids, cache).logits[0].argmax())

    def steps() -> None:
        nonlocal token
        for _ in range(n_steps):
            token = int(model.forward([token], cache).logits[0].argmax())

    return n_steps / timed(steps)


def batch_ms(model: Model, ids: np.ndarray, n: int, n_times: int) -> float:
    """Milliseconds, median, of a pass of n tokens with logits of all after 64 tokens."""
    cache = model.new_cache(64 + n)
    model.forward(ids[:64], cache)
    samples = []
    for _ in range(n_times):
        samples.append(timed(lambda: model.forward(ids[64 : 64 + n], cache, rows="all")))
        cache.truncate(64)
    return 1e3 * statistics.median(samples)


def assert_same_in_pieces(model: Model, ids: np.ndarray) -> None:
    whole = model.forward(ids, model.new_cache(ids.size)).logits
    cache = model.new_cache(ids.size)
    for start in range(0, ids.size, 100):
        pieces = model.forward(ids[start : start + 100], cache).logits
    assert np.array_equal(whole, pieces), "a prompt in pieces gives other logits"


def llama_bench(folder: Path, model: Path, n_threads: int, *arguments: str) -> list[dict]:
    """The rows of one llama-bench process, one test each, one repetition after its warm-up."""
    command = [folder / "llama-bench", "-m", model, "-t", str(n_threads), "-r", "1", "-o", "json"]
    done = llama_lookup.run([*command, *arguments])
    if done.status:
        sys.exit(f"llama-bench failed: {done.stderr.strip().splitlines()[-1]}")
    return [{**row, "peak_mb": done.peak_bytes / 1e6} for row in json.loads(done.stdout)]


def ceilings(n_threads: int) -> dict[str, float]:
    """What the machine can do: GFLOP/s of NumPy's float32 products, GB/s of reading memory."""
    a = np.ones((2048, 2048), np.float32)
    a @ a
    flops = max(2 * 2048**3 / timed(lambda: a @ a) for _ in range(5))
    big = np.ones(1 << 27, np.float32)
    parts = np.array_split(big, n_threads)

    def read() -> None:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(n_threads) as pool:
            list(pool.map(np.max, parts))

    return {
        "float32_gflops": flops / 1e9,
        "read_gb_per_s": max(big.nbytes / timed(read) for _ in range(5)) / 1e9,
    }


def first_token(model: Path, n_threads: int, n_tokens: int = 10) -> dict[str, float]:
    """Loading and first token in a new process, kernels compiled before."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_TOKEN, str(model), str(n_threads), str(n_tokens)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def measure(options: argparse.Namespace, model_path: Path) -> Figures:
    """All figures, llama.cpp's and ours in turn."""
    n_threads, folder = options.threads, options.llama_bin
    ids = load_tokenizer(model_path).encode(options.text.read_bytes())
    ids = np.resize(ids, max([*options.prefill, *options.depths]) + 64)
    figures: Figures = {}
    model = load_model(model_path, n_threads=n_threads)
    assert_same_in_pieces(model, ids[:700])  # the warm-up too
    for _ in range(options.repeat):
        for n in options.prefill:
            add(figures, f"prefill_{n}", prefill(model, ids[:n]))
            if folder:
                (row,) = llama_bench(folder, model_path, n_threads, "-p", str(n), "-n", "0")
                add(figures, f"llama_prefill_{n}", row["avg_ts"])
                add(figures, "llama_peak_mb", row["peak_mb"])
        for depth in options.depths:
            add(figures, f"decode_{depth}", decode(model, ids[: max(depth, 1)], options.steps))
            if folder:
                (row,) = llama_bench(
                    folder, model_path, n_threads, "-p", "0", "-n", str(options.steps), "-d",
                    str(depth),
                )  # fmt: skip
                add(figures, f"llama_decode_{depth}", row["avg_ts"])
        for n in BATCHES:
            add(figures, f"batch_{n}_ms", batch_ms(model, ids, n, 30))
            if folder:
                (row,) = llama_bench(folder, model_path, n_threads, "-p", str(n), "-n", "0")
                add(figures, f"llama_batch_{n}_ms", 1e3 * n / row["avg_ts"])
        for key, value in first_token(model_path, n_threads).items():
            add(figures, key, value)
        if folder:
            command = [folder / "llama-bench", "-m", model_path, "-t", str(n_threads), "-r", "1"]
            done = llama_lookup.run([*command, "-p", "10", "-n", "0", "--no-warmup"])
            add(figures, "llama_load_and_first_token_ms", 1e3 * done.wall_s)
    longest = max(options.prefill)
    add(figures, f"peak_mb_of_{longest}", first_token(model_path, n_threads, longest)["peak_mb"])
    model.close()
    return figures


def show(figures: Figures, limits: dict[str, float]) -> None:
    """Our figures, llama.cpp's and the ratio, of speed or of time as the name says."""
    print(f"\n{'':28}{'here':>12}{'llama.cpp':>26}{'ratio':>8}")
    for key, values in figures.items():
        if key.startswith("llama_"):
            continue
        mine = statistics.median(values)
        text = f"{key:28}{mine:10.2f} ({min(values):.2f} to {max(values):.2f})"
        theirs = figures.get(f"llama_{key}")
        if theirs:
            other = statistics.median(theirs)
            slower = key.endswith("_ms")
            text += f"   {other:10.2f} ({min(theirs):.2f} to {max(theirs):.2f})"
            text += f"{other / mine if slower else mine / other:8.2f}x"
        print(text)
    single = statistics.median(figures["batch_1_ms"])
    for n in BATCHES[1:]:
        print(
            f"batch of {n} against 1: {statistics.median(figures[f'batch_{n}_ms']) / single:.2f}x"
        )
    print({key: round(value, 1) for key, value in limits.items()})


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = Path(__file__).resolve().parent.parent
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument(
        "--text", type=Path, default=root / "tests/golden/sqlite_train.txt", help="prompts' text"
    )
    parser.add_argument("--prefill", type=numbers, default=[128, 512, 2048, 8192])
    parser.add_argument("--depths", type=numbers, default=[0, 512, 2048])
    parser.add_argument("--steps", type=int, default=64, help="tokens decoded at each depth")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("-t", "--threads", type=thread_count, default=n_physical_cores())
    parser.add_argument("--llama-bin", type=Path, help="folder of llama-bench")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    limits = ceilings(options.threads)
    model = resolve_model(options.model)
    figures = measure(options, model)
    show(figures, limits)
    record = {
        "commit": commit(),
        "command": sys.argv,
        "host": dataclasses.asdict(describe_host()),
        "threads": options.threads,
        "ceilings": limits,
        "figures": figures,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
