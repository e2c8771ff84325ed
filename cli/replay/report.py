"""The records of replays, llama.cpp's names first, and the tables and the figure that show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from ...engine.stages import Stages
from ...ngram.lookup.replay import SOURCES, draft_us_per_token
from ...ngram.lookup.sweep import SweepCell
from ..formats import bar, number, size
from ..generate.report import drafts_table
from ..memory_report import ReplayMemory, replay_rows
from ..output import Table
from ..plot import Figure, Panel, Point, Series

SIZES = ("1", "2", "3", "4")
# Of a sweep's table, what a narrow terminal can do without, from the first.
EXPENDABLE = (
    "least..most",
    "drafted",
    "accepted",
    "share",
    "latency",
    "memory",
    "load\nms",
    "tokens/\nround",
)


def records_of(
    cells: Sequence[SweepCell],
    stages: Stages,
    corpus_keys: dict[str, Any],
    tail: dict[str, Any],
    opened: Mapping[str, dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return a flat record for each cell of a sweep, each with the keys of a call of its own.

    ``tail`` are the closing keys of the whole call; a record's options and inputs are its cell's.
    ``opened`` has the entry of each cache by its path.
    """
    records = []
    for cell in cells:
        run = cell.runs[0]
        options = {"static": cell.static, "n_ctx": run.n_ctx, "draft_max": run.draft_max}
        named = [path for path in (cell.static, tail["options"]["dynamic"]) if path is not None]
        own = {
            "options": tail["options"] | options,
            "inputs": tail["inputs"] + [opened[path] for path in named],
        }
        records.append(
            {"command": "lookup-stats"} | _figures(cell, stages) | corpus_keys | tail | own
        )
    return records


def _figures(cell: SweepCell, stages: Stages) -> dict[str, Any]:
    """Return the keys of docs/lookup-stats.md; times are medians over the runs."""
    draft_ns = [one.draft_ns for one in cell.runs]
    merge_ns = [one.merge_ns for one in cell.runs]
    # The runs differ in their times only.
    run = replace(cell.runs[0], draft_ns=round(median(draft_ns)), merge_ns=round(median(merge_ns)))
    accept = None if run.accept is None else 100 * run.accept
    return {
        "n_draft": run.draft_max,
        "n_predict": run.n_predict,
        "n_drafted": run.n_drafted,
        "t_draft_flat_ms": cell.caches_ms,
        "t_draft_ms": run.draft_ns / 1e6,
        "draft_us_per_token": run.draft_us_per_token,
        "draft_tokens_per_s": run.draft_tokens_per_s,
        "n_accept": run.n_accepted,
        "accept": accept,
        "accept_percent": accept,
        "load_ms": stages.seconds("load") * 1e3 + cell.caches_ms,
        "tokenize_ms": stages.seconds("tokenize") * 1e3,
        "merge_ms": run.merge_ns / 1e6,
        "n_input": run.n_input,
        "n_ctx": run.n_ctx,
        "n_chunks": run.n_chunks,
        "n_replayed": run.n_replayed,
        "n_seeds": run.n_seeds,
        "n_rounds": run.n_rounds,
        "n_cut_rounds": run.n_cut_rounds,
        "tokens_per_round": run.tokens_per_round,
        "mean_accepted_length": run.mean_accepted_length,
        "drafted_by_position": run.drafted_at.tolist(),
        "accepted_by_position": run.accepted_at.tolist(),
        "drafted_by_source": _named(SOURCES, run.drafted_by_source),
        "accepted_by_source": _named(SOURCES, run.accepted_by_source),
        "drafted_by_size": _named(SIZES, run.drafted_by_size),
        "accepted_by_size": _named(SIZES, run.accepted_by_size),
        "static_bytes": run.static_bytes,
        "dynamic_bytes": run.dynamic_bytes,
        "context_bytes": run.context_bytes,
        "draft_ns_samples": draft_ns,
        "merge_ns_samples": merge_ns,
    }


def _named(names: Sequence[str], counts: Any) -> dict[str, int]:
    return dict(zip(names, counts.tolist(), strict=True))


def tables_of(record: Mapping[str, Any], memory: ReplayMemory) -> list[Table]:
    """Return the tables that show a record."""
    return [_as_llama_cpp(record), _rounds(record), drafts_table(record), _costs(record, memory)]


def _as_llama_cpp(record: Mapping[str, Any]) -> Table:
    samples_ms = [ns / 1e6 for ns in record["draft_ns_samples"]]
    draft = number(record["t_draft_ms"], 2, " ms")
    if len(samples_ms) > 1:
        draft = f"{draft} ({min(samples_ms):,.2f} to {max(samples_ms):,.2f})"
    return Table(
        "llama.cpp's figures",
        (),
        [
            ("n_draft", number(record["n_draft"])),
            ("n_predict", number(record["n_predict"])),
            ("n_drafted", number(record["n_drafted"])),
            ("t_draft_flat", number(record["t_draft_flat_ms"], 2, " ms")),
            ("t_draft", draft),
            ("", number(record["draft_us_per_token"], 3, " us per token")),
            ("", number(record["draft_tokens_per_s"], 0, " tokens per second")),
            ("n_accept", number(record["n_accept"])),
            ("accept", number(record["accept_percent"], 3, "%")),
        ],
    )


