"""Files behind URLs, through fsspec: s3://, http:// and whatever else it knows, and local paths.

The only module that knows fsspec. Every failure is an ``InputUnreadable``.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import IO, Any, cast

import fsspec

from ..engine.errors import DraftsmithError, InputUnreadable
from .corpus_store import LOCAL, Status, show_path

_HTTP = ("http://", "https://")
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
        with _refusing(path):
            files, inner = _open_system(path)
            return bool(files.isdir(inner))

    def is_pattern(self, path: str) -> bool:
        if not is_url(path):
            return LOCAL.is_pattern(path)
        with _refusing(path):
            files, inner = _open_system(path)
            return glob.has_magic(inner) and not files.exists(inner)

    def matches(self, pattern: str) -> list[str]:
        if not is_url(pattern):
            return LOCAL.matches(pattern)
        with _refusing(pattern):
            files, inner = _open_system(pattern)
            found = files.glob(inner, detail=True)
            return sorted(files.unstrip_protocol(p) for p, i in found.items() if _is_file(p, i))

    def files_below(
        self, folder: str, on_unreadable: Callable[[str, InputUnreadable], None]
    ) -> list[str]:
        if not is_url(folder):
            return LOCAL.files_below(folder, on_unreadable)
        with _refusing(folder):
            files, inner = _open_system(folder)
            n_parts = len(PurePosixPath(inner).parts)
            return sorted(
                files.unstrip_protocol(path)
                for path, info in files.find(inner, detail=True).items()
                if info["type"] == "file"
                and not any(p.startswith(".") for p in PurePosixPath(path).parts[n_parts:])
            )

    def status(self, path: str, file: IO[bytes] | None = None) -> Status:
        if not is_url(path):
            return LOCAL.status(path)
        with _refusing(path):
            files, inner = _open_system(path)
            info = files.info(inner)
        stamp = next((str(info[name]) for name in _STAMPS if info.get(name)), "")
        return Status("file" if info["type"] == "file" else "special", info.get("size"), stamp)

    @contextmanager
    def open(self, path: str) -> Iterator[IO[bytes]]:
        if not is_url(path):
            with LOCAL.open(path) as local:
                yield local
            return
        with _refusing(path):
            files, inner = _open_system(path)
            # Without blocks HTTP is one request, which servers that know no ranges can answer.
            options = {"block_size": 0} if path.startswith(_HTTP) else {}
            file = files.open(inner, "rb", **options)
        try:
            yield cast("IO[bytes]", _Reader(file, path))
        finally:
            file.close()


class _Reader:
    """A readable file whose reads are as long as asked, and whose failures are ours."""

    def __init__(self, file: Any, path: str) -> None:
        self._file = file
        self._path = path

    def read(self, n_bytes: int = -1) -> bytes:
        parts = []
        with _refusing(self._path):
            while n_bytes and (part := self._file.read(n_bytes)):
                parts.append(part)
                n_bytes -= len(part) if n_bytes > 0 else 0
        return b"".join(parts)


def _is_file(path: str, info: dict[str, Any]) -> bool:
    return info["type"] == "file" and not PurePosixPath(path).name.startswith(".")


def _open_system(path: str) -> tuple[Any, str]:
    """Return (file system, the path in it)."""
    options: dict[str, Any] = {}
    if path.startswith(_HTTP):
        import aiohttp

        # A big file is one request, as long as it takes to count it; five minutes by default.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=120)
        options = {"client_kwargs": {"timeout": timeout}}
    files, inner = fsspec.core.url_to_fs(path, **options)
    return files, inner


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
