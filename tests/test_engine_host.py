"""The machine's description, and the memory of this process."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
from draftsmith.engine.host import (
    available_memory_bytes,
    describe_host,
    peak_rss_bytes,
    rss_bytes,
)


def test_describes_the_host() -> None:
    """A field that is empty, or that JSON cannot hold."""
    host = json.loads(json.dumps(asdict(describe_host())))
    assert host["cpu"]
    assert host["numpy"] == np.__version__
    assert host["n_threads"] >= 1
    assert host["memory_bytes"] > 1 << 28


def test_memory_of_a_container(tmp_path: Path) -> None:
    """A container's limit that is overlooked, or a file in its page cache that counts as taken."""
    whole = available_memory_bytes(tmp_path)
    assert whole > 1 << 26
    for name, text in (
        ("memory.max", "40000000\n"),
        ("memory.current", "39000000\n"),
        ("memory.stat", "anon 1000000\nfile 37000000\ninactive_file 30000000\nactive_file 7\n"),
    ):
        (tmp_path / name).write_text(text)
    assert available_memory_bytes(tmp_path) == 31_000_007
    (tmp_path / "memory.max").write_text("1000\n")
    assert available_memory_bytes(tmp_path) == 0
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory_bytes(tmp_path) > 1 << 26


def test_peak_follows_use() -> None:
    """Kilobytes reported as bytes, or a peak that falls."""
    before = peak_rss_bytes()
    block = np.ones(before // 8 + (1 << 23))  # more than all that has been used so far
    peak = peak_rss_bytes()
    assert peak >= block.nbytes
    assert rss_bytes() > block.nbytes
    del block
    # the kernel counts pages by CPU and sums them up now and then: up to a few hundred kB apart
    assert peak_rss_bytes() > peak - (1 << 21)


def test_peak_is_not_the_parent_process_s() -> None:
    """getrusage counts what the parent used before it started this process."""
    block = np.ones(1 << 25)
    code = "from draftsmith.engine.host import peak_rss_bytes; print(peak_rss_bytes())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert int(done.stdout) < block.nbytes
