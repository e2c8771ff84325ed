"""A lock on the right to replace one file: who reads it, changes it and writes it holds the lock.

The operating system gives the lock back when its holder ends, kill -9 included. What is locked is
the folder, so that no lock file is left behind; where folders can't be locked (Windows, some
network file systems) it is a file ``.NAME.lock`` beside the target, which stays.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .atomic_file import check_links
from .errors import OutputNoFolder, OutputNotWritable

# What flock is answered with where a folder, or the file system, knows no such locks.
_NO_LOCKS = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
_RETRY_S = 0.05


@contextmanager
def locked(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock for ``path``, whether that exists or not, waiting for it as long as it takes.

    Parameters
    ----------
    path : the file to be replaced; a link's lock is that of what it points to.
    on_wait : called once when another process holds the lock.

    Raises
    ------
    OutputNoFolder, OutputNotWritable : there is nothing to lock
    """
    check_links(path)
    path = path.resolve()
    with _refusing(path):
        handle, is_held = _take(path)
    try:
        if not is_held:
            if on_wait is not None:
                on_wait()
            with _refusing(path):
                _wait(handle)
        yield
    finally:
        os.close(handle)  # and with it the lock goes


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Name the file in whatever the operating system refuses."""
    try:
        yield
    except FileNotFoundError as error:
        raise OutputNoFolder(
            f"the folder {path.parent} of the output does not exist", remedy="make it first"
        ) from error
    except OSError as error:
        raise OutputNotWritable(
            f"{path} can't be locked ({os.strerror(error.errno or 0)})",
            remedy="name a file in a folder you may write to",
        ) from error


def _take(path: Path) -> tuple[int, bool]:
    """Return the descriptor whose lock it is, and whether that is held already."""
    if sys.platform != "win32":
        try:
            return _opened(path.parent, os.O_RDONLY)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return _opened(path.with_name(f".{path.name}.lock"), flags)


def _opened(path: Path, flags: int) -> tuple[int, bool]:
    """Open a file or folder and try to lock it."""
    handle = os.open(path, flags, 0o666)
    try:
        return handle, _try(handle)
    except BaseException:
        os.close(handle)
        raise


if sys.platform == "win32":
    import msvcrt

    def _try(handle: int) -> bool:
        """Lock, unless another process holds the lock."""
        try:
            os.lseek(handle, 0, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EDEADLK):
                raise
            return False
        return True

    def _wait(handle: int) -> None:
        """Lock as soon as nobody else does."""
        while not _try(handle):
            time.sleep(_RETRY_S)

else:
    import fcntl

    def _try(handle: int) -> bool:
        """Lock, unless another process holds the lock."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _wait(handle: int) -> None:
        """Lock as soon as nobody else does."""
        fcntl.flock(handle, fcntl.LOCK_EX)
