"""Where everything that is printed goes out: data on stdout, the rest on stderr.

A result is one flat record and the tables that show it to people; --json prints the record as
one object, --csv as a header and a row. The only module that prints.

Schema history: 1 = first release.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ..engine.errors import UsageError
from .formats import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table as RichTable

SCHEMA = 1
# Tables in a pipe or a file are as wide as their content: no name ends in an ellipsis.
_PIPE_WIDTH = 10_000
# Tables stand side by side up to this width.
_LINE = 100
_GAP = 4

Mode = Literal["table", "json", "csv"]
CellValue = str | int | float | None


@dataclass(frozen=True)
class Table:
    """A small table; the first column is text, the others are numbers or short text.

    Parameters
    ----------
    title : shown above.
    columns : headings; empty for a plain list of names and values.
    rows : cells, already formatted; a None row parts two groups.
    bars : columns of bars, shown in a terminal only.
    expendable : columns to leave out where the terminal is too narrow, the first one first.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str] | None]
    bars: Sequence[int] = ()
    expendable: Sequence[int] = ()


class Bar:
    """A progress bar's handle; does nothing where no bar is shown.

    Parameters
    ----------
    after_s : seconds from now on in which the bar is not shown yet: most work is done by then.
    """

    def __init__(self, progress: Progress | None, task: Any, after_s: float = 0.0) -> None:
        self._progress = progress
        self._task = task
        self._show_s = time.monotonic() + after_s

    def update(self, done: int, total: int | None = None) -> None:
        """Show how much is done, and of how much where that is known."""
        if self._progress is not None:
            self._progress.update(self._task, completed=done, total=total)
            if time.monotonic() >= self._show_s:
                self._progress.start()  # does nothing if it has been


class WorkBar:
    """A bar over several calls, each of which tells how much of its own work is done.

    Parameters
    ----------
    total : of all calls.
    """

    def __init__(self, bar: Bar, total: int) -> None:
        self._bar = bar
        self._total = total
        self._before = 0

    def show(self, done: int, _total: int) -> None:
        """Show how much of a call is done."""
        self._bar.update(self._before + done, self._total)

    def settle(self, amount: int) -> None:
        """Go on to the next call; ``amount``: all of this one."""
        self._before += amount
        self.show(0, 0)


@dataclass
class Output:
    """The sink of one command.

    Parameters
    ----------
    mode : what goes to stdout.
    header : print the header of --csv.
    quiet : no progress and no notes on stderr.
    """

    mode: Mode = "table"
    header: bool = True
    quiet: bool = False
    _bar_console: Console | None = field(default=None, init=False)

    @classmethod
    def from_options(cls, *, json: bool, csv: bool, no_header: bool, quiet: bool) -> Output:
        """Build the sink that the options ask for.

        Raises
        ------
        UsageError : options that exclude each other.
        """
        if json and csv:
            raise UsageError("--json and --csv exclude each other", remedy="give one of them")
        if no_header and not csv:
            raise UsageError("--no-header is for --csv", remedy="give --csv too, or neither")
        mode: Mode = "json" if json else "csv" if csv else "table"
        return cls(mode=mode, header=not no_header, quiet=quiet)

    def note(self, text: str) -> None:
        """Say something useful but not needed, on stderr."""
        if not self.quiet:
            self._stderr(text)

    def warn(self, text: str) -> None:
        """Say on stderr that the result is not quite what the user may think."""
        self._stderr(f"warning: {text}")

    def _stderr(self, text: str) -> None:
        if self._bar_console is not None:
            self._bar_console.print(one_line(text), markup=False, highlight=False)
        else:
            print(one_line(text), file=sys.stderr, flush=True)

    @contextmanager
    def progress(
        self, label: str, *, unit: Literal["bytes", "tokens"], after_s: float = 0.0
    ) -> Iterator[Bar]:
        """Show a bar with rate and time left while stderr is a terminal; else nothing.

        Work that is done within ``after_s`` seconds gets none.
        """
        if self.quiet or not sys.stderr.isatty():
            yield Bar(None, None)
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        from .rate import Rate

        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            Rate(unit),
            TimeRemainingColumn(),
        )
        progress = Progress(*columns, console=console, transient=True)
        bar = Bar(progress, progress.add_task(label, total=None), after_s)
        self._bar_console = console
        try:
            if not after_s:
                progress.start()
            yield bar
        finally:
            self._bar_console = None
            _stop(progress)

    @contextmanager
    def busy(self, label: str, *, after_s: float = 1.0) -> Iterator[None]:
        """Show that something whose end is unknown goes on, and for how long, from then on."""
        if self.quiet or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        progress = Progress(*columns, console=console, transient=True)
        progress.add_task(label, total=None)
        timer = threading.Timer(after_s, progress.start)
        timer.daemon = True
        self._bar_console = console
        timer.start()
        try:
            yield
        finally:
            self._bar_console = None
            timer.cancel()
            timer.join()  # it may be just beginning to show
            _stop(progress)

    def result(
        self, record: Mapping[str, Any], tables: Sequence[Table], *, aside: bool = False
    ) -> None:
        """Print a command's result on stdout in the mode that was asked for.

        Parameters
        ----------
        aside : stdout holds a text, so that tables go to stderr, and with ``quiet`` nowhere.
        """
        record = {"schema": SCHEMA, **_finite(record)}
        if self.mode == "json":
            print(json.dumps(record, allow_nan=False, indent=2))
        elif self.mode == "csv":
            print(_csv_text([record], header=self.header), end="")
        elif not (aside and self.quiet):
            if aside:
                print(file=sys.stderr)
            _print_tables(tables, stderr=aside)

    def results(
        self,
        command: str,
        records: Sequence[Mapping[str, Any]],
        tables: Sequence[Table],
        *,
        more: Mapping[str, Any] | None = None,
        lines: Sequence[str] = (),
    ) -> None:
        """Print several records: as --json one object with a list, as --csv a row each.

        Parameters
        ----------
        more : keys of the JSON object besides the list.
        lines : shown to people after the tables, never folded: they may be copied.
        """
        rows = [{"schema": SCHEMA, **_finite(record)} for record in records]
        if self.mode == "json":
            whole = {"schema": SCHEMA, "command": command, "rows": rows} | _finite(more or {})
            print(json.dumps(whole, allow_nan=False, indent=2))
        elif self.mode == "csv":
            print(_csv_text(rows, header=self.header), end="")
        else:
            _print_tables(tables)
            print(*map(one_line, lines), sep="\n", end="\n" if lines else "")


