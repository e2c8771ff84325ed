"""Files that somebody named: regular ones of a bounded size, and nothing that never ends."""

from __future__ import annotations

import io
import os
import socket
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import toy_model
from conftest import Done
from draftsmith.engine.errors import (
    DraftsmithError,
    ExitStatus,
    InputMalformed,
    InputUnreadable,
)
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.gguf.tensors import open_tensors
from draftsmith.engine.kernel_cache import read_file
from draftsmith.engine.plain_file import open_plain, read_small
from draftsmith.mtp.suite import read_suite
from draftsmith.ngram.advice.curve_files import read_curve
from draftsmith.prefill.scorers.calibration_file import read_calibration

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices of Unix")

READERS: dict[str, Callable[[Path], object]] = {
    "small": lambda path: read_small(path, 100, "the file"),
    "suite": read_suite,
    "curve": lambda path: read_curve(str(path)),
    "calibration": read_calibration,
    "gguf": read_metadata,  # a model, a head, a scorer
    "gguf part": lambda path: read_metadata(path, is_later_part=True),
}


@pytest.fixture(params=["pipe", "socket", "zero", "tty", "folder", "link to a pipe"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A path to what is no regular file."""
    path = tmp_path / "x"
    if request.param == "zero":
        yield Path("/dev/zero")
    elif request.param == "tty":
        yield Path("/dev/ptmx")
    elif request.param == "folder":
        yield tmp_path
    elif request.param == "socket":
        os.chdir(tmp_path)  # a socket's path is short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("x")
            yield path
    else:
        os.mkfifo(path)
        if request.param.startswith("link"):
            (tmp_path / "link").symlink_to(path)
            path = tmp_path / "link"
        yield path


@pytest.mark.parametrize("reader", READERS)
def test_specials_are_refused_at_once(reader: str, special: Path) -> None:
    """The bug: a named pipe without a writer hangs its reader, /dev/zero fills the memory."""
    here = os.getcwd()
    try:
        with pytest.raises(InputUnreadable, match=r"a named pipe|a device|a socket|a folder"):
            READERS[reader](special)
    finally:
        os.chdir(here)


def test_what_takes_the_place_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug: a pipe that is put where a file was when its kind was asked."""
    regular, pipe = tmp_path / "file", tmp_path / "pipe"
    regular.write_bytes(b"x")
    os.mkfifo(pipe)
    monkeypatch.setattr(
        "draftsmith.engine.plain_file.os",
        SimpleNamespace(**{**vars(os), "stat": lambda path: os.lstat(regular)}),
    )
    with pytest.raises(InputUnreadable, match="a named pipe"):
        open_plain(pipe, "it")


def test_bound(tmp_path: Path) -> None:
    """The bug: a file of one byte more than may be is cut instead of refused."""
    path = tmp_path / "x"
    path.write_bytes(b"x" * 10)
    assert read_small(path, 10, "it") == b"x" * 10
    with pytest.raises(InputMalformed, match="it holds more than the 9 bytes"):
        read_small(path, 9, "it")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug: standard input that is read without a bound; "-" where it stands for no input."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"x" * 10)))
    with pytest.raises(InputMalformed, match="more than the 9 bytes"):
        read_small("-", 9, "it", stdin=True)
    with pytest.raises(InputUnreadable, match="No such file"):
        read_small("-", 9, "it")


@contextmanager
def shell_pipe(data: bytes) -> Iterator[str]:
    """What a shell makes of <(command)."""
    end, start = os.pipe()
    try:
        os.write(start, data)
        os.close(start)
        yield f"/dev/fd/{end}"
    finally:
        os.close(end)


def test_pipes_of_a_shell() -> None:
    """The bug: `--cost <(llama-bench -o json)` refused as a named pipe; or without a bound."""
    with shell_pipe(b"batch,ms\n1,2.0\n2,3.0\n") as path:
        assert read_curve(path).points() == {"1": 2.0, "2": 3.0}
    with shell_pipe(b"x" * 10) as path, pytest.raises(InputMalformed, match="more than"):
        read_small(path, 9, "it")


@pytest.mark.parametrize("name", ["", "no\0name", "no/such", "x" * 5000, "\udcff"])
def test_names_that_no_file_can_have(name: str) -> None:
    """The bug: "internal error (ValueError: embedded null byte)"."""
    for reader in READERS.values():
        with pytest.raises(DraftsmithError):
            reader(Path(name) if name else Path("no-file"))


def test_commands_refuse_a_pipe(cli: Callable[..., Done], tmp_path: Path, smollm2: Path) -> None:
    """The bug: a command that hangs at a head, a scorer, a conversation or a suite."""
    path = toy_model.write_model(tmp_path / "toy.gguf", "llama", seed=3, **toy_model.SMALL)
    model, pipe, text = ("-m", path), tmp_path / "pipe", tmp_path / "text.txt"
    text.write_text("the cat " * 100)
    os.mkfifo(pipe)
    for args in (
        ("mtp-run", *model, "-p", "a", "--mtp-head", pipe),
        ("mtp-run", *model, "--mtp-head", path, "--suite", pipe),
        ("prefill-run", "-m", smollm2, "--chat-file", pipe),
        ("prefill-run", *model, "-f", text, "-p", "why?", "--calibration", pipe),
        ("lookup-stats", *model, "-f", text, "--drafter", "suffix", "--cost", pipe),
    ):
        done = cli(*args)
        assert done.status == ExitStatus.INPUT_UNREADABLE, (args, done.stderr)
        assert "(it is a named pipe); " in done.error


def test_a_part_that_is_a_pipe(tmp_path: Path) -> None:
    """A split model that hangs at its second part."""
    first = toy_model.write_model(tmp_path / "toy.gguf", "llama", max_tensors=5, **toy_model.SMALL)
    second = first.with_name(first.name.replace("-00001-of-", "-00002-of-"))
    second.unlink()
    os.mkfifo(second)
    with pytest.raises(InputUnreadable, match="a named pipe"):
        open_tensors(first)


def test_small_files_take_little_memory(tmp_path: Path) -> None:
    """The bug: the bound allocated for each file, however small it is."""
    path = tmp_path / "x"
    path.write_bytes(b"x" * 10)
    path.chmod(0o644)
    tracemalloc.start()
    try:
        assert read_small(path, 1 << 28, "it") == b"x" * 10
        assert read_file(str(path)) == b"x" * 10
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()
