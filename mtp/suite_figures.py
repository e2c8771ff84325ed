"""Figures of a suite: sums over texts, and what follows from them.

A speed, ratio or share over several texts is one of sums, never a mean of speeds or ratios: as if
the texts had been generated one after the other. The spread is that of the texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ..engine.decode.generation import Generation

ORIGINS = ("mtp", "ngram")


@dataclass(frozen=True)
class Bounds:
    """The same text with acceptance forced, and what passes took after it.

    Attributes
    ----------
    none, every : with no drafted token accepted, and with all of them
    step_ns : tokens of a pass -> its times
    """

    none: Sequence[Generation]
    every: Sequence[Generation]
    step_ns: Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class SuiteCell:
    """One prompt, drafted with one draft length, and plain.

    Attributes
    ----------
    name, category : of the prompt
    draft_max : the draft length
    n_input : tokens of the prompt
    prefill : of the prompt but its last token
    plain, drafted : by turn
    origins : origin -> (drafted, accepted) tokens by position, over all turns
    bounds : with --bounds
    """

    name: str
    category: str
    draft_max: int
    n_input: int
    prefill: Generation
    plain: Sequence[Generation]
    drafted: Sequence[Generation]
    origins: Mapping[str, tuple[Sequence[int], Sequence[int]]] = field(default_factory=dict)
    bounds: Bounds | None = None

    @property
    def identical(self) -> bool:
        """Whether all texts are the same, token for token."""
        return all(run.tokens == self.plain[0].tokens for run in (*self.drafted, *self.plain))

    def ratios(self) -> list[float]:
        """Speed with drafts over speed without, by turn; without texts of a single token."""
        pairs = zip(self.drafted, self.plain, strict=True)
        found = (ratio([a], [b]) for a, b in pairs)
        return [one for one in found if one is not None]


def ratio(drafted: Sequence[Generation], plain: Sequence[Generation]) -> float | None:
    """Speed of some texts over that of others, each of sums; None: there is none."""
    a, b = speed(drafted), speed(plain)
    return None if a is None or b is None else a / b


def speed(runs: Sequence[Generation]) -> float | None:
    """Tokens after the first ones a second."""
    n, ns = n_decoded(runs), total(runs, "decode_ns")
    return n / ns * 1e9 if n and ns else None


def n_decoded(runs: Sequence[Generation]) -> int:
    """Tokens after the first ones."""
    return sum(max(0, len(run.tokens) - 1) for run in runs)


def total(runs: Sequence[Generation], name: str) -> int:
    """Sum of an attribute."""
    return sum(getattr(run, name) for run in runs)


def figures(cells: Sequence[SuiteCell]) -> dict[str, Any]:
    """Return the keys that a row, a kind and the whole suite have in common; None is undefined.

    Parameters
    ----------
    cells : 1 or more, of one draft length
    """
    plain = [run for cell in cells for run in cell.plain]
    drafted = [run for cell in cells for run in cell.drafted]
    parts = cells[0].ratios() if len(cells) == 1 else _defined([_ratio([one]) for one in cells])
    keys = {
        "draft_max": cells[0].draft_max,
        "n_prompts": len(cells),
        "n_input": sum(cell.n_input for cell in cells),
        "n_predict": sum(len(cell.drafted[0].tokens) for cell in cells),
        "plain_tokens_per_s": speed(plain),
        "draft_tokens_per_s": speed(drafted),
        "ratio": _ratio(cells),
        "ratio_least": min(parts, default=None),
        "ratio_most": max(parts, default=None),
        "ratio_se": _jackknife(cells, _ratio),
        "identical": all(cell.identical for cell in cells),
        "prefill_ms": sum(cell.prefill.prefill_ns for cell in cells) / 1e6,
    }
    return keys | _rounds(drafted) | _positions(cells) | _times(drafted) | _bounds(cells)


def draft_keys(
    run: Generation, origins: Mapping[str, tuple[Sequence[int], Sequence[int]]]
) -> dict[str, Any]:
    """Return the keys of a single text that say how it was drafted, where its time went."""
    cell = SuiteCell("", "", 0, 0, run, [], [run], origins)
    return {"acceptance": run.acceptance, **_positions([cell]), **_times([run])}


def _ratio(cells: Sequence[SuiteCell]) -> float | None:
    return ratio([r for cell in cells for r in cell.drafted], [r for c in cells for r in c.plain])


def _rounds(drafted: Sequence[Generation]) -> dict[str, Any]:
    n_rounds, n_drafted = total(drafted, "n_rounds"), total(drafted, "n_drafted")
    n_accepted = total(drafted, "n_accepted")
    n_drafts = sum(int(run.drafted_by_position[:1].sum()) for run in drafted)
    return {
        "n_rounds": n_rounds,
        "n_draft_rounds": n_drafts,
        "n_drafted": n_drafted,
        "n_accept": n_accepted,
        "acceptance": _share(n_accepted, n_drafted),
        "tokens_per_round": _share(n_decoded(drafted), n_rounds),
        "mean_accepted_length": _share(n_accepted, n_drafts),
    }


def _times(drafted: Sequence[Generation]) -> dict[str, Any]:
    """Return what the time of decoding with drafts went into."""
    whole = total(drafted, "decode_ns") if n_decoded(drafted) else 0
    draft, verify = total(drafted, "draft_ns"), total(drafted, "verify_ns")
    return {
        "draft_share": _share(draft, whole),
        "verify_share": _share(verify, whole),
        "rest_share": _share(whole - draft - verify, whole),
    }


def _positions(cells: Sequence[SuiteCell]) -> dict[str, Any]:
    """Return acceptance by position, of all drafts and of each origin's.

    A draft counts at position i where it was verified that far, and as accepted where all of it up
    to there was.
    """
    counts = [_sums([_by_position(run) for run in cell.drafted]) for cell in cells]
    keys = _with_errors("", counts)
    origins = [name for name in ORIGINS if any(name in cell.origins for cell in cells)]
    keys["drafted_by_origin"] = {}
    keys["accepted_by_origin"] = {}
    for name in origins:
        counts = [cell.origins.get(name, ([], [])) for cell in cells]
        keys |= _with_errors(f"{name}_", counts)
        for what in ("drafted", "accepted"):
            keys[f"{what}_by_origin"][name] = sum(keys[f"{name}_{what}_by_position"])
    return keys


PositionCounts = tuple[Sequence[int], Sequence[int]]


def _by_position(run: Generation) -> PositionCounts:
    return run.drafted_by_position.tolist(), run.accepted_by_position.tolist()


def _sums(counts: Sequence[PositionCounts]) -> PositionCounts:
    """Sums by position, without the positions where nothing was drafted."""
    drafted, accepted = (
        [_column(counts, what, i) for i in range(_longest(counts))] for what in (0, 1)
    )
    n = sum(map(bool, drafted))
    return drafted[:n], accepted[:n]


def _column(counts: Sequence[PositionCounts], what: int, i: int) -> int:
    return sum(one[what][i] for one in counts if i < len(one[what]))


def _longest(counts: Sequence[PositionCounts]) -> int:
    return max((len(drafted) for drafted, _ in counts), default=0)


def _with_errors(prefix: str, counts: Sequence[PositionCounts]) -> dict[str, Any]:
    """Return counts, acceptance and its standard error by position; ``counts`` are by prompt."""
    drafted, accepted = _sums(counts)
    errors = []
    for i in range(len(drafted)):
        parts = [(a[i], d[i]) for d, a in counts if i < len(d) and d[i]]
        errors.append(standard_error(parts))
    return {
        f"{prefix}drafted_by_position": drafted,
        f"{prefix}accepted_by_position": accepted,
        f"{prefix}acceptance_by_position": [a / d for a, d in zip(accepted, drafted, strict=True)],
        f"{prefix}acceptance_by_position_se": errors,
    }


def standard_error(parts: Sequence[tuple[int, int]]) -> float | None:
    """Standard error of a share, sum of hits over sum of tries, from (hits, tries) of prompts.

    Drafts of one text resemble each other, so that prompts are what is drawn at random, and not
    single drafts. Of a single prompt, all there is: as if its drafts were independent.
    """
    tries = sum(n for _, n in parts)
    if not tries:
        return None
    share = sum(hits for hits, _ in parts) / tries
    if len(parts) == 1:
        return math.sqrt(share * (1 - share) / tries)
    squares = sum((hits - share * n) ** 2 for hits, n in parts)
    return math.sqrt(len(parts) / (len(parts) - 1) * squares) / tries


def _jackknife(
    cells: Sequence[SuiteCell], of: Callable[[Sequence[SuiteCell]], float | None]
) -> float | None:
    """Standard error of a figure over prompts, each left out once; None: there is but one."""
    n = len(cells)
    if n < 2:
        return None
    found = _defined([of([*cells[:i], *cells[i + 1 :]]) for i in range(n)])
    if len(found) < n:
        return None
    middle = sum(found) / n
    return math.sqrt((n - 1) / n * sum((one - middle) ** 2 for one in found))


def _bounds(cells: Sequence[SuiteCell]) -> dict[str, Any]:
    """Return the keys of --bounds, where it was asked for.

    Costs are times of a round over that of a plain token, so that the ratio is tokens per round
    over the sum of the three. Of texts without a round, all but ``step_cost`` are None.
    """
    bounds = [cell.bounds for cell in cells if cell.bounds is not None]
    if not bounds:
        return {}
    plain = [run for cell in cells for run in cell.plain]
    drafted = [run for cell in cells for run in cell.drafted]
    n, n_plain = n_decoded(drafted), n_decoded(plain)
    n_rounds = total(drafted, "n_rounds")
    single = total(plain, "decode_ns") / n_plain if n_plain else 0.0
    rounds_ns, plain_ns = single * n_rounds, single * n
    draft, verify = total(drafted, "draft_ns"), total(drafted, "verify_ns")
    rest = total(drafted, "decode_ns") - draft - verify
    n_evaluated = n_rounds + total(drafted, "n_drafted")
    predicted_ns, predicted_plain_ns = _predicted(cells)
    return {
        "bounds": {
            "ratio_none_accepted": ratio([run for one in bounds for run in one.none], plain),
            "ratio_all_accepted": ratio([run for one in bounds for run in one.every], plain),
            "verify_cost": _share(verify, rounds_ns),
            "draft_cost": _share(draft, rounds_ns),
            "rest_cost": _share(rest, rounds_ns),
            "ratio_drafts_free": _gain(plain_ns, verify + rest),
            "ratio_batches_free": _gain(plain_ns, rounds_ns + draft),
            "ratio_both_free": _share(n, n_rounds),
            "ratio_batches_dear": _gain(plain_ns, n_evaluated * single + draft),
            "predicted_ratio": _gain(predicted_plain_ns, predicted_ns),
            "step_cost": _step_costs(bounds),
        }
    }


def _predicted(cells: Sequence[SuiteCell]) -> tuple[float, float]:
    """Nanoseconds with drafts and without, from counts and measured steps.

    Each round takes what a pass over as many tokens took after the text; drafting takes what it
    took.
    """
    with_drafts = without = 0.0
    for cell in cells:
        if cell.bounds is None:
            continue
        step = {size: median(times) for size, times in cell.bounds.step_ns.items()}
        for run in cell.drafted:
            for n, n_rounds in rounds_by_length(run).items():
                with_drafts += n_rounds * step[1 + n]
        with_drafts += total(cell.drafted, "draft_ns")
        without += n_decoded(cell.drafted) * step[1]
    return with_drafts, without


def rounds_by_length(run: Generation) -> dict[int, int]:
    """Drafted tokens that a round verified -> rounds that verified so many."""
    reached = [run.n_rounds, *run.drafted_by_position.tolist(), 0]
    found = {n: reached[n] - reached[n + 1] for n in range(len(reached) - 1)}
    return {n: n_rounds for n, n_rounds in found.items() if n_rounds}


def _step_costs(bounds: Sequence[Bounds]) -> dict[str, float]:
    """Return the time of a pass by its tokens, over that of a single token; median of the texts."""
    costs: dict[int, list[float]] = {}
    for one in bounds:
        for size, times in one.step_ns.items():
            costs.setdefault(size, []).append(median(times) / median(one.step_ns[1]))
    return {str(size): median(costs[size]) for size in sorted(costs)}


def _defined(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _gain(plain_ns: float, ns: float) -> float | None:
    """Time of plain decoding over another; None: there is nothing to decode."""
    return plain_ns / ns if plain_ns and ns else None
