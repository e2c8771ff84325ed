"""The tables and the figure of ``prefill-run --niah``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..formats import number
from ..output import Table
from ..plot import Heat, HeatFigure

_SHADES = "\u00b7\u2591\u2592\u2593\u2588"
_MEASURES = (
    ("needle kept", "needle_kept"),
    ("answer right", "right_speculative"),
    ("right in full", "right_full"),
)


def tables_of(record: Mapping[str, Any]) -> list[Table]:
    """Return the tables that show a record."""
    return [_kinds(record), *_heat_maps(record)]


def _kinds(record: Mapping[str, Any]) -> Table:
    def row(name: str, figures: Mapping[str, Any]) -> tuple[str, ...]:
        return (
            name,
            _share(figures["keep"]),
            number(figures["n_prompts"]),
            *(_share(figures[key]) for _, key in _MEASURES),
            _share(figures["kept_share"]),
            number(figures["ttft_ms"]),
            number(figures["ttft_full_ms"]),
            number(figures["ttft_ratio"], 2),
        )

    rows: list[Sequence[str] | None] = []
    shown = None
    for one in record["by_kind"]:
        rows.append(row("" if one["kind"] == shown else one["kind"], one))
        shown = one["kind"]
    if len(rows) > len(record["by_keep"]):
        rows += [None, *(row("all", one) for one in record["by_keep"])]
    names = (name for name, _ in _MEASURES)
    columns = ("kind", "keep", "prompts", *names, "tokens kept", "TTFT ms", "in full", "ratio")
    return Table("needles in haystacks", columns, rows, expendable=(6, 8, 7))


def _heat_maps(record: Mapping[str, Any]) -> list[Table]:
    """Return a table by measure: kinds and depths down, contexts across.

    What was kept of several shares is a table each; what was answered in full is the same of all.
    """
    tables = []
    contexts = list(dict.fromkeys(cell["context"] for cell in record["cells"]))
    for name, key, keep in _maps(record):
        rows: list[Sequence[str] | None] = []
        last = None
        for kind, depth, cells in _lines(record, keep):
            if last not in (None, kind):
                rows.append(None)
            values = [cells.get(context) for context in contexts]
            shown = kind if kind != last else ""
            rows.append((shown, f"{100 * depth:g}%", *(_shaded(value, key) for value in values)))
            last = kind
        columns = ("kind", "depth", *(f"{context:,}" for context in contexts))
        tables.append(Table(name, columns, rows))
    return tables


def _maps(record: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """Return (title, key, share kept) of each map that has something to show."""
    keeps = [one["keep"] for one in record["by_keep"]]
    maps = []
    for name, key in _MEASURES:
        if all(cell[key] is None for cell in record["cells"]):
            continue
        if len(keeps) == 1 or key == "right_full":
            maps.append((name, key, keeps[0]))
        else:
            maps += [(f"{name}, --keep {keep:g}", key, keep) for keep in keeps]
    return maps


def _lines(
    record: Mapping[str, Any], keep: float
) -> list[tuple[str, float, dict[int, Mapping[str, Any]]]]:
    """Return the cells by context, of each kind and depth."""
    lines: dict[tuple[str, float], dict[int, Mapping[str, Any]]] = {}
    for cell in record["cells"]:
        if cell["keep"] != keep:
            continue
        lines.setdefault((cell["kind"], cell["depth"]), {})[cell["context"]] = cell
    return [(kind, depth, cells) for (kind, depth), cells in lines.items()]


def _shaded(cell: Mapping[str, Any] | None, key: str) -> str:
    value = None if cell is None else cell[key]
    if value is None:
        return "-"
    return f"{_SHADES[min(4, int(5 * value))] * 2} {_share(value)}"


def _share(value: float | None) -> str:
    return number(None if value is None else 100 * value, 0, "%")


def figure_of(record: Mapping[str, Any]) -> HeatFigure:
    """Return the figure: a row of maps a kind, a map a measure."""
    maps = []
    measures = _maps(record)
    for kind in dict.fromkeys(cell["kind"] for cell in record["cells"]):
        contexts = list(dict.fromkeys(c["context"] for c in record["cells"] if c["kind"] == kind))
        for name, key, keep in measures:
            lines = [(depth, cells) for one, depth, cells in _lines(record, keep) if one == kind]
            values = [
                [None if context not in cells else cells[context][key] for context in contexts]
                for _, cells in lines
            ]
            depths = [f"{100 * depth:g}%" for depth, _ in lines]
            maps.append(Heat(f"{kind}: {name}", [f"{c:,}" for c in contexts], depths, values))
    shares = ", ".join(f"{100 * one['kept_share']:.0f}%" for one in record["by_keep"])
    title = f"needles in haystacks, {shares} of the tokens kept"
    return HeatFigure(title, "tokens of the context", "depth", maps, len(measures))
