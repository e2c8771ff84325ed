"""The dynamic cache that several runs learn into: no count is lost, the file is always whole."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import naive
import pytest
from cache_dicts import FINGERPRINT, cache_of, dict_of
from draftsmith.engine import file_lock
from draftsmith.engine.errors import (
    CacheOtherVocabulary,
    CacheTruncated,
    InputMalformed,
    OutputNoFolder,
    OutputNotWritable,
)
from draftsmith.engine.file_lock import locked
from draftsmith.ngram.cache.file import open_cache, write_cache
from draftsmith.ngram.cache.ngram_cache import NgramCache
from draftsmith.ngram.cache.shared import add_counts, count_generated, open_shared

N_VOCAB = 50


def generated(prompt: list[int], tokens: list[int]) -> NgramCache:
    return count_generated(prompt, tokens, n_vocab=N_VOCAB, fingerprint=FINGERPRINT)


def counts_in(path: Path) -> naive.Cache:
    return dict_of(open_cache(path, n_vocab=N_VOCAB, fingerprint=FINGERPRINT, verify=True))


def opened(path: Path) -> NgramCache | None:
    return open_shared(path, n_vocab=N_VOCAB, fingerprint=FINGERPRINT)


# --- what is counted ------------------------------------------------------------------------------


@pytest.mark.parametrize("n_prompt", [0, 1, 2, 3, 4, 5, 20])
@pytest.mark.parametrize("n_generated", [0, 1, 2, 5, 30])
def test_counts_what_was_generated(n_prompt: int, n_generated: int) -> None:
    """The prompt counted with it, or the windows that begin in the prompt left out: against the
    oracle, whose update learns the last n tokens of a text.
    """
    rng = random.Random(n_prompt)
    text = [rng.randrange(6) for _ in range(n_prompt + n_generated)]
    ref: naive.Cache = {}
    naive.update(ref, naive.ALL_SIZES, tuple(text), n_generated)
    comp = generated(text[:n_prompt], text[n_prompt:])
    assert dict_of(comp) == ref
    assert (comp.n_vocab, comp.fingerprint) == (N_VOCAB, FINGERPRINT)


def test_counts_no_foreign_token() -> None:
    """An id that the vocabulary lacks, packed into somebody else's key."""
    with pytest.raises(InputMalformed):
        generated([1, 2], [3, N_VOCAB])


# --- the file -------------------------------------------------------------------------------------


def test_begins_and_adds_up(tmp_path: Path) -> None:
    """A first run that needs a file, or a second one that replaces the first one's counts."""
    path = tmp_path / "x.lcd"
    assert opened(path) is None
    assert list(tmp_path.iterdir()) == []
    for _ in range(3):
        assert add_counts(path, generated([1, 2, 3], [4, 5])) == path.stat().st_size
    held = opened(path)
    assert held is not None
    assert held.format == "native"
    assert dict_of(held)[2, 3] == {4: 3}
    assert (1, 2) not in dict_of(held), "the prompt is not counted"
    assert list(tmp_path.iterdir()) == [path]


def test_keeps_llama_cpp_s_format(tmp_path: Path) -> None:
    """A cache shared with llama.cpp's tools that they can no longer read."""
    path = tmp_path / "x.lcd"
    write_cache(path, cache_of({(7, 8): {9: 1}, (1,): {4: 2}}), format="llama.cpp")
    add_counts(path, generated([1], [4]))
    held = open_cache(path)
    assert held.format == "llama.cpp"
    assert dict_of(held) == {(7, 8): {9: 1}, (1,): {4: 3}}


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """A link replaced by a file: the shared cache after it learns nothing more."""
    real, link = tmp_path / "real" / "x.lcd", tmp_path / "x.lcd"
    real.parent.mkdir()
    add_counts(real, generated([1], [4]))
    link.symlink_to(real)
    add_counts(link, generated([1], [4]))
    assert link.is_symlink()
    assert counts_in(real)[1,] == {4: 2}


@pytest.mark.parametrize("keep", [0, 40, -1])
def test_refuses_a_damaged_file(keep: int, tmp_path: Path) -> None:
    """A cache that is found damaged only when the text has been generated, or is replaced."""
    path = tmp_path / "x.lcd"
    add_counts(path, generated([1], [4]))
    path.write_bytes(path.read_bytes()[:keep])
    before = path.read_bytes()
    with pytest.raises(CacheTruncated):
        opened(path)
    with pytest.raises(CacheTruncated):
        add_counts(path, generated([1], [4]))
    assert path.read_bytes() == before


def test_refuses_another_vocabulary(tmp_path: Path) -> None:
    """Counts of two models mixed."""
    path = tmp_path / "x.lcd"
    write_cache(path, cache_of({(1,): {2: 3}}, n_vocab=N_VOCAB, fingerprint=bytes([9] * 32)))
    before = path.read_bytes()
    with pytest.raises(CacheOtherVocabulary):
        opened(path)
    with pytest.raises(CacheOtherVocabulary):
        add_counts(path, generated([1], [4]))
    assert path.read_bytes() == before


