"""Ctrl-C at any time: one line, status 130, and no file left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Done
from draftsmith.engine.errors import ExitStatus

LINE = "error: interrupted; no file is left half-written\n"

# Says when the signal may come: before that it is Python that starts, not draftsmith. From inside
# run(), for on a busy machine the signal may come before the very next line.
READY = """
import sys
import draftsmith.cli.main as cli

attempt = cli._attempt

def say_ready(args):
    print("ready", flush=True)
    return attempt(args)

cli._attempt = say_ready
sys.exit(cli.run())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.parametrize("delay_s", [0, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5])
def test_at_some_time(delay_s: float, smollm2: Path, golden: Path, tmp_path: Path) -> None:
    """A traceback from an import, a lost signal, or a temporary file that stays."""
    args = ["lookup-create", "-m", "smollm2", "-f", "-", "-lcs", "out.lcs", "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-c", READY, *args],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == b"ready\n"
        process.stdin.write((golden / "kjv_train.txt").read_bytes()[:60_000])
        process.stdin.flush()  # and more is to come, for all that the command knows
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        stderr = process.stderr.read() if process.stderr is not None else b""
        status = process.wait(timeout=60)
    assert (status, stderr.decode()) == (ExitStatus.INTERRUPTED, LINE)
    assert list(tmp_path.iterdir()) == []


def test_while_writing(
    cli: Callable[..., Done],
    smollm2: Path,
    golden: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worst moment: the file is written but not renamed."""

    def fsync(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", fsync)
    out = tmp_path / "out.lcs"
    out.write_bytes(b"old")
    done = cli("lookup-create", "-m", "smollm2", "-f", golden / "kjv_test.txt", "-lcs", out, "-q")
    assert done == Done(ExitStatus.INTERRUPTED, "", LINE)
    assert out.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [out]


LOST_IN_A_CALLBACK = """
import ctypes, os, signal, sys, time
from draftsmith.cli import lookup_merge, output
from draftsmith.cli.main import run

def from_c():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)

def merge(*_):
    ctypes.CFUNCTYPE(None)(from_c)()
    if sys.argv.pop() == "fail":
        raise ValueError("what the callback should have stored is missing")
    time.sleep(20)

def print_slowly(line):
    time.sleep(0.1)  # longer than it takes until Ctrl-C is sent again
    print_line(line)

lookup_merge.merge = merge
print_line, output.error_line = output.error_line, print_slowly
sys.exit(run())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.parametrize("then", ["sleep", "fail"])
def test_in_a_callback_from_c(then: str) -> None:
    """LLVM's callbacks drop exceptions: Ctrl-C lost while a kernel is compiled or loaded, or
    reported as the internal error that follows from it, or not at all: the one that is sent again
    falls into the report.
    """
    done = subprocess.run(
        [sys.executable, "-c", LOST_IN_A_CALLBACK, "lookup-merge", "a", "b", then],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (ExitStatus.INTERRUPTED, LINE)


KILLED_WHILE_SPILLING = """
import os, signal, sys
from draftsmith.cli.main import run
from draftsmith.ngram.cache import count, run_store

count._LARGEST_BATCH = 5_000
made, spill = run_store.RunStore.__init__, run_store.RunStore._spill

def without_memory(store, layouts, _, folder):
    made(store, layouts, 1_000, folder)

def spill_and_die(store, order):
    spill(store, order)
    if store.n_runs == 3:
        os.kill(os.getpid(), signal.SIGKILL)

run_store.RunStore.__init__ = without_memory
run_store.RunStore._spill = spill_and_die
sys.exit(run())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGKILL")
def test_killed_while_spilling(smollm2: Path, golden: Path, tmp_path: Path) -> None:
    """Gigabytes of temporary files that nobody is left to remove."""
    args = ["-m", smollm2, "-f", golden / "kjv_train.txt", "-lcs", "out.lcs", "-q"]
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_SPILLING, "lookup-create", *map(str, args)],
        cwd=tmp_path,
        check=False,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
