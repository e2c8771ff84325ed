#!/usr/bin/env python3
"""Damage cache files and kill commands, and count what happens.

    scripts/fault_drill.py [--mutants 10000] [--kills 100] [--seed 0]

Mutants of a small native and a small llama.cpp cache (bits, bytes, numbers, truncations,
additions, swapped parts; some native ones twice, or with their checksums put right again, as a
hostile hand would) go through open, merge and replay in child processes. Counted: clean refusals;
files read (right: a native file that was not put right must be refused or hold what it held);
wrong results, crashes, hangs, other exceptions, and allocations beyond 8 times the file. Then
lookup-create and lookup-merge are killed with SIGKILL at random moments: no file may be left but
a whole one.

The goal is 0 of all but refusals and right results; the exit status says whether it was reached.
The last line is the record as JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
import tracemalloc
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
from draftsmith.engine.errors import DraftsmithError
from draftsmith.ngram import cache_file
from draftsmith.ngram.cache import NgramCache, merge_caches
from draftsmith.ngram.cache_file import open_cache, write_cache
from draftsmith.ngram.count import NgramCounter
from draftsmith.ngram.packed_kernels import checksum
from draftsmith.ngram.replay import replay

N_VOCAB = 300
FINGERPRINT = bytes(range(1, 33))
BATCH = 100
HANG_S = 120
# What opening costs whatever the file: NumPy objects, messages, the model's own tables.
ALLOWANCE_BYTES = 4 << 20
BAD = ("wrong", "crash", "hang", "exception", "allocation")
NUMBERS = (
    0,
    1,
    2,
    3,
    255,
    256,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
)


def small_cache() -> tuple[NgramCache, np.ndarray]:
    rng = np.random.default_rng(1)
    tokens = np.minimum(rng.geometric(0.05, 3000), N_VOCAB - 1).astype(np.int32)
    counter = NgramCounter(orders=(1, 2, 3, 4), n_vocab=N_VOCAB)
    counter.add(0, tokens)
    return counter.finish(FINGERPRINT), tokens


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One damage of a random kind."""
    changed = bytearray(data)
    at = rng.randrange(len(data))
    if rng.random() < 0.5:  # half of them near the beginning, where lengths and offsets are
        at = rng.randrange(min(len(data), 2500))
    kind = rng.randrange(7)
    if kind == 0:
        changed[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        changed[at : at + 4] = rng.randbytes(4)
    elif kind == 2:
        number = struct.pack("<Q", rng.choice(NUMBERS))[: rng.choice((1, 2, 4, 8))]
        at -= at % len(number)
        changed[at : at + len(number)] = number
    elif kind == 3:
        del changed[at:]
    elif kind == 4:
        changed += rng.randbytes(rng.randrange(1, 200))
    elif kind == 5:
        del changed[at : at + rng.randrange(1, 64)]
    else:
        size = rng.choice((4, 8, 20, 48, 64, 256))
        to = rng.randrange(len(data))
        changed[at : at + size], changed[to : to + size] = (
            data[to : to + size],
            data[at : at + size],
        )
    return bytes(changed)


def put_right(data: bytes) -> bytes:
    """The same with true checksums, as far as the table of arrays can still be read."""
    fixed = bytearray(data)
    header, entry = cache_file._HEADER, cache_file._ENTRY
    if len(fixed) < header.size:
        return data
    n_arrays = min(int.from_bytes(fixed[16:20], "little"), 64)
    for i in range(n_arrays):
        at = header.size + i * entry.size
        if at + entry.size > len(fixed):
            return bytes(fixed)
        name, dtype, _, offset, n_items = entry.unpack(fixed[at : at + entry.size])
        try:
            n_bytes = n_items * np.dtype(dtype.rstrip(b"\0").decode()).itemsize
        except (TypeError, UnicodeDecodeError, ValueError):
            continue
        stop = offset + -(-n_bytes // 64) * 64
        if stop <= len(fixed) and offset % 8 == 0:
            words = np.frombuffer(bytes(fixed[offset:stop]), np.uint64)
            total = int(checksum(words.copy()))
            fixed[at : at + entry.size] = entry.pack(name, dtype, total, offset, n_items)
    table_stop = -(-(header.size + entry.size * n_arrays) // 64) * 64
    fixed[20:24] = struct.pack("<I", zlib.crc32(fixed[header.size : table_stop]))
    fixed[72:76] = struct.pack("<I", zlib.crc32(fixed[:72]))
    return bytes(fixed)


def mutant(seed: int, native: bytes, llama: bytes) -> tuple[str, bytes]:
    """(kind, bytes) of the mutant with that number."""
    rng = random.Random(seed)
    kind = ("native", "put right", "llama.cpp", "native twice")[seed % 4]
    data = mutate(llama if kind == "llama.cpp" else native, rng)
    if kind == "native twice":
        data = mutate(data, rng) if data else data
    return kind, put_right(data) if kind == "put right" else data


def use(path: Path, whole: NgramCache, tokens: np.ndarray) -> NgramCache:
    """Open, replay as static and as dynamic cache, merge."""
    cache = open_cache(path, n_vocab=N_VOCAB, fingerprint=FINGERPRINT)
    static = cache if 2 in cache.tables else None
    replay(tokens, n_ctx=256, draft_max=4, n_vocab=N_VOCAB, static=static)
    replay(tokens, n_ctx=256, draft_max=4, n_vocab=N_VOCAB, dynamic=cache)
    merge_caches([cache, whole])
    return cache


def same(a: NgramCache, b: NgramCache) -> bool:
    return a.orders == b.orders and all(
        np.array_equal(getattr(a.tables[order], name), getattr(b.tables[order], name))
        for order in a.orders
        for name in ("tokens", "entry_start", "entry_token", "entry_count")
    )


def child(first: int, stop: int, folder: Path) -> None:
    """Try the mutants first .. stop - 1; a line when each begins, and one when it ends."""
    whole, tokens = small_cache()
    native, llama = (folder / "native").read_bytes(), (folder / "llama").read_bytes()
    path = folder / f"mutant-{first}"
    path.write_bytes(native)
    use(path, whole, tokens)  # compiled kernels are no allocation of the file's
    tracemalloc.start()
    for seed in range(first, stop):
        print(f"begin {seed}", flush=True)
        kind, data = mutant(seed, native, llama)
        path.write_bytes(data)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            cache = use(path, whole, tokens)
            unchanged = kind in ("put right", "llama.cpp") or same(cache, whole)
            result = "right" if unchanged else "wrong"
            del cache
        except DraftsmithError:
            result = "refused"
        except Exception as error:  # whatever it is, it is what is looked for
            result = f"exception {type(error).__name__}: {error}"
        peak = tracemalloc.get_traced_memory()[1] - before
        if peak > 8 * len(data) + ALLOWANCE_BYTES:
            result = f"allocation of {peak} for a file of {len(data)}"
        print(f"end {seed} {kind}: {result}", flush=True)


def drill(n_mutants: int, seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Run all mutants in children; a child that dies or hangs costs the mutant it was at."""
    whole, _ = small_cache()
    write_cache(folder / "native", whole)
    write_cache(folder / "llama", whole, format="llama.cpp")
    counts: Counter[str] = Counter()
    found = []
    first, last = seed, seed + n_mutants
    while first < last:
        stop = min(first + BATCH, last)
        command = [sys.executable, __file__, "--child", str(first), str(stop), str(folder)]
        with (folder / "log").open("w+") as log:
            try:
                status = subprocess.run(command, stdout=log, timeout=HANG_S, check=False).returncode
            except subprocess.TimeoutExpired:
                status = None
            log.seek(0)
            lines = log.read().splitlines()
        for line in lines:
            if line.startswith("end "):
                result = line.partition(": ")[2].split(" ", 1)[0]
                counts[result] += 1
                if result in BAD:
                    found.append(line)
        if status == 0:
            first = stop
            continue
        at = int(lines[-1].split()[1]) if lines else first
        how = "hang" if status is None else "crash"
        counts[how] += 1
        found.append(f"{how} at mutant {at} (status {status})")
        first = at + 1
    return counts, found


def kill_commands(
    n_kills: int, seed: int, folder: Path, model: str
) -> tuple[Counter[str], list[str]]:
    """SIGKILL lookup-create and lookup-merge at random moments, with a whole cache in the way."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    found = []
    words = ["alpha", "beta", "gamma", "delta", "0123", "the", "of", "\n"]
    text = " ".join(rng.choice(words) + str(rng.randrange(3000)) for _ in range(200_000))
    (folder / "corpus.txt").write_text(text)
    cli = [sys.executable, "-m", "draftsmith.cli"]
    create = [*cli, "lookup-create", "-m", model, "-f", folder / "corpus.txt", "-lcs"]
    subprocess.run([*create, folder / "part", "--quiet"], check=True, capture_output=True)
    merge = [*cli, "lookup-merge", folder / "part", folder / "part"]
    out = folder / "out"
    out.mkdir()
    for i in range(n_kills):
        command = [*create, out / "cache"] if i % 2 else [*merge, out / "cache"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.05, 2.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        left = sorted(path.name for path in out.iterdir() if path.name != "cache")
        if left:
            counts["leftover"] += 1
            found.append(f"kill {i}: left {left}")
            for name in left:
                (out / name).unlink()
        if (out / "cache").exists():
            try:
                open_cache(out / "cache", verify=True)
                counts["whole"] += 1
            except DraftsmithError as error:
                counts["unreadable"] += 1
                found.append(f"kill {i}: {error}")
        else:
            counts["no file yet"] += 1
    return counts, found


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-m", "--model", default="smollm2", help="for lookup-create")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        mutants, found = drill(options.mutants, options.seed, Path(name))
        kills, left = kill_commands(options.kills, options.seed, Path(name), options.model)
    for line in found + left:
        print(line)
    print(f"mutants: {dict(mutants)}")
    print(f"kills: {dict(kills)}")
    print(json.dumps({"seed": options.seed, "mutants": mutants, "kills": kills}))
    sys.exit(1 if found or left else 0)


if __name__ == "__main__":
    main()
