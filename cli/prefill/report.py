"""The record of ``prefill-run`` and the tables of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from ..formats import number, percent, size
from ..generate.report import generation_keys, why_ended
from ..memory_report import run_rows
from ..output import Table

if TYPE_CHECKING:
    from ...prefill.planning import ScorePlan
    from .asking import AskedOnce

QUESTION_SOURCES = {
    "given": "what was given",
    "turn": "all of the last turn",
    "end": "what asks at the end",
    "beginning": "what asks at the beginning",
    "middle": "what asks in the middle",
    "last": "what stands last, for nothing asks",
    "earlier": "what was asked before, which the last turn goes on with",
    "none": "no question",
}
STAGES = ("tokenise", "score", "select", "target prefill", "first token")


def record_of(
    speculative: Sequence[AskedOnce], full: Sequence[AskedOnce], plan: ScorePlan, draft_max: int
) -> dict[str, Any]:
    """Return the keys of a request; the first turns' texts count.

    Parameters
    ----------
    speculative, full : by turn; ``full`` is empty where nothing was compared
    """
    asked = speculative[0]
    record = choice_keys(asked, plan) | stage_keys(asked)
    record |= generation_keys(asked.run, draft_max)
    record |= {"text": asked.text}
    record |= _drafted_by_origin(asked)
    return record | compare_keys(speculative, full)


def choice_keys(asked: AskedOnce, plan: ScorePlan) -> dict[str, Any]:
    """Return the keys of what was kept."""
    from ...prefill.select import Refused

    choice = asked.choice
    outcome, parts = choice.outcome, choice.parts
    is_refused = isinstance(outcome, Refused)
    return {
        "scorer": str(plan.kind),
        "fell_back": plan.fell_back,
        "refused": str(outcome.kind) if isinstance(outcome, Refused) else None,
        "refused_reason": outcome.reason if isinstance(outcome, Refused) else None,
        "n_prompt": parts.n,
        "n_mandatory": parts.n_mandatory,
        "n_question": parts.question[1] - parts.question[0],
        "question_text": parts.question_text,
        "question_source": str(parts.source),
        "question_doubt": parts.doubt or None,
        "whole_messages": list(parts.unplaced),
        "n_budget": None if isinstance(outcome, Refused) else outcome.budget,
        "n_budget_cut": choice.budget_cut,
        "n_kept": int(choice.kept.size),
        "n_document_kept": int(parts.is_document[choice.kept].sum()),
        "kept_share": choice.kept.size / parts.n,
        "mass_kept": None
        if isinstance(outcome, Refused) or choice.scores is None
        else outcome.mass_kept,
        "n_layers_scored": None if choice.scores is None else choice.scores.n_layers,
        "one_pass": asked.one_pass,
        "positions": "original" if choice.positions is not None and not is_refused else "repacked",
    }


def stage_keys(asked: AskedOnce) -> dict[str, Any]:
    """Return the keys of times and memory."""
    seconds, peaks = asked.meter.seconds, asked.meter.peak_bytes
    scores = asked.choice.scores
    return {
        "ttft_ms": None if asked.ttft_s is None else asked.ttft_s * 1e3,
        "stage_ms": {name: seconds.get(name, 0.0) * 1e3 for name in STAGES},
        "score_ms": {}
        if scores is None
        else {name: spent * 1e3 for name, spent in scores.seconds.items()},
        "load_between_ms": asked.load_s * 1e3,
        "stage_peak_bytes": {name: peaks.get(name) for name in STAGES},
    }


def compare_keys(speculative: Sequence[AskedOnce], full: Sequence[AskedOnce]) -> dict[str, Any]:
    """Return the keys of --compare; all None without it."""
    from ...engine.decode.pacer import n_alike
    from ...prefill.target import first_token_kl

    if not full:
        names = (
            *("ttft_full_ms", "ttft_ratio", "first_token_kl", "same_answer", "n_same_tokens"),
            *("text_full", "tokens_full", "ttft_samples_ms", "ttft_full_samples_ms"),
            *("ttft_ratio_samples", "stage_full_ms", "stage_full_peak_bytes"),
        )
        return dict.fromkeys(names)
    one, other = speculative[0], full[0]
    pairs = [
        (a.ttft_s, b.ttft_s)
        for a, b in zip(speculative, full, strict=True)
        if a.ttft_s is not None and b.ttft_s is not None
    ]
    ratios = [b / a for a, b in pairs]
    tokens, tokens_full = one.run.tokens, other.run.tokens
    kl = None
    if one.run.first_logits is not None and other.run.first_logits is not None:
        kl = first_token_kl(other.run.first_logits, one.run.first_logits)
    keys = stage_keys(other)
    return {
        "ttft_full_ms": median(b for _, b in pairs) * 1e3 if pairs else None,
        "ttft_ratio": median(ratios) if ratios else None,
        "first_token_kl": kl,
        "same_answer": tokens == tokens_full,
        "n_same_tokens": n_alike(tokens, tokens_full),
        "text_full": other.text,
        "tokens_full": tokens_full,
        "ttft_samples_ms": [a * 1e3 for a, _ in pairs],
        "ttft_full_samples_ms": [b * 1e3 for _, b in pairs],
        "ttft_ratio_samples": ratios,
        "stage_full_ms": keys["stage_ms"],
        "stage_full_peak_bytes": keys["stage_peak_bytes"],
    }


def _drafted_by_origin(asked: AskedOnce) -> dict[str, Any]:
    return {
        f"{what}_by_origin": {name: sum(pair[i]) for name, pair in asked.origins.items()}
        for i, what in enumerate(("drafted", "accepted"))
    }


def tables_of(record: Mapping[str, Any]) -> list[Table]:
    """Return the tables that show a record."""
    tables = [_times(record), _kept(record)]
    if record["ttft_full_ms"] is not None:
        tables.append(_comparison(record))
    tables += [_answer(record), _memory(record)]
    if record["text_full"] is not None:
        tables.append(_texts(record))
    return tables


def shortened(text: str, most: int = 60) -> str:
    """A text on one line, of some characters at most: its end, where a question mark stands."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"...{line[-most:]}"


