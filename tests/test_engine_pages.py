"""Blocks of mapped arrays: every byte once, and no more of the file in memory than a block."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from draftsmith.engine import pages
from draftsmith.engine.pages import byte_blocks, forget_pages


@pytest.mark.parametrize("n", [0, 1, 24, 25, 26, 100])
def test_blocks_are_the_bytes(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes lost at a block's edge, or a crash on an array without items."""
    monkeypatch.setattr(pages, "_BLOCK_BYTES", 100)
    array = np.arange(n, dtype=np.int32)
    blocks = [bytes(block) for block in byte_blocks(array)]
    assert b"".join(blocks) == array.tobytes()
    assert len(blocks) == -(-4 * n // 100)


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
    n_bytes = 0
    for block in byte_blocks(array[1:]):
        n_bytes += len(bytes(block))
        if status.exists():
            sizes.append(int(status.read_text().split("RssFile:")[1].split()[0]) * 1024)
    assert n_bytes == array.nbytes - 8
    assert not sizes or max(sizes) - sizes[0] < 8 << 20
    forget_pages(array)
    assert array[-1] == (8 if mode == "r+" else 7)
    assert (array[:-1] == 7).all()
