"""Wall time and peak memory of the stages of a prefill."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..engine.host import recent_peak_rss_bytes, restart_peak_rss, rss_bytes


class Meter:
    """Takes stages one after the other; a stage may come again.

    Attributes
    ----------
    seconds : wall time by stage, in the order in which they came first
    peak_bytes : largest resident memory by stage; where the system does not tell, what was
        resident at its end
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.peak_bytes: dict[str, int] = {}
        self._stage: str | None = None
        self._start = 0.0
        self._knows_peak = False

    def begin(self, stage: str) -> None:
        """End the stage before, and begin one."""
        self.end()
        self._knows_peak = restart_peak_rss()
        self._stage = stage
        self._start = time.perf_counter()

    def end(self) -> None:
        """End the stage; nothing without one."""
        if self._stage is None:
            return
        spent = time.perf_counter() - self._start
        peak = recent_peak_rss_bytes() if self._knows_peak else rss_bytes()
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + spent
        self.peak_bytes[self._stage] = max(self.peak_bytes.get(self._stage, 0), peak)
        self._stage = None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """The block is a stage, or part of one."""
        self.begin(name)
        try:
            yield
        finally:
            self.end()
