"""Kill commands at random moments, for fault_drill.py: only whole files may be left.

Between naming a new file and renaming it a kill leaves a temporary one. That is counted; it is bad
if two are ever there at once, or one is there after a run that nobody has killed.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
from draftsmith.engine.errors import DraftsmithError
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from draftsmith.ngram.cache.count import NgramCounter
from draftsmith.ngram.cache.file import open_cache, write_cache
from draftsmith.ngram.cache.ngram_cache import NgramCache
from drill_caches import same

CLI = [sys.executable, "-m", "draftsmith.cli"]
LEARNT = 400_000  # tokens of the cache that lookup-run adds to: writing it takes a while
GIVE_UP_S = 120


def kill_commands(
    n_kills: int, seed: int, folder: Path, model: str
) -> tuple[Counter[str], list[str]]:
    """Kill lookup-create and lookup-merge, with a whole cache in the way."""
    counts: Counter[str] = Counter()
    found: list[str] = []
    if not n_kills:
        return counts, found
    rng = random.Random(seed)
    words = ["alpha", "beta", "gamma", "delta", "0123", "the", "of", "\n"]
    text = " ".join(rng.choice(words) + str(rng.randrange(3000)) for _ in range(200_000))
    (folder / "corpus.txt").write_text(text)
    create = [*CLI, "lookup-create", "-m", model, "-f", folder / "corpus.txt", "-lcs"]
    subprocess.run([*create, folder / "part", "--quiet"], check=True, capture_output=True)
    merge = [*CLI, "lookup-merge", folder / "part", folder / "part"]
    out = folder / "out"
    out.mkdir()
    known: set[str] = set()
    for i in range(n_kills):
        process = started([*create, out / "cache"] if i % 2 else [*merge, out / "cache"])
        time.sleep(rng.uniform(0.05, 2.5))
        kill(process)
        found += count_leftovers(out, known, counts)
        if not (out / "cache").exists():
            counts["no file yet"] += 1
            continue
        try:
            open_cache(out / "cache", verify=True)
            counts["whole"] += 1
        except DraftsmithError as error:
            counts["unreadable"] += 1
            found.append(f"kill {i}: {error}")
    found += last_leftovers(out, [*merge, out / "cache"], counts)
    return counts, found


def kill_runs(n_kills: int, seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Kill lookup-run, every other time while it holds the lock of its dynamic cache.

    The cache has to be what it was before or what a run that nobody kills makes of it.
    """
    counts: Counter[str] = Counter()
    found: list[str] = []
    if not n_kills:
        return counts, found
    from toy_model import write_model

    rng = random.Random(seed)
    model = write_model(folder / "toy.gguf", n_embd=64, n_ff=128)
    write_cache(folder / "before", learnt_cache(model))
    out = folder / "run"
    out.mkdir()
    known: set[str] = set()
    cache = out / "cache"
    command: list[str | Path] = [
        *CLI,
        "lookup-run",
        "-m",
        model,
        "-p",
        "The quick brown fox",
        "-n",
        "16",
    ]
    command += ["--temp", "0", "--ignore-eos", "-lcd", cache]
    replace(folder / "before", cache)
    start = time.monotonic()
    process = started(command)
    wait_for_lock(out, process)
    locked = time.monotonic()
    while is_locked(out):
        time.sleep(0.002)
    locked_s = time.monotonic() - locked
    if process.wait():
        raise RuntimeError(f"{command} ends with status {process.returncode}")
    whole_s = time.monotonic() - start
    before, after = open_cache(folder / "before"), open_cache(cache)
    if same(before, after):
        raise RuntimeError("lookup-run learnt nothing")
    for i in range(n_kills):
        replace(folder / "before", cache)
        process = started(command)
        if i % 2:
            time.sleep(rng.uniform(0, whole_s))
        else:
            wait_for_lock(out, process)
            time.sleep(rng.uniform(0, 1.3 * locked_s))
        counts["while locked"] += is_locked(out)
        counts["ended before"] += kill(process)
        found += count_leftovers(out, known, counts)
        try:
            now = open_cache(cache, verify=True)
        except DraftsmithError as error:
            counts["unreadable"] += 1
            found.append(f"kill {i} of lookup-run: {error}")
            continue
        result = "old" if same(now, before) else "new" if same(now, after) else "neither"
        counts[result] += 1
        if result == "neither":
            found.append(f"kill {i} of lookup-run: the cache is neither the old nor the new one")
    found += last_leftovers(out, command, counts)
    return counts, found


def learnt_cache(model: Path) -> NgramCache:
    """A cache of the model's vocabulary, of random tokens."""
    tokenizer = load_tokenizer(model)
    tokens = np.random.default_rng(1).integers(0, tokenizer.n_vocab, LEARNT).astype(np.int32)
    counter = NgramCounter(orders=(1, 2, 3, 4), n_vocab=tokenizer.n_vocab)
    counter.add(0, tokens)
    return counter.finish(tokenizer.fingerprint)


def started(command: list[str | Path]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill(process: subprocess.Popen[bytes]) -> bool:
    """Send SIGKILL; returns whether the process had ended by itself."""
    process.send_signal(signal.SIGKILL)
    return process.wait() != -signal.SIGKILL


def replace(source: Path, target: Path) -> None:
    """Copy a file over one that may still be mapped."""
    target.unlink(missing_ok=True)
    shutil.copyfile(source, target)


def count_leftovers(folder: Path, known: set[str], counts: Counter[str]) -> list[str]:
    """Count those not known yet; returns a line if they have become many."""
    left = {path.name for path in folder.iterdir() if path.name != "cache"}
    counts["leftover"] += len(left - known)
    known |= left
    return [f"left in {folder.name}: {sorted(left)}"] if len(left) > 1 else []


def last_leftovers(folder: Path, command: list[str | Path], counts: Counter[str]) -> list[str]:
    """Run a command to its end; returns a line for each file that is left then."""
    subprocess.run(command, check=True, capture_output=True)
    left = [path.name for path in folder.iterdir() if path.name != "cache"]
    counts["leftover that stays"] += len(left)
    return [f"left in {folder.name} at the end: {name}" for name in left]


def wait_for_lock(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Return as soon as the process holds the lock of the folder, or has ended."""
    deadline = time.monotonic() + GIVE_UP_S
    while process.poll() is None and not is_locked(folder):
        if time.monotonic() > deadline:
            raise RuntimeError("lookup-run neither ends nor takes the lock")
        time.sleep(0.002)


def is_locked(folder: Path) -> bool:
    """Whether somebody has locked the folder, as ``engine/file_lock.py`` does."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
