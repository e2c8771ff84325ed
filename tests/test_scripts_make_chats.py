"""The conversations that docs/choosing-a-drafter.md replays, and the script that wrote them."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Done

ROOT = Path(__file__).resolve().parent.parent
CHATS = ROOT / "scripts/chats.jsonl"
N_COUNTS = 6  # name, form, drafted, accepted, accept, mean length
PAGE = (ROOT / "docs/choosing-a-drafter.md").read_text()


def said(line: str) -> list[str]:
    """What the user says, where the other side answers each time."""
    messages: list[dict[str, Any]] = json.loads(line)["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant"] * (len(messages) // 2)
    return [one["content"] for one in messages[::2]]


def test_the_file_holds_what_the_script_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation that was lost, or a question that was changed after the recording."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    asked = list(importlib.import_module("make_chats").questions())
    recorded = CHATS.read_text(encoding="utf-8").splitlines()
    assert [(json.loads(line)["kind"], said(line)) for line in recorded] == asked


@pytest.mark.slow
def test_the_script_asks_what_the_file_holds(smollm2: Path) -> None:
    """A recording that the script would no longer make; a line that no replay reads."""
    script = ROOT / "scripts/make_chats.py"
    command = [sys.executable, script, "-m", smollm2, "-n", "8", "-t", "1", "--most", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    recorded = CHATS.read_text().splitlines()
    assert [said(line) for line in lines] == [said(line) for line in recorded[:2]]


def test_the_table_of_the_page_is_what_the_command_prints(
    cli: Callable[..., Done], smollm2: Path
) -> None:
    """Counts of another build on the page; the times in it are of one run."""
    table = PAGE[PAGE.index("what drafting saves") : PAGE.index("what was replayed")]
    drafters = PAGE[PAGE.index("lookup-stats -m smollm2 -f scripts/chats.jsonl") :]
    args = re.findall(r"--drafter (\S+)", drafters[: drafters.index("```")])
    done = cli(
        "lookup-stats", "-m", "smollm2", "-f", str(CHATS), "--upstream-exact",
        *(word for name in args for word in ("--drafter", name)),
    )  # fmt: skip
    shown, printed = rows_of(table, args), rows_of(done.stdout, args)
    assert len(shown) == 13
    assert printed == shown


def rows_of(table: str, drafters: list[str]) -> list[list[str]]:
    """The counts of each row, which are the same on each run."""
    rows = [line.split() for line in table.splitlines() if line.split(" ")[0] in drafters]
    return [row[:N_COUNTS] for row in rows]
