"""Compiled kernels: kept where nobody else can write, and compiled again where a file is not whole.

A toy module of kernels stands for the package's own.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from draftsmith.engine import kernel_cache
from draftsmith.engine.kernel_cache import read_file, unpickled, whole, why_unsafe

numba = pytest.importorskip("numba")
from numba.core import config  # noqa: E402 (after the check)

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="owners and modes of Unix"),
    pytest.mark.skipif(bool(config.DISABLE_JIT), reason="nothing is compiled"),
]
SOURCE = """
from numba import njit

@njit(cache=True)
def twice(x):
    return x + x
"""
NAME = "draftsmith.engine.toy_kernels"

Twice = Callable[[int], Any]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was warned of."""
    found: list[str] = []
    monkeypatch.setattr(kernel_cache, "tell", found.append)
    monkeypatch.setattr(kernel_cache, "_refused", set())
    monkeypatch.setattr(kernel_cache, "_own_folders", [])
    return found


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A private folder with the toy module."""
    folder = tmp_path / "code"
    folder.mkdir(mode=0o755)
    (folder / "toy_kernels.py").write_text(SOURCE)
    (folder / "__pycache__").mkdir(mode=0o755)
    return folder


@pytest.fixture
def load(code: Path, told: list[str]) -> Iterator[Callable[[], Any]]:
    """Import the module afresh, as another process would."""
    import draftsmith.ngram.drafters.map_kernels  # noqa: F401 (Numba is prepared)

    def run() -> Any:
        spec = importlib.util.spec_from_file_location(NAME, code / "toy_kernels.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.twice

    yield run
    sys.modules.pop(NAME, None)


def hits(twice: Any) -> int:
    """How often a call was served from the cache, which has to give the right result."""
    assert twice(21) == 42
    return sum(twice.stats.cache_hits.values())


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.nb[ic]"))


def test_kept_and_found(code: Path, load: Callable[[], Any], told: list[str]) -> None:
    """Kernels that are compiled anew each time."""
    assert hits(load()) == 0
    assert [path.suffix for path in files(code)] == [".nbc", ".nbi"]
    assert hits(load()) == 1
    assert told == []


def test_files_without_a_digest(code: Path, load: Callable[[], Any]) -> None:
    """All kernels compiled anew after an update, since earlier files have no digest."""
    hits(load())
    for path in files(code):
        data = path.read_bytes()
        path.write_bytes(data[: data.index(kernel_cache._MARK)])
    assert hits(load()) == 1


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_files_that_are_not_whole(suffix: str, code: Path, load: Callable[[], Any]) -> None:
    """The bug: a cache that was cut short ends each run as "internal error (EOFError)"."""
    hits(load())
    [path] = [path for path in files(code) if path.suffix == suffix]
    data = path.read_bytes()
    cut = [data[:n] for n in (0, 1, 12, len(data) // 2, len(data) - 60)]
    garbled = []
    for at in (0, len(data) // 2, len(data) - 1):
        other = bytearray(data)
        other[at] ^= 0xFF
        garbled.append(bytes(other))
    for broken in (*cut, *garbled, b"\0" * 100, b"\x80\x05." * 5, b"no pickle", pickle.dumps(1)):
        path.write_bytes(broken)
        assert hits(load()) == 0
        assert hits(load()) == 1  # it was mended


class Planted:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_planted_pickles(code: Path, load: Callable[[], Any], tmp_path: Path) -> None:
    """The bug: whatever a planted index names is run."""
    mark = tmp_path / "run"
    hits(load())
    index, data = sorted(files(code), reverse=True)
    version = pickle.dumps(numba.__version__)
    planted = pickle.dumps(Planted(mark))
    for path, bytes_of in ((index, planted), (index, version + planted), (data, planted)):
        path.write_bytes(bytes_of)
        assert hits(load()) == 0
        assert not mark.exists()


@pytest.mark.parametrize(
    "name", ["os system", "builtins eval", "numba.core.types.abstract ABCMeta"]
)
def test_what_pickles_may_name(name: str) -> None:
    """A name that leads on to anything else: a module, a function, another module's class."""
    module, attribute = name.split()
    with pytest.raises(pickle.UnpicklingError):
        unpickled(f"c{module}\n{attribute}\n.".encode())
    assert unpickled(b"cnumba.core.types.scalars\nInteger\n.").__name__ == "Integer"


