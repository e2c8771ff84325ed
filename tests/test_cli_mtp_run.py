"""``draftsmith mtp-run``: one text, a suite of them, the figures of both, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_model
from cache_dicts import cache_of
from conftest import Done
from draftsmith.cli import mtp_run
from draftsmith.cli.generate import stream
from draftsmith.cli.generate.suite_report import figure_of, record_of
from draftsmith.engine.chat import template as chat
from draftsmith.engine.chat import worker as chat_worker
from draftsmith.engine.chat.template import ChatTemplate
from draftsmith.engine.decode import comparison as compare
from draftsmith.engine.decode.generation import Generation
from draftsmith.engine.errors import ExitStatus
from draftsmith.mtp import shipped, suite_figures
from draftsmith.mtp import suite_texts as suite_run
from draftsmith.mtp.suite_figures import (
    Bounds,
    SuiteCell,
    figures,
    rounds_by_length,
    standard_error,
)
from draftsmith.ngram.cache.file import write_cache
from toy_mtp import ToyHead, write_model_with_head, write_toy_head

Cli = Callable[..., Done]
Run = Callable[..., Done]

INTERRUPTED = "error: interrupted; no file is left half-written\n"
N = toy_model.SMALL["n_embd"]
DOCUMENTED = Path(__file__).parent.parent / "docs" / "mtp-run.md"
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"


def without_depth(n_blocks: int) -> dict[str, Any]:
    """Tensors of a model whose layers add nothing: the next token depends on the last one alone."""
    flat: dict[str, Any] = {}
    for i in range(n_blocks):
        flat[f"blk.{i}.attn_output.weight"] = np.zeros((N, N), np.float32)
        flat[f"blk.{i}.ffn_down.weight"] = np.zeros((N, toy_model.SMALL["n_ff"]), np.float32)
    return flat


def perfect_head() -> ToyHead:
    """A head that does what such a model does."""
    at = "blk.2.nextn."
    ones = np.ones(N, np.float32)
    eye = np.concatenate([np.eye(N), np.zeros((N, N))], axis=1).astype(np.float32)
    tensors = {f"{at}enorm.weight": ones, f"{at}hnorm.weight": ones, f"{at}eh_proj.weight": eye}
    flat = {name: zero for name, zero in without_depth(3).items() if name.startswith("blk.2.")}
    return ToyHead(norm=False, tensors={**tensors, **flat})


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and a perfect head for it; one that has both; a model that says anything, a head."""
    folder = tmp_path_factory.mktemp("toys")
    small = {**toy_model.SMALL, "n_ctx": 256}
    flat = {**small, "tensors": without_depth(2)}
    toy_model.write_model(folder / "flat.gguf", "llama", seed=3, **flat)
    write_toy_head(folder / "perfect.gguf", "llama", perfect_head(), **small)
    write_model_with_head(folder / "both.gguf", "llama", perfect_head(), **{**flat, "seed": 3})
    toy_model.write_model(folder / "any.gguf", "llama", seed=3, **small)
    write_toy_head(folder / "bad.gguf", "llama", **small)
    return folder


