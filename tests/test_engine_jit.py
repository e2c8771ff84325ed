"""Compilation is timed once, whatever calls what."""

from __future__ import annotations

import time

import numba
from draftsmith.engine.jit import CompileWatch


def test_times_the_outermost_compilation() -> None:
    """A callee's compilation counted twice: more seconds than have passed."""

    @numba.njit
    def inner(x):  # type: ignore[no-untyped-def]
        return x * 2

    @numba.njit
    def outer(x):  # type: ignore[no-untyped-def]
        return inner(x) + 1

    told: list[str] = []
    with CompileWatch(on_first=lambda: told.append("compiling")) as watch:
        start = time.perf_counter()
        outer(1)
        spent_s = time.perf_counter() - start
        assert 0 < watch.seconds <= spent_s
        first_s = watch.seconds
        outer(2)
        assert watch.seconds == first_s
        outer(2.0)
        assert watch.seconds > first_s
    assert told == ["compiling"]
    total_s = watch.seconds
    outer(2j)
    assert watch.seconds == total_s
