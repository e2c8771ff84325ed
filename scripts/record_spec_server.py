#!/usr/bin/env python3
"""Record what llama-server drafts, and what of it comes true, with each of its n-gram drafters.

    scripts/record_spec_server.py [-m MODEL] [--jobs N] [--only NAME]... [--out FILE]

Needs the installed package and the extra ``peer`` (llama-server inside the wheel xllamacpp). Writes
tests/golden/spec_server.json, which tests/golden/PROVENANCE.md describes; takes a quarter of an
hour on two cores that have nothing else to do. With --only, no more than those runs are done and
their text goes to standard output.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from draftsmith.engine.models import resolve_model
from draftsmith.engine.tokens.tokenizer import Tokenizer, load_tokenizer

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
sys.path.append(str(ROOT / "tests"))  # for peer_spec

from peer_spec import Logged, ask_peer  # noqa: E402

N_CTX = 2048
N_PREDICT = 96

LIGHTHOUSE = (
    "The lighthouse at Cape Merrow was built in 1871 by the engineer Agnes Rowland, after eleven "
    "ships had been lost on the rocks below it. Its lamp burned whale oil until 1902, and was seen "
    "from nineteen miles away. The last keeper, Tom Hale, left the lighthouse at Cape Merrow in "
    "1968, when the lamp was made to work by itself."
)
CODE = """class Inventory:
    def __init__(self):
        self.items = {}

    def add_item(self, name, count):
        self.items[name] = self.items.get(name, 0) + count

    def remove_item(self, name, count):
        self.items[name] = self.items.get(name, 0) - count

    def count_item(self, name):
        return self.items.get(name, 0)
