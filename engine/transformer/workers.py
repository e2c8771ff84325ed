"""Threads that run one kernel together, each with its own number.

Numba's own threads promise no two of a loop's parts at the same time, and kernels that meet at
barriers need just that. These threads wait between calls, and the kernels release the GIL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Kernel = Callable[..., object]


class Workers:
    """``n_threads`` threads, the calling one among them.

    Parameters
    ----------
    n_threads : 1 or more
    """

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._job: tuple[Kernel, tuple[Any, ...]] | None = None
        self._go = [threading.Semaphore(0) for _ in range(n_threads - 1)]
        self._done = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []
        for i, go in enumerate(self._go):
            threading.Thread(target=self._serve, args=(i + 1, go), daemon=True).start()

    def run(self, kernel: Kernel, *arguments: object) -> None:
        """Run ``kernel(tid, n_threads, *arguments)`` in all threads; returns when all are done.

        Call a kernel that has barriers only once it is compiled (its error would leave the others
        waiting); an error in any thread is raised here.
        """
        with self._lock:  # one caller at a time
            self._job = kernel, arguments
            for go in self._go:
                go.release()
            interrupt = None
            try:
                kernel(0, self.n_threads, *arguments)
            finally:
                for _ in self._go:
                    while True:  # the others still use the arguments
                        try:
                            self._done.acquire()
                            break
                        except KeyboardInterrupt as pressed:
                            interrupt = pressed
                self._job = None
            if interrupt is not None:
                raise interrupt
            if self._errors:
                first = self._errors[0]
                self._errors.clear()
                raise first

    def close(self) -> None:
        """End the threads."""
        with self._lock:
            self._job = None
            go, self._go = self._go, []
            for one in go:
                one.release()

    def _serve(self, tid: int, go: threading.Semaphore) -> None:
        while True:
            go.acquire()
            job = self._job
            if job is None:
                return
            kernel, arguments = job
            try:
                kernel(tid, self.n_threads, *arguments)
            except BaseException as error:
                self._errors.append(error)
            # what the arguments hold must not live on here until the next call
            del job, kernel, arguments
            self._done.release()
