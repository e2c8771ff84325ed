"""How long the stages of some work take, and how much memory, compilation left out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from .host import rss_bytes
from .jit import CompileWatch


class Stages:
    """Nanoseconds spent in named stages of some work, compilation left out.

    Parameters
    ----------
    watch : what has been compiled so far.
    """

    def __init__(self, watch: CompileWatch) -> None:
        self._watch = watch
        self._ns: dict[str, int] = {}
        self._bytes: dict[str, int] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to a stage."""
        start_ns, compiled_s = time.perf_counter_ns(), self._watch.seconds
        try:
            yield
        finally:
            spent_ns = time.perf_counter_ns() - start_ns
            spent_ns -= round((self._watch.seconds - compiled_s) * 1e9)
            # A thread may have compiled meanwhile, for longer than this took.
            self._ns[name] = self._ns.get(name, 0) + max(0, spent_ns)

    def keep_memory(self, name: str) -> None:
        """Keep how much memory the process takes now, under a name."""
        self._bytes[name] = rss_bytes()

    def memory(self, name: str) -> int:
        """Return the bytes that were kept under a name."""
        return self._bytes[name]

    def seconds(self, name: str) -> float:
        """Return what a stage has taken so far."""
        return self._ns.get(name, 0) / 1e9
