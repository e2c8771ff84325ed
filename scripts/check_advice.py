#!/usr/bin/env python3
"""What lookup-stats --advise predicts, against what lookup-run measures, by prompt and drafter.

    scripts/check_advice.py [-m MODEL] [--prompts FILE.jsonl] [--drafter SPEC]... [--json]

Needs the installed package. A line of the file is an object with ``kind`` and ``prompt``. For each
prompt and drafter lookup-run --compare generates with and without drafts in turns, in one process,
and times passes of several sizes; --draft-fixed, for a replay knows no times that it could shorten
drafts by. What was generated is then replayed, and its speed predicted from those passes. The work
is checked: the same text with drafts and without, and in the replay the same drafts as in the run,
position by position. What a round took and was to take tells where a difference comes from. The
table is Markdown, the last line the record as JSON; ``--json``: that alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from bench_ngram import commit
from bench_prompts import add_options, chat_ids, compare, read_prompts, spread
from draftsmith.engine.errors import UsageError
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.host import describe_host
from draftsmith.engine.models import resolve_model
from draftsmith.engine.tokens.stop_tokens import eog_ids
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from draftsmith.ngram.advice.advise import Speeds, work_of
from draftsmith.ngram.advice.curve_files import read_curve
from draftsmith.ngram.advice.step_curve import StepCurve
from draftsmith.ngram.conversations.conversation import Conversation, ReplayTexts
from draftsmith.ngram.drafters.replay import SpecStats, replay_texts
from draftsmith.ngram.drafters.settings import DrafterSpec, parse_specs

# They draft on every text, and pay on some.
DRAFTERS = ("ngram-cache", "prompt-lookup", "suffix")
CLOSE_PERCENT = 10
REPLAYS = 5


class OtherWork(Exception):
    """A run and its replay, or its texts, that should be the same and are not."""


def text_of(record: dict[str, Any], prompt: np.ndarray) -> ReplayTexts:
    """What a run generated after its prompt, int32 [n], as a conversation of one turn."""
    if record["n_input"] != prompt.size:
        raise OtherWork(f"a prompt of {record['n_input']} tokens, and one of {prompt.size}")
    tokens = np.append(prompt, record["tokens"]).astype(np.int32)
    turns = np.array([[prompt.size, tokens.size]], np.int64)
    return ReplayTexts.of([Conversation(tokens, turns, np.zeros(1, np.int64))])


def assert_same_work(record: dict[str, Any], stats: SpecStats) -> None:
    """Compare a run with the replay of its text, number for number.

    A token that ends the text and was drafted, with more after it, is accepted in a run; a replay
    counts it as sampled, as llama-server does. That is the only number that may differ.
    """
    if not record["identical"]:
        raise OtherWork("the text with drafts is not the one without")
    accepted = np.zeros(stats.drafted_at.size, np.int64)
    accepted[: len(record["accepted_by_position"])] = record["accepted_by_position"]
    accepted -= stats.accepted_at
    n_ending = int(record["stop_reason"] == "eog")
    if (
        record["n_rounds"] != stats.n_rounds
        or record["drafted_by_position"] != stats.drafted_at.tolist()
        or accepted.min() < 0
        or accepted.sum() > n_ending
    ):
        ran = [record[key] for key in ("n_rounds", "n_drafted", "n_accept")]
        raise OtherWork(
            f"{ran} rounds, drafted and accepted tokens in the run, and "
            f"{[stats.n_rounds, stats.n_drafted, stats.n_accepted]} in the replay"
        )


def curve_of(record: dict[str, Any]) -> StepCurve:
    """The curve that --cost reads from the record."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        path.write_text(json.dumps(record))
        return read_curve(str(path))


def predict(stats: SpecStats, curve: StepCurve, draft_ns: float) -> tuple[float, float]:
    """(Speed by that of plain decoding, milliseconds of decoding) as --advise predicts them."""
    n_decoded = stats.by_row[:, 1] - stats.by_row[:, 0]
    work = work_of(stats.batches, n_decoded, curve, draft_ns)
    return float(Speeds([work], curve).ratios[0]), float(work.cost.sum())


