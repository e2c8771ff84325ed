"""``lookup-stats --plot``: what the figure holds, the same bytes each time, early refusals."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Done
from draftsmith.cli import plot
from draftsmith.cli.plot import Figure, Panel, Series, draw
from draftsmith.cli.replay.drafter_report import drafter_figure
from draftsmith.cli.replay.report import figure_of
from draftsmith.engine.errors import ExitStatus

Cli = Callable[..., Done]


@pytest.fixture
def stats(cli: Cli, smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Replay 600 token ids, in their folder."""
    monkeypatch.chdir(tmp_path)
    np.save("ids.npy", np.tile(np.arange(40, dtype=np.int32), 15))
    return lambda *args: cli("lookup-stats", "-m", "smollm2", "-f", "ids.npy", "-c", "256", *args)


def record(static: str | None, n_bytes: int, **changes: Any) -> dict[str, Any]:
    return {
        "options": {"static": static, "dynamic": None},
        "inputs": [{"path": "text", "bytes": 5}, {"path": static, "bytes": n_bytes}],
        "n_ctx": 4096,
        "n_draft": 8,
        "n_drafted": 1_000_000,
        "accept_percent": 37.0,
        "draft_ns_samples": [300_000_000, 100_000_000, 200_000_000],
        "t_draft_flat_ms": 8.0,
        "static_bytes": 27_000_000,
        **changes,
    }


def test_points(tmp_path: Path) -> None:
    """A spread around the wrong middle; a time to open where there was nothing to open."""
    none = record(None, 0, static_bytes=0, t_draft_flat_ms=0.001)
    none["inputs"] = none["inputs"][:1]
    figure = figure_of([none, record("x", 60_000_000), record("x", 60_000_000, n_draft=3)])
    latency, load, memory, accept = (panel.series for panel in figure.panels)
    assert [series.name for series in latency] == [
        "-c 4096, --draft-max 8",
        "-c 4096, --draft-max 3",
    ]
    assert latency[0].points == [(0, 0.2, 0.1, 0.3), (60, 0.2, 0.1, 0.3)]
    assert load[0].points == [(0, None, None, None), (60, 8, 8, 8), (60, 8, 8, 8)]
    assert memory[0].points[:2] == [(0, 0, 0, 0), (60, 27, 27, 27)]
    assert accept[1].points == [(60, 37, 37, 37)]


def figure(name: str = "one") -> Figure:
    points = [(5.0, 2.0, 1.5, 4.0), (0.0, 1.0, 1.0, 1.0), (7.0, None, None, None)]
    panels = [Panel(f"panel {i}", [Series(name, points), Series("two", points)]) for i in range(4)]
    return Figure("title", "x label", panels)


def drafter_record(exact: bool, predicted: float | None) -> dict[str, Any]:
    return {
        "by_drafter": [{"name": "ngram-mod"}],
        "upstream_exact": exact,
        "n_rounds": 100,
        "n_drafted": 50,
        "tokens_per_round": 1.2,
        "accept_percent": 40.0,
        "draft_ns_samples": [100_000],
        "drafter_bytes": 3_000_000,
        "predicted_ratio": predicted,
        "predicted_ratio_least": None,
        "predicted_ratio_most": None,
    }


def test_drafters_are_dots() -> None:
    """Lines through a grid of settings; two forms of a drafter that look like two drafters."""
    exact, repaired = drafter_record(True, 1.1), drafter_record(False, 1.3)
    shown = drafter_figure([exact, repaired, repaired])
    assert shown.panels[3].level == 1
    for panel in shown.panels:
        theirs, ours = panel.series
        assert (theirs.name, theirs.form_of) == ("ngram-mod (llama.cpp)", ours.name)
        assert not theirs.is_line
        assert not ours.is_line
        assert [point[0] for point in (*theirs.points, *ours.points)] == [1.5] * 3
    assert shown.panels[3].series[0].points == [(1.5, 1.1, 1.1, 1.1)]
    memory = drafter_figure([drafter_record(False, None)]).panels[3]
    assert memory.series[0].points == [(1.5, 3, 3, 3)]


def test_another_form_has_the_colour_of_the_first(tmp_path: Path) -> None:
    """A hollow marker of the next colour; a line through dots; an axis that is not as asked."""
    points = [(1.0, 1.0, 1.0, 1.0), (100.0, 2.0, 2.0, 2.0)]
    both = [Series("a", points, is_line=False), Series("b", points, is_line=False, form_of="a")]
    draw(Figure("t", "x", [Panel("p", both, level=1.5)], has_log_x=True), str(tmp_path / "a.svg"))
    text = (tmp_path / "a.svg").read_text().lower()
    assert "#0072b2" in text
    assert "#d55e00" not in text
    assert "fill: none; stroke: #0072b2" not in text  # no line
    assert "<!-- 50 -->" in text  # a label of a log scale alone


@pytest.mark.parametrize("suffix", [".png", ".svg", ".SVG"])
def test_same_data_same_bytes(tmp_path: Path, suffix: str) -> None:
    """A date or a random id in the file; another content under a capital suffix."""
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    draw(figure(), str(first))
    draw(figure(), str(second))
    assert first.read_bytes() == second.read_bytes()
    head = b"\x89PNG" if suffix == ".png" else b"<?xml"
    assert first.read_bytes().startswith(head)
    draw(figure("three"), str(second))
    assert first.read_bytes() != second.read_bytes()


