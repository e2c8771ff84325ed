"""The record of a suite, its tables and its figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...mtp.suite_figures import SuiteCell, figures
from ..formats import number
from ..output import Table
from ..plot import Figure, Panel, Point, Series

ALL = "all"
POSITIONS_SHOWN = 8


def record_of(cells: Sequence[SuiteCell]) -> dict[str, Any]:
    """Return the keys that texts make: by prompt, by kind and over all.

    ``rows`` are of all draft lengths; ``kinds`` and ``overall`` are of the best one, and
    ``by_draft_max`` has those of each.

    Parameters
    ----------
    cells : 1 or more; each prompt with the same draft lengths
    """
    by_length = {}
    for draft_max in _unique([cell.draft_max for cell in cells]):
        of_it = [cell for cell in cells if cell.draft_max == draft_max]
        by_length[str(draft_max)] = {"kinds": _kinds(of_it), "overall": figures(of_it)}
    best = _best(by_length)
    return {
        "best_draft_max": None if best is None else int(best),
        "overall": by_length[best or next(iter(by_length))]["overall"],
        "kinds": by_length[best or next(iter(by_length))]["kinds"],
        "by_draft_max": by_length,
        "rows": [_row(cell) for cell in cells],
    }


def _kinds(cells: Sequence[SuiteCell]) -> dict[str, dict[str, Any]]:
    return {
        kind: figures([cell for cell in cells if cell.category == kind])
        for kind in _unique([cell.category for cell in cells])
    }


def _unique(values: Sequence[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _best(by_length: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The draft length of the highest ratio over all prompts, the shortest of equals."""
    ratios = {name: one["overall"]["ratio"] for name, one in by_length.items()}
    known = [name for name in ratios if ratios[name] is not None]
    return min(known, key=lambda name: (-ratios[name], int(name)), default=None)


def _row(cell: SuiteCell) -> dict[str, Any]:
    return {
        "id": cell.name,
        "category": cell.category,
        **figures([cell]),
        "ratio_samples": cell.ratios(),
        "stop_reason": cell.drafted[0].stop_reason,
        "tokens": cell.drafted[0].tokens,
    }


def csv_rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of --csv: prompts, then kinds, then all, without what has no fixed size."""
    rows = []
    for row in record["rows"]:
        rows.append({"level": "prompt", **row})
    for one in record["by_draft_max"].values():
        for kind, keys in one["kinds"].items():
            rows.append({"level": "kind", "id": None, "category": kind, **keys})
        rows.append({"level": "overall", "id": None, "category": None, **one["overall"]})
    names = [name for name in rows[0] if name not in ("ratio_samples", "stop_reason", "tokens")]
    origins = _unique([name for row in rows for name in row["drafted_by_origin"]])
    return [_flat({name: row.get(name) for name in names}, rows, origins) for row in rows]


def _flat(
    row: dict[str, Any], rows: Sequence[Mapping[str, Any]], origins: Sequence[str]
) -> dict[str, Any]:
    """A row with the same columns as all others."""
    for what in ("drafted_by_origin", "accepted_by_origin"):
        row[what] = {name: row[what].get(name, 0) for name in origins}
    for origin in origins:
        for name in rows[0]:
            if name.startswith(f"{origin}_"):
                row[name] = row.get(name) or []
    if row.get("bounds"):
        row["bounds"] = {k: v for k, v in row["bounds"].items() if k != "step_cost"}
    return row


# --- tables ---------------------------------------------------------------------------------------


def tables_of(record: Mapping[str, Any]) -> list[Table]:
    """Return the tables that show a record."""
    tables = []
    if len(record["by_draft_max"]) > 1:
        tables.append(_lengths(record))
    groups = _groups(record)
    tables.append(_speeds(record, groups))
    origins = [name for name, n in record["overall"]["drafted_by_origin"].items() if n]
    if record["overall"]["n_drafted"]:
        tables.append(_acceptance("", groups))
    if len(origins) > 1:
        tables += [_acceptance(name, groups) for name in origins]
    if "bounds" in record["overall"]:
        tables += [_bounds(record), _steps(record)]
    return tables


Groups = Sequence[tuple[str, Mapping[str, Any]]]


def _groups(record: Mapping[str, Any]) -> Groups:
    return [*record["kinds"].items(), (ALL, record["overall"])]


def _with_gap(rows: Sequence[Sequence[str]]) -> list[Sequence[str] | None]:
    """Rows with the last one, which is for all, apart."""
    return [*rows[:-1], None, rows[-1]]


def _speeds(record: Mapping[str, Any], groups: Groups) -> Table:
    columns = (
        *("kind", "prompts", "plain\ntokens/s", "drafted\ntokens/s", "ratio", "+-"),
        *("least..most", "accepted\n%", "tokens/\nround", "drafting\n%", "verifying\n%", "rest\n%"),
        "same\ntext",
    )
    rows = [
        (
            name,
            number(keys["n_prompts"]),
            number(keys["plain_tokens_per_s"], 1),
            number(keys["draft_tokens_per_s"], 1),
            number(keys["ratio"], 3),
            number(keys["ratio_se"], 3),
            f"{number(keys['ratio_least'], 2)}..{number(keys['ratio_most'], 2)}",
            _percent(keys["acceptance"]),
            number(keys["tokens_per_round"], 3),
            _percent(keys["draft_share"]),
            _percent(keys["verify_share"]),
            _percent(keys["rest_share"]),
            "yes" if keys["identical"] else "NO",
        )
        for name, keys in groups
    ]
    title = f"drafts of up to {record['overall']['draft_max']} against plain decoding"
    return Table(title, columns, _with_gap(rows), expendable=(11, 10, 9, 6, 1))


def _acceptance(origin: str, groups: Groups) -> Table:
    """Acceptance by position with standard errors; of one origin's drafts, or of all."""
    prefix = f"{origin}_" if origin else ""
    n = min(POSITIONS_SHOWN, len(groups[-1][1][f"{prefix}acceptance_by_position"]))
    rows = []
    for name, keys in groups:
        shares = keys.get(f"{prefix}acceptance_by_position", [])
        errors = keys.get(f"{prefix}acceptance_by_position_se", [])
        pairs = [*zip(shares, errors, strict=True), *[(None, None)] * n][:n]
        rows.append((name, *(_percent(share) for pair in pairs for share in pair)))
    columns = [name for i in range(1, n + 1) for name in (str(i), "+-")]
    title = f"acceptance of {origin}, %" if origin else "acceptance, %"
    # the last positions first, and errors before positions
    expendable = [*range(2 * n, 0, -2), *range(2 * n - 1, 1, -2)]
    return Table(title, ("up to position", *columns), _with_gap(rows), expendable=expendable)