def test_a_folder_that_all_may_write_to(
    code: Path, load: Callable[[], Any], told: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    """The bug: files of anybody, taken from a shared folder."""
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(config, "CACHE_DIR", str(shared))
    assert hits(load()) == 0
    assert files(shared)
    assert hits(load()) == 1
    [inner] = shared.iterdir()
    inner.chmod(0o777)
    assert hits(load()) == 0  # and kept beside the code instead
    assert files(code)
    assert len(told) == 1
    assert "all users may write to" in told[0]
    assert "set NUMBA_CACHE_DIR to a folder that only you can write to" in told[0]
    assert hits(load()) == 1
    assert len(told) == 1, "one warning is enough"


def test_nowhere_but_in_shared_folders(
    code: Path,
    load: Callable[[], Any],
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """No folder left: a shared one that is used nevertheless, or a command that fails."""
    (code / "__pycache__").chmod(0o777)
    home = tmp_path / "home" / ".cache" / "numba"
    home.mkdir(parents=True)
    home.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / ".cache"))
    twice = load()
    assert hits(twice) == 0
    assert not files(code)
    assert not files(home)
    assert len(told) == 2
    [own] = kernel_cache._own_folders
    assert os.stat(own).st_mode & 0o77 == 0
    assert files(Path(own))


def test_whose_folders_are_safe(tmp_path: Path) -> None:
    """A folder of another's, or one that another may put in a safe one's place."""
    code = tmp_path / "code"
    folder = tmp_path / "cache" / "inner"
    for path in (code, folder):
        path.mkdir(parents=True)

    def why(path: Path) -> str:
        return why_unsafe(str(path), str(code)) or ""

    assert why(folder) == ""
    folder.parent.chmod(0o777)
    assert "all users may write" in why(folder)
    folder.parent.chmod(0o1777)  # as /tmp
    assert why(folder) == ""
    folder.parent.chmod(0o755)
    folder.chmod(0o1777)
    assert "all users may write" in why(folder)
    folder.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert why(link) == ""
    folder.chmod(0o777)
    assert "all users may write" in why(link)
    assert "cannot be looked at" in why(tmp_path / "none")
    below = code / "__pycache__"
    below.mkdir()
    code.chmod(0o777)  # whoever may write to the code needs no cache
    assert why(below) == ""
    below.chmod(0o777)
    assert "all users may write" in why(below)


def test_folders_and_files_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that somebody made in /tmp before its user did."""
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    monkeypatch.setattr(os, "getegid", lambda: 4243)
    own = os.stat(tmp_path).st_uid
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o755)
    code = tmp_path / "code"
    code.mkdir(mode=0o755)
    if own != 0:
        assert "belongs to another user" in (why_unsafe(str(folder), "/") or "")
    assert why_unsafe(str(folder), str(code)) is None  # who owns the code may own the cache
    folder.chmod(0o775)
    assert "a group of users may write" in (why_unsafe(str(folder), str(code)) or "")
    code.chmod(0o775)
    assert why_unsafe(str(folder), str(code)) is None


def test_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels compiled at each start where new files are of the user's own group."""
    import grp
    import pwd

    me = SimpleNamespace(pw_name="me")
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    monkeypatch.setattr(os, "getegid", lambda: 1001)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: me)
    for name, members, is_own in (
        ("me", [], True),
        ("me", ["me"], True),
        ("me", ["you"], False),
        ("users", [], False),
    ):
        group = SimpleNamespace(gr_name=name, gr_mem=members)
        monkeypatch.setattr(grp, "getgrgid", lambda gid, group=group: group)
        assert kernel_cache._is_own_group(1002) is is_own

    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert kernel_cache._is_own_group(1001)
    assert not kernel_cache._is_own_group(1002)


def test_files_that_are_not_read(tmp_path: Path) -> None:
    """A link, a pipe or a file of all users where a kernel is looked for."""
    path = tmp_path / "x.nbi"
    assert read_file(str(path)) is None
    path.write_bytes(b"data")
    assert read_file(str(path)) == b"data"
    path.chmod(0o666)
    assert read_file(str(path)) is None
    path.chmod(0o644)
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read_file(str(link)) is None
    os.mkfifo(tmp_path / "pipe")
    assert read_file(str(tmp_path / "pipe")) is None
    assert read_file(str(tmp_path)) is None


def test_digests() -> None:
    """A digest that is not looked at."""
    assert whole(b"data") == b"data"
    with pytest.raises(ValueError, match="digest"):
        whole(b"data" + kernel_cache._MARK + bytes(32))


def test_other_functions_are_left_alone(tmp_path: Path, load: Callable[[], Any]) -> None:
    """Functions of whoever imports the package, cached in another way than Numba's."""
    path = tmp_path / "theirs.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("theirs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hits(module.twice)
    assert files(tmp_path)
    assert all(kernel_cache._MARK not in found.read_bytes() for found in files(tmp_path))
