"""Whole or not there: whatever fails while writing, the old file stays and nothing is left."""

from __future__ import annotations

import builtins
import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from draftsmith.engine.atomic_file import check_writable, write_atomically
from draftsmith.engine.errors import DiskFull, OutputNoFolder, OutputNotWritable
from draftsmith.engine.file_lock import locked

OLD = b"the old file"
Part = bytes | memoryview


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "cache.ds"
    path.write_bytes(OLD)
    return path


def failing(error: BaseException) -> Iterator[Part]:
    yield b"new" * 100_000
    raise error


def assert_untouched(path: Path) -> None:
    assert path.read_bytes() == OLD
    assert list(path.parent.iterdir()) == [path], "something was left behind"


@pytest.mark.parametrize(
    "parts",
    [[], [b""], [b"abc"], [b"abc", b"", b"de" * 50_000], [memoryview(bytearray(b"xyz"))]],
    ids=["none", "empty", "one", "many", "memoryview"],
)
def test_content_and_size(parts: list[Part], target: Path) -> None:
    """A part dropped, or a size that counts items of a view instead of bytes."""
    n_bytes = write_atomically(target, parts)
    assert target.read_bytes() == b"".join(parts)
    assert n_bytes == target.stat().st_size
    assert list(target.parent.iterdir()) == [target]


def test_new_file(tmp_path: Path) -> None:
    """A write that needs an old file."""
    assert write_atomically(tmp_path / "new", [b"x"]) == 1
    assert (tmp_path / "new").read_bytes() == b"x"


def test_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare name has no folder in it: the current one is meant."""
    monkeypatch.chdir(tmp_path)
    check_writable("new")
    write_atomically(Path("new"), [b"x"])
    assert os.listdir(tmp_path) == ["new"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_mode_is_that_of_a_plain_file(mask: int, tmp_path: Path) -> None:
    """The temporary's private mode stays on the result: others can't read a shared cache."""
    old = os.umask(mask)
    try:
        write_atomically(tmp_path / "new", [b"x"])
        assert os.umask(mask) == mask, "the process's mask was changed"
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~mask


def test_readers_of_the_old_file_keep_it(target: Path) -> None:
    """An old file overwritten in place under somebody who has it open or mapped."""
    with target.open("rb") as reader:
        write_atomically(target, [b"new"])
        assert reader.read() == OLD
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_disk_full_while_writing(number: int, target: Path) -> None:
    """A half-written file, or its temporary, where the disk fills up."""
    with pytest.raises(DiskFull, match=f"{target.name} can't be written") as caught:
        write_atomically(target, failing(OSError(number, os.strerror(number))))
    assert os.strerror(number) in caught.value.message
    assert "\n" not in str(caught.value)
    assert_untouched(target)


def test_other_failure_while_writing(target: Path) -> None:
    """An I/O error reported as a full disk, or let through as a traceback."""
    with pytest.raises(OutputNotWritable, match=os.strerror(errno.EIO)):
        write_atomically(target, failing(OSError(errno.EIO, "no")))
    assert_untouched(target)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), MemoryError(), ValueError()])
def test_interrupted_while_writing(error: BaseException, target: Path) -> None:
    """Ctrl-C swallowed, or a temporary left behind by it."""
    with pytest.raises(type(error)):
        write_atomically(target, failing(error))
    assert_untouched(target)


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (OSError(errno.ENOSPC, ""), DiskFull),
        (PermissionError(errno.EACCES, ""), OutputNotWritable),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
    ids=["full", "denied", "interrupt"],
)
def test_failure_at_the_end(
    step: str,
    error: BaseException,
    seen: type[BaseException],
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A delayed failure (NFS and quotas report a full disk only at the end) that is not caught."""

    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(seen):
        write_atomically(target, [b"new"])
    assert_untouched(target)