def _rounds(record: Mapping[str, Any]) -> Table:
    left = record["n_input"] - record["n_replayed"]
    return Table(
        "what it leaves out",
        (),
        [
            ("tokens replayed", number(record["n_replayed"])),
            ("in chunks", f"{number(record['n_chunks'])} x {record['n_ctx']}"),
            ("after the last chunk", number(left)),
            ("rounds (passes of the model)", number(record["n_rounds"])),
            ("tokens per round", number(record["tokens_per_round"], 3)),
            ("accepted per draft", number(record["mean_accepted_length"], 3)),
        ],
    )


def _costs(record: Mapping[str, Any], memory: ReplayMemory) -> Table:
    return Table(
        "time and memory",
        (),
        [
            ("load vocabulary and caches", number(record["load_ms"], 0, " ms")),
            ("tokenize", number(record["tokenize_ms"], 0, " ms")),
            ("merge contexts", number(record["merge_ms"], 2, " ms")),
            ("compile kernels", number(record["compile_s"], 2, " s")),
            ("context cache", size(record["context_bytes"])),
            ("dynamic cache", size(record["dynamic_bytes"])),
            ("static cache", size(record["static_bytes"])),
            None,
            *replay_rows(record, memory),
        ],
    )


def sweep_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of a sweep, a row a record."""
    times = [us_per_token(record) for record in records]
    slowest = max(median_us or 0 for median_us, _, _ in times)

    def cells(key: str, digits: int = 0) -> list[str]:
        return [number(record[key], digits) for record in records]

    columns = {
        "cache": _cache_names([record["options"]["static"] for record in records]),
        "c": [str(record["n_ctx"]) for record in records],
        "draft": cells("n_draft"),
        "drafted": cells("n_drafted"),
        "accepted": cells("n_accept"),
        "accept\n%": cells("accept_percent", 1),
        "share": [bar(record["accept_percent"], 100) for record in records],
        "tokens/\nround": cells("tokens_per_round", 3),
        "us/\ntoken": [number(median_us, 3) for median_us, _, _ in times],
        "latency": [bar(median_us, slowest) for median_us, _, _ in times],
        "least..most": [f"{number(least, 3)}..{number(most, 3)}" for _, least, most in times],
        "load\nms": cells("t_draft_flat_ms", 1),
        "memory": [size(record["static_bytes"] or None) for record in records],
    }
    if records[0]["options"]["repeat"] == 1:
        del columns["least..most"]
    names = list(columns)
    return Table(
        "what drafting saves",
        names,
        list(zip(*columns.values(), strict=True)),
        bars=[names.index("share"), names.index("latency")],
        expendable=[names.index(name) for name in EXPENDABLE if name in names],
    )


def us_per_token(record: Mapping[str, Any]) -> tuple[float | None, float | None, float | None]:
    """Return (median, least, most) of the microseconds a drafted token took over the repeats."""
    samples = record["draft_ns_samples"]
    middle, least, most = (
        draft_us_per_token(ns, record["n_drafted"])
        for ns in (median(samples), min(samples), max(samples))
    )
    return middle, least, most


def _cache_names(paths: Sequence[str | None]) -> list[str]:
    """Return a short name for each cache: that of its file, or its path where two share one."""
    whole: dict[str, set[str]] = {}
    for path in paths:
        if path is not None:
            whole.setdefault(Path(path).name, set()).add(path)
    names = []
    for path in paths:
        shared = path is not None and len(whole[Path(path).name]) > 1
        names.append("none" if path is None else path if shared else Path(path).name)
    return names


def figure_of(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Return the four panels that show records over the size of their static caches' files."""

    def series(of: Callable[[Mapping[str, Any]], Point], name: str) -> list[Series]:
        points: dict[str, list[Point]] = {}
        for record in records:
            x = _static_file_bytes(record) / 1e6
            points.setdefault(name.format(**record), []).append((x, *of(record)))
        return [Series(*item) for item in points.items()]

    each = "-c {n_ctx}, --draft-max {n_draft}"
    panels = [
        Panel("drafting, µs per drafted token", series(us_per_token, each)),
        Panel("opening the caches, ms", series(_load_ms, "")),
        Panel("memory of the static cache, MB", series(_static_mb, "")),
        Panel("accepted of drafted tokens, %", series(_accept_percent, each), from_zero=False),
    ]
    return Figure("n-gram drafting by size of the static cache", "static cache file, MB", panels)


def _load_ms(record: Mapping[str, Any]) -> Point:
    """Return the time as a height without a spread; none where there is no cache to open."""
    return (record["t_draft_flat_ms"] if any(_caches(record)) else None,) * 3


def _static_mb(record: Mapping[str, Any]) -> Point:
    return (record["static_bytes"] / 1e6,) * 3


def _accept_percent(record: Mapping[str, Any]) -> Point:
    return (record["accept_percent"],) * 3


def _caches(record: Mapping[str, Any]) -> tuple[str | None, str | None]:
    return record["options"]["static"], record["options"]["dynamic"]


def _static_file_bytes(record: Mapping[str, Any]) -> int:
    """Return the size of the static cache's file; 0 without one."""
    static = record["options"]["static"]
    return next((one["bytes"] for one in record["inputs"] if one["path"] == static), 0)
