#!/usr/bin/env python3
"""Let a model write the training data of an MTP head: texts, with its hidden states.

    scripts/make_mtp_data.py -o FOLDER --text FILE... [-m MODEL] [--tokens N] [--seed S]

Shards appear one by one in the folder, and a later call goes on where an earlier one stopped. Two
processes with different seeds may fill one folder; each does best with ``-t 1``.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

from arguments import thread_count
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.models import resolve_model
from draftsmith.engine.tokens.stop_tokens import eog_ids
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from draftsmith.engine.transformer.model import load_model
from mtp_prompts import Prompts
from mtp_streams import write_shard


class Progress:
    """One line that says how far a shard is: rewritten in a terminal, else printed at its end."""

    def __init__(self, name: str, n_tokens: int, n_after: int) -> None:
        self._name, self._n_tokens, self._n_after = name, n_tokens, n_after
        self._n_done = 0
        self._started = time.perf_counter()
        self._told = -math.inf

    def add(self, n: int) -> None:
        self._n_done += n
        now = time.perf_counter()
        if sys.stdout.isatty() and now - self._told > 1:
            self._told = now
            print(f"\r{self._line()} ", end="", flush=True)

    def finish(self) -> None:
        print(f"\r{self._line()} " if sys.stdout.isatty() else self._line(), flush=True)

    def _line(self) -> str:
        rate = self._n_done / (time.perf_counter() - self._started)
        left = (self._n_tokens - self._n_done + self._n_after) / rate / 60
        return f"{self._name}: {self._n_done} tokens, {rate:.0f} a second, {left:.0f} minutes left"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=2_000_000, help="of this seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="to ask about")
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--features", type=int, nargs="*", default=[10, 20], help="layers")
    parser.add_argument("-t", "--threads", type=thread_count, default=1)
    options = parser.parse_args()
    path = resolve_model(options.model)
    metadata = read_metadata(path)
    tokenizer = load_tokenizer(path, metadata)
    model = load_model(path, metadata, n_threads=options.threads)
    stop = eog_ids(metadata, tokenizer.vocabulary)
    n_shards = -(-options.tokens // (options.rows * options.length))
    for i in range(n_shards):
        shard = options.output / f"{options.seed:03d}-{i:04d}"
        if shard.exists():
            continue
        # each shard has a seed of its own: a folder made in two sittings equals one made in one
        seed = 100_000 * options.seed + i
        prompts = Prompts(tokenizer.encode, options.text, seed)
        left = (n_shards - i - 1) * options.rows * options.length
        show = Progress(shard.name, options.rows * options.length, left)
        write_shard(
            shard, model, prompts, stop, n_rows=options.rows, length=options.length,
            feature_layers=options.features, seed=seed, on_step=show.add,
        )  # fmt: skip
        show.finish()


if __name__ == "__main__":
    main()