def _stop(progress: Progress) -> None:
    """End a bar; on a dumb terminal one that never began would leave an empty line."""
    if progress.live.is_started:
        progress.stop()


def accept_any_text() -> None:
    """Let any file name be printed: what the terminal cannot show is escaped, not an error.

    A stream that the caller has closed swallows what is printed, as a null device does.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (open until the end)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def show_version(wanted: bool) -> None:
    """Print the version and end, when --version is given."""
    if not wanted:
        return
    from importlib.metadata import version

    import typer

    print(f"draftsmith {version('draftsmith')}")
    raise typer.Exit


def error_line(text: str) -> None:
    """Print the one line that ends a failed command, on stderr; a dead stderr is no matter."""
    try:
        print(one_line(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return


def warning_line(text: str) -> None:
    """Print a warning on stderr where there is no ``Output`` yet."""
    error_line(f"warning: {text}")


def _finite(value: Any) -> Any:
    """Return value with null in the place of NaN and infinity, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _csv_text(records: Sequence[Mapping[str, Any]], *, header: bool) -> str:
    """Return records as CSV: nested keys joined by _, lists by ; (docs/lookup-stats.md)."""
    rows = [dict(_flatten(record)) for record in records]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(rows[0])
    writer.writerows(row.values() for row in rows)
    return text.getvalue()


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flatten(item, f"{name}_{key}" if name else str(key))
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for key in value[0]:
            yield f"{name}_{key}", ";".join(_csv_cell(item[key]) for item in value)
    elif isinstance(value, list):
        yield name, ";".join(_csv_cell(item) for item in value)
    else:
        yield name, _csv_cell(value)


def _csv_cell(value: CellValue) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _print_tables(tables: Sequence[Table], *, stderr: bool = False) -> None:
    """Print tables, side by side where two fit into a line of _LINE characters."""
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(highlight=False, stderr=stderr)
    terminal = console.is_terminal
    if not terminal:
        console = Console(highlight=False, stderr=stderr, width=_PIPE_WIDTH)
    with_bars = terminal and not console.options.ascii_only
    line: list[RichTable] = []
    lines = [line]
    room = limit = min(console.width, _LINE)
    for table in tables:
        if not with_bars:
            table = _without(table, table.bars)
        shown = _fitting(table, console)
        width = console.measure(shown).maximum + _GAP
        if line and width > room:
            line, room = [], limit
            lines.append(line)
        line.append(shown)
        room -= width
    for line in lines:
        grid = RichTable.grid(padding=(0, _GAP, 0, 0))
        grid.add_row(*line)
        console.print(grid)
        console.print()


def _fitting(table: Table, console: Console) -> RichTable:
    """Return a table without as many of its expendable columns as do not fit."""
    shown = _rich_table(table)
    for n_gone in range(1, len(table.expendable) + 1):
        wide = console.options.update(width=_PIPE_WIDTH)
        if console.measure(shown, options=wide).maximum <= console.width:
            break
        shown = _rich_table(_without(table, table.expendable[:n_gone]))
    return shown


def _without(table: Table, gone: Sequence[int]) -> Table:
    """Return a table without some of its columns."""
    kept = [i for i in range(len(table.columns)) if i not in gone]
    if len(kept) == len(table.columns):
        return table
    number_of = {old: new for new, old in enumerate(kept)}
    return replace(
        table,
        columns=[table.columns[i] for i in kept],
        rows=[row if row is None else [row[i] for i in kept] for row in table.rows],
        bars=[number_of[i] for i in table.bars if i in number_of],
        expendable=[number_of[i] for i in table.expendable if i in number_of],
    )


def _rich_table(table: Table) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(
        title=Text(one_line(table.title)),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD if table.columns else None,
        show_header=bool(table.columns),
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0) if table.expendable else (0, 1),
    )
    n_columns = max(len(row) for row in table.rows if row is not None)
    for i, name in enumerate(table.columns or [""] * n_columns):
        left = i == 0 or i in table.bars
        # Names may be folded; a number in two parts would be read as two numbers.
        shown.add_column(
            name,
            justify="left" if left else "right",
            overflow="fold",
            no_wrap=bool(table.columns) and i > 0,
        )
    for row in table.rows:
        if row is None:
            shown.add_row()  # a rule would be louder than what it parts
        else:
            shown.add_row(*(Text(one_line(cell)) for cell in row))
    return shown
