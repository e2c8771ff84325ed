"""The record of a generation, under llama.cpp's names where it has them, and the tables of it.

For every command that generates with a drafter: what only one of them knows it adds itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from ..formats import number, percent
from ..memory_report import run_rows
from ..output import Table

if TYPE_CHECKING:
    from ...engine.decode.comparison import Comparison
    from ...engine.decode.generation import Generation

# Positions shown one by one; a longer draft's tail becomes one row.
POSITIONS_SHOWN = 16
STOP_REASONS = {
    "eog": "the model ended the text",
    "length": "as long as -n says",
    "stop": "a stop string came",
    "context": "the context is full",
    "interrupted": "interrupted",
}


def generation_keys(
    run: Generation, draft_max: int, before: Generation | None = None
) -> dict[str, Any]:
    """Return the keys of a generation that do not depend on the drafter; None is undefined.

    Parameters
    ----------
    before : the prefill, where that was a call of its own and ``run`` had but the last token left
    """
    from ...ngram.lookup.replay import draft_us_per_token

    prefill = run if before is None or not before.prompt_tokens else before
    n_before = 0 if before is None else before.prompt_tokens
    first_ns = run.first_token_ns
    if first_ns is not None and before is not None:
        first_ns += before.prefill_ns
    n_drafts = int(run.drafted_by_position[0]) if run.drafted_by_position.size else 0
    accept = None if run.acceptance is None else 100 * run.acceptance
    return {
        "n_draft": draft_max,
        "n_predict": len(run.tokens),
        "n_drafted": run.n_drafted,
        "t_draft_ms": run.draft_ns / 1e6,
        "draft_us_per_token": draft_us_per_token(run.draft_ns, run.n_drafted),
        "n_accept": run.n_accepted,
        "accept": accept,
        "accept_percent": accept,
        "n_input": n_before + run.prompt_tokens,
        "n_rounds": run.n_rounds,
        "n_draft_rounds": n_drafts,
        "tokens_per_round": run.tokens_per_round,
        "mean_accepted_length": run.n_accepted / n_drafts if n_drafts else None,
        "drafted_by_position": run.drafted_by_position[:draft_max].tolist(),
        "accepted_by_position": run.accepted_by_position[:draft_max].tolist(),
        "prefill_ms": prefill.prefill_ns / 1e6,
        "prefill_tokens_per_s": prefill.prefill_tokens_per_s,
        "first_token_ms": None if first_ns is None else first_ns / 1e6,
        "decode_ms": run.decode_ns / 1e6,
        "decode_tokens_per_s": run.decode_tokens_per_s,
        "verify_ms": run.verify_ns / 1e6,
        "stop_reason": run.stop_reason,
        "stop_string": run.stop_string,
        "tokens": run.tokens,
    }


def comparison_keys(comparison: Comparison | None) -> dict[str, Any]:
    """Return the keys of --compare; all None without it."""
    if comparison is None:
        names = (
            *("plain_tokens_per_s", "draft_tokens_per_s", "ratio", "identical"),
            *("plain_tokens_per_s_samples", "draft_tokens_per_s_samples", "ratio_samples"),
            *("ratio_explained", "gain_unexplained", "gain_within_spread"),
            *("step_n_past", "step_ms", "step_ms_least", "step_cost"),
        )
        return dict.fromkeys(names)
    from ...engine.decode.comparison import middle, speeds
    from ...engine.decode.noise import judge

    ratios = comparison.ratios()
    verdict = judge(comparison)
    step_ms = {str(n): median(ns) / 1e6 for n, ns in comparison.step_ns.items()}
    return {
        "plain_tokens_per_s": middle(speeds(comparison.plain)),
        "draft_tokens_per_s": middle(speeds(comparison.drafted)),
        "ratio": middle(ratios),
        "identical": comparison.identical,
        "plain_tokens_per_s_samples": speeds(comparison.plain),
        "draft_tokens_per_s_samples": speeds(comparison.drafted),
        "ratio_samples": ratios,
        "ratio_explained": verdict.explained,
        "gain_unexplained": verdict.is_unexplained,
        "gain_within_spread": verdict.is_within_spread,
        "step_n_past": comparison.n_past,
        "step_ms": step_ms,
        "step_ms_least": {str(n): min(ns) / 1e6 for n, ns in comparison.step_ns.items()},
        "step_cost": {n: ms / step_ms["1"] for n, ms in step_ms.items()},
    }


def tables_of(record: Mapping[str, Any]) -> list[Table]:
    """Return the tables that show a record."""
    tables = [_as_llama_cpp(record), _speed(record)]
    drafts = drafts_table(record)
    if any(drafts.rows):
        tables.append(drafts)
    tables.append(_costs(record))
    if "draft_share" in record:
        tables.append(_shares(record))
    if record["identical"] is not None:
        tables += [_comparison(record), _steps(record)]
    return tables


def _as_llama_cpp(record: Mapping[str, Any]) -> Table:
    return Table(
        "llama.cpp's figures",
        (),
        [
            ("n_draft", number(record["n_draft"])),
            ("n_predict", number(record["n_predict"])),
            ("n_drafted", number(record["n_drafted"])),
            ("t_draft_flat", number(record["t_draft_flat_ms"], 2, " ms")),
            ("t_draft", number(record["t_draft_ms"], 2, " ms")),
            ("", number(record["draft_us_per_token"], 3, " us per token")),
            ("n_accept", number(record["n_accept"])),
            ("accept", number(record["accept_percent"], 3, "%")),
        ],
    )


def _speed(record: Mapping[str, Any]) -> Table:
    return Table(
        "speed",
        (),
        [
            ("prefill", number(record["prefill_tokens_per_s"], 1, " tokens/s")),
            ("decode", number(record["decode_tokens_per_s"], 1, " tokens/s")),
            ("first token after", number(record["first_token_ms"], 0, " ms")),
            ("tokens of the prompt", number(record["n_input"])),
            ("rounds (passes of the model)", number(record["n_rounds"])),
            ("of them with a draft", number(record["n_draft_rounds"])),
            ("tokens per round", number(record["tokens_per_round"], 3)),
            ("accepted per draft", number(record["mean_accepted_length"], 3)),
            ("ended because", why_ended(record)),
            *([("drafter", _drafter(record))] if "drafter" in record else []),
        ],
    )


def why_ended(record: Mapping[str, Any]) -> str:
    """Why a text ended, in words."""
    string = record["stop_string"]
    return STOP_REASONS[record["stop_reason"]] + ("" if string is None else f": {string!r}")


def _drafter(record: Mapping[str, Any]) -> str:
    form = ", as llama.cpp has it" if record["upstream_exact"] else ""
    return f"{record['drafter']}{form}"


def drafts_table(record: Mapping[str, Any]) -> Table:
    """Return the table of drafted and accepted tokens by position, by source and by size.

    The latter two are left out where the record does not have them.
    """
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
    for key, what in (
        *(("source", "from {}"), ("size", "by {}-grams")),
        *(("origin", "by {}"), ("drafter", "by {}")),
    ):
        if not record.get(f"drafted_by_{key}"):
            continue
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
            ("load vocabulary and weights", number(record["load_ms"], 0, " ms")),
            ("tokenize", number(record["tokenize_ms"], 0, " ms")),
            ("verify", number(record["verify_ms"], 0, " ms")),
            ("compile kernels", number(record["compile_s"], 2, " s")),
            *run_rows(record),
        ],
    )


def _shares(record: Mapping[str, Any]) -> Table:
    return Table(
        "time of decoding",
        (),
        [
            (name, number(None if record[key] is None else 100 * record[key], 1, "%"))
            for name, key in (
                ("drafting", "draft_share"),
                ("verifying", "verify_share"),
                ("the rest", "rest_share"),
            )
        ],
    )


def _comparison(record: Mapping[str, Any]) -> Table:
    def row(name: str, key: str, digits: int) -> tuple[str, ...]:
        samples = [sample for sample in record[f"{key}_samples"] if sample is not None]
        least, most = (min(samples), max(samples)) if samples else (None, None)
        middle = number(record[key], digits)
        return name, middle, f"{number(least, digits)}..{number(most, digits)}"

    rows = [
        row("with drafts, tokens/s", "draft_tokens_per_s", 1),
        row("plain, tokens/s", "plain_tokens_per_s", 1),
        row("ratio", "ratio", 3),
        ("of which rounds explain", number(record["ratio_explained"], 3), "at most"),
        None,
        ("same text", "yes" if record["identical"] else "NO", ""),
    ]
    return Table("drafting against plain decoding", ("", "median", "least..most"), rows)


def _steps(record: Mapping[str, Any]) -> Table:
    rows = [
        (
            f"{n} token{'s' if n != '1' else ''}",
            number(ms, 2),
            number(record["step_ms_least"][n], 2),
            number(record["step_cost"][n], 2),
        )
        for n, ms in record["step_ms"].items()
    ]
    title = f"a pass after {record['step_n_past']} tokens"
    return Table(title, ("batch", "median ms", "least ms", "cost"), rows)
