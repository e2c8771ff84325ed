"""Figures of several panels that share their x axis; the only module that knows matplotlib.

The same data give the same bytes with the same version of matplotlib: no date, no version, and no
settings of the user's go into a file.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..engine.errors import InputMalformed, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

SUFFIXES = (".png", ".svg")
# Okabe and Ito's colours, which the colour-blind tell apart; markers and dashes say it once more.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255")
_UNNAMED = "#000000"
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")  # one more than colours: 72 pairs
_DASHES = ("-", "--", "-.", ":")
# Above this ratio of the largest to the smallest value, small ones could not be read off.
_LOG_FROM = 20
_DPI = 150
_WIDTH_IN, _PANEL_HEIGHT_IN, _LEGEND_LINE_IN, _TITLE_IN = 10.0, 3.3, 0.22, 0.5
_LEGEND_COLUMNS = 3
_HEAT_ROW_IN = 0.28
_BYTES_MOST = 1 << 26
# What a description that is none comes to.
_BAD = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)

# x, y, and the least and the most of y over the repeats; a point without y is not drawn.
Point = tuple[float | None, ...]


@dataclass(frozen=True)
class Series:
    """Points that one line joins, by ascending x; without a name it is not in the legend.

    Parameters
    ----------
    is_line : whether a line joins them; else they are dots.
    form_of : what it is another form of: colour and marker are that one's, the marker is hollow.
    """

    name: str
    points: Sequence[Point]
    is_line: bool = True
    form_of: str | None = None

    @property
    def styled_as(self) -> str:
        """The name that gives it its colour and marker."""
        return self.name if self.form_of is None else self.form_of


@dataclass(frozen=True)
class Panel:
    """One plot of a figure.

    Parameters
    ----------
    label : what y is, with its unit.
    series : the lines; a name stands for the same line in every panel.
    from_zero : let the y axis begin at 0, so that heights can be compared.
    x_label : what x is, where it is not what the figure says.
    level : a height that a line marks, for comparison.
    """

    label: str
    series: Sequence[Series]
    from_zero: bool = True
    x_label: str | None = None
    level: float | None = None


@dataclass(frozen=True)
class Figure:
    """Panels, two in a row, under one title and over the same x axis.

    Parameters
    ----------
    has_log_x : give it a log scale; all x are above 0 then.
    """

    title: str
    x_label: str
    panels: Sequence[Panel]
    has_log_x: bool = False


@dataclass(frozen=True)
class Heat:
    """A map of shares, 0 to 1; None is left blank.

    Parameters
    ----------
    columns, rows : their names
    values : by row, then by column
    """

    label: str
    columns: Sequence[str]
    rows: Sequence[str]
    values: Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class HeatFigure:
    """Maps under one title, so many in a row."""

    title: str
    x_label: str
    y_label: str
    maps: Sequence[Heat]
    n_in_row: int


def check_plot(path: str) -> None:
    """Check, before long work, that a figure can be drawn into ``path``.

    Raises
    ------
    UsageError : not a .png or .svg file, or matplotlib is not installed
    OutputNoFolder, OutputNotWritable : the file can't be written
    """
    from ..engine.atomic_file import check_writable

    if Path(path).suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path} is neither a .png nor a .svg file", remedy="name one that is")
    if find_spec("matplotlib") is None:
        raise UsageError(
            "figures need matplotlib, which is not installed",
            remedy="run pip install 'draftsmith[plot]'",
        )
    check_writable(path)


def draw(figure: Figure | HeatFigure, path: str) -> None:
    """Draw a figure into a .png or .svg file; the file is whole or untouched.

    Raises
    ------
    OutputNoFolder, OutputNotWritable, DiskFull : the file can't be written
    """
    from ..engine.atomic_file import write_atomically

    kind = Path(path).suffix.lower().lstrip(".")
    if isinstance(figure, HeatFigure):
        picture = _heat_picture(figure, kind)
    else:
        picture = _picture(figure, kind)
    write_atomically(Path(path), [picture])


def _heat_picture(figure: HeatFigure, kind: str) -> bytes:
    """Return the content of the file: bright is all, dark is nothing, and numbers say it, too."""
    import matplotlib
    import matplotlib.style
    from matplotlib.figure import Figure as Canvas

    n_lines = -(-len(figure.maps) // figure.n_in_row)
    n_rows = max((len(heat.rows) for heat in figure.maps), default=1)
    height_in = _TITLE_IN + n_lines * (0.8 + _HEAT_ROW_IN * n_rows)
    settings: Any = {"svg.hashsalt": "draftsmith", "font.size": 8, "axes.titlesize": 8}
    with matplotlib.style.context("default"), matplotlib.rc_context(settings):
        canvas = Canvas(figsize=(_WIDTH_IN, height_in), dpi=_DPI, layout="constrained")
        canvas.suptitle(figure.title, fontsize=13)
        all_axes = list(canvas.subplots(n_lines, figure.n_in_row, squeeze=False).flat)
        for at, (axes, heat) in enumerate(zip(all_axes, figure.maps, strict=False)):
            _draw_heat(axes, heat)
            if at + figure.n_in_row >= len(figure.maps):
                axes.set_xlabel(figure.x_label)
            if at % figure.n_in_row == 0:
                axes.set_ylabel(figure.y_label)
        for axes in all_axes[len(figure.maps) :]:
            axes.set_visible(False)
        return _saved(canvas, kind)


def _draw_heat(axes: Axes, heat: Heat) -> None:
    """Draw one map."""
    shares = [[float("nan") if value is None else value for value in line] for line in heat.values]
    axes.imshow(shares, cmap="cividis", vmin=0, vmax=1, aspect="auto")
    for y, line in enumerate(heat.values):
        for x, value in enumerate(line):
            text = "-" if value is None else f"{100 * value:.0f}"
            colour = "white" if value is not None and value < 0.5 else "black"
            axes.text(x, y, text, ha="center", va="center", color=colour)
    axes.set_xticks(range(len(heat.columns)), heat.columns)
    axes.set_yticks(range(len(heat.rows)), heat.rows)
    axes.set_title(heat.label.replace(": ", "\n", 1))  # on one line it would run into the next


def _picture(figure: Figure, kind: str) -> bytes:
    """Return the content of the file."""
    import matplotlib
    import matplotlib.style
    from matplotlib.figure import Figure as Canvas

    settings: Any = {
        "svg.hashsalt": "draftsmith",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#dddddd",
        "grid.linewidth": 0.6,
        "axes.titlesize": 11,
        "axes.titlelocation": "left",
    }
    all_series = [series for panel in figure.panels for series in panel.series]
    names = list(dict.fromkeys(series.name for series in all_series if series.name))
    styles = list(dict.fromkeys(series.styled_as for series in all_series if series.name))
    legend_lines = -(-len(names) // _LEGEND_COLUMNS) if len(names) > 1 else 0
    n_lines = -(-len(figure.panels) // 2)
    height_in = _TITLE_IN + n_lines * _PANEL_HEIGHT_IN + legend_lines * _LEGEND_LINE_IN
    with matplotlib.style.context("default"), matplotlib.rc_context(settings):
        canvas = Canvas(figsize=(_WIDTH_IN, height_in), dpi=_DPI, layout="constrained")
        canvas.suptitle(figure.title, fontsize=13)
        all_axes = canvas.subplots(n_lines, 2, sharex=True, squeeze=False).flat
        for axes, panel in zip(all_axes, figure.panels, strict=False):
            _draw_panel(axes, panel, styles)
            if figure.has_log_x:
                _log_scale(axes.set_xscale, axes.xaxis)
            axes.xaxis.set_tick_params(labelbottom=True)
            axes.set_xlabel(panel.x_label or figure.x_label)
        for axes in list(all_axes)[len(figure.panels) :]:
            axes.set_visible(False)
        if len(names) > 1:
            lines = {
                line.get_label(): line
                for axes in canvas.axes
                for line in axes.get_legend_handles_labels()[0]
            }
            shown = [name for name in names if name in lines]
            canvas.legend(
                [lines[name] for name in shown],
                shown,
                loc="outside lower center",
                ncols=min(_LEGEND_COLUMNS, len(shown)),
                frameon=False,
            )
        return _saved(canvas, kind)


def _saved(canvas: Any, kind: str) -> bytes:
    """Return the bytes of a picture, the same each time."""
    file = io.BytesIO()
    metadata: dict[str, Any] = {"Software": None}
    if kind == "svg":
        metadata = {"Date": None, "Creator": None}
    canvas.savefig(file, format=kind, metadata=metadata)
    return file.getvalue()


def _log_scale(set_scale: Callable[[str], None], axis: Axis) -> None:
    """Give an axis a log scale with plain numbers at it."""
    from matplotlib.ticker import LogLocator, NullLocator

    set_scale("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def _draw_panel(axes: Axes, panel: Panel, styles: Sequence[str]) -> None:
    """Draw one panel; a series' place in ``styles`` gives it its style."""
    heights: list[float] = []
    tops: list[float] = []
    for series in panel.series:
        points = sorted(tuple(map(float, p)) for p in series.points if None not in p)  # type: ignore[arg-type]
        if not points:
            continue
        x, y, least, most = zip(*points, strict=True)
        heights += y
        tops += most
        style = styles.index(series.styled_as) if series.name else 0
        colour = _COLOURS[style % len(_COLOURS)] if series.name else _UNNAMED
        below = [max(0.0, middle - low) for middle, low in zip(y, least, strict=True)]
        above = [max(0.0, high - middle) for middle, high in zip(y, most, strict=True)]
        axes.errorbar(
            x,
            y,
            yerr=(below, above) if any((*below, *above)) else None,
            label=series.name,
            color=colour,
            marker=_MARKERS[style % len(_MARKERS)],
            markerfacecolor=colour if series.form_of is None else "none",
            linestyle=_DASHES[style % len(_DASHES)] if series.is_line else "none",
            linewidth=1.5,
            elinewidth=1.5 if series.is_line else 0.5,  # many dots hide after thick bars
            markersize=5,
            capsize=3 if series.is_line else 0,
        )
    if panel.level is not None:
        axes.axhline(panel.level, color=_UNNAMED, linewidth=0.8, linestyle=":")
    axes.set_title(panel.label)
    axes.xaxis.set_major_formatter("{x:g}")
    if not heights:
        axes.text(0.5, 0.5, "nothing to show", transform=axes.transAxes, ha="center")
    elif min(heights) > 0 and max(heights) / min(heights) > _LOG_FROM:
        axes.set_title(f"{panel.label} (log scale)")
        _log_scale(axes.set_yscale, axes.yaxis)
    elif panel.from_zero:
        axes.set_ylim(0, 1.08 * max(tops) or 1)


