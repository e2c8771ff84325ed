"""Short runs of scripts/fault_drill.py, and whether it would see what it looks for."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from draftsmith.engine.errors import DraftsmithError
from toy_model import write_model

SCRIPTS = Path(__file__).parents[1] / "scripts"
DRILL = SCRIPTS / "fault_drill.py"


def drill(*arguments: str | Path) -> dict[str, dict[str, int]]:
    """The record of a run that found nothing bad."""
    off = ("--caches", "0", "--models", "0", "--kills", "0", "--run-kills", "0")
    command = [sys.executable, DRILL, *off, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    record: dict[str, dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    return record


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of scripts, whose modules can be imported."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return SCRIPTS


def test_short_drill_of_caches(smollm2: Path) -> None:
    """A damaged cache that crashes, hangs, fills the memory or is taken for a whole one; a killed
    command that leaves a file after."""
    record = drill("--caches", "400", "--kills", "3", "-m", smollm2)
    assert set(record["caches"]) == {"refused", "right"}
    assert sum(record["caches"].values()) == 400
    assert record["kills"]["whole"] + record["kills"].get("no file yet", 0) == 3


def test_short_drill_of_models() -> None:
    """A damaged model that crashes, hangs, fills the memory, or computes what cannot be."""
    counts = drill("--models", "60")["models"]
    assert set(counts) == {"refused", "right", "ran"}
    assert sum(counts.values()) == 60
    assert counts["refused"] > 20


def test_short_drill_of_kills() -> None:
    """A dynamic cache that is half written when lookup-run is killed."""
    counts = drill("--run-kills", "2")["run_kills"]
    assert counts.get("old", 0) + counts.get("new", 0) == 2


def test_what_kills_a_child_is_found(
    scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drill that counts a crash or a hang as nothing, or stops at it."""
    import fault_drill

    monkeypatch.setattr(fault_drill, "HANG_S", 1)
    program = tmp_path / "child.py"
    program.write_text(
        """
import faulthandler, os, signal, sys, time
for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    print("begin", seed, flush=True)
    if seed == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    if seed == 4:
        faulthandler.enable()
        time.sleep(60)
    print("end", seed, "bits: wrong: 1" if seed == 5 else "bits: refused", flush=True)
"""
    )
    counts, found = fault_drill.run_children([sys.executable, program], 0, 7, tmp_path)
    assert counts == {"refused": 4, "crash": 1, "hang": 1, "wrong": 1}
    assert [line.split(" (")[0] for line in found] == [
        "crash at mutant 2", "hang at mutant 4", "end 5 bits: wrong: 1"
    ]  # fmt: skip
    assert f"status {-signal.SIGSEGV}" in found[0]
    assert "child.py" in found[1]  # where it hung


def test_what_a_child_does_wrong_is_no_mutants_fault(scripts: Path, tmp_path: Path) -> None:
    """A drill that cannot even start, and reports that all went well."""
    from fault_drill import run_children

    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run_children([sys.executable, "-c", "1 / 0"], 0, 3, tmp_path)


class FakeSubject:
    """Does what it is told when it is used."""

    floor_bytes = 1 << 20

    def __init__(self, use: Callable[[], str]) -> None:
        self.use = use

    def bytes_beside(self) -> int:
        return 0


def test_allocations_and_exceptions_are_found(scripts: Path) -> None:
    """A mutant that takes a gigabyte, or raises what a user cannot mend, and counts as right."""
    import tracemalloc

    from fault_drill import tried

    def fail() -> str:
        raise IndexError("token 9")

    tracemalloc.start()
    try:
        assert tried(FakeSubject(lambda: "right"), 1000) == "right"
        assert tried(FakeSubject(lambda: f"{len(bytes(1 << 20))}"), 1000) == f"{1 << 20}"
        large = tried(FakeSubject(lambda: str(bytes(2 << 20)[:0])), 1000)
        assert large.startswith("allocation of 209")
        assert tried(FakeSubject(fail), 1000) == "exception IndexError: token 9"
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(sys.platform == "win32", reason="no fence there")
def test_fenced_arrays_end_where_memory_does() -> None:
    """A fence that a kernel can step over."""
    program = (
        f"import sys, ctypes; sys.path[:0] = [{str(SCRIPTS)!r}, {str(Path(__file__).parent)!r}]\n"
        "from drill_models import fenced; import numpy as np\n"
        "a = fenced((3, 5), np.float32); a += 1; print(a.sum(), a.flags.c_contiguous)\n"
        "sys.stdout.flush(); ctypes.memset(a.ctypes.data + 60 + int(sys.argv[1]), 0, 1)"
    )
    outcomes = {}
    for at in (-1, 0):
        done = subprocess.run(
            [sys.executable, "-c", program, str(at)], capture_output=True, text=True, check=False
        )
        assert done.stdout == "15.0 True\n", done.stderr
        outcomes[at] = done.returncode
    assert outcomes[-1] == 0
    assert outcomes[0] in (-signal.SIGSEGV, -signal.SIGBUS)


def test_mutants_are_made_as_meant(scripts: Path, tmp_path: Path) -> None:
    """Mutants that no longer get after the first check, or that nobody can make again."""
    import drill_changes
    from draftsmith.engine.gguf.tensors import open_tensors
    from drill_gguf import put_together, take_apart
    from drill_models import MODELS, SIZES

    path = write_model(tmp_path / "whole.gguf", **SIZES | MODELS["small"])
    whole = take_apart(path.read_bytes())
    again = tmp_path / "again.gguf"
    again.write_bytes(put_together(whole))
    tensors, others = open_tensors(path), open_tensors(again)
    assert tensors.keys() == others.keys()
    assert all(np.array_equal(tensors[key].data, others[key].data) for key in tensors)

    kinds = set()
    for seed in range(300):
        kind, data = drill_changes.mutant(whole, random.Random(seed))
        assert drill_changes.mutant(whole, random.Random(seed)) == (kind, data)
        kinds.add(kind)
    assert kinds == {change.__name__ for change in drill_changes.CHANGES}

    shapes, types = set(), set()
    for seed in range(40):
        again.write_bytes(drill_changes.retype(deepcopy(whole), random.Random(seed)))
        types.add(tuple(tensor.type for tensor in open_tensors(again).values()))
        again.write_bytes(drill_changes.resize(deepcopy(whole), random.Random(seed)))
        with contextlib.suppress(DraftsmithError):  # rows that are no whole blocks, for one
            shapes.add(tuple(tensor.shape for tensor in open_tensors(again).values()))
    assert min(len(shapes), len(types)) > 20
