"""Rows of memory that add up to the peak."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toy_model
from conftest import Done
from draftsmith.cli import memory_report
from draftsmith.cli.memory_report import ReplayMemory, replay_rows, run_rows, sweep_line

Cli = Callable[..., Done]

MB = 1_000_000
RUN = {"program_bytes": 150 * MB, "weights_bytes": 90 * MB, "kv_bytes": 20 * MB}


@pytest.fixture
def bytes_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes as whole numbers of bytes, to be added up."""
    monkeypatch.setattr(memory_report, "size", str)


def parts(rows: list[tuple[str, str]]) -> dict[str, int]:
    return {name: int(n_bytes) for name, n_bytes in rows}


@pytest.mark.parametrize("more", [{}, {"head_bytes": 10 * MB}, {"drafter_bytes": 7 * MB}])
@pytest.mark.usefixtures("bytes_shown")
def test_rows_add_up(more: dict[str, int]) -> None:
    """A peak that is larger than all that is named, by memory that nobody can explain."""
    shown = parts(run_rows({**RUN, **more, "peak_rss_bytes": 300 * MB}))
    peak = shown.pop("peak memory")
    assert sum(shown.values()) == peak == 300 * MB
    assert shown["file, kernels, buffers"] == 40 * MB - sum(more.values())


@pytest.mark.usefixtures("bytes_shown")
def test_memory_that_was_not_touched() -> None:
    """A context that was never filled: a row below zero."""
    shown = parts(run_rows({**RUN, "peak_rss_bytes": 245 * MB}))
    assert shown["of these not touched"] == 15 * MB


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    toy_model.write_model(folder / "toy.gguf", "llama", seed=3, **toy_model.SMALL)
    (folder / "text.txt").write_text("The dog jumps over the lazy fox and the cat. " * 60)
    return folder


@pytest.mark.parametrize(
    ("args", "has_rows"),
    [
        (("lookup-stats", "-f", "text.txt", "-c", "256"), True),
        (("lookup-stats", "-f", "text.txt", "-c", "256,512"), False),
        (("lookup-stats", "-f", "text.txt", "--drafter", "suffix"), False),
        (("lookup-run", "-p", "ab", "-n", "4"), True),
        (("mtp-run", "-p", "ab", "-n", "4", "--drafter", "ngram"), True),
        (("prefill-run", "-f", "text.txt", "-p", "fox?", "--raw", "--scorer", "lexical", "-n", "2",
          "-c", "2048"), True),
    ],
)  # fmt: skip
def test_every_command_explains_its_peak(
    cli: Cli, toy: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], has_rows: bool
) -> None:
    """A table with one figure of memory beside another, and no word of what lies between."""
    monkeypatch.chdir(toy)
    record: dict[str, Any] = cli(*args, "-m", "toy.gguf", "--json").record
    record = record.get("rows", [record])[0]
    if args[0] != "lookup-stats":  # whose records are the same each time, but for their times
        assert 10 * MB < record["program_bytes"] <= record["peak_rss_bytes"]
    done = cli(*args, "-m", "toy.gguf")
    shown = " ".join((done.stdout + done.stderr).split())
    if has_rows:
        assert "program and vocabulary" in shown
        assert "peak memory" in shown
    else:
        assert "program and vocabulary, " in shown
        assert " at most: " in shown


def test_the_sentence_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of the sentence that come to another sum than it names."""
    monkeypatch.setattr(memory_report, "size", str)
    record, memory = {"peak_rss_bytes": 10}, ReplayMemory(5, 3)
    line = sweep_line(record, memory, "x")
    assert [int(word) for word in line.split() if word.isdecimal()] == [10, 5, 3, 2]
    assert dict(replay_rows(record, memory))["replays, kernels"] == "2"
