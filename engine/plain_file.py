"""Open a file that somebody named: one on disk, of a bounded size, and nothing that never ends.

A named pipe without a writer hangs whoever opens it, and a device such as ``/dev/zero`` has no
end. What a file is, is asked before it is opened and again of what was opened. A pipe without a
name, which a shell makes of ``<(command)``, is read as standard input would be: as far as the
bound.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import IO, Any

from .errors import InputMalformed, InputUnreadable

_REMEDY = "name a file on disk"
_BLOCK_BYTES = 1 << 18
_NAMELESS = ("/dev/fd/", "/proc/self/fd/")
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def open_plain(
    path: Path | str, what: str, *, remedy: str = _REMEDY, pipes: bool = False
) -> IO[bytes]:
    """Open a regular file to read its bytes.

    Parameters
    ----------
    what : names the file in messages, as "the suite x.jsonl"
    remedy : of whatever is wrong
    pipes : take a pipe without a name, too; what is read of it has no size beforehand

    Raises
    ------
    InputUnreadable : it is missing, cannot be opened, or is a folder, a pipe, a device, a socket
    """
    try:
        _check_kind(os.stat(path).st_mode, path, what, remedy, pipes)
        # a pipe that took the file's place meanwhile must not hang either
        file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 (the caller's)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputUnreadable(f"{what} can't be read ({reason})", remedy=remedy) from error
    try:
        mode = os.fstat(file.fileno()).st_mode
        _check_kind(mode, path, what, remedy, pipes)
        if stat.S_ISFIFO(mode):
            os.set_blocking(file.fileno(), True)
    except BaseException:
        file.close()
        raise
    return file


def read_small(
    path: Path | str, n_most: int, what: str, *, remedy: str = _REMEDY, stdin: bool = False
) -> bytes:
    """Read a whole file of at most ``n_most`` bytes.

    Parameters
    ----------
    what, remedy : see ``open_plain``; pipes without a name are taken
    stdin : "-" is standard input

    Raises
    ------
    InputUnreadable : see ``open_plain``; or reading it failed
    InputMalformed : it is larger
    """
    try:
        if stdin and str(path) == "-":
            data = _read_up_to(sys.stdin.buffer, n_most + 1)
        else:
            with open_plain(path, what, remedy=remedy, pipes=True) as file:
                data = _read_up_to(file, n_most + 1)
    except OSError as error:
        raise InputUnreadable(f"{what} can't be read ({error.strerror})", remedy=remedy) from error
    if len(data) > n_most:
        raise InputMalformed(
            f"{what} holds more than the {n_most} bytes that such a file may have", remedy=remedy
        )
    return data


def _read_up_to(file: IO[bytes], n_most: int) -> bytes:
    """At most so many bytes; a single read would allocate all of them for a small file, too."""
    data = bytearray()
    while block := file.read(min(_BLOCK_BYTES, n_most - len(data))):
        data += block
    return bytes(data)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of those pairs, for ``json.loads``, which would take the last of two values.

    Raises
    ------
    ValueError : a key stands twice
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:64]!r} stands twice")
        found[key] = value
    return found


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))


def _check_kind(mode: int, path: Path | str, what: str, remedy: str, pipes: bool) -> None:
    if stat.S_ISREG(mode):
        return
    if pipes and stat.S_ISFIFO(mode) and _is_nameless(str(path)):
        return
    kind = next((kind for test, kind in _KINDS if test(mode)), "no regular file")
    raise InputUnreadable(f"{what} can't be read (it is {kind})", remedy=remedy)


def _is_nameless(path: str) -> bool:
    return path.startswith(_NAMELESS) or path == "/dev/stdin"
