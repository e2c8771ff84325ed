"""Run llama.cpp's lookup tools as processes, and read what they log.

Their log is written by a thread that nobody waits for, so its tail may be missing: the tool is
run again. What is missing or fails in the end is said, never guessed.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

CREATE, STATS = "llama-lookup-create", "llama-lookup-stats"
TRIES = 3
# A time stamp and a level, and colours where they are forced on.
_PREFIX = re.compile(r"^(?:\d+\.\d{2}\.\d{3}\.\d{3} [A-Z] )?\s*")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FIGURE = re.compile(r"^(\w+)\s*=\s*(\S+)")


class ToolFailed(Exception):
    """Why there are no figures of a tool; one line."""


@dataclass(frozen=True)
class Process:
    """How a process ended, and what it used."""

    status: int
    stdout: str
    stderr: str
    wall_s: float
    peak_bytes: int


@dataclass(frozen=True)
class LookupStats:
    """What llama-lookup-stats logs, in its own names."""

    n_drafted: int
    n_accept: int
    t_draft_flat_ms: float
    t_draft_ms: float


def run(command: list[str | Path]) -> Process:
    """Run a command to its end, with its wall time and the peak of its resident memory."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        try:
            _, wait_status, used = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        wall_s = time.perf_counter() - start
        # Popen must not wait for a process that is gone.
        process.returncode = os.waitstatus_to_exitcode(wait_status)
        out.seek(0)
        err.seek(0)
        return Process(
            process.returncode,
            out.read().decode(errors="replace"),
            err.read().decode(errors="replace"),
            wall_s,
            used.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        )


def check_tools(folder: Path) -> None:
    """Check that the tools are there and can be run.

    Raises
    ------
    ToolFailed : one is missing
    """
    for name in (CREATE, STATS):
        if not os.access(folder / name, os.X_OK) or (folder / name).is_dir():
            raise ToolFailed(f"--llama-bin {folder} holds no {name} that can be run")


def create(folder: Path, model: Path, corpus: Path, cache: Path) -> Process:
    """Build a static cache.

    Raises
    ------
    ToolFailed : the tool ends with another status than 0, or writes nothing
    """
    done = _run_tool([folder / CREATE, "-m", model, "-f", corpus, "--no-escape", "-lcs", cache])
    # It does not check whether it could write.
    if not cache.is_file() or not cache.stat().st_size:
        raise ToolFailed(f"{CREATE} wrote no cache")
    return done


def stats(
    folder: Path, model: Path, text: Path, cache: Path | None, *, n_ctx: int, draft_max: int
) -> tuple[LookupStats, Process]:
    """Replay a text; run again while the log lacks its tail.

    Raises
    ------
    ToolFailed : the tool ends with another status than 0, or its log lacks a figure every time
    """
    command: list[str | Path] = [folder / STATS, "-m", model, "-f", text, "--no-escape"]
    command += ["-c", str(n_ctx), "--spec-draft-n-max", str(draft_max)]
    if cache is not None:
        command += ["-lcs", cache]
    lack = ""
    for _ in range(TRIES):
        done = _run_tool(command)
        try:
            return parse(done.stderr, draft_max), done
        except ValueError as error:
            lack = str(error)
    raise ToolFailed(f"{STATS}: {lack}, {TRIES} times")


def parse(log: str, draft_max: int) -> LookupStats:
    """Read the figures out of a log.

    Raises
    ------
    ValueError : a figure is missing, is no number, or contradicts another
    """
    found: dict[str, str] = {}
    for line in log.splitlines():
        figure = _FIGURE.match(_PREFIX.sub("", _COLOUR.sub("", line)))
        if figure:
            found[figure[1]] = figure[2]

    def number(name: str) -> float:
        if name not in found:
            raise ValueError(f"its log has no {name}")
        try:
            value = float(found[name])
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"its log has {name} = {found[name]}")
        return value

    read = LookupStats(
        int(number("n_drafted")),
        int(number("n_accept")),
        number("t_draft_flat"),
        number("t_draft"),
    )
    if number("n_draft") != draft_max or read.n_accept > read.n_drafted:
        raise ValueError("the figures in its log contradict each other")
    return read


def _run_tool(command: list[str | Path]) -> Process:
    name = Path(command[0]).name
    try:
        done = run(command)
    except OSError as error:
        raise ToolFailed(f"{name} can't be run ({error.strerror})") from error
    if done.status:
        how = f"status {done.status}" if done.status > 0 else f"signal {-done.status}"
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ToolFailed(f"{name} ended with {how}: {_PREFIX.sub('', _COLOUR.sub('', last))}")
    return done