"""
ORDERS = (
    "Order 1042, 3 May: Ann Lee, 12 Hill Road, ordered 2 lamps at 30 dollars and 1 desk at 140 "
    "dollars.\nOrder 1043, 4 May: Bo Day, 7 Mill Lane, ordered 4 chairs at 45 dollars and 1 lamp "
    "at 30 dollars."
)
ASKED = {
    "list": "Repeat this list three times: red, green, blue, yellow, white, black",
    "twice": f"Repeat the following text word for word, twice.\n\n{LIGHTHOUSE}",
    "code": "Rewrite this Python file so that every method has a docstring, and change nothing "
    f"else. Print the whole file.\n\n```python\n{CODE}```",
    "quotes": f"Summarize the following text, and quote a sentence for each point.\n\n{LIGHTHOUSE}",
    "question": "Read the passage, and answer with whole sentences from it: who built the "
    f"lighthouse, and who was its last keeper?\n\n{LIGHTHOUSE}",
    "json": "Turn these orders into JSON, a list of objects with the keys order, date, name, "
    f"address and items.\n\n{ORDERS}",
}
FOLLOW_UPS = ("Again, please.", "And once more, word for word.")


class Step(NamedTuple):
    """A request: a prompt by its name, or a follow-up (by its number) to an earlier request."""

    prompt: str | int
    after: int | None = None
    slot: int = 0
    n_predict: int = N_PREDICT


class Run(NamedTuple):
    """What is recorded with one setting: each prompt with a new server, or steps with one."""

    name: str
    drafters: list[tuple[str, dict[str, int]]]
    steps: tuple[Step, ...] | None = None
    n_ctx: int = N_CTX
    n_slots: int = 1
    caches: str = ""  # names a static and a dynamic cache in tests/golden


# The conversations get longer and shorter again, and two begin a second time.
SESSION = (
    Step("twice"),
    Step(0, after=0),
    Step(1, after=1),
    Step("list"),
    Step(0, after=3),
    Step("code"),
    Step(0, after=5),
    Step("twice"),
    Step("verses"),
    Step("list"),
)
TWO_SLOTS = (
    *(Step("verses"), Step("list", slot=1), Step("verses", slot=1)),
    *(Step(0, after=1, slot=1), Step("loop"), Step(0, after=0)),
)
# The last of these steps runs into the end of its context.
NARROW = (Step("list"), Step(0, after=0), Step("loop", n_predict=250))

SIMPLE = ("ngram-simple", {"size-n": 3, "size-m": 8})
MAP_K = ("ngram-map-k", {"size-n": 3, "size-m": 8})
MAP_K4V = ("ngram-map-k4v", {"size-n": 3, "size-m": 8})
MOD = ("ngram-mod", {"n-match": 3, "n-min": 0, "n-max": 16})
CACHE: tuple[str, dict[str, int]] = ("ngram-cache", {})
SMALL = {"simple": SIMPLE, "map-k": MAP_K, "map-k4v": MAP_K4V, "mod": MOD, "cache": CACHE}
DEFAULTS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")

RUNS = (
    *(Run(f"{name}, new servers", [drafter]) for name, drafter in SMALL.items()),
    *(Run(f"{name} as it is, new servers", [(name, {})]) for name in DEFAULTS),
    *(Run(name, [drafter], SESSION) for name, drafter in SMALL.items()),
    *(Run(f"{name} as it is", [(name, {})], SESSION) for name in DEFAULTS),
    Run("map-k, min-hits 3", [("ngram-map-k", {**MAP_K[1], "min-hits": 3})], SESSION[:5]),
    Run("map-k4v, min-hits 2", [("ngram-map-k4v", {**MAP_K[1], "min-hits": 2})], SESSION[:5]),
    Run("mod, long drafts", [("ngram-mod", {"n-match": 2, "n-min": 1, "n-max": 64})], SESSION[:6]),
    Run("cache, with files", [CACHE], (*SESSION[:2], Step("verses"), Step("begat")), caches="kjv"),
    Run("all five", [CACHE, MOD, MAP_K4V, ("ngram-map-k", {"size-n": 5, "size-m": 6}),
                     ("ngram-simple", {"size-n": 8, "size-m": 12})], SESSION),
    Run("mod and cache", [CACHE, ("ngram-mod", {"n-match": 6, "n-min": 4, "n-max": 16})], SESSION),
    Run("two slots, mod and map-k", [MOD, MAP_K], TWO_SLOTS, n_slots=2),
    Run("narrow context", [SIMPLE], NARROW, n_ctx=256),
)  # fmt: skip


def prompts(tokenizer: Tokenizer) -> dict[str, list[int]]:
    """The token ids of every prompt by its name, and of the follow-ups by their number."""

    def asked(text: str) -> str:
        return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"

    verses = (GOLDEN / "kjv_test.txt").read_text().splitlines()
    header = (GOLDEN / "sqlite_test.txt").read_text().splitlines()
    texts: dict[str, str] = {name: asked(text) for name, text in ASKED.items()}
    texts["verses"] = "\n".join([*verses[2:9], *verses[2:9], verses[2][:24]])
    texts["header"] = "\n".join([*header[:12], "", *header[:3]])
    texts["loop"] = "A: one two three\n" + "B: one two three four\nA: one two three\n" * 6
    texts["begat"] = "\n".join(verses[9:13])
    texts["plain"] = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21"
    ids = {name: tokenizer.encode(text).tolist() for name, text in texts.items()}
    for number, text in enumerate(FOLLOW_UPS):
        ids[str(number)] = tokenizer.encode("<|im_end|>\n" + asked(text)).tolist()
    return ids


# What each new server is asked.
TEN = (*ASKED, "verses", "header", "loop", "plain")


class Recorder:
    """Does runs."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.prompts = prompts(load_tokenizer(model))

    def record(self, run: Run) -> dict[str, Any]:
        """What came of a run; requests of one server, or of one each, in order."""
        steps = run.steps or tuple(Step(name) for name in TEN)
        jobs = [steps] if run.steps else [(step,) for step in steps]
        done = [one for job in jobs for one in ask_peer(self.job(run, job))]
        return {
            "name": run.name,
            "drafters": [list(drafter) for drafter in run.drafters],
            "caches": run.caches,
            "new_servers": run.steps is None,
            "n_ctx": run.n_ctx,
            "n_slots": run.n_slots,
            "requests": [self.request(step, *one) for step, one in zip(steps, done, strict=True)],
        }

    def job(self, run: Run, steps: tuple[Step, ...]) -> dict[str, Any]:
        requests = [
            {
                "slot": step.slot,
                "n_predict": step.n_predict,
                "prompt": self.prompts[str(step.prompt)],
                "after": step.after,
            }
            for step in steps
        ]
        static, dynamic = (self.cache(run.caches, kind) for kind in ("train", "train_dyn"))
        return {
            "model": str(self.model),
            "drafters": run.drafters,
            "static": static,
            "dynamic": dynamic,
            "n_ctx": run.n_ctx,
            "n_slots": run.n_slots,
            "requests": requests,
        }

    def cache(self, caches: str, kind: str) -> str:
        """The path of a cache of tests/golden, unpacked."""
        if not caches:
            return ""
        path = self.folder / f"{caches}_{kind}.bin"
        path.write_bytes(gzip.decompress((GOLDEN / f"{path.name}.gz").read_bytes()))
        return str(path)

    def request(self, step: Step, answer: dict[str, Any], logged: Logged) -> dict[str, Any]:
        if sum(drafted for drafted, _ in logged.rounds) != answer["draft_n"]:
            sys.exit(f"{step}: the log has lost a round: {logged.rounds}, {answer['draft_n']}")
        return {
            "slot": step.slot,
            "n_predict": step.n_predict,
            "prompt": answer["prompt"],
            "generated": answer["tokens"],
            "stop": answer["stop"],
            "draft_n": answer["draft_n"],
            "draft_n_accepted": answer["draft_n_accepted"],
            "rounds": logged.rounds,
            "statistics": logged.statistics,
        }


