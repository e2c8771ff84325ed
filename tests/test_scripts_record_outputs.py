"""scripts/record_outputs: what is masked, and what is told apart."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.fixture
def masked(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("masked_records")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("recorded_calls")


def compare_folders(*folders: Path) -> tuple[int, str]:
    """Exit status and output of the script for two records."""
    command = [sys.executable, SCRIPTS / "record_outputs", "--compare", *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


MEASURED = {
    "load_ms": 1.5,
    "stage_ms": {"score": 2.0, "select": None},
    "draft_ns_samples": [3, 4],
    "decode_tokens_per_s": 9.0,
    "plain_tokens_per_s_samples": [9.0],
    "ttft_full_ms": 1.0,
    "ratio_explained": 2.0,
    "peak_rss_bytes": 123,
    "compile_s": 0.5,
    "host": {"cpu": "fast", "draftsmith": "1.2"},
}


@pytest.mark.parametrize("key", MEASURED)
def test_what_measures_is_masked(masked: Any, key: str) -> None:
    """A difference reported because the machine was busy."""
    text = json.dumps(masked.mask({key: MEASURED[key]}))
    assert not any(digit in text for digit in "123459")
    assert "fast" not in text


EXACT = {
    "n_accept": 4,
    "accept": 45.4,
    "acceptance": 0.7,
    "acceptance_by_position_se": [0.1],
    "tokens_per_round": 1.5,
    "tokens": [1, 2],
    "text": "took 5 ms",
    "kept_share": 0.3,
    "kv_bytes": 9,
    "file_bytes": 9,
    "drafted_by_source": {"context": 3},
    "n_draft_rounds": 2,
    "stop_reason": "length",
    "needle_kept": 1.0,
    "first_token_kl": 0.02,
    "options": {"threads": 2, "memory_limit": None},
    "memory_limit_bytes": 800,
}


@pytest.mark.parametrize("key", EXACT)
def test_what_does_not_measure_stays(masked: Any, key: str) -> None:
    """A count masked with the times: a change of behaviour that nobody sees."""
    assert masked.mask({key: EXACT[key]}) == {key: EXACT[key]}


def test_shape_of_what_measures(masked: Any) -> None:
    """A time that became null, or an integer, passed as the same."""
    given = {"step_ms": {"1": 1.5, "2": None}, "draft_ns_samples": [1, 2]}
    assert masked.mask(given) == {
        "step_ms": {"1": "<float>", "2": None},
        "draft_ns_samples": ["<int>", "<int>"],
    }


def test_patterns_of_one_call(masked: Any) -> None:
    """A prediction from a curve without milliseconds masked in all calls."""
    row = {"rows": [{"predicted_ratio": 1.5}]}
    assert masked.mask(row) == row
    assert masked.mask(row, also=("predicted_*",)) == {"rows": [{"predicted_ratio": "<float>"}]}


def test_folders(masked: Any) -> None:
    """A module moved within the checkout, or another checkout, told as a difference."""
    text = "error: /tmp/x/a/b.gguf: no; see /tmp/x/c and /etc/d/e"
    expected = "error: <folder>/b.gguf: no; see <folder>/c and /etc/d/e"
    assert masked.mask_folders(text, ["/tmp/x"]) == expected


def test_csv(masked: Any) -> None:
    """Columns of lists and of the machine compared as texts."""
    text = "n_draft,load_ms,draft_ns_samples,host_cpu,accept\n3,1.5,1;2,fast,\n"
    row = {"n_draft": "3", "load_ms": "<cell>", "draft_ns_samples": "<cell>"}
    assert masked.mask_csv(text) == [{**row, "host_cpu": "<cell>", "accept": ""}]


def test_differences(masked: Any) -> None:
    """1 and 1.0, a key that went away, or a longer list taken for the same."""
    a = {"n": 1, "rows": [{"x": 1}], "gone": 2, "list": [1]}
    b = {"n": 1.0, "rows": [{"x": 2}], "list": [1, 2]}
    assert list(masked.differences(a, b)) == [
        ("gone", 2, "<none>"),
        ("list", [1], [1, 2]),
        ("n", 1, 1.0),
        ("rows[0].x", 1, 2),
    ]


def test_calls_on_one_side(masked: Any) -> None:
    """A call that went away, or an alias that prints something else than the old spelling."""
    old: dict[str, Any] = {"argv": ["old"], "status": 0}
    old["stdout"] = {"command": "old", "n": 1}
    alias: dict[str, Any] = {"argv": ["new", "x"], "status": 0, "same_as": "old"}
    alias["stdout"] = {"command": "new", "n": 1}
    assert masked.compare({"old": old}, {"old": old, "new": alias}) == []
    assert masked.compare({"old": old, "new": alias}, {"old": old}) == ["new: only in A"]
    assert masked.compare({"old": old}, {}) == ["old: only in A"]
    other = {**alias, "status": 1}
    expected = ["new (B, beside old): status: 0 -> 1"]
    assert masked.compare({"old": old}, {"old": old, "new": other}) == expected


def test_comparing_folders(tmp_path: Path) -> None:
    """Status 0 in spite of differences."""
    for name, status in (("a", 0), ("b", 0), ("c", 3)):
        (tmp_path / name).mkdir()
        records = {"call": {"argv": ["x"], "status": status}}
        (tmp_path / name / "records.json").write_text(json.dumps(records))
    assert compare_folders(tmp_path / "a", tmp_path / "b") == (0, "no difference\n")
    assert compare_folders(tmp_path / "a", tmp_path / "c") == (1, "call: status: 0 -> 3\n")


def test_names_of_calls(calls: Any) -> None:
    """Two calls of one name, of which only the second is kept."""
    names = [call.name for call in calls.all_calls()]
    assert len(set(names)) == len(names) > 80
    assert {call.same_as for call in calls.all_calls()} - {None} <= set(names)


def test_commands_of_help(calls: Any) -> None:
    """A new command that is never found, so that its calls are left out for ever."""
    text = "Usage\n\nCommands:\n  lookup-run    Generate.\n  prefill-niah  Measure what-is.\n"
    assert calls.commands_of_help(text) == ["lookup-run", "prefill-niah"]
