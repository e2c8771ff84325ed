"""Files that are whole or not there: written beside their target, flushed, renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from .errors import DiskFull, OutputNoFolder, OutputNotWritable

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def check_writable(path: str | Path) -> None:
    """Check, before long work, that ``path`` can be written at its end.

    Raises
    ------
    OutputNoFolder : its folder does not exist
    OutputNotWritable : it is a folder, or its folder does not let us write
    """
    path = Path(path)
    folder = path.parent
    if path.is_dir():
        raise OutputNotWritable(f"{path} is a folder", remedy="name a file to write")
    if not folder.is_dir():
        raise OutputNoFolder(
            f"the folder {folder} of the output does not exist", remedy="make it first"
        )
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{path.name}.", suffix=".tmp")
        os.close(handle)
        os.unlink(name)
    except OSError as error:
        raise _refusal(path, error) from error


def _refusal(path: Path, error: OSError) -> Exception:
    reason = os.strerror(error.errno or 0)
    if error.errno in _NO_SPACE:
        return DiskFull(
            f"{path} can't be written ({reason})", remedy="free space there, or name another folder"
        )
    return OutputNotWritable(
        f"{path} can't be written ({reason})", remedy="name a file in a folder you may write to"
    )


def write_atomically(path: Path, parts: Iterable[bytes | memoryview]) -> int:
    """Write ``parts`` to ``path`` and return the number of bytes; an old file stays until the end.

    Raises
    ------
    OutputNoFolder, OutputNotWritable, DiskFull : nothing is left behind
    """
    check_writable(path)
    name = ""
    n_bytes = 0
    try:
        # Close on exec and mode 0600 come with mkstemp; the final mode is that of a plain open().
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
                n_bytes += len(part)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
        name = ""
    except OSError as error:
        raise _refusal(path, error) from error
    finally:  # also on Ctrl-C
        if name:
            with contextlib.suppress(OSError):
                os.unlink(name)
    return n_bytes