def by_number(runs: list[dict[str, Any]]) -> list[list[int]]:
    """Put the number of each text in place of it; the texts, in the order in which they come."""
    numbers: dict[tuple[int, ...], int] = {}
    for run in runs:
        for request in run["requests"]:
            for key in ("prompt", "generated"):
                request[key] = numbers.setdefault(tuple(request[key]), len(numbers))
    return [list(text) for text in numbers]


def lines(record: dict[str, Any]) -> str:
    """The record as JSON, with a line for each text and each request."""
    runs = record["runs"]
    marks = {}
    for r, run in enumerate(runs):
        for i, request in enumerate(run["requests"]):
            marks[f'"run {r}, {i}"'] = json.dumps(request, separators=(",", ":"))
            run["requests"][i] = f"run {r}, {i}"
    for i, text in enumerate(record["texts"]):
        marks[f'"text {i}"'] = json.dumps(text, separators=(",", ":"))
        record["texts"][i] = f"text {i}"
    text = json.dumps(record, indent=1)
    for mark, line in marks.items():
        text = text.replace(mark, line, 1)
    return text + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--jobs", type=int, default=2, help="servers that run at the same time")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--out", type=Path, default=GOLDEN / "spec_server.json")
    options = parser.parse_args()
    chosen = [run for run in RUNS if not options.only or run.name in options.only]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        recorder = Recorder(resolve_model(options.model), Path(folder))

        def record(run: Run) -> dict[str, Any]:
            made = recorder.record(run)
            print(f"{run.name}: {sum(r['draft_n'] for r in made['requests'])}", file=sys.stderr)
            return made

        runs = list(pool.map(record, chosen))
    record_of_all = {
        "xllamacpp": version("xllamacpp"),
        "model": options.model,
        "end_tokens": [0, 2],
        "texts": by_number(runs),
        "runs": runs,
    }
    if options.only:
        sys.stdout.write(lines(record_of_all))
    else:
        options.out.write_text(lines(record_of_all))


if __name__ == "__main__":
    main()
