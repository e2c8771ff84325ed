"""The sink: JSON without NaN, CSV rows that fit together, tables that keep names whole."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
import time

import pytest
from draftsmith.cli.formats import number, one_line, percent, size
from draftsmith.cli.output import Output, Table

RECORD = {
    "command": "x",
    "ratio": math.nan,
    "samples": [1, 2],
    "by": {"a": 1, "b": None},
    "inputs": [{"path": "p;q", "bytes": 3}, {"path": "r", "bytes": None}],
    "on": True,
    "nested": [math.inf, {"z": -math.inf}],
}


def test_json_has_null_for_what_is_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    """NaN in JSON, which no other parser reads."""
    Output(mode="json").result(RECORD, [])
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["schema"] == 1
    assert found["ratio"] is None
    assert found["nested"] == [None, {"z": None}]


def test_csv_flattens(capsys: pytest.CaptureFixture[str]) -> None:
    """A cell that holds Python's spelling of a list or a dict."""
    Output(mode="csv").result({k: v for k, v in RECORD.items() if k != "nested"}, [])
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert row == {
        "schema": "1",
        "command": "x",
        "ratio": "",
        "samples": "1;2",
        "by_a": "1",
        "by_b": "",
        "inputs_path": "p;q;r",
        "inputs_bytes": "3;",
        "on": "true",
    }


def test_csv_without_header_appends(capsys: pytest.CaptureFixture[str]) -> None:
    """A loop's second row under a second header."""
    Output(mode="csv").result({"a": "x,y"}, [])
    Output(mode="csv", header=False).result({"a": "z"}, [])
    assert capsys.readouterr().out == 'schema,a\n1,"x,y"\n1,z\n'


def test_tables_in_a_pipe_keep_names_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """File names cut to an ellipsis because a pipe counts as 80 columns."""
    name = "folder/" * 60 + "name.txt"
    Output().result({}, [Table("t", ("file", "n"), [(name, "1")])])
    out = capsys.readouterr().out
    assert name in out
    assert "…" not in out
    assert "\x1b" not in out


def test_markup_in_names_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    """A file named [red] that vanishes as markup."""
    Output().result({}, [Table("[bold]t", ("file", "n"), [("[red]x[/red]", "1"), None])])
    out = capsys.readouterr().out
    assert "[bold]t" in out
    assert "[red]x[/red]" in out


def test_quiet_keeps_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    """--quiet that hides what changed the result."""
    out = Output(quiet=True)
    out.note("no")
    out.warn("yes")
    assert capsys.readouterr().err == "warning: yes\n"


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Bars in log files."""
    with Output().progress("x", unit="bytes") as bar:
        bar.update(1, 2)
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_bar_waits_for_long_work(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flash of a bar for work that is done at once, or none for work that takes long."""
    monkeypatch.setenv("TERM", term)
    for after_s in (99.0, 0.001):
        monkeypatch.setattr("sys.stderr", Terminal())
        with Output().progress("reading", unit="bytes", after_s=after_s) as bar:
            time.sleep(0.01)
            bar.update(1, 2)
        with Output().busy("compiling", after_s=after_s):
            time.sleep(0.1)
        shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
        if after_s > 1:
            assert shown == ""
        elif term != "dumb":
            assert "reading" in shown
            assert "compiling" in shown


def test_tables_aside(capsys: pytest.CaptureFixture[str]) -> None:
    """Figures in the middle of a text, or in spite of --quiet."""
    table = Table("t", (), [("name", "1")])
    Output().result({}, [table], aside=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "name" in shown.err
    Output(quiet=True).result({}, [table], aside=True)
    assert capsys.readouterr() == ("", "")


def test_one_line() -> None:
    """A file name with a line break or an escape sequence that garbles the error line."""
    assert one_line("a\nb\x1b[31mc é") == "a\\nb\\x1b[31mc é"


def test_numbers() -> None:
    """nan% in a table."""
    assert number(1234567.0) == "1,234,567"
    assert number(None) == number(math.nan) == percent(0, 0) == size(None) == "-"
    assert percent(1, 3) == "33.3%"
    assert (size(999), size(1000), size(2.5e12)) == ("999 B", "1.0 kB", "2,500.0 GB")


def test_table_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """A file name that breaks a table's line, or steers the terminal."""
    Output().result({}, [Table("a\nb", (), [("c\x1b[2J", "1")])])
    out = capsys.readouterr().out
    assert "a\\nb" in out
    assert "c\\x1b[2J" in out
