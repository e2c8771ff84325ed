"""Ctrl-C between the steps of what has to happen whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """While this context lasts, a SIGINT that comes when ``held`` is set waits for ``deliver``.

    A second one does not wait, so that nothing that blocks can keep Ctrl-C away. Outside the main
    thread, or where SIGINT has no handler of Python's, nothing changes.
    """

    def __init__(self) -> None:
        self.held = False
        self._waits = False
        self._handler: Callable[[int, FrameType | None], Any] | None = None

    def __enter__(self) -> Interrupts:
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(handler):
            self._handler = handler
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.held and not self._waits:
            self._waits = True
        elif self._handler is not None:
            self._handler(number, frame)

    def take(self) -> bool:
        """Whether a SIGINT waited; it waits no more."""
        waited, self._waits = self._waits, False
        return waited

    def deliver(self) -> None:
        """Hold no longer, and let the usual handler have the SIGINT that waited, if one did."""
        self.held = False
        if self.take() and self._handler is not None:
            self._handler(signal.SIGINT, None)