def test_refuses_what_it_could_not_write(tmp_path: Path) -> None:
    """A typing error in the path that shows when the long work is done."""
    with pytest.raises(OutputNoFolder):
        opened(tmp_path / "none" / "x.lcd")
    with pytest.raises(OutputNoFolder):
        add_counts(tmp_path / "none" / "x.lcd", generated([1], [4]))
    with pytest.raises(OutputNotWritable):
        opened(tmp_path)
    tmp_path.chmod(0o500)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("this user may write anywhere")
        with pytest.raises(OutputNotWritable):
            opened(tmp_path / "x.lcd")
    finally:
        tmp_path.chmod(0o700)


# --- the lock -------------------------------------------------------------------------------------


def test_the_lock_excludes_and_says_so(tmp_path: Path) -> None:
    """Two that hold one lock at once, or a wait that looks like a hang."""
    path = tmp_path / "x.lcd"
    waiting, order = threading.Event(), []

    def second() -> None:
        with locked(path, waiting.set):
            order.append("second")

    with locked(path):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert list(tmp_path.iterdir()) == []


class HeldByAnother(Exception):
    """Raised in the place of waiting."""


def give_up() -> None:
    raise HeldByAnother


def test_a_lock_file_where_folders_have_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system that refuses to lock a folder: no lock at all, or an error."""
    path = tmp_path / "x.lcd"
    real = file_lock._try

    def refuses_folders(handle: int) -> bool:
        if os.path.samestat(os.fstat(handle), tmp_path.stat()):
            raise OSError(errno.EBADF, "not on this file system")
        return real(handle)

    monkeypatch.setattr(file_lock, "_try", refuses_folders)
    with locked(path), pytest.raises(HeldByAnother), locked(path, give_up):
        pytest.fail("held twice")
    with locked(path, give_up):
        assert [file.name for file in tmp_path.iterdir()] == [".x.lcd.lock"]


# --- processes ------------------------------------------------------------------------------------

ADDS = """
import sys
from draftsmith.ngram.cache.shared import add_counts, count_generated
path, token, times = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
new = count_generated([1, 2, 3], [token, 9], n_vocab=50, fingerprint=bytes(range(1, 33)))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(times):
    add_counts(path, new)
"""


def adding(path: Path, token: int, times: int, code: str = ADDS) -> subprocess.Popen[str]:
    """A process that adds the same counts many times, once it is told to."""
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(token), str(times)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def await_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def test_no_count_is_lost_between_processes(tmp_path: Path) -> None:
    """Read, add and write without a lock: what another process wrote in between is overwritten."""
    path = tmp_path / "x.lcd"
    times = 25
    processes = [adding(path, token, times) for token in (4, 4, 5)]
    for process in processes:
        await_ready(process)
    for process in processes:
        tell(process)
    for process in processes:
        with process:
            assert process.wait(60) == 0
    counts = counts_in(path)
    assert counts[3,] == {4: 2 * times, 5: times}
    assert counts[1, 2, 3] == counts[3,]
    assert counts[4,] == {9: 2 * times}
    assert list(tmp_path.iterdir()) == [path]


DIES = """
import os, signal
from draftsmith.engine import atomic_file
real = atomic_file.os.{function}
def die(*args, **options):
    if {behind}:
        real(*args, **options)
    os.kill(os.getpid(), signal.SIGKILL)
atomic_file.os.{function} = die
"""


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="needs SIGKILL and nameless files")
@pytest.mark.parametrize(
    ("function", "behind", "written"),
    [("fsync", False, False), ("replace", True, True)],
)
def test_killed_while_writing(function: str, behind: bool, written: bool, tmp_path: Path) -> None:
    """Half a file, a temporary one that stays, or a lock that nobody is left to give back."""
    path = tmp_path / "x.lcd"
    add_counts(path, generated([1, 2, 3], [4, 9]))
    old = path.read_bytes()
    with adding(path, 4, 1, DIES.format(function=function, behind=behind) + ADDS) as process:
        await_ready(process)
        tell(process)
        assert process.wait(60) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == [path]
    assert (path.read_bytes() != old) == written
    add_counts(path, generated([1, 2, 3], [4, 9]), on_wait=give_up)
    assert counts_in(path)[3,] == {4: 2 + written}


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGKILL")
def test_killed_at_any_time(tmp_path: Path) -> None:
    """A file that is only sometimes whole."""
    path = tmp_path / "x.lcd"
    add_counts(path, generated([1, 2, 3], [4, 9]))
    process = adding(path, 4, 10_000)
    with process:
        await_ready(process)
        tell(process)
        least = 0
        for _ in range(20):
            held = counts_in(path)[3,][4]
            assert held >= least
            least = held
        process.kill()
    before = counts_in(path)[3,][4]
    add_counts(path, generated([1, 2, 3], [4, 9]), on_wait=give_up)
    assert counts_in(path)[3,][4] == before + 1


def test_interrupted_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C while the cache is written: the lock is kept, or half a file stays."""
    path = tmp_path / "x.lcd"
    add_counts(path, generated([1], [4]))
    old = path.read_bytes()

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            add_counts(path, generated([1], [4]))
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]
    add_counts(path, generated([1], [4]), on_wait=give_up)
    assert counts_in(path)[1,] == {4: 2}


def test_nothing_new_is_an_empty_sum(tmp_path: Path) -> None:
    """A run that generated nothing damages what is there."""
    path = tmp_path / "x.lcd"
    add_counts(path, generated([1], [4]))
    add_counts(path, generated([1, 2, 3, 4, 5], []))
    assert counts_in(path) == dict_of(generated([1], [4]))