def _lengths(record: Mapping[str, Any]) -> Table:
    """Ratios by draft length and kind."""
    lengths = record["by_draft_max"]
    rows = [
        (name, *(number(one["kinds"][name]["ratio"], 3) for one in lengths.values()))
        for name in record["kinds"]
    ]
    rows.append((ALL, *(number(one["overall"]["ratio"], 3) for one in lengths.values())))
    shown = _with_gap(rows)
    for title, key in (("+-", "ratio_se"), ("tokens per round", "tokens_per_round")):
        shown.append((title, *(number(one["overall"][key], 3) for one in lengths.values())))
    best = ["best" if name == str(record["best_draft_max"]) else "" for name in lengths]
    shown.append(("", *best))
    return Table("ratio by draft length", ("kind", *lengths), shown)


def _bounds(record: Mapping[str, Any]) -> Table:
    rows = [
        (
            name,
            number(keys["bounds"]["ratio_none_accepted"], 3),
            number(keys["ratio"], 3),
            number(keys["bounds"]["predicted_ratio"], 3),
            number(keys["bounds"]["ratio_all_accepted"], 3),
            *(number(keys["bounds"][f"{key}_cost"], 3) for key in ("verify", "draft", "rest")),
            *(
                number(keys["bounds"][f"ratio_{key}"], 3)
                for key in ("drafts_free", "batches_free", "both_free", "batches_dear")
            ),
        )
        for name, keys in _groups(record)
    ]
    columns = (
        *("kind", "none\naccepted", "ratio", "pre-\ndicted", "all\naccepted"),
        *("verify\ncost", "draft\ncost", "rest\ncost"),
        *("drafts\nfree", "batches\nfree", "both\nfree", "batches\ndear"),
    )
    return Table("where the gain comes from", columns, _with_gap(rows), expendable=(7, 6, 5))


def _steps(record: Mapping[str, Any]) -> Table:
    costs = record["overall"]["bounds"]["step_cost"]
    rows = [(name, number(cost, 2)) for name, cost in costs.items()]
    return Table("a pass, by its tokens", ("tokens", "cost"), rows)


def _percent(share: float | None) -> str:
    return number(None if share is None else 100 * share, 1)


# --- the figure -----------------------------------------------------------------------------------


def figure_of(record: Mapping[str, Any]) -> Figure:
    """Return acceptance by position, and speed against draft length, by kind."""
    groups = _groups(record)
    panels = [
        Panel(
            "accepted up to position, %",
            [Series(name, _acceptance_points(keys)) for name, keys in groups],
            x_label="position in the draft",
        ),
        Panel(
            "drafted over plain tokens/s",
            [Series(name, _length_points(record, name, "ratio")) for name, _ in groups],
        ),
        Panel(
            "tokens per round",
            [Series(name, _length_points(record, name, "tokens_per_round")) for name, _ in groups],
        ),
        Panel(
            "tokens/s",
            [
                Series(name, _length_points(record, name, "draft_tokens_per_s"))
                for name, _ in groups
            ],
        ),
    ]
    return Figure("Drafting by kind of prompt", "longest draft, tokens", panels)


def _acceptance_points(keys: Mapping[str, Any]) -> list[Point]:
    pairs = zip(keys["acceptance_by_position"], keys["acceptance_by_position_se"], strict=True)
    return [
        (i, 100 * share, 100 * (share - (error or 0)), 100 * (share + (error or 0)))
        for i, (share, error) in enumerate(pairs, 1)
    ]


def _length_points(record: Mapping[str, Any], name: str, key: str) -> list[Point]:
    """A kind's figure by draft length; a ratio with its standard error."""
    points: list[Point] = []
    for draft_max, one in record["by_draft_max"].items():
        keys = one["overall"] if name == ALL else one["kinds"][name]
        value, error = keys[key], keys["ratio_se"] if key == "ratio" else None
        if value is None:
            continue
        points.append((int(draft_max), value, value - (error or 0), value + (error or 0)))
    return points
