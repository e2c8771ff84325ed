#!/usr/bin/env python3
"""What the n-gram drafter wins on prompts of several kinds: lookup-run --compare for each of them.

    scripts/bench_prompts.py [-m MODEL] [--prompts FILE.jsonl] [-- LOOKUP-RUN OPTION...]

Needs the installed package. A line of the file is an object with ``kind`` and ``prompt``. What
follows ``--`` goes to lookup-run, for example ``-- -lcs CACHE --draft-max 16``. The table is
Markdown, the last line the record as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import llama_lookup
import numpy as np
from bench_ngram import DRAFTSMITH, commit
from draftsmith.engine.chat.template import ChatTemplate
from draftsmith.engine.gguf.file import GgufMetadata
from draftsmith.engine.tokens.tokenizer import Tokenizer

HERE = Path(__file__).resolve().parent
PROMPTS = HERE / "prompts.jsonl"


def add_options(parser: argparse.ArgumentParser, predict: int, repeat: int) -> None:
    """Add what is generated after which prompts, and how much and how often by default."""
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("-n", "--predict", type=int, default=predict)
    parser.add_argument("--repeat", type=int, default=repeat)


def read_prompts(path: Path) -> list[dict[str, str]]:
    """Objects with ``kind`` and ``prompt``."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def chat_ids(prompt: str, metadata: GgufMetadata, tokenizer: Tokenizer) -> np.ndarray:
    """A prompt in the model's chat template, as lookup-run --chat has it: int32 [n]."""
    template = ChatTemplate.of(metadata, tokenizer.vocabulary)
    return template.encode(template.render([{"role": "user", "content": prompt}]), tokenizer)


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Median (least to most)."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def compare(prompt: str, options: argparse.Namespace, more: Sequence[str]) -> dict:
    """The record of one comparison; ``more`` are options of lookup-run."""
    command = [*DRAFTSMITH, "lookup-run", "-m", options.model, "-p", prompt, "--chat", "--compare"]
    command += ["--json", "--temp", "0", "-c", "2048", "-n", str(options.predict)]
    command += ["--repeat", str(options.repeat), *more]
    done = llama_lookup.run(command)
    if done.status:
        sys.exit(f"lookup-run failed: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


def row(kind: str, record: dict) -> str:
    samples = record["ratio_samples"]
    accept = record["accept_percent"]
    cells = (
        kind,
        record["n_input"],
        record["n_predict"],
        f"{record['plain_tokens_per_s']:.0f}",
        f"{record['draft_tokens_per_s']:.0f}",
        f"**{record['ratio']:.2f}** ({min(samples):.2f} to {max(samples):.2f})",
        "-" if accept is None else f"{accept:.0f} %",
        "yes" if record["identical"] else "NO",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, predict=256, repeat=3)
    parser.add_argument("more", nargs="*", help="after --: options of lookup-run")
    options = parser.parse_args()
    print("| kind | prompt | text | plain t/s | draft t/s | ratio | accepted | same text |")
    print("|---|---|---|---|---|---|---|---|")
    records = []
    for prompt in read_prompts(options.prompts):
        record = compare(prompt["prompt"], options, options.more)
        print(row(prompt["kind"], record), flush=True)
        records.append({"kind": prompt["kind"], **record})
    print(json.dumps({"commit": commit(), "command": sys.argv, "rows": records}))


if __name__ == "__main__":
    main()
