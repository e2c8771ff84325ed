"""Where input files lie: what a corpus asks of a file system, and the local one's answers.

``cluster/url_store.py`` has the other implementation, for URLs.
"""

from __future__ import annotations

import glob
import os
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Literal, NamedTuple, Protocol

from ...engine.errors import InputUnreadable

STDIN = "-"
Stamp = int | str | None
_WRITER_S = 10.0  # that a pipe's writer may come later than its reader


class Status(NamedTuple):
    """What a store says of a path: kind, bytes (None: unknown), and what changes with the file."""

    kind: Literal["file", "pipe", "special"]
    size: int | None
    stamp: Stamp


class Store(Protocol):
    """Finds, describes and opens files by path; failures are OSError or ValueError."""

    def is_folder(self, path: str) -> bool:
        """Whether the path is a folder."""

    def is_pattern(self, path: str) -> bool:
        """Whether the path is a pattern and no file of that name is there."""

    def matches(self, pattern: str) -> list[str]:
        """Files that match a pattern, sorted."""

    def files_below(
        self, folder: str, on_unreadable: Callable[[str, InputUnreadable], None]
    ) -> list[str]:
        """Files in a folder and its folders, sorted; hidden names are passed over.

        ``on_unreadable`` gets the folders inside it that cannot be listed.
        """

    def status(self, path: str, file: IO[bytes] | None = None) -> Status:
        """What is at the path, or what the file opened there is now."""

    def open(self, path: str) -> AbstractContextManager[IO[bytes]]:
        """Open a file for reading from its begin; only ``read`` is asked of it."""


class LocalStore:
    """Files of this machine, and standard input."""

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def is_pattern(self, path: str) -> bool:
        return glob.has_magic(path) and not os.path.lexists(path)

    def matches(self, pattern: str) -> list[str]:
        matches = sorted(glob.glob(pattern, recursive=True), key=os.fsencode)
        return [path for path in matches if os.path.isfile(path) or not os.path.exists(path)]

    def files_below(
        self, folder: str, on_unreadable: Callable[[str, InputUnreadable], None]
    ) -> list[str]:
        def refuse(error: OSError) -> None:
            path = error.filename or folder
            refusal = unreadable(path, error)
            if path == folder:
                raise refusal from error
            on_unreadable(path, refusal)

        found: list[str] = []
        for parent, folders, names in os.walk(folder, onerror=refuse):
            folders[:] = [name for name in folders if not name.startswith(".")]
            found += [os.path.join(parent, name) for name in names if not name.startswith(".")]
        return sorted(found, key=os.fsencode)

    def status(self, path: str, file: IO[bytes] | None = None) -> Status:
        now = os.stat(path if file is None else file.fileno())
        if stat.S_ISREG(now.st_mode):
            return Status("file", now.st_size, now.st_mtime_ns)
        return Status("pipe" if stat.S_ISFIFO(now.st_mode) else "special", None, None)

    def open(self, path: str) -> AbstractContextManager[IO[bytes]]:
        if path != STDIN:
            is_pipe = stat.S_ISFIFO(os.stat(path).st_mode)
            return _open_pipe(path) if is_pipe else open(path, "rb")
        if sys.stdin is None or sys.stdin.closed:
            raise InputUnreadable(
                "standard input is closed", remedy="pipe a text in, or name a file"
            )
        return nullcontext(sys.stdin.buffer)  # not ours to close


def _open_pipe(path: str) -> IO[bytes]:
    """Open a pipe; to open one that nothing writes into would wait for ever."""
    opened: list[int] = []
    failed: list[OSError] = []

    def attempt() -> None:
        try:
            opened.append(os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)))
        except OSError as error:
            failed.append(error)

    waiting = threading.Thread(target=attempt, daemon=True)
    waiting.start()
    waiting.join(_WRITER_S)
    if not waiting.is_alive():
        if failed:
            raise failed[0]
        return os.fdopen(opened[0], "rb")
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # a writer, for the thread to go on
    waiting.join()
    for descriptor in opened:
        os.close(descriptor)
    raise InputUnreadable(
        f"{show_path(path)}: a named pipe that nothing writes into",
        remedy="start the program that writes into it first, or name a file",
    )


LOCAL = LocalStore()


def show_path(path: str) -> str:
    """Return ``path`` for a message: one line, printable, whatever the name holds."""
    if path == STDIN:
        return "standard input"
    return path if path.isprintable() else ascii(path)


def unreadable(path: str, error: OSError | ValueError) -> InputUnreadable:
    """Return the InputUnreadable that tells why ``path`` could not be read."""
    reason = (getattr(error, "strerror", None) or str(error)).lower()
    if isinstance(error, FileNotFoundError):
        remedy = "check the spelling and the current folder"
    elif isinstance(error, PermissionError):
        remedy = "make it readable (chmod +r), or run as its owner"
    else:
        remedy = "check that it is a readable file on a working disk"
    return InputUnreadable(f"{show_path(path)}: cannot be read ({reason})", remedy=remedy)
