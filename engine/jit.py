"""How long kernels took to compile, told apart from how long they ran.

Numba is imported inside the functions only, so that ``--help`` never pays for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

_EVENT = "numba:compile"


class CompileWatch:
    """Context manager that sums the time spent in compilation, in all threads.

    Numba sends one event a compiled function and none for one that it loads from its cache on
    disk. A kernel that calls another compiles it inside its own event, so only the outermost
    event of each thread is timed.

    Parameters
    ----------
    on_first : called once, when the first compilation begins.
    """

    def __init__(self, on_first: Callable[[], None] | None = None) -> None:
        self._on_first = on_first
        self._lock = threading.Lock()
        self._thread = threading.local()
        self._total_ns = 0
        self._listener: Any = None

    @property
    def seconds(self) -> float:
        """Seconds compiled so far."""
        return self._total_ns / 1e9

    def __enter__(self) -> CompileWatch:
        from numba.core import event

        watch = self

        class Listener(event.Listener):
            def on_start(self, event: Any) -> None:
                watch._start()

            def on_end(self, event: Any) -> None:
                watch._stop()

        self._listener = Listener()
        event.register(_EVENT, self._listener)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        from numba.core import event

        event.unregister(_EVENT, self._listener)

    def _start(self) -> None:
        depth = getattr(self._thread, "depth", 0)
        self._thread.depth = depth + 1
        if depth:
            return
        self._thread.start_ns = time.perf_counter_ns()
        with self._lock:
            announce, self._on_first = self._on_first, None
        if announce is not None:
            announce()

    def _stop(self) -> None:
        self._thread.depth -= 1
        if self._thread.depth == 0:
            spent_ns = time.perf_counter_ns() - self._thread.start_ns
            with self._lock:
                self._total_ns += spent_ns
