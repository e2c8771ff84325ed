"""scripts/check_archs.py: models of llama.cpp's generator, in the engine and in llama.cpp."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

TESTS = Path(__file__).resolve().parent
SCRIPT = TESTS.parent / "scripts" / "check_archs.py"
# Stands for the generator: a toy with every tensor of its architecture, under the same name.
GENERATOR = f"""#!{sys.executable}
import sys
sys.path.append({str(TESTS)!r})
from pathlib import Path
from toy_model import SMALL, write_model
arch, seed, folder = sys.argv[2], int(sys.argv[4]), Path(sys.argv[8])
changes = {{**SMALL, "scales": True, "biases": True, CHANGES}}
write_model(folder / f"{{arch}}-dense.gguf", arch, seed=seed, **changes)
"""


def check(folder: Path, *arguments: str, changes: str = "") -> CompletedProcess[str]:
    generator = folder / "test-llama-archs"
    generator.write_text(GENERATOR.replace("CHANGES", changes))
    generator.chmod(0o755)
    return subprocess.run(
        [sys.executable, SCRIPT, "--llama-bin", folder, *arguments],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="needs a generator that a shell can run")
def test_models_are_compared(tmp_path: Path) -> None:
    """The bug: a check that finds any model right, or the same model again and again."""
    done = check(tmp_path, "--seeds", "2", "--only", "llama", "--only", "qwen3")
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert [line.split()[:3] for line in lines] == [
        [arch, "seed", seed] for arch in ("llama", "qwen3") for seed in ("1", "2")
    ]
    figures = [float(line.split("off by ")[1].split()[0]) for line in lines]
    assert len(set(figures)) == 4
    assert 0 < min(figures) < max(figures) == float(last.split()[1]) < 2


@pytest.mark.skipif(sys.platform == "win32", reason="needs a generator that a shell can run")
def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    """The bug: a traceback for a folder without the generator, or a model that is refused."""
    changes = '"tensors": {"made_up.weight": __import__("numpy").ones(1, "f4")}'
    done = check(tmp_path, "--seeds", "1", "--only", "llama", changes=changes)
    assert done.returncode == 1
    assert "tensor made_up.weight is none that the engine uses" in done.stderr
    done = check(tmp_path, "--only", "llama", changes='"n_ff": -1')
    assert done.returncode == 1
    assert "wrote no llama-dense.gguf, status 1" in done.stderr.replace("\n", " ")
    (tmp_path / "test-llama-archs").unlink()
    done = subprocess.run(
        [sys.executable, SCRIPT, "--llama-bin", tmp_path], capture_output=True, encoding="utf-8"
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "holds no test-llama-archs" in done.stderr
