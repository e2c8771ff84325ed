"""Files after URLs, through fsspec: s3://, http:// and whatever else it knows, and local paths.

The only module that knows fsspec. Every failure is an ``InputUnreadable``, and so is a server that
never ends: each answer has a time, a file the bytes that were announced, and a rate below which
waiting for it is no use.
"""

from __future__ import annotations

import glob
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import IO, Any, TypeVar, cast

import fsspec

from ...engine.errors import DraftsmithError, InputUnreadable
from ..corpus.store import LOCAL, Status, show_path

_T = TypeVar("_T")
_HTTP = ("http://", "https://")
# Seconds for: a list of files, what a file is and its first byte, each further read.
_LIST_S = 600.0
_OPEN_S = 60.0
_READ_S = 120.0
# Waiting for a file may take so long, and as much more as it has sent at so many bytes a second.
_SLOW_S = 120.0
_SLOWEST_BYTES_PER_S = 16 << 10
# Of a file whose server does not say how long it is.
_MOST_UNTOLD = 16 << 30
# What file systems call the thing that changes with a file; the first that one has counts.
_STAMPS = ("ETag", "etag", "Last-Modified", "LastModified", "last_modified", "mtime", "md5Hash")


def is_url(path: str) -> bool:
    """Whether a path names a file elsewhere, to fsspec."""
    return "://" in path


class UrlStore:
    """What fsspec reaches; a path that is no URL belongs to the local store."""

    def is_folder(self, path: str) -> bool:
        if not is_url(path):
            return LOCAL.is_folder(path)
        if path.startswith(_HTTP):  # fsspec takes any page with links in it for a folder
            return path.endswith("/")
        return _within(_OPEN_S, path, lambda files, inner: bool(files.isdir(inner)))

    def is_pattern(self, path: str) -> bool:
        if not is_url(path):
            return LOCAL.is_pattern(path)
        return _within(
            _OPEN_S, path, lambda files, inner: glob.has_magic(inner) and not files.exists(inner)
        )

    def matches(self, pattern: str) -> list[str]:
        if not is_url(pattern):
            return LOCAL.matches(pattern)

        def list_files(files: Any, inner: str) -> list[str]:
            found = files.glob(inner, detail=True)
            return sorted(files.unstrip_protocol(p) for p, i in found.items() if _is_file(p, i))

        return _within(_LIST_S, pattern, list_files)

    def files_below(
        self, folder: str, on_unreadable: Callable[[str, InputUnreadable], None]
    ) -> list[str]:
        if not is_url(folder):
            return LOCAL.files_below(folder, on_unreadable)

        def list_files(files: Any, inner: str) -> list[str]:
            n_parts = len(PurePosixPath(inner).parts)
            return sorted(
                files.unstrip_protocol(path)
                for path, info in files.find(inner, detail=True).items()
                if info["type"] == "file"
                and not any(p.startswith(".") for p in PurePosixPath(path).parts[n_parts:])
            )

        return _within(_LIST_S, folder, list_files)

    def status(self, path: str, file: IO[bytes] | None = None) -> Status:
        if not is_url(path):
            return LOCAL.status(path)
        info = _within(_OPEN_S, path, lambda files, inner: files.info(inner))
        stamp = next((str(info[name]) for name in _STAMPS if info.get(name)), "")
        return Status("file" if info["type"] == "file" else "special", info.get("size"), stamp)

    @contextmanager
    def open(self, path: str) -> Iterator[IO[bytes]]:
        if not is_url(path):
            with LOCAL.open(path) as local:
                yield local
            return

        # Without blocks HTTP is one request, which servers that know no ranges can answer.
        options = {"block_size": 0} if path.startswith(_HTTP) else {}
        size = self.status(path).size
        file = _within(_OPEN_S, path, lambda files, inner: files.open(inner, "rb", **options))
        try:
            yield cast("IO[bytes]", _Reader(file, path, size))
        finally:
            file.close()


class _Reader:
    """A readable file whose reads are as long as asked, and whose failures are ours.

    Parameters
    ----------
    size : bytes that it has; None: its server does not say.
    """

    def __init__(self, file: Any, path: str, size: int | None) -> None:
        self._file = file
        self._path = path
        self._most = _MOST_UNTOLD if size is None else size
        self._n_bytes = 0
        self._waited_s = 0.0

    def read(self, n_bytes: int = -1) -> bytes:
        parts = []
        with _refusing(self._path):
            while n_bytes and (part := self._part(n_bytes)):
                parts.append(part)
                n_bytes -= len(part) if n_bytes > 0 else 0
        return b"".join(parts)

    def _part(self, n_bytes: int) -> bytes:
        start_s = time.monotonic()
        part: bytes = _timed(_READ_S, self._path, lambda: self._file.read(n_bytes))
        self._waited_s += time.monotonic() - start_s
        self._n_bytes += len(part)
        if self._n_bytes > self._most:
            raise InputUnreadable(
                f"{show_path(self._path)}: sends more than the {self._most} bytes that a file of "
                "its length has",
                remedy="check the address: it may be a stream without an end, or have changed",
            )
        if self._waited_s > _SLOW_S + self._n_bytes / _SLOWEST_BYTES_PER_S:
            raise InputUnreadable(
                f"{show_path(self._path)}: sent {self._n_bytes} bytes in {self._waited_s:.0f} s",
                remedy="copy it to where the workers can read it faster",
            )
        return part


def _is_file(path: str, info: dict[str, Any]) -> bool:
    return info["type"] == "file" and not PurePosixPath(path).name.startswith(".")


def _open_system(path: str) -> tuple[Any, str]:
    """Return (file system, the path in it)."""
    options: dict[str, Any] = {}
    if path.startswith(_HTTP):
        import aiohttp

        # A big file is one request, as long as it takes to count it; five minutes by default.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=120)
        # The bytes that were announced are those that come.
        headers = {"Accept-Encoding": "identity"}
        options = {"client_kwargs": {"timeout": timeout}, "headers": headers}
    files, inner = fsspec.core.url_to_fs(path, **options)
    return files, inner


def _within(limit_s: float, path: str, ask: Callable[[Any, str], _T]) -> _T:
    """Ask the file system of a URL something, for so long at most; failures are ours."""
    with _refusing(path):
        files, inner = _open_system(path)
        return _timed(limit_s, path, lambda: ask(files, inner))


def _timed(limit_s: float, path: str, call: Callable[[], _T]) -> _T:
    """What ``call`` returns or raises; what takes longer is left to itself."""
    answers: queue.SimpleQueue[tuple[_T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=run, daemon=True, name="url").start()
    try:
        answer, error = answers.get(timeout=limit_s)
    except queue.Empty:
        raise InputUnreadable(
            f"{show_path(path)}: no answer within {limit_s:.0f} s",
            remedy="check the server and the network",
        ) from None
    if error is not None:
        raise error
    return cast("_T", answer)


@contextmanager
def _refusing(path: str) -> Iterator[None]:
    try:
        yield
    except DraftsmithError:
        raise
    except Exception as error:  # each file system has its own kinds
        raise _refusal(path, error) from error


def _refusal(path: str, error: Exception) -> InputUnreadable:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, FileNotFoundError):
        reason, remedy = "no such file", "check the spelling"
    elif isinstance(error, PermissionError):
        reason, remedy = "access denied", "check the credentials, here and on the workers"
    elif isinstance(error, ImportError):
        remedy = "install it here and on the workers"
    else:
        remedy = "check the address and the network"
    reason = " ".join(reason.split())[:200]
    return InputUnreadable(f"{show_path(path)}: cannot be read ({reason})", remedy=remedy)
