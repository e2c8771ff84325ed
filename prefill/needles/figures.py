"""What became of prompts with needles, and the figures of many of them.

found = [JudgedAnswer.of(probe, choice, keep, text=answer_text) for ...]
print(record_of(found)["by_kind"])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from ..pipeline import Choice
from ..select import Refused
from .niah import Probe, needles_kept, recall


@dataclass(frozen=True)
class JudgedAnswer:
    """What became of a prompt.

    Attributes
    ----------
    keep : share of the prompt that was to be kept
    kept : share of its needles that were kept; None: it has none
    ttft_s : with the time that its scores take, also where they were remembered
    recall, recall_full : share of what is expected that the answer says; None: not asked in full
    """

    probe: Probe
    keep: float
    n_prompt: int
    n_kept: int
    is_refused: bool
    kept: float | None
    recall: float
    recall_full: float | None
    ttft_s: float | None
    ttft_full_s: float | None
    text: str
    text_full: str | None

    @classmethod
    def of(
        cls,
        probe: Probe,
        choice: Choice,
        keep: float,
        *,
        text: str,
        text_full: str | None = None,
        ttft_s: float | None = None,
        ttft_full_s: float | None = None,
    ) -> JudgedAnswer:
        """Judge an answer to a prompt of which a part was kept, and one to all of it.

        Parameters
        ----------
        text, text_full : the answers; None: it was not asked in full
        """
        return cls(
            probe=probe,
            keep=keep,
            n_prompt=choice.parts.n,
            n_kept=int(choice.kept.size),
            is_refused=isinstance(choice.outcome, Refused),
            kept=needles_kept(probe, choice),
            recall=recall(probe, text),
            recall_full=None if text_full is None else recall(probe, text_full),
            ttft_s=ttft_s,
            ttft_full_s=ttft_full_s,
            text=text,
            text_full=text_full,
        )


def record_of(found: Sequence[JudgedAnswer]) -> dict[str, Any]:
    """Return the keys of the run, by share kept and kind, and by cell: with context and depth."""

    def grouped(*names: str) -> list[dict[str, Any]]:
        groups: dict[tuple[Any, ...], list[JudgedAnswer]] = {}
        for one in found:
            place = {"keep": one.keep, **vars(one.probe)}
            groups.setdefault(tuple(place[name] for name in names), []).append(one)
        return [
            {**dict(zip(names, key, strict=True)), **_figures(those)}
            for key, those in groups.items()
        ]

    return {
        **_figures(found),
        "by_keep": grouped("keep"),
        "by_kind": grouped("kind", "keep"),
        "cells": grouped("kind", "keep", "context", "depth"),
        "prompts": [
            {
                "kind": one.probe.kind,
                "keep": one.keep,
                "context": one.probe.context,
                "depth": one.probe.depth,
                "question": one.probe.question,
                "expected": list(one.probe.expected),
                "needle_kept": one.kept,
                "recall_full": one.recall_full,
                "recall_speculative": one.recall,
                "text": one.text,
                "text_full": one.text_full,
            }
            for one in found
        ],
    }


def _figures(found: Sequence[JudgedAnswer]) -> dict[str, Any]:
    """Return the keys of some prompts; None where there is nothing to say."""
    kept = [one.kept for one in found if one.kept is not None]
    full = [one.recall_full for one in found if one.recall_full is not None]
    ttfts = [one.ttft_s for one in found if one.ttft_s is not None]
    ttfts_full = [one.ttft_full_s for one in found if one.ttft_full_s is not None]
    ratios = [
        one.ttft_full_s / one.ttft_s
        for one in found
        if one.ttft_s is not None and one.ttft_full_s is not None
    ]
    return {
        "n_prompts": len(found),
        "n_refused": sum(one.is_refused for one in found),
        "ttft_ratio": _middle(ratios),
        "recall_full": fmean(full) if full else None,
        "recall_speculative": fmean(one.recall for one in found),
        "needle_kept": fmean(share == 1 for share in kept) if kept else None,
        "right_full": fmean(share == 1 for share in full) if full else None,
        "right_speculative": fmean(one.recall == 1 for one in found),
        "kept_share": fmean(one.n_kept / one.n_prompt for one in found),
        "ttft_ms": _middle([s * 1e3 for s in ttfts]),
        "ttft_full_ms": _middle([s * 1e3 for s in ttfts_full]),
    }


def _middle(values: Sequence[float]) -> float | None:
    return median(values) if values else None
