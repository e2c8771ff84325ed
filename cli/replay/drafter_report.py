"""The records of replays with drafters, the tables that show them, and their figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from ...engine.stages import Stages
from ...ngram.lookup.replay import draft_us_per_token
from ..formats import number, size
from ..generate.report import drafts_table
from ..output import Table
from ..plot import Figure, Panel, Point, Series
from .advice import Advice
from .inputs import ReplayInputs
from .report import us_per_token
from .rows import Row

# Positions of a draft whose acceptance the table shows.
POSITIONS = (1, 4, 16)
# What a narrow terminal can do without, from the first.
EXPENDABLE = (
    "least..most",
    "memory",
    "drafted",
    "accepted",
    "at 1, 4,\n16: %",
    "us/\ntoken",
    "mean\nlength",
)


def records_of(
    rows: Sequence[Row],
    read: ReplayInputs,
    advice: Advice | None,
    n_side_by_side: int,
    stages: Stages,
    tail: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Return a flat record for each row; ``tail`` are the closing keys of the whole call."""
    none = dict.fromkeys(
        (
            *("predicted_tokens_per_s", "predicted_ratio", "predicted_ratio_least"),
            *("predicted_ratio_most", "guessed_share"),
        )
    )
    return [
        {
            "command": "lookup-stats",
            **_figures(row, read, stages),
            "rows_side_by_side": n_side_by_side,
            "draft_ns_samples": row.draft_ns,
            **(none if advice is None else advice.predicted[i]),
            **read.keys,
            **tail,
        }
        for i, row in enumerate(rows)
    ]


def _figures(row: Row, read: ReplayInputs, stages: Stages) -> dict[str, Any]:
    """Return the keys of docs/lookup-stats.md; times are medians over the repeats."""
    run = row.stats
    draft_ns = median(row.draft_ns)
    accept = None if run.accept is None else 100 * run.accept
    us = draft_us_per_token(draft_ns, run.n_drafted)
    n_tokens = run.n_generated
    return {
        "drafter": str(row.spec),
        "upstream_exact": row.spec.upstream_exact,
        "n_draft": row.spec.draft_max,
        "n_predict": n_tokens,
        "n_drafted": run.n_drafted,
        "t_draft_ms": draft_ns / 1e6,
        "draft_us_per_token": us,
        "draft_tokens_per_s": 1e6 / us if us else None,
        "draft_us_per_text_token": draft_ns / 1e3 / n_tokens if n_tokens else None,
        "n_accept": run.n_accepted,
        "accept": accept,
        "accept_percent": accept,
        "load_ms": stages.seconds("load") * 1e3,
        "tokenize_ms": stages.seconds("tokenize") * 1e3,
        "n_input": int(read.texts.tokens.size),
        "n_conversations": read.texts.n_conversations,
        "n_turns": run.n_turns,
        "n_rounds": run.n_rounds,
        "n_cut_rounds": run.n_cut_rounds,
        "n_drafts": run.n_drafts,
        "tokens_per_round": run.tokens_per_round,
        "mean_accepted_length": run.mean_accepted_length,
        "drafted_by_position": run.drafted_at.tolist(),
        "accepted_by_position": run.accepted_at.tolist(),
        "rounds_by_batch": row.batches.tolist(),
        "by_drafter": [
            {"name": setting.name, "drafts": n, "drafted": drafted, "accepted": accepted}
            for setting, (n, drafted, accepted) in zip(
                row.spec.names, run.by_drafter.tolist(), strict=True
            )
        ],
        "drafter_bytes": run.memory_bytes,
    }


