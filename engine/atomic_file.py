"""Files that are whole or not there: written beside their target, flushed, renamed.

On Linux the new file has no name until it is whole: kill -9 leaves nothing after, but for the
moment between naming and renaming it. Elsewhere it leaves a file ``.draftsmith-PID-….tmp``. Who
writes into the folder next removes that: a writer holds a lock on its file, which ends with it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from .errors import DiskFull, OutputNoFolder, OutputNotWritable

# What O_TMPFILE is answered with by file systems, and by kernels, that lack it.
_NO_NAMELESS_FILES = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT}
_TEMPORARY = re.compile(r"\.draftsmith-\d+-[0-9a-f]+\.tmp")
_MOST_LINKS = 40
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def check_writable(path: str | Path) -> None:
    """Check, before long work, that ``path`` can be written at its end.

    Raises
    ------
    OutputNoFolder : its folder does not exist
    OutputNotWritable : it has no name or is no regular file, or its folder does not let us write
    """
    text, path = os.fspath(path), Path(path)
    check_links(path)
    try:
        mode = path.stat().st_mode
        is_file, is_folder = stat.S_ISREG(mode), stat.S_ISDIR(mode)
    except (FileNotFoundError, NotADirectoryError):
        is_file, is_folder = True, text.endswith(("/", os.sep))  # Path drops a final slash
    except OSError as error:  # a folder on the way that is closed to us, a name too long
        raise _refusal(path, error) from error
    if not text or is_folder:
        named = f"{text} is a folder" if text else "the output has no name"
        raise OutputNotWritable(named, remedy="name a file to write")
    if not is_file:  # a rename over a device would replace the device
        raise OutputNotWritable(f"{path} is not a regular file", remedy="name a file to write")
    if not path.parent.is_dir():
        raise OutputNoFolder(
            f"the folder {path.parent} of the output does not exist", remedy="make it first"
        )
    name = _beside(path)
    try:
        _open_new(name).close()
    except OSError as error:
        raise _refusal(path, error) from error
    finally:
        _remove(name)


def check_links(path: Path) -> None:
    """Refuse an output on whose way is a link which another user put into a folder such as /tmp.

    It may lead to any file of ours. Linux can refuse to follow such links, but is not everywhere
    told to; the rule is the same: in a folder where all may write and only owners remove, links
    count that are the user's own, or the owner's of the folder.

    Raises
    ------
    OutputNotWritable : there is such a link
    """
    if not hasattr(os, "geteuid"):
        return
    ways, n_links = [path.absolute()], 0
    while ways and n_links < _MOST_LINKS:
        way = ways.pop()
        for place in (way, *way.parents):
            try:
                if not stat.S_ISLNK(os.lstat(place).st_mode):
                    continue
                _check_link(place)
                ways.append(place.parent / os.readlink(place))
                n_links += 1
            except (OSError, ValueError):
                continue  # what is wrong with it is told by who opens it


def _check_link(place: Path) -> None:
    link, folder = os.lstat(place), os.stat(place.parent)
    is_shared = folder.st_mode & stat.S_IWOTH and folder.st_mode & stat.S_ISVTX
    if is_shared and link.st_uid not in (os.geteuid(), folder.st_uid):
        raise OutputNotWritable(
            f"{place} is a link that another user put into a folder that all may write to",
            remedy="name a file in a folder of your own",
        )


def _beside(path: Path) -> Path:
    """A name for a temporary file in the folder of ``path``, known before the file exists."""
    return path.with_name(f".draftsmith-{os.getpid()}-{secrets.token_hex(4)}.tmp")


def _open_new(name: Path) -> IO[bytes]:
    """A new file in the folder of ``name``, which it is to be called; nameless where that works.

    A file without a name is gone with its process, even after kill -9 or a power cut.
    """
    if hasattr(os, "O_TMPFILE"):
        try:
            file = open(name.parent, "wb", opener=_open_nameless)  # noqa: SIM115
            if os.path.exists(_link_to(file)):  # not where /proc is not mounted
                _hold(file)
                return file
            file.close()
        except OSError as error:
            if error.errno not in _NO_NAMELESS_FILES:
                raise
    while True:
        file = open(name, "xb")  # noqa: SIM115
        _hold(file)
        if os.fstat(file.fileno()).st_nlink or sys.platform == "win32":
            return file
        file.close()  # taken for abandoned before it was held


if sys.platform == "win32":  # no such locks, and no removal of what is open

    def _hold(file: IO[bytes]) -> None:
        pass

    def _remove_abandoned(folder: Path) -> None:
        pass

else:
    import fcntl

    def _hold(file: IO[bytes]) -> None:
        """Lock a new file, as long as it is open: it is not abandoned."""
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_SH)

    def _remove_abandoned(folder: Path) -> None:
        """Remove what killed processes have left of files they were writing."""
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    _remove_if_free(entry.path)

    def _remove_if_free(name: str) -> None:
        with contextlib.suppress(OSError), open(name, "rb", opener=_open_plainly) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name)


def _open_plainly(name: str, flags: int) -> int:
    """Open what may be a link or a pipe that somebody put there, without following or waiting."""
    return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _open_nameless(folder: str, _: int) -> int:
    return os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o666)


def _keep_access(file: IO[bytes], path: Path) -> None:
    """Give a new file, still empty, the mode and the owner of the one that it replaces, if any.

    Where the owner or the group can't be given, nobody may do more with it than before: what was
    the group's goes no further than what is everybody's.
    """
    if sys.platform == "win32":
        return
    try:
        old = path.stat()
    except OSError:  # there is none: the mask of the process decides
        return
    number, new = file.fileno(), os.fstat(file.fileno())
    mode = stat.S_IMODE(old.st_mode)
    os.fchmod(number, mode & 0o700)
    if new.st_uid != old.st_uid:
        with contextlib.suppress(OSError):
            os.fchown(number, old.st_uid, -1)
    if new.st_gid != old.st_gid:
        try:
            os.fchown(number, -1, old.st_gid)
        except OSError:
            mode &= ~0o070 | (mode & 0o007) << 3
    os.fchmod(number, mode & 0o777)


def _link_to(file: IO[bytes]) -> str:
    return f"/proc/self/fd/{file.fileno()}"


def _set_name(file: IO[bytes], name: Path) -> None:
    """Call a file ``name``, unless that is its name already."""
    if os.fstat(file.fileno()).st_nlink:
        return
    folder = os.open(name.parent, os.O_RDONLY)
    try:
        # Without a folder it is link(2) that is called, which links the link instead.
        os.link(_link_to(file), name.name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)


def _remove(name: Path) -> None:
    with contextlib.suppress(OSError):
        name.unlink()


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

    The new file has the mode and, as far as this user may give it, the owner of the old one.

    Raises
    ------
    OutputNoFolder, OutputNotWritable, DiskFull : nothing is left behind
    """
    check_writable(path)
    path = path.resolve()  # write what a link points to, not over the link
    _remove_abandoned(path.parent)
    name = _beside(path)
    n_bytes = 0
    try:
        with _open_new(name) as file:
            _keep_access(file, path)
            for part in parts:
                file.write(part)
                n_bytes += len(part)
            file.flush()
            os.fsync(file.fileno())
            _set_name(file, name)
            if sys.platform != "win32":  # before it is closed, and so free to be removed
                os.replace(name, path)
        if sys.platform == "win32":  # where only closed files can be renamed
            os.replace(name, path)
    except OSError as error:
        raise _refusal(path, error) from error
    finally:  # also on Ctrl-C; after the rename there is nothing to remove
        _remove(name)
    return n_bytes