def command(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A JSON file.")],
    path: Annotated[str, typer.Argument(metavar="FIGURE", help="A .png or .svg file to write.")],
) -> Callable[[], None]:
    """Draw a figure from a description (docs/compare-corpora.md); for the scripts."""
    return partial(_draw_described, data, path)


def _draw_described(data: str, path: str) -> None:
    check_plot(path)
    draw(read_figure(data), path)


def read_figure(data: str) -> Figure:
    """The figure that a JSON file describes.

    Raises
    ------
    InputUnreadable, InputMalformed : the file, or what it holds
    """
    from ..engine.plain_file import read_small, unique_keys

    text = read_small(data, _BYTES_MOST, data, remedy="name a JSON file")
    try:
        return _described(json.loads(text.decode(), object_pairs_hook=unique_keys))
    except _BAD as error:
        raise InputMalformed(
            f"{data} does not describe a figure ({type(error).__name__}: {str(error)[:200]})",
            remedy="see docs/compare-corpora.md",
        ) from error


def _described(record: dict[str, Any]) -> Figure:
    """Return the figure that a JSON object describes; its keys are the fields' names."""
    panels = []
    for panel in record["panels"]:
        series = [
            Series(_text(one["name"]), [_point(point) for point in one["points"]])
            for one in panel["series"]
        ]
        panels.append(Panel(_text(panel["label"]), series, bool(panel["from_zero"])))
    return Figure(_text(record["title"]), _text(record["x_label"]), panels)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise TypeError(f"{value!r} is no printable text")
    return value


def _point(values: Any) -> Point:
    """x and y, or x, y, and the least and the most of y; only y and what follows may be None."""
    point = tuple(None if value is None else float(value) for value in values)
    finite = all(value is None or math.isfinite(value) for value in point)
    if len(point) not in (2, 4) or point[0] is None or not finite:
        raise ValueError(f"{values!r} is no point")
    return point
