"""Where compiled kernels are kept: in no folder that others may write to, and each file checked.

Numba unpickles the files of its cache, so that whoever can put one there can have anything run. It
takes the first folder that can be written: the one that NUMBA_CACHE_DIR names, ``__pycache__``
beside the modules, or one in the user's home. Of these, a folder in which somebody else may write
is passed over with a warning. A file that is another's, cut short or garbled counts as absent, and
its kernel is compiled again; so does one whose pickle names anything but Numba's types.

This is for the kernels of this package alone: what else the process compiles is as it was.
``install`` has to come before the first of them is imported.
"""

from __future__ import annotations

import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

_PACKAGE = __name__.partition(".")[0] + "."
_KERNELS = "_kernels"
# After a file's pickles, which end where they end: a mark, and SHA-256 of the last pickle.
_MARK = b"\ndraftsmith sha256\n"
_N_DIGEST = 32
_MOST_BYTES = 1 << 28
# What the pickles of Numba's cache name, besides the types of arguments.
_TYPES = "numba.core.types."
_NAMED = {
    ("builtins", "object"),
    ("copyreg", "_reconstructor"),
    ("numba.core.environment", "_rebuild_env"),
    ("numba.core.funcdesc", "PythonFunctionDescriptor"),
    ("numba.core.typing.templates", "Signature"),
    ("numba.core.types.abstract", "_type_reconstructor"),
}


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)


# Told once of each folder that is passed over; the command line prints it.
tell: Callable[[str], None] = _warn
_refused: set[str] = set()


def install() -> None:
    """Have the kernels that are imported from now on cached as the module says."""
    if not any(isinstance(finder, _BeforeKernels) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeKernels())


class _BeforeKernels:
    """Finds nothing; prepares Numba when the first module of kernels is looked for."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """See ``importlib.abc.MetaPathFinder``, which takes long to import."""
        if fullname.startswith(_PACKAGE) and fullname.endswith(_KERNELS):
            sys.meta_path.remove(self)
            prepare()


def prepare() -> None:
    """Make Numba keep this package's kernels as the module says.

    The classes are Numba's own, which has no setting for this; 0.61 has underscores before
    some names.
    """
    from numba.core import caching as numba_caching

    caching: Any = numba_caching
    impl = getattr(caching, "CacheImpl", None) or caching._CacheImpl
    usual = list(impl._locator_classes)
    checked = _checked_files(caching.IndexDataCacheFile)

    class OurLocator:
        """The first of Numba's folders that is safe, for this package's kernels."""

        @classmethod
        def from_function(cls, py_func: Any, py_file: str) -> Any:
            if not str(py_func.__module__).startswith(_PACKAGE):
                return None
            return _first_safe(usual, py_func, py_file)

    plain = caching.FunctionCache.__init__

    def with_checked_files(self: Any, py_func: Any) -> None:
        plain(self, py_func)
        if not str(py_func.__module__).startswith(_PACKAGE):
            return
        self._cache_file.__class__ = checked
        load = self.load_overload

        def load_if_whole(*args: Any) -> Any:
            try:
                return load(*args)
            except Exception:  # what was kept is a pickle, but no kernel
                return None

        self.load_overload = load_if_whole

    impl._locator_classes = [OurLocator, *usual]
    caching.FunctionCache.__init__ = with_checked_files


def _first_safe(usual: list[Any], py_func: Any, py_file: str) -> Any:
    """The first locator whose folder is safe; None: none can be written.

    Where all that could be written are not safe, kernels are compiled for this process alone.
    """
    unsafe = None
    for kind in usual:
        locator = kind.from_function(py_func, py_file)
        if locator is None:
            continue
        folder = locator.get_cache_path()
        why = why_unsafe(folder, os.path.dirname(py_file))
        if why is None:
            return locator
        if folder not in _refused:
            _refused.add(folder)
            tell(
                f"compiled kernels are not kept in {folder}: {why}; set NUMBA_CACHE_DIR to a "
                "folder that only you can write to"
            )
        unsafe = locator
    if unsafe is not None:
        unsafe._cache_path = _folder_of_process()
    return unsafe


_own_folders: list[str] = []


def _folder_of_process() -> str:
    import atexit
    import shutil
    import tempfile

    if not _own_folders:
        _own_folders.append(tempfile.mkdtemp(prefix="draftsmith-kernels-"))
        atexit.register(shutil.rmtree, _own_folders[0], ignore_errors=True)
    return _own_folders[0]


def why_unsafe(folder: str, code: str) -> str | None:
    """Why others could put files into a folder; None: they can't.

    Parameters
    ----------
    code : folder of the kernels' source. Whoever owns it decides what runs anyway; so that a
        group that may write to it may write to the folder, too
    """
    if not hasattr(os, "geteuid"):
        return None  # Windows: a user's folders are the user's
    try:
        source = os.stat(code)
        trusted = {0, os.geteuid(), source.st_uid}
        groups = {source.st_gid} if source.st_mode & stat.S_IWGRP else set()
        above_code = {path for path, _ in _with_parents(code)}
        for path, depth in _with_parents(folder):
            if path in above_code:
                continue  # who may write there may write to the code
            status = os.lstat(path)
            is_own = depth < 2
            if is_own and status.st_uid not in trusted:
                return f"{path} belongs to another user"
            if stat.S_ISLNK(status.st_mode):
                continue
            if status.st_mode & stat.S_ISVTX and depth:
                continue  # where all may write, none can replace what is another's
            if status.st_mode & stat.S_IWOTH:
                return f"all users may write to {path}"
            is_of_group = is_own and status.st_mode & stat.S_IWGRP
            if is_of_group and status.st_gid not in groups and not _is_own_group(status.st_gid):
                return f"a group of users may write to {path}"
    except OSError as error:
        return f"it cannot be looked at ({error.strerror})"
    return None


def _is_own_group(gid: int) -> bool:
    """Whether a group is the user's alone, as many systems make one for each user."""
    import grp
    import pwd

    try:
        name, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:  # no name, as in many containers
        return gid == os.getegid() == os.geteuid()
    return group.gr_name == name and set(group.gr_mem) <= {name}


