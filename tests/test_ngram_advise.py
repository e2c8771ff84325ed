"""Step costs from wherever they were measured, and the choice that is made with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftsmith.engine.errors import InputMalformed, InputUnreadable, UsageError
from draftsmith.ngram.advice.advise import PLAIN, Speeds, Work, work_of
from draftsmith.ngram.advice.curve_files import read_curve
from draftsmith.ngram.advice.step_curve import StepCurve, parse_curve

# Two rows as llama-bench build 11434 prints them, shortened to the columns that matter.
BENCH: dict[str, Any] = {
    "model_filename": "m.gguf",
    "n_threads": 2,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_prompt": 1,
    "n_gen": 0,
    "n_depth": 0,
    "test_time": "2026-01-01T00:00:00Z",
    "avg_ns": 20_000_000,
    "stddev_ns": 1,
    "avg_ts": 50.0,
    "samples_ns": [10_000_000, 11_000_000, 39_000_000],
}
MARKDOWN = """
some build's chatter | with a bar
| model          |     size | threads |       test |            t/s |
| -------------- | -------: | ------: | ---------: | -------------: |
| llama 256M Q4  | 92.1 MiB |       2 |        pp1 |   50.00 ± 0.17 |
| llama 256M Q4  | 92.1 MiB |       2 |        pp4 |  100.00 ± 2.19 |
| llama 256M Q4  | 92.1 MiB |       2 | pp512+tg8  |  100.00 ± 2.19 |