def test_flushed_before_renamed(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename that reaches the disk before the content: an empty file after a power cut."""
    steps: list[str] = []
    for name in ("fsync", "replace"):
        real: Callable[..., None] = getattr(os, name)

        def note(*args: object, name: str = name, real: Callable[..., None] = real) -> None:
            steps.append(name)
            real(*args)

        monkeypatch.setattr(os, name, note)
    write_atomically(target, [b"new"])
    assert steps[:2] == ["fsync", "replace"]


@pytest.mark.parametrize("action", [check_writable, lambda path: write_atomically(path, [b"x"])])
class TestRefusals:
    """The same before long work and at its end."""

    def test_missing_folder(self, action: Callable[[Path], object], tmp_path: Path) -> None:
        """A folder made without being asked for, or an error only after the work is done."""
        with pytest.raises(OutputNoFolder, match="missing"):
            action(tmp_path / "missing" / "out")
        assert not (tmp_path / "missing").exists()

    def test_folder_that_is_a_file(self, action: Callable[[Path], object], target: Path) -> None:
        """NotADirectoryError as a traceback."""
        with pytest.raises(OutputNoFolder):
            action(target / "out")
        assert_untouched(target)

    def test_target_is_a_folder(self, action: Callable[[Path], object], tmp_path: Path) -> None:
        """IsADirectoryError only when the result is renamed."""
        (tmp_path / "out").mkdir()
        with pytest.raises(OutputNotWritable, match="is a folder"):
            action(tmp_path / "out")
        assert list(tmp_path.iterdir()) == [tmp_path / "out"]

    def test_target_that_cannot_be_asked_about(
        self, action: Callable[[Path], object], tmp_path: Path
    ) -> None:
        """A name too long, or a closed folder on the way, reported as an internal error."""
        (tmp_path / "loop").symlink_to("loop")
        for path in (tmp_path / ("x" * 256), tmp_path / "loop" / "out"):
            with pytest.raises(OutputNotWritable, match="can't be written"):
                action(path)
        assert list(tmp_path.iterdir()) == [tmp_path / "loop"]

    def test_folder_that_refuses(
        self, action: Callable[[Path], object], target: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A folder without write permission (faked: root may write anywhere)."""

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(builtins, "open", refuse)
        with pytest.raises(OutputNotWritable, match="Permission denied"):
            action(target)
        assert_untouched(target)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the platform has no named pipes")
    def test_target_is_no_regular_file(
        self, action: Callable[[Path], object], tmp_path: Path
    ) -> None:
        """A pipe or a device replaced by a file: `-lcs /dev/null` would cost root /dev/null."""
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(OutputNotWritable):
            action(tmp_path / "pipe")
        assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
        assert list(tmp_path.iterdir()) == [tmp_path / "pipe"]

    def test_longest_name(self, action: Callable[[Path], object], tmp_path: Path) -> None:
        """A temporary's name that is too long where the target's is not."""
        action(tmp_path / ("x" * 255))

    def test_check_leaves_no_trace(self, action: Callable[[Path], object], tmp_path: Path) -> None:
        """The trial file of the check stays after."""
        action(tmp_path / "out")
        assert {path.name for path in tmp_path.iterdir()} <= {"out"}


@pytest.mark.parametrize("name", ["", "new/", "./new/"])
def test_no_name_of_a_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-lcs ""` answered with ". is a folder", or `-lcs caches/` that writes a file `caches`."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputNotWritable, match=f"^{name} is a folder" if name else "no name"):
        check_writable(name)


def test_check_touches_nothing(target: Path) -> None:
    """A check that opens the target for writing and so empties it."""
    check_writable(target)
    assert_untouched(target)


def test_link_to_a_file(target: Path) -> None:
    """A link left dangling, or what it names half-written."""
    link = target.with_name("link")
    link.symlink_to(target)
    write_atomically(link, [b"new"])
    assert link.read_bytes() == b"new"
    assert target.read_bytes() in (b"new", OLD)


KILLED = """
import os, signal, sys
from pathlib import Path
from draftsmith.engine.atomic_file import write_atomically

def parts():
    yield b"new" * 1_000_000
    os.kill(os.getpid(), signal.SIGKILL)

write_atomically(Path(sys.argv[1]), parts())
"""


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="only Linux has files without a name")
def test_killed_while_writing(target: Path) -> None:
    """A temporary that nobody is left to remove."""
    done = subprocess.run([sys.executable, "-c", KILLED, target], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert_untouched(target)


KILLED_LATE = """
import os, signal, sys
from pathlib import Path
from draftsmith.engine import atomic_file

def kill(*names):
    os.kill(os.getpid(), signal.SIGSTOP if sys.argv[2] == "stop" else signal.SIGKILL)

os.replace = kill
atomic_file.write_atomically(Path(sys.argv[1]), [b"new"])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="files are not locked there")
@pytest.mark.parametrize("nameless", [True, False])
def test_what_the_killed_leave_is_removed(
    nameless: bool, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that grow in number, or those of writers that are still at work, removed."""
    if not nameless:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    program = (
        KILLED_LATE if nameless else f"import os; vars(os).pop('O_TMPFILE', None)\n{KILLED_LATE}"
    )
    target.with_name(".draftsmith-notes.tmp").write_bytes(b"somebody's own")
    command = [sys.executable, "-c", program, target]
    for _ in range(2):  # the second one removes what the first one leaves
        done = subprocess.run([*command, "kill"], check=False, timeout=60)
        assert done.returncode == -signal.SIGKILL
        assert target.read_bytes() == OLD
        assert len(list(target.parent.glob(".draftsmith-*-*.tmp"))) == 1
    with subprocess.Popen([*command, "stop"]) as writer:
        os.waitpid(writer.pid, os.WUNTRACED)
        before = set(target.parent.iterdir())
        write_atomically(target, [b"newer"])
        assert set(target.parent.iterdir()) == before  # the stopped one's file is not free
        assert len(before) == 3
        writer.kill()
    write_atomically(target, [b"newest"])
    assert {path.name for path in target.parent.iterdir()} == {
        target.name, ".draftsmith-notes.tmp"
    }  # fmt: skip


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EISDIR])
def test_file_system_without_nameless_files(
    number: int, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system on which nothing can be written any more."""
    real = os.open

    def lacking(path: str, flags: int, *args: int) -> int:
        if flags & getattr(os, "O_TMPFILE", 0) == getattr(os, "O_TMPFILE", -1):
            raise OSError(number, os.strerror(number))
        return real(path, flags, *args)

    monkeypatch.setattr(os, "open", lacking)
    write_atomically(target, [b"new"])
    assert target.read_bytes() == b"new"
    assert list(target.parent.iterdir()) == [target]


def test_without_proc(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nameless file that, where /proc is not mounted, can't be named in the end."""
    monkeypatch.setattr(os.path, "exists", lambda _: False)
    write_atomically(target, [b"new"])
    assert target.read_bytes() == b"new"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.skipif(sys.platform == "win32", reason="no such modes")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444])
@pytest.mark.parametrize("nameless", [True, False])
def test_mode_of_the_old_file_stays(
    mode: int, nameless: bool, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A private cache that everybody may read once it has been learnt into."""
    if not nameless:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    target.chmod(mode)
    old = os.umask(0)
    seen: list[int] = []

    def parts() -> Iterator[bytes]:
        yield b"secret"
        # what is written is private from its first byte on
        seen.extend(stat.S_IMODE(p.stat().st_mode) for p in target.parent.glob(".draftsmith-*"))
        yield b"more"

    try:
        write_atomically(target, parts())
    finally:
        os.umask(old)
    assert stat.S_IMODE(target.stat().st_mode) == mode
    assert seen == ([] if nameless and hasattr(os, "O_TMPFILE") else [mode])


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_owner_of_the_old_file_stays(target: Path) -> None:
    """A run as root takes somebody's cache away."""
    os.chown(target, 12345, 23456)
    target.chmod(0o640)
    write_atomically(target, [b"new"])
    now = target.stat()
    assert (now.st_uid, now.st_gid, stat.S_IMODE(now.st_mode)) == (12345, 23456, 0o640)


@pytest.mark.skipif(not hasattr(os, "fchown"), reason="no owners")
@pytest.mark.parametrize(("mode", "kept"), [(0o660, 0o600), (0o664, 0o644), (0o640, 0o600)])
def test_group_that_cannot_be_given(
    mode: int, kept: int, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one group might read is open to another one, that of the new file."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "")

    target.chmod(mode)
    old = os.stat(target)
    real = Path.stat
    monkeypatch.setattr(os, "fchown", refuse)
    monkeypatch.setattr(
        Path,
        "stat",
        lambda path, **more: os.stat_result(
            (*real(path, **more)[:5], old.st_gid + 1, *real(path, **more)[6:])
        ),
    )
    write_atomically(target, [b"new"])
    monkeypatch.undo()
    assert stat.S_IMODE(target.stat().st_mode) == kept


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners")
@pytest.mark.parametrize("where", ["the file", "its folder", "behind a link of ours"])
def test_links_of_others_in_shared_folders(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bug: a file of ours replaced, as somebody made a link to it in /tmp."""
    ours = tmp_path / "ours"
    shared = tmp_path / "shared"
    for folder in (ours, shared):
        folder.mkdir()
    victim = ours / "x"
    victim.write_bytes(OLD)
    shared.chmod(0o1777)
    (shared / "x").symlink_to(victim)
    (shared / "folder").symlink_to(ours)
    (ours / "link").symlink_to(shared / "x")
    path = {"the file": shared / "x", "its folder": shared / "folder" / "x"}.get(
        where, ours / "link"
    )
    true_lstat = os.lstat
    other = max(true_lstat(tmp_path).st_uid, 1) + 1

    def lstat(path: Path) -> os.stat_result:
        status = true_lstat(path)
        if not stat.S_ISLNK(status.st_mode) or Path(path).parent != shared:
            return status
        return os.stat_result((*status[:4], other, *status[5:]))

    monkeypatch.setattr(os, "lstat", lstat)
    with pytest.raises(OutputNotWritable, match="is a link that another user put into"):
        write_atomically(path, [b"new"])
    with (
        pytest.raises(OutputNotWritable, match="is a link that another user put into"),
        locked(path),
    ):
        pass
    assert victim.read_bytes() == OLD
    shared.chmod(0o755)  # not shared: a link is whoever's it is
    write_atomically(path, [b"new"])
    assert victim.read_bytes() == b"new"


def test_own_links_are_followed(tmp_path: Path) -> None:
    """A link of one's own that is refused, or replaced, in a shared folder."""
    tmp_path.chmod(0o1777)
    (tmp_path / "x").write_bytes(OLD)
    (tmp_path / "link").symlink_to("x")
    (tmp_path / "loop").symlink_to("loop")
    write_atomically(tmp_path / "link", [b"new"])
    assert (tmp_path / "x").read_bytes() == b"new"
    assert (tmp_path / "link").is_symlink()
    with pytest.raises(OutputNotWritable):
        write_atomically(tmp_path / "loop", [b"new"])


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes by name")
def test_pipes_with_the_names_of_abandoned_files(target: Path) -> None:
    """A command that hangs at a pipe which somebody put into its output's folder."""
    names = [target.with_name(f".draftsmith-1-{i:08x}.tmp") for i in range(2)]
    os.mkfifo(names[0])
    names[1].symlink_to(target)
    write_atomically(target, [b"new"])
    assert target.read_bytes() == b"new"
