"""How drafting with a static cache changes with the size of the corpus: nested corpora of a folder
of text, a cache each, some replays each, one CSV, one figure; beside llama.cpp's own tools where
--llama-bin names them. Run it as scripts/compare_corpora.sh; docs/compare-corpora.md explains.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import llama_lookup
from draftsmith.engine.atomic_file import write_atomically
from draftsmith.engine.errors import DraftsmithError, ExitStatus, UsageError
from draftsmith.engine.host import cpu_name, load_1min, package_version
from draftsmith.engine.models import resolve_model
from draftsmith.engine.sizes import parse_size
from llama_lookup import Process, ToolFailed
from nested_corpora import MB, cut
from rich import box
from rich.console import Console
from rich.table import Table

OURS, THEIRS = "draftsmith", "llama.cpp"
# Figures of which every run gives one: the median, the least and the most go into the CSV.
SPREAD = ("draft_us_per_token", "load_ms", "peak_bytes")
# Of these the CSV holds llama.cpp's divided by draftsmith's.
RATIOS = ("draft_us_per_token", "load_ms", "peak_bytes", "create_s", "create_peak_bytes")
# Fields of a row whose columns come last, or that are no column.
LAST = ("samples", "cpu", "load_1min")
DRAFTSMITH = [sys.executable, "-m", "draftsmith.cli"]


class Failed(Exception):
    """Why there is nothing to compare; one line."""


@dataclass
class Row:
    """What one tool did with one corpus; None is what there is no figure of.

    Attributes
    ----------
    missing : why there are no figures, empty where there are.
    samples : a list for each name of SPREAD.
    """

    tool: str
    corpus_bytes: int
    missing: str = ""
    cache_bytes: int | None = None
    create_s: float | None = None
    create_peak_bytes: int | None = None
    n_drafted: int | None = None
    n_accept: int | None = None
    samples: dict[str, list[float]] = field(default_factory=dict)
    cpu: str = field(default_factory=cpu_name)
    load_1min: float | None = field(default_factory=load_1min)

    def add(self, name: str, value: float | None) -> None:
        """Add one run's figure, where it is defined."""
        if value is not None:
            self.samples.setdefault(name, []).append(value)

    def spread(self, name: str) -> tuple[float | None, ...]:
        """Return the median, the least and the most of a figure's samples, or its only value."""
        samples = self.samples.get(name)
        if samples:
            return median(samples), min(samples), max(samples)
        return (getattr(self, name, None),) * 3

    def median(self, name: str) -> float | None:
        """Return the median of a figure's samples, or its only value."""
        return self.spread(name)[0]

    @property
    def accept_percent(self) -> float | None:
        if self.n_accept is None or not self.n_drafted:
            return None
        return 100 * self.n_accept / self.n_drafted


def main() -> None:
    """Compare, and end with the exit status of what went wrong."""
    try:
        compare(parse_options())
    except (Failed, ToolFailed) as error:
        sys.exit(f"error: {error}")
    except DraftsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        print("error: interrupted; the CSV holds the sizes that were done", file=sys.stderr)
        sys.exit(ExitStatus.INTERRUPTED)


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="compare_corpora.sh", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder of text")
    parser.add_argument("text", type=Path, help="the text to replay: a file or a folder")
    parser.add_argument("--sizes", type=sizes, default=sizes("25,50,100,200"), metavar="MB,...")
    parser.add_argument("--repeat", type=at_least(1), default=3, metavar="K")
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("-c", "--ctx-size", type=at_least(1), default=4096, metavar="N")
    parser.add_argument("--draft-max", type=at_least(0), default=8, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the shuffle")
    parser.add_argument("--out", type=Path, default=Path("compare-corpora"), metavar="DIR")
    parser.add_argument("--llama-bin", type=Path, metavar="DIR", help="llama.cpp's tools")
    return parser.parse_args()


def sizes(text: str) -> list[int]:
    """Return a list of sizes as bytes, ascending; a bare number is of MB."""
    try:
        words = [f"{word}M" if word[-1:].isdecimal() else word for word in text.split(",")]
        return sorted({parse_size("--sizes", word) for word in words})
    except UsageError as error:
        what = f"{text!r} is not a list of sizes in MB, such as 25,50"
        raise argparse.ArgumentTypeError(what) from error


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser of numbers from ``least`` on."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} on")
        return int(text)

    return number