build: unknown (0)
"""


def rows(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    return [BENCH | change for change in changes]


def csv_of(records: list[dict[str, Any]]) -> str:
    names = [name for name in BENCH if name != "samples_ns"]
    lines = [",".join(names)]
    lines += [",".join(f'"{record[name]}"' for name in names) for record in records]
    return "\n".join(lines) + "\n"


def curve_of(path: Path, text: str) -> dict[str, float]:
    path.write_text(text)
    curve = read_curve(str(path))
    assert curve.is_ms
    return curve.points()


# --- curves ---------------------------------------------------------------------------------------


def test_between_and_beyond() -> None:
    """A step where a line is meant; a curve that falls, or stands still, past its end."""
    curve = parse_curve("1:2,3:4,5:5")
    assert curve.up_to(7).tolist() == [0, 1, 1.5, 2, 2.25, 2.5, 2.75, 3]
    assert (curve.largest, curve.plain, curve.is_ms) == (5, 1.0, False)
    falls = parse_curve("1:10ms,2:12ms,4:9ms")
    assert falls.up_to(6).tolist() == [0, 10, 12, 10.5, 9, 9, 9]
    assert falls.is_ms
    assert falls.up_to(1).tolist() == [0, 10]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1:1.0", "one token only"),
        ("2:1.0,4:2.0", "no pass over one token"),
        ("1:1,2:0", "'2:0' is no SIZE:COST"),
        ("1:1,2:-1", "is no SIZE:COST"),
        ("1:1,0:1", "is no SIZE:COST"),
        ("1:1,2:1e999", "is no SIZE:COST"),
        ("1:1,2:1.1.1", "is no SIZE:COST"),
        ("1:1,", "'' is no SIZE:COST"),
        ("1:1,2:2,2:3", "2 is given twice"),
        ("1:1ms,2:2", "in part"),
    ],
)
def test_texts_that_are_no_curve(text: str, message: str) -> None:
    """A curve that was never given, or half of one; a message without a remedy."""
    with pytest.raises(UsageError) as caught:
        read_curve(text)
    assert message in str(caught.value)


def test_llama_bench(tmp_path: Path) -> None:
    """Tokens a second taken for passes a second; a mean where one run of three was disturbed."""
    found = rows({}, {"n_prompt": 4, "samples_ns": [16_000_000], "avg_ns": 16_000_000})
    whole = {"1": 11.0, "4": 16.0}
    assert curve_of(tmp_path / "x", json.dumps(found)) == whole
    assert curve_of(tmp_path / "x", "\n".join(map(json.dumps, found))) == whole
    assert curve_of(tmp_path / "x", csv_of(found)) == {"1": 20.0, "4": 16.0}
    assert curve_of(tmp_path / "x", MARKDOWN) == {"1": 20.0, "4": 40.0}


def test_llama_bench_by_ubatch(tmp_path: Path) -> None:
    """The time of a whole prompt, of many passes, taken for that of one."""
    found = rows(
        *(
            {"n_prompt": 512, "n_ubatch": n, "samples_ns": [512 * ns]}
            for n, ns in ((1, 10e6), (8, 2e6))
        )
    )
    assert curve_of(tmp_path / "x", json.dumps(found)) == {"1": 10.0, "8": 16.0}


def test_llama_bench_by_generation(tmp_path: Path) -> None:
    """tg128 ignored where there is no pp1, or preferred to it."""
    four = {"n_prompt": 4, "samples_ns": [16e6]}
    generated = {"n_prompt": 0, "n_gen": 128, "samples_ns": [128 * 12e6]}
    found = rows(generated, four)
    assert curve_of(tmp_path / "x", json.dumps(found)) == {"1": 12.0, "4": 16.0}
    assert curve_of(tmp_path / "x", json.dumps([*found, *rows({})])) == {"1": 11.0, "4": 16.0}


def test_our_own_records(tmp_path: Path) -> None:
    """A single step without what a round takes besides its pass, which drafting saves as well."""
    run = {"schema": 1, "step_ms": {"1": 20.0, "2": 21.0}, "plain_tokens_per_s": 40.0}
    assert curve_of(tmp_path / "x", json.dumps(run, indent=2)) == {"1": 25.0, "2": 26.0}
    bench = {"commit": "x", "figures": {"batch_1_ms": [9, 1, 2], "batch_4_ms": [3.0], "x": [1]}}
    text = f"{'':28} here\nbatch_1_ms 2.0\n{json.dumps(bench)}\n"
    assert curve_of(tmp_path / "x", text) == {"1": 2.0, "4": 3.0}
    assert curve_of(tmp_path / "x", "batch,ms\n1,2\n4,3\n4,5\n") == {"1": 2.0, "4": 4.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "none of the formats"),
        ("a,b\n1,2\n", "none of the formats"),
        ("[]", "none of the formats"),
        ("[1, 2]", "none of the formats"),
        ("{}", "without measured passes"),
        ('{"step_ms": null}', "a run without --compare"),
        ('{"step_ms": [1, 2]}', "no measurement"),
        ('{"step_ms": {"1": 20, "2": NaN}}', "no measurement"),
        ('{"step_ms": {"1": 20, "2": 1}, "plain_tokens_per_s": 1000}', "no measurement"),
        ('{"figures": {"batch_1_ms": 3}}', "no measurement"),
        ('{"figures": {"batch_1_ms": []}}', "no measurement"),
        ("batch,ms\n1,2\n2,x\n", "no measurement"),
        ("batch,ms\n1,2\n99999999999,3\n", "no measurement"),
        ("| a | b |\n| - | - |\n| 1 | 2 |\n", "without the columns test and t/s"),
        (json.dumps(rows({}, {"n_prompt": 4, "n_depth": 64})), "that differ in n_depth"),
        (json.dumps(rows({}, {"model_filename": "n"})), "that differ in model_filename"),
        (json.dumps(rows({"avg_ns": "x", "samples_ns": None})), "a row of llama-bench that is"),
        (json.dumps(rows({"n_ubatch": 0})), "a row of llama-bench that is"),
        ("[" * 100_000, "none of the formats"),
    ],
)
def test_files_that_are_no_curve(tmp_path: Path, text: str, message: str) -> None:
    """A traceback, or a curve made of two models'."""
    (tmp_path / "x").write_text(text)
    with pytest.raises(InputMalformed) as caught:
        read_curve(str(tmp_path / "x"))
    assert message in str(caught.value)
    assert "llama-bench" in caught.value.remedy


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A file name with a typing error, explained as a wrong curve."""
    for path in (tmp_path / "nope", tmp_path):
        with pytest.raises(InputUnreadable, match="can't be read"):
            read_curve(str(path))
    (tmp_path / "x").write_text(json.dumps(rows({"n_prompt": 4})))
    with pytest.raises(UsageError, match="no pass over one token"):
        read_curve(str(tmp_path / "x"))


# --- the choice -----------------------------------------------------------------------------------

CURVE = parse_curve("1:10ms,2:11ms,4:13ms")


def batches(*by_conversation: dict[int, int]) -> np.ndarray:
    counts = np.zeros((len(by_conversation), 6), np.int64)
    for i, rounds in enumerate(by_conversation):
        for size, n in rounds.items():
            counts[i, size] = n
    return counts


def work(*by_conversation: tuple[dict[int, int], int], curve: StepCurve = CURVE) -> Work:
    """Work of conversations of (rounds by tokens evaluated, tokens accepted)."""
    counts = batches(*(rounds for rounds, _ in by_conversation))
    accepted = np.array([n for _, n in by_conversation], np.int64)
    return work_of(counts, counts.sum(axis=1) + accepted, curve)


def test_speed_is_tokens_by_time() -> None:
    """Accepted tokens forgotten, rounds counted at one token's time, or drafting for nothing."""
    counts = batches({1: 10, 4: 5}, {2: 3})
    decoded = np.array([10 + 5 + 9, 3], np.int64)
    speeds = Speeds([work_of(counts, decoded, CURVE)], CURVE)
    n_tokens, ms = 10 + 5 + 9 + 3, 10 * 10 + 5 * 13 + 3 * 11
    assert speeds.tokens_per_s == pytest.approx([1000 * n_tokens / ms])
    assert speeds.plain_tokens_per_s == 100
    assert speeds.ratios == pytest.approx([10 * n_tokens / ms])
    slower = Speeds([work_of(counts, decoded, CURVE, draft_ns=18e6)], CURVE)
    assert slower.tokens_per_s == pytest.approx([1000 * n_tokens / (ms + 18)])