def row_of(
    record: dict[str, Any], prompt: np.ndarray, spec: DrafterSpec, **limits: Any
) -> dict[str, Any]:
    """A run beside the prediction for it.

    Parameters
    ----------
    record : of lookup-run --compare --draft-fixed
    prompt : int32 [n]
    limits : n_vocab, n_predict and ends of ``replay_texts``
    """
    texts = text_of(record, prompt)
    replays = [replay_texts(texts, spec, **limits) for _ in range(REPLAYS)]
    stats = replays[0]
    assert_same_work(record, stats)
    draft_ns = statistics.median(replay.draft_ns for replay in replays)
    curve = curve_of(record)
    ratio, predicted_ms = predict(stats, curve, draft_ns)
    return {
        "drafter": str(spec),
        "n_prompt": int(prompt.size),
        "n_text": len(record["tokens"]),
        "n_rounds": stats.n_rounds,
        "n_drafted": record["n_drafted"],
        "n_accept": record["n_accept"],
        "rounds_by_batch": stats.batches.sum(axis=0).tolist(),
        "predicted_ratio": ratio,
        "ratio": record["ratio"],
        "ratio_samples": record["ratio_samples"],
        "difference_percent": 100 * (ratio / record["ratio"] - 1),
        "predicted_decode_ms": predicted_ms,
        "decode_ms": record["decode_ms"],
        "predicted_draft_ms": draft_ns / 1e6,
        "draft_ms": record["t_draft_ms"],
        "cost_ms": curve.points(),
    }


def cells_of(row: dict[str, Any]) -> str:
    n_rounds = max(1, row["n_rounds"])
    cells = (
        row["kind"],
        f"`{row['drafter']}`",
        row["n_prompt"],
        row["n_text"],
        f"{row['n_accept']} of {row['n_drafted']}",
        f"{row['predicted_ratio']:.2f}",
        spread(row["ratio_samples"]),
        f"{row['difference_percent']:+.1f} %",
        f"{row['predicted_decode_ms'] / n_rounds:.2f}",
        f"{row['decode_ms'] / n_rounds:.2f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


HEAD = (
    "| kind | drafter | prompt | text | accepted | predicted | measured | difference | "
    "round, ms, predicted | measured |\n|---|---|---|---|---|---|---|---|---|---|"
)


def single(text: str) -> DrafterSpec:
    """The setting that --drafter names, as lookup-run takes it."""
    try:
        specs = parse_specs(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if len(specs) > 1:
        raise argparse.ArgumentTypeError(f"{text} stands for {len(specs)} settings; name one")
    return specs[0]


def rows_of(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows, each printed as it is there."""
    path = resolve_model(options.model)
    metadata = read_metadata(path)
    tokenizer = load_tokenizer(path, metadata)
    ends = sorted(eog_ids(metadata, tokenizer.vocabulary))
    limits = {"n_vocab": tokenizer.n_vocab, "n_predict": options.predict, "ends": ends}
    rows = []
    for prompt in read_prompts(options.prompts):
        ids = chat_ids(prompt["prompt"], metadata, tokenizer)
        for spec in options.drafter or map(single, DRAFTERS):
            record = compare(prompt["prompt"], options, ["--drafter", str(spec), "--draft-fixed"])
            try:
                row = row_of(record, ids, spec, **limits)
            except OtherWork as error:
                sys.exit(f"{prompt['kind']}, {spec}: {error}")
            rows.append({"kind": prompt["kind"], **row})
            if not options.json:
                print(cells_of(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, predict=96, repeat=3)
    parser.add_argument("--drafter", type=single, action="append", help="may be given many times")
    parser.add_argument("--json", action="store_true", help="print the record alone")
    options = parser.parse_args()
    if not options.json:
        print(HEAD)
    rows = rows_of(options)
    n_close = sum(abs(row["difference_percent"]) <= CLOSE_PERCENT for row in rows)
    if not options.json:
        print(f"\n{n_close} of {len(rows)} within {CLOSE_PERCENT} %\n")
    record = {
        "commit": commit(),
        "command": sys.argv,
        "host": dataclasses.asdict(describe_host()),
        "n_close": n_close,
        "rows": rows,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