def drafter_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of the rows."""

    def cells(key: str, digits: int = 0) -> list[str]:
        return [number(record[key], digits) for record in records]

    columns = {
        "drafter": [record["drafter"] for record in records],
        "form": [_form(record) for record in records],
        "drafted": cells("n_drafted"),
        "accepted": cells("n_accept"),
        "accept\n%": cells("accept_percent", 1),
        "mean\nlength": cells("mean_accepted_length", 2),
        "at 1, 4,\n16: %": [_at_positions(record) for record in records],
        "tokens/\nround": cells("tokens_per_round", 3),
        "us/\ntoken": cells("draft_us_per_token", 3),
        "least..most": [_spread(record) for record in records],
        "memory": [size(record["drafter_bytes"]) for record in records],
        "tokens/s": cells("predicted_tokens_per_s", 1),
        "ratio": cells("predicted_ratio", 3),
    }
    if not any(record["upstream_exact"] for record in records):
        del columns["form"]
    if len(records[0]["draft_ns_samples"]) == 1:
        del columns["least..most"]
    for key, name in (("predicted_tokens_per_s", "tokens/s"), ("predicted_ratio", "ratio")):
        if all(record[key] is None for record in records):
            del columns[name]
    names = list(columns)
    n = records[0]["rows_side_by_side"]
    beside = f" ({n} rows at a time: each takes longer than alone)" if n > 1 else ""
    return Table(
        f"what drafting saves{beside}",
        names,
        list(zip(*columns.values(), strict=True)),
        expendable=[names.index(name) for name in EXPENDABLE if name in names],
    )


def _form(record: Mapping[str, Any]) -> str:
    """Return which of two forms a row has; nothing where there is but one."""
    if record["upstream_exact"]:
        return "llama.cpp"
    has_two = any(one["name"].startswith("ngram-") for one in record["by_drafter"])
    return "repaired" if has_two else ""


def _at_positions(record: Mapping[str, Any]) -> str:
    """Return what share of tokens at some places of a draft was accepted, in whole percent."""
    drafted, accepted = record["drafted_by_position"], record["accepted_by_position"]
    shown = [
        number(100 * accepted[i - 1] / drafted[i - 1]) if drafted[i - 1] else "-"
        for i in POSITIONS
        if i <= len(drafted)
    ]
    return " ".join(shown)


def _spread(record: Mapping[str, Any]) -> str:
    _, least, most = us_per_token(record)
    return f"{number(least, 3)}..{number(most, 3)}"


def position_table(record: Mapping[str, Any]) -> Table:
    """Return the table of a row's drafts by position, and by drafter where there are several."""
    parts = record["by_drafter"]
    by_name = {
        f"{what}_by_origin": {one["name"]: one[what] for one in parts}
        for what in ("drafted", "accepted")
    }
    return drafts_table({**record, **(by_name if len(parts) > 1 else {})})


def drafter_figure(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Return four panels over what a round costs: the tokens that it evaluates, a dot a row."""

    def series(of: Callable[[Mapping[str, Any]], Point]) -> list[Series]:
        points: dict[tuple[str, str], list[Point]] = {}
        for record in records:
            points.setdefault(_family(record), []).append((_evaluated(record), *of(record)))
        return [_dots(name, form, of_both) for (name, form), of_both in points.items()]

    panels = [
        Panel("tokens a round", series(_thrice("tokens_per_round")), from_zero=False),
        Panel("accepted of drafted tokens, %", series(_thrice("accept_percent")), from_zero=False),
        Panel("drafting, µs per drafted token", series(us_per_token)),
    ]
    if any(record["predicted_ratio"] is not None for record in records):
        speed = series(_predicted)
        panels.append(Panel("predicted speed, plain decoding is 1", speed, False, level=1))
    else:
        panels.append(Panel("memory of the drafter, MB", series(_megabytes)))
    return Figure("n-gram drafters", "tokens evaluated a round", panels, has_log_x=True)


def _family(record: Mapping[str, Any]) -> tuple[str, str]:
    """Return what a row's dots are called: its drafters, and their form."""
    return "+".join(one["name"] for one in record["by_drafter"]), _form(record)


def _dots(name: str, form: str, points: Sequence[Point]) -> Series:
    """Return the rows of one drafter in one form: a grid of settings is no line."""
    if form == "llama.cpp":
        return Series(f"{name} (llama.cpp)", points, is_line=False, form_of=name)
    return Series(name, points, is_line=False)


def _evaluated(record: Mapping[str, Any]) -> float | None:
    n_rounds = record["n_rounds"]
    return (n_rounds + record["n_drafted"]) / n_rounds if n_rounds else None


def _thrice(key: str) -> Callable[[Mapping[str, Any]], Point]:
    """Return a value as a height without a spread."""
    return lambda record: (record[key],) * 3


def _predicted(record: Mapping[str, Any]) -> Point:
    ratio = record["predicted_ratio"]
    least, most = record["predicted_ratio_least"], record["predicted_ratio_most"]
    return (ratio, ratio if least is None else least, ratio if most is None else most)


def _megabytes(record: Mapping[str, Any]) -> Point:
    return (record["drafter_bytes"] / 1e6,) * 3