@pytest.fixture
def run(cli: Cli, toys: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the model without depth and its perfect head on one thread."""
    monkeypatch.chdir(toys)

    def call(*args: str | Path) -> Done:
        model = () if "-m" in args else ("-m", "flat.gguf", "--mtp-head", "perfect.gguf")
        return cli("mtp-run", *model, "-t", "1", "--ignore-eos", *args)

    return call


@pytest.mark.parametrize("drafter", ["mtp", "ngram", "mtp+ngram"])
def test_a_stop_string(run: Run, drafter: str) -> None:
    """A text that goes on after the string where a head drafted it, or is another one."""
    args = ("-m", "flat.gguf", "-p", "the cat", "-n", "30", "--temp", "0", "--json")
    whole = run(*args, "--drafter", "none").record
    head = ("--mtp-head", "perfect.gguf") if "mtp" in drafter else ()
    string = whole["text"][10:13]
    record = run(*args, *head, "--drafter", drafter, "--draft-fixed", "--stop", string).record
    assert record["text"] == whole["text"][: whole["text"].index(string)]
    assert (record["stop_reason"], record["stop_string"]) == ("stop", string)
    assert drafter == "ngram" or record["n_drafted"] > 0


@pytest.fixture
def suite(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run three prompts of two kinds, in a template that the toys do not have."""

    def reply(_: ChatTemplate, job: bytes) -> dict[str, Any]:
        return dict(json.loads(json.dumps(chat_worker.answer(json.loads(job)))))

    monkeypatch.setattr(chat, "_find_source", lambda *_: TEMPLATE)
    monkeypatch.setattr(ChatTemplate, "_reply", reply)
    monkeypatch.setattr(chat_worker, "limit_resources", lambda *_: None)
    path = tmp_path / "suite.jsonl"
    lines = [
        {"id": "a", "category": "x", "prompt": "the cat the cat", "max_tokens": 25},
        {"id": "b", "category": "x", "prompt": "a dog", "max_tokens": 13},
        {"id": "c", "category": "y", "prompt": "they said", "max_tokens": 9},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lambda *args: run("--suite", path, *args)


def refused(done: Done, status: ExitStatus, message: str) -> None:
    assert done.status == status, done.stderr
    assert done.stdout == ""
    assert message in done.error


# --- one text -------------------------------------------------------------------------------------


def test_keys(run: Run) -> None:
    """A key of the record renamed or gone: somebody's script breaks."""
    documented = DOCUMENTED.read_text() + DOCUMENTED.with_name("lookup-run.md").read_text()
    args = ("-p", "the cat", "-n", "120", "--temp", "0")
    record = run(*args, "--draft-fixed", "--json").record
    for key in record:
        assert f"`{key}`" in documented, key
    assert list(record)[:5] == ["schema", "command", "n_draft", "n_predict", "n_drafted"]
    assert list(record)[-5:] == ["options", "inputs", "host", "compile_s", "peak_rss_bytes"]
    assert set(record["drafted_by_origin"]) == {"mtp", "ngram"}
    for what, whole in (("drafted", "n_drafted"), ("accepted", "n_accept")):
        assert sum(record[f"{what}_by_origin"].values()) == record[whole]
        assert sum(record[f"{what}_by_position"]) == record[whole]
        mtp = record[f"mtp_{what}_by_position"]
        assert sum(mtp) == record[f"{what}_by_origin"]["mtp"]
    assert sum(record[f"{what}_share"] for what in ("draft", "verify", "rest")) == pytest.approx(1)


def test_a_perfect_head(run: Run) -> None:
    """A draft that is made and not used, or a length that is not the one asked for."""
    args = ("-p", "the cat", "-n", "41", "--temp", "0", "--draft-fixed", "--drafter", "mtp")
    record = run(*args, "--json").record
    assert record["n_rounds"] == 10
    assert record["n_accept"] == record["n_drafted"] == 30
    assert record["drafted_by_position"] == [10, 10, 10]
    assert record["drafted_by_origin"] == {"mtp": 30}
    longer = run(*args, "--spec-draft-n-max", "7", "--json").record
    assert longer["n_rounds"] == 5
    assert longer["n_draft"] == 7


def test_every_drafter_gives_plain_decoding_s_text(run: Run) -> None:
    """A draft that gets into the text, at any temperature."""
    for model in ("flat", "any"):
        head = "perfect.gguf" if model == "flat" else "bad.gguf"
        for temperature in ("0", "1.2"):
            args = ("-m", f"{model}.gguf", "-p", "the cat", "-n", "50", "--temp", temperature)
            texts = [
                run(*args, "-s", "4", "--json", "--drafter", drafter, *more).record["tokens"]
                for drafter in ("none", "mtp", "ngram", "mtp+ngram")
                for more in [("--mtp-head", head, "--draft-fixed") if "mtp" in drafter else ()]
            ]
            assert texts == texts[:1] * 4


def test_layers_in_the_model_s_own_file(run: Run) -> None:
    """MTP layers that are there and not found."""
    record = run("-m", "both.gguf", "-p", "the cat", "-n", "20", "--json", "--draft-fixed").record
    assert record["n_drafted"] > 0
    assert record["inputs"] == []
    assert record["options"]["mtp_head"] is None


def test_drafts_of_the_head_are_shorter_than_those_of_n_grams(run: Run) -> None:
    """--draft-max that cuts n-grams, or does not cut the head."""
    args = ("-p", "the cat", "-n", "120", "--temp", "0", "--draft-fixed", "--draft-max", "2")
    record = run(*args, "--ngram-draft-max", "5", "--json").record
    assert len(record["mtp_drafted_by_position"]) == 2
    assert len(record["ngram_drafted_by_position"]) == 5
    alone = run(*args, "--drafter", "ngram", "-m", "flat.gguf", "--json").record
    assert len(alone["drafted_by_position"]) == 2


def test_p_min(run: Run) -> None:
    """A threshold that is parsed and forgotten."""
    args = ("-p", "the cat", "-n", "30", "--draft-fixed", "--drafter", "mtp", "--temp", "0")
    assert run(*args, "--spec-draft-p-min", "1", "--json").record["n_drafted"] < 30
    assert run(*args, "--draft-p-min", "0", "--json").record["n_drafted"] > 20


def test_rejection(run: Run) -> None:
    """--verify that changes nothing, or a seed that is not told to the drafter."""
    args = ("-p", "the cat", "-n", "60", "--temp", "0.9", "-s", "5", "--draft-fixed", "--json")
    matched = run(*args).record
    rejected = run(*args, "--verify", "rejection").record
    assert rejected["tokens"] != matched["tokens"]
    assert rejected["tokens"] == run(*args, "--verify", "rejection").record["tokens"]
    assert rejected["options"]["verify"] == "rejection"
    greedy = ("-p", "the cat", "-n", "60", "--temp", "0", "--json")
    tokens = run(*greedy).record["tokens"]
    assert run(*greedy, "--verify", "rejection").record["tokens"] == tokens


def test_text_and_figures_go_apart(run: Run) -> None:
    """Tables in a file that was to hold the text; a table without a row."""
    args = ("-p", "the cat", "-n", "20", "--temp", "0")
    shown = run(*args, "--draft-fixed")
    for name in ("n_drafted ", "tokens per round", "position 1", "by mtp", "drafting", "the rest"):
        assert name in shown.stderr
        assert name not in shown.stdout
    for more in (("--draft-max", "0"), ("-m", "flat.gguf", "--drafter", "none")):
        plain = run(*args, *more)
        assert plain.status == 0
        assert plain.stdout == shown.stdout
    assert run(*args, "-q") == Done(0, shown.stdout, "")


def test_accepted_tokens_are_coloured(run: Run) -> None:
    """A colour that only lookup-run has."""
    args = ("-p", "the cat", "-n", "20", "--temp", "0", "--draft-fixed", "--color", "on")
    assert stream.BLUE in run(*args).stdout


def test_compare(run: Run) -> None:
    """A prompt that the head does not hear of, since it is evaluated once for all texts."""
    args = ("-p", "the cat sat on the mat", "-n", "41", "--temp", "0", "--compare", "--repeat", "2")
    record = run(*args, "--draft-fixed", "--drafter", "mtp", "--json").record
    assert record["identical"] is True
    assert record["n_rounds"] == 10
    assert record["n_accept"] == 30
    assert len(record["ratio_samples"]) == 2
    assert "drafting against plain decoding" in run(*args).stdout


def test_what_the_head_sees_of_a_started_prompt(run: Run) -> None:
    """Hidden states of the prompt lost, or shifted, where it is evaluated once for all texts."""
    args = ("-m", "any.gguf", "--mtp-head", "bad.gguf", "-p", "the cat sat on the mat", "-n", "30")
    more = ("--temp", "0", "--drafter", "mtp", "--draft-fixed", "--draft-p-min", "0.2", "--json")
    alone = run(*args, *more).record
    compared = run(*args, *more, "--compare", "--repeat", "1").record
    for key in ("tokens", "drafted_by_position", "accepted_by_position"):
        assert alone[key] == compared[key]
    assert 0 < alone["drafted_by_position"][2] < alone["drafted_by_position"][0]


def test_interrupted(run: Run, interrupt_after: Callable[[int], None]) -> None:
    """Ctrl-C that loses what was generated so far, or that a script takes for success."""
    interrupt_after(7)
    done = run("-p", "the cat", "-n", "30", "--json", "-q")
    assert (done.status, done.stderr) == (ExitStatus.INTERRUPTED, INTERRUPTED)
    assert 7 <= done.record["n_predict"] < 30


@pytest.mark.parametrize("drafter", ["mtp", "ngram", "mtp+ngram"])
def test_texts_shorter_than_a_draft(run: Run, drafter: str) -> None:
    """The bug: -n 4 refused, since a drafter warmed up with more tokens than it had room for."""
    head = () if drafter == "ngram" else ("--mtp-head", "perfect.gguf")
    args = ("-m", "flat.gguf", *head, "--drafter", drafter, "-p", "a", "--temp", "0", "--json")
    longer = run(*args, "-n", "12").record["tokens"]
    for n in (0, 1, 2, 4):
        for more in ((), ("-c", str(max(n, 1))), ("--draft-max", "16"), ("--compare",)):
            done = run(*args, "-n", str(n), *more)
            assert done.status == 0, (n, more, done.stderr)
            assert done.record["tokens"] == longer[:n]


# --- the shipped head -----------------------------------------------------------------------------


def test_the_shipped_head_is_missing(
    cli: Cli, smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A traceback, or a text without drafts, in an installation that is not whole."""
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    done = cli("mtp-run", "-m", "smollm2", "-p", "x", "-n", "1")
    refused(done, ExitStatus.INPUT_UNREADABLE, "head for smollm2 is missing")
    done = cli("mtp-run", "-m", "smollm2", "-p", "x", "-n", "1", "--drafter", "ngram", "--json")
    assert done.status == 0


# --- a suite --------------------------------------------------------------------------------------


def test_suite_rows(suite: Run) -> None:
    """A prompt that is lost, or a text that goes on after max_tokens."""
    record = suite("--drafter", "mtp", "--draft-fixed", "--json").record
    rows = record["rows"]
    assert [(row["id"], row["category"], row["n_predict"]) for row in rows] == [
        ("a", "x", 25),
        ("b", "x", 13),
        ("c", "y", 9),
    ]
    assert [row["n_rounds"] for row in rows] == [6, 3, 2]
    assert [row["drafted_by_position"] for row in rows] == [[6] * 3, [3] * 3, [2] * 3]
    assert all(row["identical"] and row["acceptance"] == 1 for row in rows)
    assert record["options"]["temperature"] == 0
    assert list(record["kinds"]) == ["x", "y"]
    assert record["overall"]["n_rounds"] == 11
    assert record["overall"]["tokens_per_round"] == 44 / 11
    assert record["kinds"]["x"]["drafted_by_position"] == [9] * 3
    assert record["best_draft_max"] == 3
    assert record["interrupted"] is False
    capped = suite("--drafter", "mtp", "-n", "10", "--json").record
    assert [row["n_predict"] for row in capped["rows"]] == [10, 10, 9]


def test_origins_in_a_suite(suite: Run) -> None:
    """Drafted tokens of one prompt counted with the next, or all of them counted as accepted."""
    model = ("-m", "any.gguf", "--mtp-head", "bad.gguf")
    record = suite(*model, "--draft-fixed", "--ngram-min", "1", "--repeat", "2", "--json").record
    for keys in (*record["rows"], *record["kinds"].values(), record["overall"]):
        assert sum(keys["drafted_by_origin"].values()) == keys["n_drafted"] > keys["n_accept"]
        assert sum(keys["accepted_by_origin"].values()) == keys["n_accept"]
        assert sum(keys["drafted_by_position"]) == keys["n_drafted"]


def test_suite_keys(suite: Run) -> None:
    """A key that is renamed or gone, at any level."""
    documented = DOCUMENTED.read_text() + DOCUMENTED.with_name("lookup-run.md").read_text()
    record = suite("--bounds", "--json").record
    levels = [record, record["overall"], record["rows"][0], record["overall"]["bounds"]]
    for key in [key for level in levels for key in level]:
        assert f"`{key}`" in documented, key
    common = set(record["overall"]) - {"n_prompts"}
    assert common <= set(record["rows"][0])
    assert common <= set(record["kinds"]["x"])


def test_suite_table(suite: Run) -> None:
    """A table that breaks, or does not say whether texts are the same."""
    done = suite("--draft-fixed", "--draft-max", "1,2", "--bounds", "-q")
    assert done.status == 0
    for text in ("ratio by draft length", "same", "up to position", "where the gain"):
        assert text in done.stdout
    assert done.stdout.count("\nall ") >= 4


def test_suite_sweep(suite: Run) -> None:
    """Lengths mixed up, or a best one that is not the best."""
    done = suite("--drafter", "mtp", "--draft-fixed", "--draft-max", "1,3,3,6", "--json")
    record = done.record
    assert [row["draft_max"] for row in record["rows"]] == [1, 3, 6] * 3
    assert [row["n_rounds"] for row in record["rows"]] == [12, 6, 4, 6, 3, 2, 4, 2, 2]
    by_length = record["by_draft_max"]
    assert list(by_length) == ["1", "3", "6"]
    best = max(by_length, key=lambda name: by_length[name]["overall"]["ratio"])
    assert record["best_draft_max"] == int(best)
    assert record["overall"] == by_length[best]["overall"]
    assert f"best draft length: {best}, " in done.stderr


def test_suite_alternates(suite: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafting always first: a machine that gets slower would favour it."""
    order = []
    text = compare.Start.text

    def watched(start: compare.Start, drafting: Any = None) -> Generation:
        order.append("plain" if drafting is None else "drafted")
        return text(start, drafting)

    monkeypatch.setattr(compare.Start, "text", watched)
    record = suite("--repeat", "2", "--json").record
    assert order == [
        *("drafted", "plain", "plain", "drafted"),
        *("plain", "drafted", "drafted", "plain"),
        *("drafted", "plain", "plain", "drafted"),
    ]
    assert len(record["rows"][0]["ratio_samples"]) == 2


def test_suite_of_rejection(suite: Run) -> None:
    """Turns of one prompt that draw other numbers, so that their texts cannot be compared."""
    args = ("--verify", "rejection", "--temp", "0.9", "-s", "1", "--draft-fixed", "--json")
    once, twice = suite(*args).record, suite(*args, "--repeat", "2").record
    for one, two in zip(once["rows"], twice["rows"], strict=True):
        assert one["tokens"] == two["tokens"]
        assert two["n_drafted"] == 2 * one["n_drafted"]
        assert two["n_accept"] == 2 * one["n_accept"]


def test_suite_of_texts_that_differ(suite: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """``identical`` that is always true."""
    text = compare.Start.text

    def wrong(start: compare.Start, drafting: Any = None) -> Generation:
        done = text(start, drafting)
        if drafting is not None and len(done.tokens) == 13:
            done.tokens[-1] ^= 1
        return done

    monkeypatch.setattr(compare.Start, "text", wrong)
    record = suite("--json").record
    assert [row["identical"] for row in record["rows"]] == [True, False, True]
    assert [record["kinds"][kind]["identical"] for kind in "xy"] == [False, True]
    assert record["overall"]["identical"] is False


def test_suite_csv(suite: Run) -> None:
    """Rows of different columns, or kinds that cannot be told from prompts."""
    for more in ((), ("--bounds",)):
        done = suite("--draft-max", "1,2", "--draft-fixed", "--csv", *more)
        rows = list(csv.DictReader(io.StringIO(done.stdout)))
        assert all(None not in row and None not in row.values() for row in rows)
        assert [row["level"] for row in rows] == ["prompt"] * 6 + ["kind", "kind", "overall"] * 2
        assert rows[0]["id"] == "a"
        assert rows[-1]["drafted_by_origin_mtp"] != ""
        assert ("bounds_ratio_all_accepted" in rows[0]) == bool(more)


def test_suite_plot(suite: Run, tmp_path: Path) -> None:
    """A figure that is promised and not drawn."""
    path = tmp_path / "x.svg"
    done = suite("--draft-max", "1,2", "--plot", path)
    assert f"wrote {path}" in done.stderr
    assert path.read_text().count("<svg") == 1


def test_suite_interrupted(suite: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C that loses an hour's figures, or counts half a prompt."""
    text = compare.Start.text
    n_texts = 0

    def interrupting(start: compare.Start, drafting: Any = None) -> Generation:
        nonlocal n_texts
        n_texts += 1
        if n_texts == 6:
            raise KeyboardInterrupt
        return text(start, drafting)

    monkeypatch.setattr(compare.Start, "text", interrupting)
    done = suite("--json", "-q")
    assert (done.status, done.stderr) == (ExitStatus.INTERRUPTED, INTERRUPTED)
    assert done.record["interrupted"] is True
    assert [row["id"] for row in done.record["rows"]] == ["a", "b"]
    assert done.record["n_suite"] == 3
    n_texts = 5
    assert suite("--json", "-q") == Done(ExitStatus.INTERRUPTED, "", INTERRUPTED)


def test_bounds(suite: Run) -> None:
    """Forced acceptance that does not happen, changes the text, or spares the drafter's work."""
    seen: list[tuple[list[int], Bounds]] = []
    forced = suite_run._forced

    def watched(*args: Any) -> Bounds:
        found = forced(*args)
        seen.append((args[4].tokens, found))
        return found

    suite_run._forced, restore = watched, suite_run._forced
    try:
        record = suite("-m", "any.gguf", "--mtp-head", "bad.gguf", "--bounds", "--json").record
    finally:
        suite_run._forced = restore
    assert record["options"]["draft_fixed"] is True
    for tokens, bounds in seen:
        (none,), (every,) = bounds.none, bounds.every
        assert none.tokens == every.tokens == tokens
        assert none.n_accepted == 0
        assert none.n_rounds == len(tokens) - 1
        assert every.n_accepted == every.n_drafted > 0
        assert every.draft_ns > 0
        assert 1 in bounds.step_ns
    keys = record["overall"]["bounds"]
    costs = sum(keys[f"{part}_cost"] for part in ("verify", "draft", "rest"))
    assert record["overall"]["ratio"] == pytest.approx(
        record["overall"]["tokens_per_round"] / costs
    )
    assert keys["step_cost"]["1"] == 1


# --- figures --------------------------------------------------------------------------------------


def made(n_tokens: int, ms: float, drafts: list[tuple[int, int]] = (), **ns: int) -> Generation:  # type: ignore[assignment]
    """A generation of that many tokens with drafts of (length, accepted)."""
    drafted, accepted = np.zeros(4, np.int64), np.zeros(4, np.int64)
    for length, n in drafts:
        drafted[:length] += 1
        accepted[:n] += 1
    n_accepted = int(accepted.sum())
    return Generation(
        drafted,
        accepted,
        tokens=list(range(n_tokens)),
        stop_reason="length",
        n_rounds=n_tokens - 1 - n_accepted,
        n_drafted=int(drafted.sum()),
        n_accepted=n_accepted,
        decode_ns=round(ms * 1e6),
        **ns,
    )


def cell(
    plain_ms: float,
    drafted_ms: float,
    drafts: list[tuple[int, int]] = (),
    n: int = 11,
    **more: Any,  # type: ignore[assignment]
) -> SuiteCell:
    ns = {"draft_ns": 1_000_000, "verify_ns": 3_000_000}
    values = {
        "name": "a",
        "category": "x",
        "draft_max": 3,
        "n_input": 5,
        "prefill": made(0, 0),
        "plain": [made(n, plain_ms)],
        "drafted": [made(n, drafted_ms, drafts, **ns)],
    }
    return SuiteCell(**{**values, **more})


def test_ratios_are_of_sums() -> None:
    """A mean of ratios, in which a short text counts as much as a long one."""
    keys = figures([cell(100, 50), cell(10, 20)])
    assert keys["ratio"] == pytest.approx(110 / 70)
    assert (keys["ratio_least"], keys["ratio_most"]) == (0.5, 2.0)
    assert keys["plain_tokens_per_s"] == pytest.approx(20 / 0.110)
    assert keys["draft_share"] == pytest.approx(2 / 70)
    assert keys["rest_share"] == pytest.approx(62 / 70)
    # each left out once: ratios 0.5 and 2
    assert keys["ratio_se"] == pytest.approx(math.sqrt(0.5 * 2 * 0.75**2))
    assert figures([cell(100, 50)])["ratio_se"] is None
    # of three alike but one: ratios 1, 1.5 and 1.5 without the first, the second, the third
    keys = figures([cell(20, 10), cell(10, 10), cell(10, 10)])
    assert keys["ratio_se"] == pytest.approx(math.sqrt(2 / 3 * (2 * (1 / 6) ** 2 + (1 / 3) ** 2)))


def test_ratio_of_turns() -> None:
    """A spread of a single prompt that is none."""
    keys = figures([cell(0, 0, plain=[made(11, 10), made(11, 30)], drafted=[made(11, 10)] * 2)])
    assert keys["ratio"] == 2
    assert (keys["ratio_least"], keys["ratio_most"]) == pytest.approx((1, 3))


def test_positions() -> None:
    """A draft that was cut short counted where it had no token."""
    keys = figures([cell(10, 10, [(3, 2), (1, 1), (3, 0)]), cell(10, 10, [(2, 2)])])
    assert keys["drafted_by_position"] == [4, 3, 2]
    assert keys["accepted_by_position"] == [3, 2, 0]
    assert keys["acceptance_by_position"] == [3 / 4, 2 / 3, 0]
    assert keys["n_draft_rounds"] == 4
    assert keys["mean_accepted_length"] == 5 / 4
    assert keys["acceptance_by_position_se"][0] == standard_error([(2, 3), (1, 1)])
    assert keys["acceptance_by_position_se"][2] == 0


def test_standard_errors() -> None:
    """Drafts of one text taken for independent ones: far too small an error."""
    assert standard_error([]) is None
    assert standard_error([(5, 20)]) == pytest.approx(math.sqrt(0.25 * 0.75 / 20))
    assert standard_error([(0, 50), (50, 50)]) == pytest.approx(0.5)
    assert standard_error([(25, 50)] * 4) == 0


def test_a_text_of_one_token() -> None:
    """nan, inf or a crash where nothing was decoded."""
    bounds = Bounds([made(1, 0.01)], [made(1, 0.01)], {1: [9], 2: [11]})
    keys = figures([cell(0.01, 0.01, n=1, bounds=bounds), cell(0.01, 0.01, n=1, bounds=bounds)])
    for name in ("ratio", "ratio_se", "ratio_least", "acceptance", "tokens_per_round"):
        assert keys[name] is None
    # the drafter took in the prompt's last token
    assert [keys[f"{part}_share"] for part in ("draft", "verify", "rest")] == [None] * 3
    assert {v for k, v in keys["bounds"].items() if k != "step_cost"} == {None}
    assert record_of([cell(0, 0, n=1)])["best_draft_max"] is None


def test_rounds_by_length() -> None:
    """Rounds without a draft forgotten."""
    run = made(11, 10, [(3, 2), (1, 1), (3, 0)])
    assert rounds_by_length(run) == {0: 4, 1: 1, 3: 2}


def test_bounds_of_known_times() -> None:
    """A decomposition that does not add up."""
    bounds = Bounds([made(11, 200)], [made(11, 40)], {1: [9, 10, 90], 2: [11] * 3, 4: [12] * 3})
    drafts = [(3, 2), (1, 1), (3, 0)]
    keys = figures([cell(100, 50, drafts, bounds=bounds)])["bounds"]
    assert keys["ratio_none_accepted"] == 0.5
    assert keys["ratio_all_accepted"] == 2.5
    # 7 rounds of 10 ms each, were they plain
    assert keys["draft_cost"] == pytest.approx(1 / 70)
    assert keys["verify_cost"] == pytest.approx(3 / 70)
    assert keys["rest_cost"] == pytest.approx(46 / 70)
    assert keys["ratio_both_free"] == pytest.approx(10 / 7)
    assert keys["ratio_batches_free"] == pytest.approx(100 / 71)
    assert keys["ratio_drafts_free"] == pytest.approx(100 / 49)
    assert keys["ratio_batches_dear"] == pytest.approx(100 / (140 + 1))
    assert keys["predicted_ratio"] == pytest.approx(100 / (4 * 10 + 11 + 2 * 12 + 1_000_000))
    assert keys["step_cost"] == {"1": 1, "2": 1.1, "4": 1.2}


def test_the_best_length() -> None:
    """A tie that goes to the longer draft; kinds of another length than the best."""
    cells = [cell(10, 5, draft_max=4), cell(10, 5, draft_max=2), cell(10, 9, draft_max=1)]
    record = record_of(cells)
    assert record["best_draft_max"] == 2
    assert record["overall"]["draft_max"] == record["kinds"]["x"]["draft_max"] == 2


def test_figure() -> None:
    """A kind's line through another's points; an error bar around nothing."""
    cells = [cell(10, 5, [(1, 1)], draft_max=2), cell(10, 8, [(2, 0)], category="y", draft_max=2)]
    acceptance, ratio, _, _ = (panel.series for panel in figure_of(record_of(cells)).panels)
    assert [series.name for series in ratio] == ["x", "y", "all"]
    assert ratio[0].points == [(2, 2.0, 2.0, 2.0)]
    assert ratio[2].points[0][:2] == (2, pytest.approx(20 / 13))
    assert acceptance[0].points == [(1, 100, 100, 100)]
    assert acceptance[1].points == [(1, 0, 0, 0), (2, 0, 0, 0)]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        ([], ExitStatus.USAGE, "no prompt"),
        (["-p", "a", "x.jsonl"], ExitStatus.USAGE, "there is no --suite"),
        (["--suite", "-p", "a"], ExitStatus.USAGE, "brings its own prompts"),
        (["--suite", "--chat"], ExitStatus.USAGE, "brings its own prompts"),
        (["--suite", "none.jsonl"], ExitStatus.INPUT_UNREADABLE, "none.jsonl"),
        (["--suite", "bad.jsonl"], ExitStatus.INPUT_MALFORMED, "bad.jsonl, line 2"),
        (["--suite", "--compare"], ExitStatus.USAGE, "compares already"),
        (["--suite", "--stop", "a"], ExitStatus.USAGE, "compares whole texts"),
        (["--suite", "-n", "0"], ExitStatus.USAGE, "nothing to measure"),
        (["--suite", "--drafter", "none"], ExitStatus.USAGE, "nothing to compare"),
        (["--suite", "--draft-max", "2,0"], ExitStatus.USAGE, "nothing to compare"),
        (["--suite", "--draft-max", "2,x"], ExitStatus.USAGE, "'x' is not a number"),
        (["--suite", "--draft-max", "5000"], ExitStatus.USAGE, "not a number from 0 to 4096"),
        (["--suite", "--plot", "x.pdf"], ExitStatus.USAGE, "neither a .png nor"),
        (["--suite", "--bounds", "--verify", "rejection"], ExitStatus.USAGE, "--bounds needs"),
        (["--suite"], ExitStatus.MODEL_CHAT_TEMPLATE, "no chat template"),
        (["-p", "a", "--draft-max", "1,2"], ExitStatus.USAGE, "several --draft-max is for --suite"),
        (["-p", "a", "--plot", "x.png"], ExitStatus.USAGE, "--plot is for --suite"),
        (["-p", "a", "--csv"], ExitStatus.USAGE, "--csv is for --suite"),
        (["-p", "a", "--bounds"], ExitStatus.USAGE, "--bounds is for --suite"),
        (["-p", "a", "--repeat", "2"], ExitStatus.USAGE, "--repeat is for"),
        (["-p", "a", "--compare", "--draft-max", "0"], ExitStatus.USAGE, "nothing to compare"),
        (["-p", "a", "--drafter", "ngram"], ExitStatus.USAGE, "--mtp-head is not for"),
        (["-p", "a", "--drafter", "mtp", "-lcs", "x"], ExitStatus.USAGE, "-lcs and -lcd"),
        (["-p", "a", "--drafter", "both"], ExitStatus.USAGE, "'--drafter'"),
        (["-p", "a", "--verify", "no"], ExitStatus.USAGE, "'--verify'"),
        (["-p", "a", "--draft-p-min", "2"], ExitStatus.USAGE, "'--draft-p-min'"),
        (["-p", "a", "--draft-p-min", "nan"], ExitStatus.USAGE, "'--draft-p-min'"),
        (["-p", "a", "--temp", "-1"], ExitStatus.USAGE, "'--temp'"),
        (["-p", "a", "-lcs", "none"], ExitStatus.INPUT_UNREADABLE, "none"),
        (["-p", "a", "-lcd", "other.lcd"], ExitStatus.CACHE_OTHER_VOCABULARY, "other.lcd"),
        (["-p", "a", "--mtp-head", "none.gguf"], ExitStatus.INPUT_UNREADABLE, "none.gguf"),
        (["-p", "a", "--mtp-head", "bad.jsonl"], ExitStatus.MODEL_NOT_GGUF, "bad.jsonl"),
        (["-p", "a", "--mtp-head", "{toys}/any.gguf"], ExitStatus.USAGE, "no MTP layers"),
    ],
    ids=str,
)
def test_mistakes(
    args: list[str],
    status: ExitStatus,
    message: str,
    cli: Cli,
    toys: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mistake that shows as a traceback, as nonsense, or when the weights have been read."""
    from draftsmith.engine.transformer import model

    def too_late(*args: object, **options: object) -> None:
        pytest.fail("the weights were read")

    monkeypatch.setattr(model, "load_model", too_late)
    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").write_text('{"id": "a", "category": "b", "prompt": "c"}\n{}\n')
    write_cache("other.lcd", cache_of({(1, 2): {3: 1}}, n_vocab=9, fingerprint=bytes([7] * 32)))
    args = [arg.format(toys=toys) for arg in args]
    head = () if "--mtp-head" in args else ("--mtp-head", toys / "perfect.gguf")
    refused(cli("mtp-run", "-m", toys / "flat.gguf", *head, *args), status, message)


def test_a_model_without_mtp_layers(run: Run) -> None:
    """A text without drafts, or a traceback."""
    done = run("-m", "flat.gguf", "-p", "a", "-n", "1")
    refused(done, ExitStatus.USAGE, "has no MTP layers")
    assert "--mtp-head" in done.error


def test_a_head_for_another_model(run: Run, tmp_path: Path) -> None:
    """Drafts of nonsense, for ever."""
    other = {**toy_model.SMALL, "n_embd": 128, "n_ctx": 256}
    write_toy_head(tmp_path / "wide.gguf", "llama", **other)
    done = run("-m", "flat.gguf", "--mtp-head", tmp_path / "wide.gguf", "-p", "a", "-n", "1")
    refused(done, ExitStatus.USAGE, "head for another model")


def test_a_prompt_that_does_not_fit(suite: Run) -> None:
    """A refusal that does not say which prompt."""
    done = suite("-c", "20")
    refused(done, ExitStatus.USAGE, "prompt a has")
    assert "-c" in done.error


def test_help_names_every_option(cli: Cli) -> None:
    """An option under llama.cpp's name that is not there."""
    shown = cli("mtp-run", "--help").stdout
    documented = DOCUMENTED.read_text()
    for name in ("--mtp-head", "--suite", "--spec-draft-n-max", "--spec-draft-p-min", "--verify"):
        assert name in shown
        assert name in documented
    assert mtp_run.DRAFT_MAX == 3
    assert suite_figures.ORIGINS == ("mtp", "ngram")