def compare(options: argparse.Namespace) -> None:
    """Do it all; the CSV is written anew after each size."""
    model = resolve_model(options.model)
    if not options.folder.is_dir():
        raise Failed(f"{options.folder} is not a folder; name a folder of text")
    if find_spec("matplotlib") is None:
        raise Failed("matplotlib is not installed; run pip install 'draftsmith[plot]'")
    if options.llama_bin is not None:
        llama_lookup.check_tools(options.llama_bin)
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with work_folder(options.out) as work:
        say("collecting text")
        collect(options, work)
        text, corpus = work / "replay.txt", work / "corpus-cut.txt"
        say("compiling kernels, where that is still to be done")
        warm_up(options, model, work)
        for n_bytes in [0, *options.sizes]:
            n_cut = cut(work / "corpus.txt", corpus, n_bytes) if n_bytes else 0
            say(f"{n_cut / MB:g} MB: {OURS}")
            rows.append(ours(options, model, text, corpus if n_cut else None, n_cut))
            if options.llama_bin is not None:
                say(f"{n_cut / MB:g} MB: {THEIRS}")
                rows.append(theirs(options, model, text, corpus if n_cut else None, n_cut))
                if rows[-1].missing:
                    say(f"no figures: {rows[-1].missing}")
            write_atomically(options.out / "compare.csv", [csv_of(rows, options).encode()])
        draw(rows, options, work)
    show(rows)
    say(f"wrote {options.out / 'compare.csv'} and {options.out / 'compare.png'}")


@contextmanager
def work_folder(out: Path) -> Iterator[Path]:
    """Make a folder for corpora and caches, which are large, and remove it at the end."""
    work = Path(tempfile.mkdtemp(prefix=".work-", dir=out))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def say(text: str) -> None:
    """Say on stderr what is going on."""
    print(text, file=sys.stderr, flush=True)


def collect(options: argparse.Namespace, work: Path) -> None:
    """Write the replayed text and the largest corpus."""
    script = Path(__file__).with_name("nested_corpora.py")
    numbers = (str(options.sizes[-1]), str(options.seed))
    done = llama_lookup.run([sys.executable, script, options.folder, options.text, work, *numbers])
    if done.status:
        raise Failed(done.stderr.strip().splitlines()[-1].removeprefix("error: "))


# --- the tools ------------------------------------------------------------------------------------


def draftsmith(*args: str | Path) -> tuple[dict, Process]:
    """Run a command of draftsmith; return its record and the process."""
    done = llama_lookup.run([*DRAFTSMITH, *args, "--json", "--quiet"])
    if done.status:
        lines = done.stderr.strip().splitlines() or [f"draftsmith ended with {done.status}"]
        raise Failed(lines[-1].removeprefix("error: "))
    return json.loads(done.stdout), done


def replay_options(options: argparse.Namespace, model: Path, text: Path) -> list[str | Path]:
    """Return the arguments of each lookup-stats."""
    numbers = ("-c", str(options.ctx_size), "--draft-max", str(options.draft_max))
    return ["lookup-stats", "-m", model, "-f", text, *numbers]


def warm_up(options: argparse.Namespace, model: Path, work: Path) -> None:
    """Compile all kernels, which would count in the first row's memory."""
    cache = work / "warm-up.lcs"
    draftsmith("lookup-create", "-m", model, "-f", work / "replay.txt", "-lcs", cache)
    draftsmith(*replay_options(options, model, work / "replay.txt"), "-lcs", cache)


def ours(
    options: argparse.Namespace, model: Path, text: Path, corpus: Path | None, n_bytes: int
) -> Row:
    """Measure draftsmith: one cache, and a process for each replay."""
    row = Row(OURS, n_bytes)
    args = replay_options(options, model, text)
    if corpus is not None:
        cache = corpus.with_suffix(".lcs")
        _, done = draftsmith("lookup-create", "-m", model, "-f", corpus, "-lcs", cache)
        row.create_s, row.create_peak_bytes = done.wall_s, done.peak_bytes
        row.cache_bytes = cache.stat().st_size
        args += ["-lcs", cache]
    for _ in range(options.repeat):
        record, done = draftsmith(*args)
        row.n_drafted, row.n_accept = record["n_drafted"], record["n_accept"]
        row.add("draft_us_per_token", record["draft_us_per_token"])
        row.add("load_ms", record["t_draft_flat_ms"] if corpus is not None else None)
        row.add("peak_bytes", done.peak_bytes)
    return row


def theirs(
    options: argparse.Namespace, model: Path, text: Path, corpus: Path | None, n_bytes: int
) -> Row:
    """Measure llama.cpp's tools the same way; a row that says why where they fail."""
    row = Row(THEIRS, n_bytes)
    folder, cache = options.llama_bin, None
    try:
        if corpus is not None:
            cache = corpus.with_suffix(".llama")
            cache.unlink(missing_ok=True)
            done = llama_lookup.create(folder, model, corpus, cache)
            row.create_s, row.create_peak_bytes = done.wall_s, done.peak_bytes
            row.cache_bytes = cache.stat().st_size
        for _ in range(options.repeat):
            one, done = llama_lookup.stats(
                folder, model, text, cache, n_ctx=options.ctx_size, draft_max=options.draft_max
            )
            row.n_drafted, row.n_accept = one.n_drafted, one.n_accept
            row.add(
                "draft_us_per_token",
                1e3 * one.t_draft_ms / one.n_drafted if one.n_drafted else None,
            )
            row.add("load_ms", one.t_draft_flat_ms if corpus is not None else None)
            row.add("peak_bytes", done.peak_bytes)
    except ToolFailed as error:
        return Row(THEIRS, n_bytes, missing=str(error))
    return row


