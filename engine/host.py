"""The machine a figure was measured on, and how much memory this process has used.

The only module that imports psutil. Versions come from package metadata, so that asking for
them imports neither NumPy nor Numba.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from .errors import UsageError

# Less than this is not asked for: the answer takes longer than it is worth.
_NEVER_SHORT_BYTES = 64 << 20


@dataclass(frozen=True)
class Host:
    """What a benchmark record says about its machine; the load is that of the last minute."""

    cpu: str
    n_cores: int
    n_threads: int
    memory_bytes: int
    load_1min: float | None
    platform: str
    python: str
    numpy: str | None
    numba: str | None
    draftsmith: str | None


def describe_host() -> Host:
    """Return the CPU, memory and library versions of this machine, as of now."""
    return Host(
        cpu=cpu_name(),
        n_cores=psutil.cpu_count(logical=False) or 1,
        n_threads=n_usable_threads(),
        memory_bytes=psutil.virtual_memory().total,
        load_1min=load_1min(),
        platform=platform.platform(terse=True),
        python=platform.python_version(),
        numpy=package_version("numpy"),
        numba=package_version("numba"),
        draftsmith=package_version("draftsmith"),
    )


def n_usable_threads() -> int:
    """Return how many hardware threads this process may run on (its affinity, not the machine)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def n_physical_cores() -> int:
    """Return how many cores this process may run on: hyperthreads of one core are no help to it."""
    return min(psutil.cpu_count(logical=False) or 1, n_usable_threads())


def most_threads() -> int:
    """Return how many threads may be asked for: some times what the machine could run at once."""
    return max(64, 4 * (os.cpu_count() or 1))


def check_threads(n_threads: int) -> int:
    """Return a number of threads that was asked for.

    Raises
    ------
    UsageError : more than the machine has any use for; each takes memory, and the system's limit
        would end the work
    """
    most = most_threads()
    if not 1 <= n_threads <= most:
        n_cores = os.cpu_count() or 1
        raise UsageError(
            f"-t {n_threads}: this machine runs {n_cores} thread{'s' if n_cores > 1 else ''} at "
            "once",
            remedy=f"give 1 to {most}, or leave it out",
        )
    return n_threads


def load_1min() -> float | None:
    """Return the load average over one minute, None where the platform has none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def package_version(name: str) -> str | None:
    """Return an installed package's version without importing it, None if absent."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def cpu_name() -> str:
    """Return the CPU's marketing name where the platform gives one, else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def rss_bytes() -> int:
    """Return the resident memory of this process now."""
    return int(psutil.Process().memory_info().rss)


def process_usage(pid: int) -> tuple[float, int]:
    """Return processor seconds and resident bytes of a process; zeros if it has ended."""
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return times.user + times.system, int(process.memory_info().rss)
    except psutil.Error:
        return 0.0, 0


def available_memory_bytes(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that this process could take: the machine's, or its control group's.

    ``group`` is where a container finds its own, of version 2.
    """
    available = int(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())  # "max" is no limit
        used = int((group / "memory.current").read_text())
        # Pages of files count as used, a model's own among them, but give way when asked.
        lines = (group / "memory.stat").read_text().splitlines()
        kinds = dict(line.split() for line in lines)
        files = int(kinds["inactive_file"]) + int(kinds["active_file"])
        available = min(available, limit - used + files)
    return max(0, available)


def require_memory(n_bytes: int, what: str, *, remedy: str) -> None:
    """Check, before it is taken, that so much memory is free.

    An operating system that overcommits would say yes, and kill the process later.

    Parameters
    ----------
    what : takes it, as in "the dynamic cache x.lcd"

    Raises
    ------
    UsageError : more than this machine, or this control group, has free
    """
    if n_bytes < _NEVER_SHORT_BYTES:
        return
    available = available_memory_bytes()
    if n_bytes > available:
        raise UsageError(
            f"{what} takes {n_bytes / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are free",
            remedy=remedy,
        )


_earlier_peak = 0


def restart_peak_rss() -> bool:
    """Let ``recent_peak_rss_bytes`` begin now; return False where the system cannot."""
    global _earlier_peak
    _earlier_peak = peak_rss_bytes()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak, and nothing else
    except OSError:
        return False
    return True


def recent_peak_rss_bytes() -> int:
    """Return the largest resident memory since the last restart, or of all times without one."""
    global _earlier_peak
    found = _peak_rss_bytes()
    _earlier_peak = max(_earlier_peak, found)  # the system's count is not exact, and may shrink
    return found


def peak_rss_bytes() -> int:
    """Return the largest resident memory this process has had so far."""
    return max(_earlier_peak, _peak_rss_bytes())


def _peak_rss_bytes() -> int:
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    # getrusage's figure survives exec: it starts at what the parent process used. VmHWM does not.
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # kilobytes on Linux and the BSDs, bytes on macOS
    return peak if sys.platform == "darwin" else peak * 1024