def _times(record: Mapping[str, Any]) -> Table:
    total = record["ttft_ms"]
    rows: list[Sequence[str] | None] = [
        (
            name,
            number(ms, 1),
            percent(ms, total) if total else "-",
            size(record["stage_peak_bytes"][name]),
        )
        for name, ms in record["stage_ms"].items()
    ]
    rows += [None, ("time to first token", number(total, 1), "", "")]
    if record["load_between_ms"]:
        rows.append(("and loading between", number(record["load_between_ms"], 1), "", ""))
    columns = ("from the request, weights loaded", "ms", "share", "peak memory")
    return Table("time to first token", columns, rows)


def _kept(record: Mapping[str, Any]) -> Table:
    mass = record["mass_kept"]
    rows = [
        ("scored by", record["scorer"]),
        ("layers that ran", number(record["n_layers_scored"])),
        ("tokens of the prompt", number(record["n_prompt"])),
        ("that have to stay", number(record["n_mandatory"])),
        ("the question", shortened(record["question_text"]) or "-"),
        ("found as", QUESTION_SOURCES[record["question_source"]]),
        ("that may be kept", number(record["n_budget"])),
        ("kept", number(record["n_kept"])),
        ("share", percent(record["n_kept"], record["n_prompt"])),
        ("share of the scores", number(None if mass is None else 100 * mass, 1, "%")),
        ("positions", record["positions"]),
    ]
    if record["one_pass"]:
        rows.append(("passes", "one"))
    if record["refused"] is not None:
        rows.append(("read in full", record["refused"]))
    return Table("what was read", (), rows)


def _comparison(record: Mapping[str, Any]) -> Table:
    return Table(
        "against a prefill in full",
        (),
        [
            ("first token in full after", number(record["ttft_full_ms"], 1, " ms")),
            ("ratio", number(record["ttft_ratio"], 2)),
            ("KL of the first token", number(record["first_token_kl"], 4, " nats")),
            ("same answer", "yes" if record["same_answer"] else "NO"),
            ("tokens until they differ", number(record["n_same_tokens"])),
        ],
    )


def _answer(record: Mapping[str, Any]) -> Table:
    return Table(
        "the answer",
        (),
        [
            ("tokens", number(record["n_predict"])),
            ("decode", number(record["decode_tokens_per_s"], 1, " tokens/s")),
            ("drafted", number(record["n_drafted"])),
            ("accepted", number(record["n_accept"])),
            ("ended because", why_ended(record)),
        ],
    )


def _memory(record: Mapping[str, Any]) -> Table:
    return Table(
        "memory and loading",
        (),
        [
            *run_rows(record),
            ("load, in no other time", number(record["load_ms"], 0, " ms")),
        ],
    )


def _texts(record: Mapping[str, Any]) -> Table:
    return Table(
        "answers",
        (),
        [("kept", record["text"].strip()), ("in full", record["text_full"].strip())],
    )