# --- what comes out -------------------------------------------------------------------------------


def other(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return draftsmith's row beside one of llama.cpp."""
    if row.tool == OURS:
        return None
    return next(one for one in rows if (one.tool, one.corpus_bytes) == (OURS, row.corpus_bytes))


def ratio(row: Row, rows: Sequence[Row], name: str) -> float | None:
    """Return llama.cpp's figure divided by draftsmith's, where both are there."""
    beside = other(row, rows)
    theirs, ours = row.median(name), beside.median(name) if beside else None
    return theirs / ours if theirs is not None and ours else None


def csv_of(rows: Sequence[Row], options: argparse.Namespace) -> str:
    """Return all rows as CSV; the columns are in docs/compare-corpora.md."""
    text = io.StringIO()
    writer = None
    for row in rows:
        cells: dict[str, object] = {
            one.name: getattr(row, one.name) for one in fields(row) if one.name not in LAST
        }
        cells["accept_percent"] = row.accept_percent
        for name in SPREAD:
            cells[name], cells[f"{name}_min"], cells[f"{name}_max"] = row.spread(name)
        for name in RATIOS:
            cells[f"{name}_ratio"] = ratio(row, rows, name)
        cells |= {
            "n_ctx": options.ctx_size,
            "draft_max": options.draft_max,
            "repeat": options.repeat,
            "seed": options.seed,
            "model": options.model,
            "cpu": row.cpu,
            "load_1min": row.load_1min,
            "version": package_version("draftsmith"),
        }
        if writer is None:
            writer = csv.DictWriter(text, list(cells), lineterminator="\n")
            writer.writeheader()
        writer.writerow(cells)
    return text.getvalue()


def figure_of(rows: Sequence[Row], options: argparse.Namespace) -> dict:
    """Return the description of the figure: four panels, a line a tool."""
    tools = list(dict.fromkeys(row.tool for row in rows))

    def points(tool: str, name: str, scale: float) -> list[list[float | None]]:
        return [
            [row.corpus_bytes / MB, *(None if y is None else y * scale for y in row.spread(name))]
            for row in rows
            if row.tool == tool
        ]

    def panel(label: str, name: str, scale: float = 1, from_zero: bool = True) -> dict:
        series = [{"name": tool, "points": points(tool, name, scale)} for tool in tools]
        return {"label": label, "from_zero": from_zero, "series": series}

    numbers = f"-c {options.ctx_size}, --draft-max {options.draft_max}"
    return {
        "title": f"n-gram drafting by size of the corpus ({numbers})",
        "x_label": "corpus, MB",
        "panels": [
            panel("drafting, µs per drafted token", "draft_us_per_token"),
            panel("opening the cache, ms", "load_ms"),
            panel("peak memory of the process, MB", "peak_bytes", 1 / MB),
            panel("accepted of drafted tokens, %", "accept_percent", from_zero=False),
        ],
    }


def draw(rows: Sequence[Row], options: argparse.Namespace, work: Path) -> None:
    """Draw the figure through draftsmith's own command, which knows matplotlib."""
    data = work / "figure.json"
    data.write_text(json.dumps(figure_of(rows, options)))
    done = llama_lookup.run([*DRAFTSMITH, "plot-figure", data, options.out / "compare.png"])
    if done.status:
        raise Failed(done.stderr.strip().splitlines()[-1].removeprefix("error: "))


def show(rows: Sequence[Row]) -> None:
    """Print the table of all rows."""
    table = Table(title="by size of the corpus", title_justify="left", box=box.SIMPLE_HEAD)
    table.show_edge = table.pad_edge = False
    compared = any(row.tool == THEIRS for row in rows)
    table.add_column("corpus\nMB", justify="right")
    table.add_column("tool")
    for name in ("us per\ntoken", "accept\n%", "load\nms", "peak\nMB", "create\ns", "cache\nMB"):
        table.add_column(name, justify="right")
    if compared:
        table.add_column("times\nslower", justify="right")
    for row in rows:
        cells = [
            shown(row.median("draft_us_per_token"), 3),
            shown(row.accept_percent, 2),
            shown(row.median("load_ms"), 1),
            shown(row.median("peak_bytes"), 0, 1 / MB),
            shown(row.create_s, 1),
            shown(row.cache_bytes, 1, 1 / MB),
        ]
        if compared:
            cells.append(shown(ratio(row, rows, "draft_us_per_token"), 1))
        table.add_row(f"{row.corpus_bytes / MB:g}", row.tool, *cells)
    console = Console(highlight=False)
    (console if console.is_terminal else Console(highlight=False, width=1000)).print(table)
    for row in rows:
        if row.missing:
            print(f"{row.corpus_bytes / MB:g} MB, {row.tool}: {row.missing}")


def shown(value: float | None, digits: int, scale: float = 1) -> str:
    """Format a number, or a dash."""
    return "-" if value is None else f"{value * scale:,.{digits}f}"


if __name__ == "__main__":
    main()
