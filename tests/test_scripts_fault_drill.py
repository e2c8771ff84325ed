"""A short run of scripts/fault_drill.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

DRILL = Path(__file__).parents[1] / "scripts" / "fault_drill.py"


def test_short_drill(smollm2: Path) -> None:
    """A damaged cache that crashes, hangs, fills the memory or is taken for a whole one; a killed
    command that leaves a file behind."""
    command = [sys.executable, DRILL, "--mutants", "400", "--kills", "3", "-m", smollm2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    assert set(record["mutants"]) == {"refused", "right"}
    assert sum(record["mutants"].values()) == 400
    assert sum(record["kills"].values()) == 3
