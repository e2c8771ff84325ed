"""The record of a replay, llama.cpp's names first, and the tables that show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ..ngram.replay import SOURCES, ReplayStats
from .inputs import Stages
from .output import Table, number, percent, size

SIZES = ("1", "2", "3", "4")
# Positions shown one by one; a longer draft's tail becomes one row.
POSITIONS_SHOWN = 16


def record_of(runs: Sequence[ReplayStats], stages: Stages) -> dict[str, Any]:
    """Return the keys of docs/lookup-stats.md; times are medians over the runs."""
    run = runs[0]
    draft_ns = [one.draft_ns for one in runs]
    merge_ns = [one.merge_ns for one in runs]
    draft_s = median(draft_ns) / 1e9
    accept = None if run.accept is None else 100 * run.accept
    cache_ms = stages.seconds("caches") * 1e3
    return {
        "n_draft": run.draft_max,
        "n_predict": run.n_predict,
        "n_drafted": run.n_drafted,
        "t_draft_flat_ms": cache_ms,
        "t_draft_ms": draft_s * 1e3,
        "draft_us_per_token": draft_s * 1e6 / run.n_drafted if run.n_drafted else None,
        "draft_tokens_per_s": run.n_drafted / draft_s if draft_s else None,
        "n_accept": run.n_accepted,
        "accept": accept,
        "accept_percent": accept,
        "load_ms": stages.seconds("load") * 1e3 + cache_ms,
        "tokenize_ms": stages.seconds("tokenize") * 1e3,
        "merge_ms": median(merge_ns) / 1e6,
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


def tables_of(record: Mapping[str, Any]) -> list[Table]:
    """Return the tables that show a record."""
    return [_as_llama_cpp(record), _rounds(record), _drafts(record), _costs(record)]


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
            ("behind the last chunk", number(left)),
            ("rounds (passes of the model)", number(record["n_rounds"])),
            ("tokens per round", number(record["tokens_per_round"], 3)),
            ("accepted per draft", number(record["mean_accepted_length"], 3)),
        ],
    )


def _drafts(record: Mapping[str, Any]) -> Table:
    """Return the table of drafted and accepted tokens by position, by source and by size."""
    whole = record["n_drafted"]

    def row(name: str, drafted: int, accepted: int) -> tuple[str, ...]:
        return (
            name,
            number(drafted),
            percent(drafted, whole),
            number(accepted),
            percent(accepted, drafted),
        )

    rows: list[Sequence[str] | None] = []
    drafted, accepted = record["drafted_by_position"], record["accepted_by_position"]
    for i in range(min(len(drafted), POSITIONS_SHOWN)):
        rows.append(row(f"position {i + 1}", drafted[i], accepted[i]))
    if len(drafted) > POSITIONS_SHOWN:
        name = f"position {POSITIONS_SHOWN + 1} to {len(drafted)}"
        tail = slice(POSITIONS_SHOWN, None)
        rows.append(row(name, sum(drafted[tail]), sum(accepted[tail])))
    for key, what in (("source", "from {}"), ("size", "by {}-grams")):
        rows.append(None)
        drafted, accepted = record[f"drafted_by_{key}"], record[f"accepted_by_{key}"]
        rows += [row(what.format(name), drafted[name], accepted[name]) for name in drafted]
    columns = ("drafted tokens", "drafted", "share", "accepted", "acceptance")
    return Table("where drafts come from", columns, rows)


def _costs(record: Mapping[str, Any]) -> Table:
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
            ("peak memory", size(record["peak_rss_bytes"])),
        ],
    )
