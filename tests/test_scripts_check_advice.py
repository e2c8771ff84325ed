"""scripts/check_advice.py: the replay of a run, and its speed predicted and measured."""

from __future__ import annotations

import argparse
import importlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_model
from conftest import Done
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from draftsmith.ngram.drafters.settings import DrafterSpec, parse_specs

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
PROMPT, N_PREDICT = "the cat " * 9, 60
SPEC = "ngram-simple:size-n=2,size-m=8"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("check_advice")


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return toy_model.write_model(tmp_path / "toy.gguf", seed=3, **toy_model.SMALL, n_ctx=256)


@pytest.fixture
def record(cli: Callable[..., Done], toy: Path) -> dict[str, Any]:
    """What the script gets from lookup-run."""
    args = ("-p", PROMPT, "-n", str(N_PREDICT), "--temp", "0", "-t", "1", "--repeat", "1")
    run = cli(
        "lookup-run", "-m", toy, *args, "--drafter", SPEC, "--draft-fixed", "--compare", "--json"
    )
    return run.record


@pytest.fixture
def told(toy: Path) -> tuple[np.ndarray, DrafterSpec, dict[str, int]]:
    """The prompt's ids, the drafter, and the limits of the replay."""
    tokenizer = load_tokenizer(toy)
    limits = {"n_vocab": tokenizer.n_vocab, "n_predict": N_PREDICT}
    return tokenizer.encode(PROMPT), parse_specs(SPEC)[0], limits


def test_a_row(script: Any, record: dict[str, Any], told: Any) -> None:
    """A prediction of another text, another drafter or another machine."""
    prompt, spec, limits = told
    row = script.row_of(record, prompt, spec, **limits)
    assert row["n_drafted"] == record["n_drafted"] > 0
    assert sum(row["rounds_by_batch"]) == row["n_rounds"] == record["n_rounds"]
    predicted_ms = (
        row["predicted_draft_ms"]
        + np.interp(
            np.arange(len(row["rounds_by_batch"])), [1, 2, 4, 8, 16], list(row["cost_ms"].values())
        )
        @ row["rounds_by_batch"]
    )
    assert row["predicted_decode_ms"] == pytest.approx(predicted_ms)
    plain_ms = 1000 / record["plain_tokens_per_s"] * (record["n_predict"] - 1)
    assert row["predicted_ratio"] == pytest.approx(plain_ms / predicted_ms)
    assert math.isclose(
        row["difference_percent"], 100 * (row["predicted_ratio"] / record["ratio"] - 1)
    )


@pytest.mark.parametrize("key", ["identical", "n_input", "n_rounds", "drafted_by_position"])
def test_other_work_is_refused(script: Any, record: dict[str, Any], told: Any, key: str) -> None:
    """A comparison of two different works."""
    prompt, spec, limits = told
    if key == "drafted_by_position":
        record[key][0] += 1
    else:
        record[key] = not record[key] if key == "identical" else record[key] + 1
    with pytest.raises(script.OtherWork):
        script.row_of(record, prompt, spec, **limits)


def test_a_drafted_end(script: Any, record: dict[str, Any], told: Any) -> None:
    """A text whose drafted last token a run accepts and a replay samples; more than that one."""
    prompt, spec, limits = told
    record["accepted_by_position"][2] += 1
    with pytest.raises(script.OtherWork, match="in the replay"):
        script.row_of(record, prompt, spec, **limits)
    record["stop_reason"] = "eog"
    script.row_of(record, prompt, spec, **limits)
    record["accepted_by_position"][0] += 1
    with pytest.raises(script.OtherWork):
        script.row_of(record, prompt, spec, **limits)


def test_the_table(
    script: Any,
    record: dict[str, Any],
    told: Any,
    toy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A row that is left out, or counted as close when it is not."""
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"kind": "cats", "prompt": PROMPT}) + "\n")
    record["ratio"] *= 100  # no prediction comes near
    asked = []

    def compare(prompt: str, options: object, more: list[str]) -> dict[str, Any]:
        asked.append((prompt, more))
        return record

    monkeypatch.setattr(script, "compare", compare)
    monkeypatch.setattr(script, "chat_ids", lambda *args: told[0])  # the toy has no template
    args = ("-m", toy, "--prompts", tmp_path / "prompts.jsonl", "-n", N_PREDICT, "--drafter", SPEC)
    monkeypatch.setattr("sys.argv", ["check_advice.py", *map(str, args)])
    script.main()
    assert asked == [(PROMPT, ["--drafter", SPEC, "--draft-fixed"])]
    head, rule, row, *_, total, _, last = capsys.readouterr().out.splitlines()
    assert head.count("|") == rule.count("|") == row.count("|")
    assert row.startswith(f"| cats | `{SPEC}` |")
    assert total == "0 of 1 within 10 %"
    assert json.loads(last)["rows"][0]["drafter"] == SPEC
    monkeypatch.setattr("sys.argv", ["check_advice.py", *map(str, args), "--json"])
    script.main()
    (alone,) = capsys.readouterr().out.splitlines()
    assert json.loads(alone)["n_close"] == 0


@pytest.mark.parametrize(
    ("text", "named"),
    [("suffix:x=1", "is no key of suffix"), ("ngram-mod:n-match=8|9", "2 settings; name one")],
)
def test_drafters_that_are_no_setting(script: Any, text: str, named: str) -> None:
    """A grid of which the first setting alone is run; a traceback."""
    with pytest.raises(argparse.ArgumentTypeError, match=named):
        script.single(text)
