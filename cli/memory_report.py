"""How the memory that single things take and the peak of the process go together.

What weights, keys and values or a drafter take is counted; what the process takes is measured, and
is more: Python with its libraries and the vocabulary, kernels, a file while it is read. So that
nobody has to wonder, the rows of a table add up to its peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .output import size


def run_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of a command that generates, up to its peak."""
    parts = [
        ("program and vocabulary", record["program_bytes"]),
        ("weights", record["weights_bytes"]),
        *_some("of the head", record.get("head_bytes")),
        *_some("of the drafter", record.get("drafter_bytes")),
        ("keys and values", record["kv_bytes"]),
    ]
    return _up_to_peak(parts, record, "file, kernels, buffers")


def _some(name: str, n_bytes: int | None) -> list[tuple[str, int]]:
    return [(name, n_bytes)] if n_bytes else []


def replay_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of a replay, up to its peak."""
    parts = [
        ("program and vocabulary", record["program_bytes"]),
        ("caches and texts, read", record["read_bytes"]),
    ]
    return _up_to_peak(parts, record, "replays, kernels")


def _up_to_peak(
    parts: Sequence[tuple[str, int]], record: Mapping[str, Any], others: str
) -> list[tuple[str, str]]:
    """Return the rows of parts and of the peak, and between them what makes them add up."""
    peak, known = record["peak_rss_bytes"], sum(n_bytes for _, n_bytes in parts)
    rest = (others, peak - known) if peak >= known else ("of these not touched", known - peak)
    return [(name, size(n_bytes)) for name, n_bytes in (*parts, rest, ("peak memory", peak))]


def sweep_line(records: Sequence[Mapping[str, Any]], what: str) -> str:
    """Return the sentence below a table that has a column of memory: why the peak is more."""
    record = records[0]
    known = record["program_bytes"] + record["read_bytes"]
    more = max(0, record["peak_rss_bytes"] - known)
    return (
        f"memory: that of {what}. The process took {size(record['peak_rss_bytes'])} at most: "
        f"{size(record['program_bytes'])} program and vocabulary, {size(record['read_bytes'])} "
        f"caches and texts as they were read, {size(more)} replays and kernels"
    )
