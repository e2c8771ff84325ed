"""The column of a progress bar that shows how fast the work goes."""

from __future__ import annotations

from typing import Literal

from rich.progress import ProgressColumn, Task
from rich.text import Text

from .formats import number, size


class Rate(ProgressColumn):
    """Bytes or tokens a second, over the last moments."""

    def __init__(self, unit: Literal["bytes", "tokens"]) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        """Return the rate as text; empty before there is one."""
        speed = task.finished_speed or task.speed
        if speed is None:
            return Text("")
        if self._unit == "bytes":
            return Text(f"{size(speed)}/s")
        return Text(f"{number(speed)} tokens/s")