def _with_parents(folder: str) -> Iterator[tuple[str, int]]:
    """A folder and what is above it, with its distance; of links, what they lead to as well."""
    for path in dict.fromkeys((os.path.abspath(folder), os.path.realpath(folder))):
        depth, last = 0, ""
        while path != last:
            yield path, depth
            path, last, depth = os.path.dirname(path), path, depth + 1


def _checked_files(base: Any) -> Any:
    """Numba's class of a function's files, but for what it takes from them."""
    import hashlib
    import io

    class CheckedFiles(base):  # type: ignore[misc]
        """Files of a function that are absent where they are not whole, or another's."""

        def _dump(self, obj: Any) -> bytes:
            data: bytes = super()._dump(obj)
            return data + _MARK + hashlib.sha256(data).digest()

        def _load_index(self) -> dict[Any, str]:
            raw = read_file(self._index_path)
            if raw is None:
                return {}
            try:
                stream = io.BytesIO(raw)
                if unpickled(stream) != self._version:
                    return {}
                stamp, overloads = unpickled(whole(raw[stream.tell() :]))
                is_fresh = stamp == self._source_stamp and isinstance(overloads, dict)
                return dict(overloads) if is_fresh else {}
            except Exception:  # whatever a pickle that is none comes to
                return {}

        def _load_data(self, name: str) -> Any:
            raw = read_file(self._data_path(name))
            if raw is None:
                raise FileNotFoundError(name)
            try:
                return unpickled(whole(raw))
            except Exception as error:
                raise FileNotFoundError(name) from error  # Numba takes that for an absent file

    return CheckedFiles


def unpickled(data: bytes | Any) -> Any:
    """What a pickle of Numba's cache holds, bytes or a stream of them.

    Raises
    ------
    UnpicklingError : it names what Numba's do not
    """
    import io
    import pickle

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            is_kernels = module.startswith(_PACKAGE) and module.endswith(_KERNELS)
            if (module, name) in _NAMED:
                return super().find_class(module, name)
            if "." not in name and (is_kernels or module.startswith(_TYPES)):
                found = super().find_class(module, name)
                if isinstance(found, type) and found.__module__ == module:
                    return found
            raise pickle.UnpicklingError(f"{module}.{name} in a cache of kernels")

    return Unpickler(io.BytesIO(data) if isinstance(data, bytes) else data).load()


def read_file(path: str) -> bytes | None:
    """What a file of the cache holds; None: it is absent, a link, or others can write to it."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0)
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
                return None
            if hasattr(os, "geteuid"):
                folder = os.stat(os.path.dirname(path))
                if status.st_uid not in {0, os.geteuid(), folder.st_uid}:
                    return None
                if status.st_mode & stat.S_IWOTH:
                    return None
            return file.read(status.st_size)  # a larger number would be allocated at once
    except OSError:
        return None


def whole(data: bytes) -> bytes:
    """A pickle without the mark and the digest after it; files of others have none.

    Raises
    ------
    ValueError : the digest is another
    """
    import hashlib

    at = len(data) - len(_MARK) - _N_DIGEST
    if at < 0 or data[at : at + len(_MARK)] != _MARK:
        return data
    if hashlib.sha256(data[:at]).digest() != data[-_N_DIGEST:]:
        raise ValueError("the digest is another")
    return data[:at]
