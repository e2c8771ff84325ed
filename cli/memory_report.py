"""How the memory that single things take and the peak of the process go together.

What weights, keys and values or a drafter take is counted; what the process takes is measured, and
is more: Python with its libraries and the vocabulary, kernels, a file while it is read. So that
nobody has to wonder, the rows of a table add up to its peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .formats import size

if TYPE_CHECKING:
    from ..engine.stages import Stages


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


@dataclass(frozen=True)
class ReplayMemory:
    """Resident memory of a replay, which differs from one call to the next: not of its record.

    Attributes
    ----------
    program : bytes when the vocabulary is read
    read : what caches and texts added to that
    """

    program: int
    read: int

    @classmethod
    def of(cls, stages: Stages) -> ReplayMemory:
        """Return what was kept as "program" and as "read"."""
        program = stages.memory("program")
        return cls(program, max(0, stages.memory("read") - program))


def replay_rows(record: Mapping[str, Any], memory: ReplayMemory) -> list[tuple[str, str]]:
    """Return the rows of a replay, up to its peak."""
    parts = [("program and vocabulary", memory.program), ("caches and texts, read", memory.read)]
    return _up_to_peak(parts, record, "replays, kernels")


def _up_to_peak(
    parts: Sequence[tuple[str, int]], record: Mapping[str, Any], others: str
) -> list[tuple[str, str]]:
    """Return the rows of parts and of the peak, and between them what makes them add up."""
    peak, known = record["peak_rss_bytes"], sum(n_bytes for _, n_bytes in parts)
    rest = (others, peak - known) if peak >= known else ("of these not touched", known - peak)
    return [(name, size(n_bytes)) for name, n_bytes in (*parts, rest, ("peak memory", peak))]


def sweep_line(record: Mapping[str, Any], memory: ReplayMemory, what: str) -> str:
    """Return the sentence below a table that has a column of memory: why the peak is more.

    Parameters
    ----------
    record : of any row
    what : whose memory the column is
    """
    peak = record["peak_rss_bytes"]
    more = max(0, peak - memory.program - memory.read)
    return (
        f"memory: that of {what}. The process took {size(peak)} at most: {size(memory.program)} "
        f"program and vocabulary, {size(memory.read)} caches and texts as they were read, "
        f"{size(more)} replays and kernels"
    )
