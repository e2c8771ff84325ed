"""Mapped arrays: no more of the file in memory than what is in use."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from draftsmith.engine.pages import forget_pages


@pytest.mark.parametrize("mode", ["r", "r+", "buffer"])
def test_pages_are_let_go_and_come_back(mode: str, tmp_path: Path) -> None:
    """A cache larger than memory that fills it while it is written; or what was written to a
    shared map lost with its pages."""
    path = tmp_path / "array"
    np.full(8 << 20, 7, np.int64).tofile(path)
    if mode == "buffer":
        with path.open("rb") as file:
            array = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.int64)
    else:
        array = np.memmap(path, np.int64, mode)
    if mode == "r+":
        array[-1] = 8
    status = Path("/proc/self/status")
    sizes = []
    for start in range(0, array.size, 1 << 19):
        assert array[start : start + (1 << 19)].min() == 7
        forget_pages(array[start:])
        if status.exists():
            sizes.append(int(status.read_text().split("RssFile:")[1].split()[0]) * 1024)
    assert not sizes or max(sizes) - sizes[0] < 8 << 20
    assert array[-1] == (8 if mode == "r+" else 7)
    assert (array[:-1] == 7).all()
