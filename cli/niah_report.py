"""The tables and the figure of ``prefill-run --niah``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .output import Table, number
from .plot import Heat, HeatFigure

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
            number(figures["n_prompts"]),
            *(_share(figures[key]) for _, key in _MEASURES),
            _share(figures["kept_share"]),
            number(figures["ttft_ms"]),
            number(figures["ttft_full_ms"]),
            number(figures["ttft_ratio"], 2),
        )

    rows: list[Sequence[str] | None] = [row(one["kind"], one) for one in record["by_kind"]]
    if len(rows) > 1:
        rows += [None, row("all", record)]
    names = (name for name, _ in _MEASURES)
    columns = ("kind", "prompts", *names, "tokens kept", "TTFT ms", "in full", "ratio")
    return Table("needles in haystacks", columns, rows, expendable=(5, 7, 6))


def _heat_maps(record: Mapping[str, Any]) -> list[Table]:
    """Return a table by measure: kinds and depths down, contexts across."""
    tables = []
    contexts = list(dict.fromkeys(cell["context"] for cell in record["cells"]))
    for name, key in _MEASURES:
        if all(cell[key] is None for cell in record["cells"]):
            continue
        rows: list[Sequence[str] | None] = []
        last = None
        for kind, depth, cells in _lines(record):
            if last not in (None, kind):
                rows.append(None)
            values = [cells.get(context) for context in contexts]
            shown = kind if kind != last else ""
            rows.append((shown, f"{100 * depth:g}%", *(_shaded(value, key) for value in values)))
            last = kind
        columns = ("kind", "depth", *(f"{context:,}" for context in contexts))
        tables.append(Table(name, columns, rows))
    return tables


def _lines(record: Mapping[str, Any]) -> list[tuple[str, float, dict[int, Mapping[str, Any]]]]:
    """Return the cells by context, of each kind and depth."""
    lines: dict[tuple[str, float], dict[int, Mapping[str, Any]]] = {}
    for cell in record["cells"]:
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
    for kind in dict.fromkeys(cell["kind"] for cell in record["cells"]):
        lines = [(depth, cells) for name, depth, cells in _lines(record) if name == kind]
        contexts = list(dict.fromkeys(c["context"] for c in record["cells"] if c["kind"] == kind))
        for name, key in _MEASURES:
            values = [
                [None if context not in cells else cells[context][key] for context in contexts]
                for _, cells in lines
            ]
            depths = [f"{100 * depth:g}%" for depth, _ in lines]
            maps.append(Heat(f"{kind}: {name}", [f"{c:,}" for c in contexts], depths, values))
    share = number(100 * record["kept_share"], 0, "%")
    title = f"needles in haystacks, {share} of the tokens kept"
    return HeatFigure(title, "tokens of the context", "depth", maps, len(_MEASURES))