def test_relative_costs_give_ratios_alone() -> None:
    """Tokens a second out of costs that have no unit."""
    curve = parse_curve("1:2,2:2.2")
    speeds = Speeds([work_of(batches({2: 10}), np.array([20]), curve, draft_ns=1e12)], curve)
    assert (speeds.tokens_per_s, speeds.plain_tokens_per_s) == (None, None)
    assert speeds.ratios == pytest.approx([2 / 1.1])


def test_what_the_curve_does_not_know_is_told() -> None:
    """A prediction that rests on passes nobody measured, without a word."""
    assert work(({1: 1, 2: 1}, 0)).guessed == 0
    curve = parse_curve("1:10ms,2:11ms")
    row = work(({1: 1, 5: 1}, 0), curve=curve)
    assert row.guessed == pytest.approx(14 / 24)


def test_the_clear_winner_is_sure() -> None:
    """The second best named, a margin of the wrong sign, or doubt where there is none."""
    good = work(*[({4: 10}, 30)] * 20)
    fair = work(*[({2: 20}, 20)] * 20)
    speeds = Speeds([fair, good], CURVE)
    choice = speeds.choose()
    assert (choice.best, choice.next, choice.sure) == (1, 0, 1.0)
    assert choice.margin == pytest.approx(220 / 130 - 1)
    assert choice.margin_range == pytest.approx((220 / 130 - 1,) * 2)
    assert choice.held_out == pytest.approx(40 * 10 / 130)
    assert speeds.ranges()[1] == pytest.approx((400 / 130,) * 2)
    assert speeds.choose([0]).best == 0


def test_a_winner_by_one_conversation_is_not_sure() -> None:
    """A choice that rests on one lucky text given out for certain."""
    lucky = work(({4: 100}, 300), *[({1: 400}, 0)] * 9)
    steady = work(*[({4: 5, 1: 380}, 15)] * 10)
    choice = Speeds([lucky, steady], CURVE).choose()
    assert choice.best == 0
    assert choice.sure is not None
    assert 0.4 < choice.sure < 0.8
    assert choice.margin_range is not None
    assert choice.margin_range[0] < 0 < choice.margin_range[1]


def test_drafting_that_never_pays_is_not_advised() -> None:
    """The least bad drafter praised, though plain decoding is faster; a tie that drafts."""
    bad = work(*[({4: 10}, 1)] * 5)
    choice = Speeds([bad], CURVE).choose()
    assert (choice.best, choice.next, choice.held_out) == (PLAIN, 0, 1.0)
    idle = work(*[({1: 10}, 0)] * 5)
    assert Speeds([idle], CURVE).choose().best == PLAIN


def test_one_conversation_says_nothing_of_others() -> None:
    """A certainty of 100 % out of a single text."""
    speeds = Speeds([work(({4: 10}, 30)), work(({4: 10}, 20))], CURVE)
    choice = speeds.choose()
    assert (choice.best, choice.next) == (0, 1)
    assert (choice.margin_range, choice.sure, choice.held_out) == (None, None, None)
    assert speeds.ranges() == [None, None]


def test_nothing_decoded() -> None:
    """nan as a speed, or a winner among rows without a token."""
    speeds = Speeds([work(({}, 0), ({}, 0))], CURVE)
    assert np.isnan(speeds.ratios).all()
    assert speeds.choose().best == PLAIN
    assert speeds.choose().margin is None


def test_the_same_rows_give_the_same_advice() -> None:
    """Another certainty at each call."""
    rng = np.random.default_rng(3)
    made = [work_of(rng.integers(0, 9, (40, 6)), rng.integers(0, 9, 40), CURVE) for _ in range(3)]
    assert Speeds(made, CURVE).choose() == Speeds(made, CURVE).choose()
