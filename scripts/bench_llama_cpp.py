#!/usr/bin/env python3
"""Measure drafting in llama-cpp-python: none, its own prompt lookup, and ours, in the same run.

    scripts/bench_llama_cpp.py [-m MODEL] [--prompts FILE.jsonl] [--lookup N] [--draft-max N]

Needs the installed package and its extra ``llama-cpp``. A line of the file is an object with
``kind`` and ``prompt``. All cases generate greedily from the same prompts with the same weights,
one after the other, ``--repeat`` times, beginning with another one each time. Decoding is timed
from the first token on. Drafted and accepted tokens are counted alike for all, from what the draft
model said and what the text became; how long its calls take, by the length of the text, is also
measured without a model. Where a text is not plain decoding's, the place is named, and how far
apart the two likeliest tokens are there. The tables are Markdown, the last line is the record as
JSON; ``--json``: that alone.

llama.cpp's logits of one token alone and in a batch differ, but for flash attention over a KV cache
of q8_0 (and for that over f16 with one thread): by default that is what all cases use.
``--kv-type f16 --no-flash-attn`` are the library's own defaults.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from arguments import thread_count
from bench_ngram import commit
from bench_prompts import add_options, chat_ids, read_prompts, spread
from draftsmith.engine.decode.pacer import n_alike
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.host import describe_host, n_physical_cores
from draftsmith.engine.models import resolve_model
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from draftsmith.ngram import LlamaCppDraftModel, NgramCache, NgramDrafter, open_cache

try:
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
except ImportError as error:
    sys.exit(f"llama-cpp-python is missing ({error}); pip install 'draftsmith[llama-cpp]'")

HERE = Path(__file__).resolve().parent
PLAIN = "plain"
KV_TYPES = {"f16": llama_cpp.GGML_TYPE_F16, "q8_0": llama_cpp.GGML_TYPE_Q8_0}
CALLS_BEHIND = (512, 4096, 32768)
CALLS_TOKENS = 1000
DraftModel = Callable[..., np.ndarray]


@dataclass
class Watched:
    """A draft model that is timed, and whose drafts are kept with the length of their text."""

    model: DraftModel
    drafts: list[tuple[int, list[int]]] = field(default_factory=list)
    ns: int = 0

    def __call__(self, ids: np.ndarray, /, **options: Any) -> np.ndarray:
        start = time.perf_counter_ns()
        draft = self.model(ids, **options)
        self.ns += time.perf_counter_ns() - start
        self.drafts.append((len(ids), draft.tolist()))
        return draft


@dataclass
class Turn:
    """One generation. Times in nanoseconds; that of decoding begins with the first token."""

    tokens: list[int]
    prefill_ns: int
    decode_ns: int
    draft_ns: int = 0
    n_calls: int = 0
    n_drafts: int = 0
    n_drafted: int = 0
    n_accepted: int = 0

    @property
    def tokens_per_s(self) -> float:
        return (len(self.tokens) - 1) / self.decode_ns * 1e9


def generate(
    llama: llama_cpp.Llama, prompt: list[int], n_predict: int, model: DraftModel | None
) -> Turn:
    """Generate up to ``n_predict`` tokens greedily, from an empty KV cache."""
    watched = Watched(model) if model is not None else None
    llama.draft_model = watched
    llama.reset()
    tokens: list[int] = []
    start = first = time.perf_counter_ns()
    stream = llama.generate(prompt, temp=0.0, repeat_penalty=1.0)
    for token in stream:
        if not tokens:
            first = time.perf_counter_ns()
        tokens.append(token)
        if len(tokens) == n_predict or token == llama.token_eos():
            break
    stop = time.perf_counter_ns()
    stream.close()
    turn = Turn(tokens, first - start, stop - first)
    if watched is not None:
        text = prompt + tokens
        turn.draft_ns, turn.n_calls = watched.ns, len(watched.drafts)
        for n, draft in watched.drafts:
            turn.n_drafts += bool(draft)
            turn.n_drafted += len(draft)
            turn.n_accepted += n_alike(draft, text[n:])
    return turn


def gap_at(llama: llama_cpp.Llama, text: list[int]) -> float:
    """How much less likely than the first the second token after ``text`` is, in logits."""
    llama.draft_model = None
    llama.reset()
    llama.eval(text)
    second, first = np.sort(llama.scores[len(text) - 1])[-2:]
    return float(first - second)


def call_us(model: DraftModel, text: np.ndarray, n_before: int) -> list[float]:
    """Microseconds of each call along ``text`` (intc [n]) after its first ``n_before`` tokens."""
    samples, n = [], n_before
    while n < len(text):
        start = time.perf_counter_ns()
        draft = model(text[:n])
        samples.append((time.perf_counter_ns() - start) / 1e3)
        n += 1 + n_alike(draft.tolist(), text[n:].tolist())
    return samples[1:]  # the first learns what is before


def call_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """How long a call takes by the length of the text, without a model: source code."""
    tokenizer = load_tokenizer(resolve_model(options.model))
    ids = tokenizer.encode(options.text.read_bytes()).astype(np.intc)
    rows = []
    for n_before in CALLS_BEHIND:
        # other draft models than before: what they know of other texts is gone
        for name, model in cases_of(options, tokenizer.n_vocab).items():
            if model is not None:
                us = call_us(model, np.resize(ids, n_before + CALLS_TOKENS), n_before)
                rows.append({"case": name, "n_before": n_before, "us": us})
    return rows


def print_calls(rows: list[dict[str, Any]]) -> None:
    """Median and 99th percentile of a call, by case and length of the text."""
    us = {(row["case"], row["n_before"]): row["us"] for row in rows}
    print("\n| us a call (p99) after | " + " | ".join(f"{n} tokens" for n in CALLS_BEHIND) + " |")
    print("|" + "---|" * (1 + len(CALLS_BEHIND)))
    for name in dict.fromkeys(row["case"] for row in rows):
        cells = [
            f"{np.median(us[name, n]):.1f} ({np.percentile(us[name, n], 99):.1f})"
            for n in CALLS_BEHIND
        ]
        print("| " + " | ".join([name, *cells]) + " |")


def cases_of(options: argparse.Namespace, n_vocab: int) -> dict[str, DraftModel | None]:
    """Draft models by name, the baseline first."""
    static: NgramCache | None = None
    if options.static:
        static = open_cache(options.static, n_vocab=n_vocab)
    cases: dict[str, DraftModel | None] = {PLAIN: None}
    for n in options.lookup:
        cases[f"prompt lookup, {n}"] = LlamaPromptLookupDecoding(num_pred_tokens=n)
    for n in options.draft_max:
        for paced in (True, False):
            drafter = NgramDrafter(n_vocab, draft_max=n, static=static)
            name = f"draftsmith, {n}{'' if paced else ', fixed'}"
            cases[name] = LlamaCppDraftModel(drafter, paced=paced)
    return cases


def prompts_of(options: argparse.Namespace, path: Path) -> list[tuple[str, list[int]]]:
    """(kind, ids in the model's chat template) of each prompt."""
    metadata = read_metadata(path)
    tokenizer = load_tokenizer(path, metadata)
    return [
        (prompt["kind"], chat_ids(prompt["prompt"], metadata, tokenizer).tolist())
        for prompt in read_prompts(options.prompts)
    ]


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each prompt: its turns by case."""
    path = resolve_model(options.model)
    prompts = prompts_of(options, path)
    n_ctx = max(len(ids) for _, ids in prompts) + options.predict + 64
    common = {
        "model_path": str(path),
        "n_ctx": n_ctx,
        "n_threads": options.threads,
        "n_threads_batch": options.threads,
        "flash_attn": options.flash_attn,
        "type_k": KV_TYPES[options.kv_type],
        "type_v": KV_TYPES[options.kv_type],
        "verbose": False,
    }
    # Who drafts needs all logits, and who does not is not to pay for them.
    drafting = llama_cpp.Llama(logits_all=True, **common)
    plain = llama_cpp.Llama(**common)
    cases = cases_of(options, drafting.n_vocab())
    if not options.json:
        print("| " + " | ".join(["kind", "prompt", "text", "plain t/s", *list(cases)[1:]]) + " |")
        print("|" + "---|" * (3 + len(cases)))
    rows = []
    for kind, ids in prompts:
        turns: dict[str, list[Turn]] = {name: [] for name in cases}
        for repeat in range(options.repeat + 1):  # the first warms up
            names = list(cases)
            start = repeat % len(names)
            for name in names[start:] + names[:start]:
                llama = plain if name == PLAIN else drafting
                turn = generate(llama, ids, options.predict, cases[name])
                if repeat:
                    turns[name].append(turn)
        row = {"kind": kind, "n_prompt": len(ids), "turns": turns, "parts": {}}
        text = turns[PLAIN][0].tokens
        for name in cases:
            for turn in turns[name]:
                if turn.tokens != text:
                    at = n_alike(turn.tokens, text)
                    gap = gap_at(drafting, ids + text[:at])
                    row["parts"][name] = {"at": at, "gap": gap}
        rows.append(row)
        if not options.json:
            print(row_of(row), flush=True)
    return rows


def ratios(row: dict[str, Any], name: str) -> list[float]:
    pairs = zip(row["turns"][name], row["turns"][PLAIN], strict=True)
    return [turn.tokens_per_s / plain.tokens_per_s for turn, plain in pairs]


def row_of(row: dict[str, Any]) -> str:
    plain = row["turns"][PLAIN]
    cells = [row["kind"], str(row["n_prompt"]), str(len(plain[0].tokens))]
    cells.append(f"{statistics.median(turn.tokens_per_s for turn in plain):.0f}")
    for name in row["turns"]:
        if name != PLAIN:
            mark = f", parts at {row['parts'][name]['at']}" if name in row["parts"] else ""
            cells.append(spread(ratios(row, name)) + mark)
    return "| " + " | ".join(cells) + " |"


def total_of(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """What a case came to over all prompts; times and speeds by turn."""
    turns = list(zip(*(row["turns"][name] for row in rows), strict=True))
    plain = list(zip(*(row["turns"][PLAIN] for row in rows), strict=True))

    def sums(what: str, of: list[tuple[Turn, ...]] = turns) -> list[int]:
        return [sum(getattr(turn, what) for turn in turn_of_all) for turn_of_all in of]

    def speeds(of: list[tuple[Turn, ...]]) -> list[float]:
        numbers = [sum(len(turn.tokens) - 1 for turn in turn_of_all) for turn_of_all in of]
        return [1e9 * n / ns for n, ns in zip(numbers, sums("decode_ns", of), strict=True)]

    pairs = zip(speeds(turns), speeds(plain), strict=True)
    draft_ns, n_calls = sums("draft_ns"), sums("n_calls")
    call_us = [ns / 1e3 / max(1, n) for ns, n in zip(draft_ns, n_calls, strict=True)]
    return {
        "case": name,
        "tokens_per_s": speeds(turns),
        "ratio": [ours / base for ours, base in pairs],
        "n_calls": n_calls,
        "n_drafts": sums("n_drafts"),
        "n_drafted": sums("n_drafted"),
        "n_accepted": sums("n_accepted"),
        "draft_ms": [ns / 1e6 for ns in draft_ns],
        "draft_us_per_call": call_us,
        "prefill_ms": [ns / 1e6 for ns in sums("prefill_ns")],
        "n_identical": sum(name not in row["parts"] for row in rows),
    }


def total_row(total: dict[str, Any], n_prompts: int) -> str:
    drafted, accepted = (statistics.median(total[key]) for key in ("n_drafted", "n_accepted"))
    cells = [
        total["case"],
        spread(total["tokens_per_s"], ".0f"),
        spread(total["ratio"]),
        f"{drafted:.0f}",
        f"{accepted:.0f}",
        f"{100 * accepted / drafted:.0f} %" if drafted else "-",
        spread(total["draft_ms"], ".1f"),
        spread(total["draft_us_per_call"], ".1f"),
        f"{statistics.median(total['prefill_ms']):.0f}",
        f"{total['n_identical']} of {n_prompts}",
    ]
    return "| " + " | ".join(cells) + " |"


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, predict=256, repeat=3)
    parser.add_argument("-t", "--threads", type=thread_count, default=n_physical_cores())
    parser.add_argument("--flash-attn", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--kv-type", choices=list(KV_TYPES), default="q8_0")
    parser.add_argument("--lookup", type=numbers, default=[10, 2], help="its num_pred_tokens")
    parser.add_argument("--draft-max", type=numbers, default=[8], help="ours")
    parser.add_argument("-lcs", "--static", help="a static cache for ours")
    parser.add_argument(
        "--text", type=Path, default=HERE.parent / "tests/golden/sqlite_train.txt", help="for calls"
    )
    parser.add_argument("--json", action="store_true", help="print the record alone")
    options = parser.parse_args()
    rows = run(options)
    calls = call_rows(options)
    totals = [total_of(rows, name) for name in rows[0]["turns"]]
    if not options.json:
        print("\n| case | t/s | ratio | drafted | accepted | | drafting, ms | us a call | ", end="")
        print("prefill, ms | same text |\n|" + "---|" * 10)
        for total in totals:
            print(total_row(total, len(rows)))
        print_calls(calls)
        print()
    record = {
        "commit": commit(),
        "command": sys.argv,
        "llama_cpp_python": llama_cpp.__version__,
        "options": {key: str(value) for key, value in vars(options).items()},
        "host": dataclasses.asdict(describe_host()),
        "totals": totals,
        "calls": calls,
        "rows": [{**row, "turns": samples(row["turns"])} for row in rows],
    }
    print(json.dumps(record))


def samples(turns: dict[str, list[Turn]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [dataclasses.asdict(turn) for turn in some] for name, some in turns.items()}


if __name__ == "__main__":
    main()
