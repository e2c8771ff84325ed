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
import sys
from pathlib import Path

import llama_lookup
from bench_ngram import DRAFTSMITH, commit

HERE = Path(__file__).resolve().parent


def compare(prompt: str, options: argparse.Namespace) -> dict:
    """The record of one comparison."""
    command = [*DRAFTSMITH, "lookup-run", "-m", options.model, "-p", prompt, "--chat", "--compare"]
    command += ["--json", "--temp", "0", "-c", "2048", "-n", str(options.predict)]
    command += ["--repeat", str(options.repeat), *options.more]
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
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--prompts", type=Path, default=HERE / "prompts.jsonl")
    parser.add_argument("-n", "--predict", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("more", nargs="*", help="behind --: options of lookup-run")
    options = parser.parse_args()
    prompts = [json.loads(line) for line in options.prompts.read_text().splitlines()]
    print("| kind | prompt | text | plain t/s | draft t/s | ratio | accepted | same text |")
    print("|---|---|---|---|---|---|---|---|")
    records = []
    for prompt in prompts:
        record = compare(prompt["prompt"], options)
        print(row(prompt["kind"], record), flush=True)
        records.append({"kind": prompt["kind"], **record})
    print(json.dumps({"commit": commit(), "command": sys.argv, "rows": records}))


if __name__ == "__main__":
    main()