def test_settings_of_the_user_change_nothing(tmp_path: Path) -> None:
    """A matplotlibrc with white text on a white page."""
    import matplotlib

    draw(figure(), str(tmp_path / "a.svg"))
    with matplotlib.rc_context({"text.color": "white", "lines.linewidth": 9, "axes.grid": True}):
        draw(figure(), str(tmp_path / "b.svg"))
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_panels_without_a_point(tmp_path: Path) -> None:
    """A panel, or a figure, where nothing is defined: a division by zero."""
    nothing = [(1.0, None, None, None)]
    panels = [
        Panel("p", [Series("one", nothing)]),
        Panel("q", [Series("", [(1.0, 0.0, 0.0, 0.0)])]),
    ]
    draw(Figure("title", "x", panels), str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_styles_differ_without_colour() -> None:
    """Two lines of a figure that only colour tells apart."""
    styles = [(i % len(plot._MARKERS), i % len(plot._DASHES)) for i in range(8)]
    assert len(set(styles)) == 8
    assert len(set(plot._COLOURS)) == len(plot._COLOURS)


def test_file_beside_the_table(stats: Cli, tmp_path: Path) -> None:
    """A figure that takes the place of the table, or spoils the JSON on stdout."""
    done = stats("--draft-max", "2,4", "--repeat", "2", "--plot", "x.svg", "--json")
    assert (done.status, done.stderr) == (0, "wrote x.svg\n")
    assert len(done.record["rows"]) == 2
    text = (tmp_path / "x.svg").read_text()
    assert len(re.findall(r'id="axes_\d"', text)) == 4
    assert stats("--plot", "x.png").status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ids.npy", "x.png", "x.svg"]


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftsmith.cli.lookup_stats._tokens", lambda *_: pytest.fail("worked"))


@pytest.mark.usefixtures("no_work")
def test_without_matplotlib(stats: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ImportError at the end of an hour's sweep."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        plot, "find_spec", lambda name: None if name == "matplotlib" else real(name)
    )
    done = stats("--plot", "x.png")
    assert (done.status, done.stdout) == (ExitStatus.USAGE, "")
    assert "pip install 'draftsmith[plot]'" in done.error


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("name", ["x.pdf", "x", "png", "x.png.gz"])
def test_unknown_suffix(stats: Cli, name: str) -> None:
    """A file of a kind that was not asked for."""
    done = stats("--plot", name)
    assert (done.status, done.stdout) == (ExitStatus.USAGE, "")
    assert "neither a .png nor a .svg file" in done.error


@pytest.mark.usefixtures("no_work")
def test_folder_that_is_not_there(stats: Cli) -> None:
    """A figure that cannot be written, found out at the end."""
    done = stats("--plot", "nope/x.png")
    assert (done.status, done.stdout) == (ExitStatus.OUTPUT_NO_FOLDER, "")


def test_an_old_figure_stays_until_the_end(
    stats: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a figure, or none, where there was a whole one."""
    (tmp_path / "x.png").write_text("old")

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device", "x.png")

    monkeypatch.setattr("os.replace", fails)
    assert stats("--plot", "x.png").status == ExitStatus.DISK_FULL
    assert (tmp_path / "x.png").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ids.npy", "x.png"]


# --- plot-figure, for the scripts -----------------------------------------------------------------

DESCRIPTION = """{"title": "t", "x_label": "x", "panels": [
    {"label": "p", "from_zero": true,
     "series": [{"name": "one", "points": [[0, 1, 1, 1], [1, null, null, null], [2, 90, 80, 95]]}]}
]}"""


def test_described_figure(cli: Cli, tmp_path: Path) -> None:
    """A description that the scripts write and the command does not understand."""
    (tmp_path / "x.json").write_text(DESCRIPTION)
    assert cli("plot-figure", tmp_path / "x.json", tmp_path / "x.png") == Done(0, "", "")
    points: list[plot.Point] = [(0, 1, 1, 1), (1, None, None, None), (2, 90, 80, 95)]
    draw(Figure("t", "x", [Panel("p", [Series("one", points)])]), str(tmp_path / "y.png"))
    assert (tmp_path / "x.png").read_bytes() == (tmp_path / "y.png").read_bytes()
    assert "plot-figure" not in cli("--help").stdout


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", DESCRIPTION.replace("null", '"many"'), DESCRIPTION.replace("[2", "{")]
)
def test_no_description_of_a_figure(cli: Cli, tmp_path: Path, text: str) -> None:
    """A traceback for a damaged description."""
    (tmp_path / "x.json").write_text(text)
    done = cli("plot-figure", tmp_path / "x.json", tmp_path / "x.png")
    assert done.status == ExitStatus.INPUT_MALFORMED
    assert "does not describe a figure" in done.error
    done = cli("plot-figure", tmp_path / "y.json", tmp_path / "x.png")
    assert done.status == ExitStatus.INPUT_UNREADABLE
    assert not (tmp_path / "x.png").exists()
