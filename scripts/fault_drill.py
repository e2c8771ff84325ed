#!/usr/bin/env python3
"""Damage files, kill commands, and count what happens.

    scripts/fault_drill.py [--caches 10000] [--models 10000] [--kills 100] [--run-kills 100]
                           [--seed 0] [-m MODEL]

Mutants of n-gram caches (drill_caches.py) and of GGUF models (drill_changes.py, drill_models.py)
are used in child processes. Counted: clean refusals; files that were read, and whose results are
right, or for a changed model can be (``ran``); wrong results, crashes, hangs, other exceptions,
and allocations beyond 8 times the file and a floor. Then lookup-create, lookup-merge and
lookup-run are killed with SIGKILL at random moments (drill_kills.py): no file may be left but a
whole one.

The goal is 0 of all but refusals and right results; the exit status says whether it was reached.
The last line is the record as JSON. Needs the extra ``test`` (gguf).
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import signal
import subprocess
import sys
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # for toy_model

from draftsmith.engine.errors import DraftsmithError

BATCH = 250  # mutants of a child: kernels are loaded once for all of them
HANG_S = 60  # for a mutant, while the drill runs: whoever stops it for a while finds no hang
TIMES_THE_FILE = 8
BAD = ("wrong", "crash", "hang", "exception", "allocation")


class Subject(Protocol):
    """A kind of file to damage. ``prepare`` runs once, the rest in each child.

    Attributes
    ----------
    floor_bytes : what using a file may take, however small it is
    """

    floor_bytes: int

    def prepare(self) -> None:
        """Write the whole files into the folder that the subject was made with."""

    def warm_up(self, scratch: Path) -> None:
        """Use the whole files: compiled kernels are no allocation of a mutant's."""

    def write(self, seed: int, scratch: Path) -> tuple[str, int]:
        """Write the mutant with that number; returns its kind and its bytes."""

    def use(self) -> str:
        """Use that mutant: "right", "ran", "refused" or "wrong: ..."; raises what it raises."""

    def bytes_beside(self) -> int:
        """Bytes allocated since the last call that tracemalloc does not see."""


def subject_of(name: str, folder: Path) -> Subject:
    # Imported here, for each takes a second of its own.
    if name == "caches":
        from drill_caches import Caches

        return Caches(folder)
    from drill_models import Models

    return Models(folder)


def child(name: str, first: int, stop: int, folder: Path) -> None:
    """Try the mutants first .. stop - 1; a line when each begins, and one when it ends."""
    faulthandler.enable()
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        subject = subject_of(name, folder)
        subject.warm_up(Path(scratch))
        tracemalloc.start()
        for seed in range(first, stop):
            print(f"begin {seed}", flush=True)
            kind, n_bytes = subject.write(seed, Path(scratch))
            print(f"end {seed} {kind}: {tried(subject, n_bytes)}", flush=True)


def tried(subject: Subject, n_bytes: int) -> str:
    """What comes of using a mutant of ``n_bytes``."""
    subject.bytes_beside()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        result = subject.use()
    except DraftsmithError:
        result = "refused"
    except Exception as error:  # whatever it is, it is what is looked for
        result = f"exception {type(error).__name__}: {error}"
    peak = tracemalloc.get_traced_memory()[1] - before + subject.bytes_beside()
    if peak > TIMES_THE_FILE * n_bytes + subject.floor_bytes:
        return f"allocation of {peak} for a file of {n_bytes}, {result}"
    return result


def drill(name: str, first: int, n_mutants: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Run mutants in children; returns the counts, and a line for each that is bad."""
    folder.mkdir()
    if n_mutants:
        subject_of(name, folder).prepare()
    command = [sys.executable, __file__, "--child", name]
    return run_children(command, first, first + n_mutants, folder)


def run_children(
    command: Sequence[str | Path], first: int, last: int, folder: Path
) -> tuple[Counter[str], list[str]]:
    """Run ``command first stop folder`` for batches of mutants, as ``child`` does.

    A child that dies or hangs costs the mutant it was at; the next one goes on after it.
    """
    counts: Counter[str] = Counter()
    found = []
    while first < last:
        stop = min(first + BATCH, last)
        log, complaints = folder / "log", folder / "complaints"
        with log.open("w") as output, complaints.open("w") as errors:
            process = subprocess.Popen(
                [*command, str(first), str(stop), str(folder)], stdout=output, stderr=errors
            )
            status = wait(process, log)
        lines = log.read_text().splitlines()
        for line in lines:
            if line.startswith("end "):
                result = line.partition(": ")[2].split(" ", 1)[0].rstrip(":")
                counts[result] += 1
                if result in BAD:
                    found.append(line)
        if status == 0:
            first = stop
            continue
        said = complaints.read_text()
        if said.startswith("Traceback") or not lines:
            raise RuntimeError(f"a child failed outside of a mutant: {said}")
        at = int(lines[-1].split()[1])
        how = "hang" if status is None else "crash"
        counts[how] += 1
        found.append(f"{how} at mutant {at} (status {status}): {said[-1500:]}")
        first = at + 1
    return counts, found


def wait(process: subprocess.Popen[bytes], log: Path) -> int | None:
    """The status of a child; None if it hung in a mutant, and was told to end and say where."""
    n_bytes, n_quiet = 0, 0
    while True:
        try:
            return process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            before, n_bytes = n_bytes, log.stat().st_size
        n_quiet = n_quiet + 1 if 0 < n_bytes == before else 0  # 0: it compiles kernels yet
        if n_quiet >= HANG_S:
            process.send_signal(signal.SIGABRT)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return None


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        name, first, stop, folder = sys.argv[2:6]
        child(name, int(first), int(stop), Path(folder))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--caches", type=int, default=10_000, help="mutants of caches")
    parser.add_argument("--models", type=int, default=10_000, help="mutants of models")
    parser.add_argument("--kills", type=int, default=100, help="of lookup-create, lookup-merge")
    parser.add_argument("--run-kills", type=int, default=100, help="of lookup-run")
    parser.add_argument("--seed", type=int, default=0, help="number of the first mutant")
    parser.add_argument("-m", "--model", default="smollm2", help="for lookup-create")
    options = parser.parse_args()
    record: dict[str, object] = {"seed": options.seed}
    found: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for subject in ("caches", "models"):
            n_mutants = getattr(options, subject)
            record[subject], bad = drill(subject, options.seed, n_mutants, folder / subject)
            found += bad
        if options.kills or options.run_kills:
            from drill_kills import kill_commands, kill_runs

            model = options.model
            record["kills"], bad = kill_commands(options.kills, options.seed, folder, model)
            found += bad
            record["run_kills"], bad = kill_runs(options.run_kills, options.seed, folder)
            found += bad
    for line in found:
        print(line)
    for key, counts in record.items():
        print(f"{key}: {dict(counts) if isinstance(counts, Counter) else counts}")
    print(json.dumps(record))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
