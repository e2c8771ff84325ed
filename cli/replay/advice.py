"""What --advise says: the best row, how sure that is, and the command line for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...ngram.advice.advise import PLAIN, AdvisedRow, Speeds, Work
from ...ngram.advice.server_line import ServerLine, server_line
from ...ngram.advice.step_curve import StepCurve
from ..formats import number
from ..output import Output
from .rows import Row

# Share of the time in passes that nobody measured from which that is said.
GUESSED_MOST = 0.05
# With fewer conversations the certainty is itself a guess.
GROUPS_FEW = 10


@dataclass(frozen=True)
class Advice:
    """The advice for people and for programs.

    Attributes
    ----------
    predicted : the keys of each row
    record : the key ``advice`` of the JSON object
    lines : the same as text
    """

    predicted: list[dict[str, Any]]
    record: dict[str, Any]
    lines: list[str]


@dataclass(frozen=True)
class Paths:
    """What command lines name."""

    model: str
    static: str | None
    dynamic: str | None


def advise(rows: Sequence[Row], curve: StepCurve, paths: Paths, out: Output) -> Advice:
    """Predict each row's speed, and choose."""
    works = [row.work for row in rows if row.work is not None]
    speeds = Speeds(works, curve)
    choice = speeds.choose()
    on_server = [i for i, row in enumerate(rows) if row.spec.is_of_server]
    predicted = _predictions(speeds, works)
    record = _choice_keys(choice, rows, predicted, paths)
    lines = _lines(choice, rows, record, speeds)
    if not on_server and record["server"] is not None:
        lines.append("- llama-server's own drafters were not replayed: see --upstream-exact")
    record["best_of_server"] = None
    if on_server and choice.best not in (PLAIN, *on_server):
        other = speeds.choose(on_server)
        record["best_of_server"] = _choice_keys(other, rows, predicted, paths)
        lines += ["", "Of what llama-server has itself:"]
        lines += _lines(other, rows, record["best_of_server"], speeds)
    record |= {
        "plain_tokens_per_s": speeds.plain_tokens_per_s,
        "n_groups": speeds.n_groups,
        "cost": curve.points(),
        "cost_is_ms": curve.is_ms,
        "cost_from": curve.origin,
    }
    _warn(choice, works, speeds, curve, out)
    return Advice(predicted, record, lines)


def _predictions(speeds: Speeds, works: Sequence[Work]) -> list[dict[str, Any]]:
    """Return the predicted keys of each row."""
    return [
        {
            "predicted_tokens_per_s": (
                None if speeds.tokens_per_s is None else float(speeds.tokens_per_s[i])
            ),
            "predicted_ratio": float(speeds.ratios[i]),
            "predicted_ratio_least": None if span is None else span[0],
            "predicted_ratio_most": None if span is None else span[1],
            "guessed_share": works[i].guessed,
        }
        for i, span in enumerate(speeds.ranges())
    ]


def _choice_keys(
    choice: AdvisedRow, rows: Sequence[Row], predicted: Sequence[dict[str, Any]], paths: Paths
) -> dict[str, Any]:
    """Return a choice as keys of a record."""
    line = None
    if choice.best != PLAIN:
        line = server_line(rows[choice.best].spec, paths.model, paths.static, paths.dynamic)
    return {
        "best": _named(choice.best, rows),
        "next": None if choice.next is None else _named(choice.next, rows),
        "margin_percent": _percent(choice.margin),
        "margin_percent_least": _percent(choice.margin_range and choice.margin_range[0]),
        "margin_percent_most": _percent(choice.margin_range and choice.margin_range[1]),
        "sure_percent": _percent(choice.sure),
        "ratio": 1.0 if choice.best == PLAIN else predicted[choice.best]["predicted_ratio"],
        "held_out_ratio": choice.held_out,
        "server": _server_keys(line),
    }


def _server_keys(line: ServerLine | None) -> dict[str, Any] | None:
    if line is None:
        return None
    return {
        "line": line.line,
        "is_exact": line.is_exact,
        "remarks": list(line.remarks),
        "elsewhere": line.elsewhere,
    }


def _named(number_of: int, rows: Sequence[Row]) -> dict[str, Any]:
    """Return which row it is; plain decoding has no drafter."""
    if number_of == PLAIN:
        return {"drafter": None, "upstream_exact": False}
    spec = rows[number_of].spec
    return {"drafter": str(spec), "upstream_exact": spec.upstream_exact}


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _lines(
    choice: AdvisedRow, rows: Sequence[Row], record: dict[str, Any], speeds: Speeds
) -> list[str]:
    """Return a choice as text; the command line stands alone on its line, to be copied."""
    lines = [f"Best: {_title(choice.best, rows)}{_speed(choice.best, speeds)}."]
    if choice.next is not None and choice.margin is not None:
        lead = f"the best leads it by {number(100 * choice.margin, 1)} %"
        if choice.margin_range is None or choice.sure is None:
            lead += ", and one conversation does not say how sure that is"
        else:
            least, most = (number(100 * end, 1) for end in choice.margin_range)
            sure = number(100 * choice.sure, 1)
            lead += f" (95 %: {least} to {most} %), in {sure} % of samples of the conversations"
        lines.append(f"Next: {_title(choice.next, rows)}; {lead}.")
    if choice.held_out is not None:
        held_out = number(choice.held_out, 3)
        lines.append(
            f"Chosen on half of the conversations, timed on the other: {held_out} x plain decoding."
        )
    server = record["server"]
    if server is not None:
        nearest = "Its command line" if server["is_exact"] else "The nearest that llama-server has"
        lines += [f"{nearest}:", "", server["line"], ""]
        lines += [f"- {remark}" for remark in server["remarks"]]
        lines += [f"- in {server['elsewhere']}"] if server["elsewhere"] else []
    return lines


def _title(number_of: int, rows: Sequence[Row]) -> str:
    if number_of == PLAIN:
        return "no drafting"
    spec = rows[number_of].spec
    return f"{spec}, as llama.cpp has it" if spec.upstream_exact else str(spec)


def _speed(number_of: int, speeds: Speeds) -> str:
    if number_of == PLAIN:
        plain = speeds.plain_tokens_per_s
        return "" if plain is None else f" ({number(plain, 1)} tokens/s)"
    ratio = number(float(speeds.ratios[number_of]), 3)
    if speeds.tokens_per_s is None:
        return f", {ratio} x plain decoding"
    each = number(float(speeds.tokens_per_s[number_of]), 1)
    return f", {each} tokens/s, {ratio} x plain decoding ({number(speeds.plain_tokens_per_s, 1)})"


def _warn(
    choice: AdvisedRow, works: Sequence[Work], speeds: Speeds, curve: StepCurve, out: Output
) -> None:
    """Say what the prediction does not rest on."""
    if choice.best != PLAIN and works[choice.best].guessed > GUESSED_MOST:
        out.warn(
            f"{number(100 * works[choice.best].guessed)} % of the predicted time is in passes over "
            f"more than the {curve.largest} tokens that --cost knows; measure larger ones"
        )
    if 1 < speeds.n_groups < GROUPS_FEW:
        out.note(f"{speeds.n_groups} conversations are few: how sure the best is, is a guess")
