"""scripts/stamp_kernels: the digests of what kernels are built on."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "stamp_kernels"


@pytest.fixture
def stamps() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("stamp_kernels", str(SCRIPT))
    spec = importlib.util.spec_from_loader("stamp_kernels", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def make_chain(root: Path) -> tuple[Path, Path, Path]:
    """Three modules in three rooms, each built on the last, imported in three ways."""
    return (
        write(root, "engine/deep/a_kernels.py", "X = 1\n"),
        write(
            root,
            "engine/b_kernels.py",
            "from .deep.a_kernels import X\n\nBUILT_ON = {}\n\nY = X\n",
        ),
        write(
            root,
            "ngram/room/c_kernels.py",
            "from draftsmith.engine.deep.a_kernels import X\n"
            "from ...engine.b_kernels import Y\n\nBUILT_ON = {}\n",
        ),
    )


def apply(stale: dict[Path, str]) -> list[str]:
    for path, text in stale.items():
        path.write_text(text)
    return [path.name for path in stale]


def test_stamps_callees_before_their_callers(stamps: ModuleType, tmp_path: Path) -> None:
    """A digest of a module that is itself stamped later, so that a second run is needed."""
    first, second, third = make_chain(tmp_path)
    assert apply(stamps.stamp_all(tmp_path)) == ["b_kernels.py", "c_kernels.py"]
    assert stamps.stamp_all(tmp_path) == {}
    assert first.read_text() == "X = 1\n"
    assert '"engine.deep.a_kernels"' in second.read_text()
    assert '"engine.b_kernels"' in third.read_text()
    assert '"engine.deep.a_kernels"' in third.read_text()


def test_finds_what_an_edit_makes_stale(stamps: ModuleType, tmp_path: Path) -> None:
    """An edit at the bottom that does not reach the top."""
    first, second, _ = make_chain(tmp_path)
    apply(stamps.stamp_all(tmp_path))
    before = second.read_text()
    first.write_text("X = 2\n")
    assert apply(stamps.stamp_all(tmp_path)) == ["b_kernels.py", "c_kernels.py"]
    assert second.read_text() != before


def test_asks_for_a_place_to_stamp(stamps: ModuleType, tmp_path: Path) -> None:
    """A module of kernels whose author knows nothing of this."""
    make_chain(tmp_path)
    write(tmp_path, "mtp/d_kernels.py", "from ..engine.b_kernels import Y\n")
    with pytest.raises(SystemExit, match=r"d_kernels.py needs one BUILT_ON"):
        stamps.stamp_all(tmp_path)


def test_refuses_a_stamp_that_stands_for_nothing(stamps: ModuleType, tmp_path: Path) -> None:
    """A BUILT_ON that is left when the last import is gone."""
    write(tmp_path, "mtp/d_kernels.py", "BUILT_ON = {}\n")
    with pytest.raises(SystemExit, match=r"d_kernels.py needs none"):
        stamps.stamp_all(tmp_path)


def test_wraps_a_long_stamp(stamps: ModuleType) -> None:
    """A line that the formatter would change, and with it the digest."""
    short = stamps.stamp({"a.b_kernels": "12345678"})
    assert short == 'BUILT_ON = {"a.b_kernels": "12345678"}\n'
    names = {f"ngram.room.name_{i}_kernels": "12345678" for i in range(3)}
    assert stamps.stamp(names).count("\n") == 5
