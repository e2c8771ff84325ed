"""The command line as a whole: help, usage, and what becomes of errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Done
from draftsmith.cli import lookup_merge
from draftsmith.engine.errors import ExitStatus

Cli = Callable[..., Done]

HEAVY = ("numba", "llvmlite", "numpy", "tokenizers", "psutil", "gguf", "rich")


def run_process(*args: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "draftsmith.cli", *args]
    return subprocess.run(command, text=True, check=False, timeout=120, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize(
    "args", [["--help"], ["--version"], ["lookup-create", "--help"], ["lookup-stats", "--help"]]
)
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    """A library import at the top of a command module: --help would take seconds."""
    code = (
        "import sys; from draftsmith.cli.main import main; status = main(sys.argv[1:]);"
        f"loaded = [name for name in {HEAVY} if name in sys.modules];"
        "print(loaded, file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert "draftsmith" in done.stdout


def test_help_names_every_option_whole(cli: Cli) -> None:
    """Help that cuts --spec-draft-n-max to an ellipsis."""
    done = cli("lookup-stats", "--help")
    for name in ("-lcs, --lookup-cache-static", "--draft-max, --spec-draft-n-max", "--csv"):
        assert name in done.stdout
    assert "llama.cpp's tools do it" in " ".join(cli("lookup-create", "-h").stdout.split())


def test_no_arguments_show_help(cli: Cli) -> None:
    """A bare command that ends in an error."""
    done = cli()
    assert (done.status, done.stderr) == (0, "")
    assert "lookup-create" in done.stdout


def test_version(cli: Cli) -> None:
    """--version printed with extra text, or on stderr."""
    assert cli("--version") == Done(0, "draftsmith 0.1.0\n", "")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["lookup-create"], "-m"),
        (["lookup-create", "-m", "smollm2", "-f", "x"], "-lcs"),
        (["lookup-stats", "-m", "smollm2"], "-f"),
        (["lookup-stats", "-m", "smollm2", "-f", "x", "--draft-max", "-1"], "--draft-max"),
        (["lookup-stats", "-m", "smollm2", "-f", "x", "--repeat", "0"], "--repeat"),
        (["lookup-stats", "-m", "smollm2", "-f", "x", "-c", "many"], "-c"),
        (["lookup-stats", "-m", "x", "-f", "x", "--json", "--csv"], "exclude each other"),
        (["lookup-stats", "-m", "x", "-f", "x", "--no-header"], "--csv"),
        (["lookup-create", "-m", "x", "-f", "x", "-lcs", "o", "--format", "xml"], "--format"),
        (
            ["lookup-create", "-m", "x", "-f", "x", "-lcs", "o", "--ngram-min", "3"],
            "--ngram-min 3 is above --ngram-max 2",
        ),
        (
            ["mtp-run", "-m", "x", "-p", "x", "--drafter", "mtp,ngram"],
            "'--drafter': 'mtp,ngram' is",
        ),
        (["lookup-merge", "one"], "then the file to write"),
        (["lookup"], "lookup"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_usage_errors_are_one_line(cli: Cli, args: list[str], message: str) -> None:
    """A usage error that prints a page, or another status than 2."""
    done = cli(*args)
    assert (done.status, done.stdout) == (ExitStatus.USAGE, "")
    assert message in done.error
    assert done.stderr.count("\n") == 1


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Done:
    def merge(*_: object) -> None:
        raise error

    monkeypatch.setattr(lookup_merge, "merge", merge)
    return cli("lookup-merge", "a", "b")


def test_internal_error_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback in the face of a user."""
    done = fail_with(ValueError("a\nb"), monkeypatch, cli)
    assert done.status == ExitStatus.INTERNAL
    assert done.error.startswith("error: internal error (ValueError: a\\nb); please report")


def test_debug_shows_the_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback that cannot be had at all."""
    monkeypatch.setenv("DRAFTSMITH_DEBUG", "1")
    assert "Traceback" in fail_with(ValueError("x"), monkeypatch, cli).stderr


def test_end_of_file_error_is_not_an_abort(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Typer turns an EOFError of a library into a bare "Aborted!"."""
    done = fail_with(EOFError("short"), monkeypatch, cli)
    assert "EOFError: short" in done.error


def test_memory_error(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """MemoryError has no text: an empty message."""
    assert "out of memory" in fail_with(MemoryError(), monkeypatch, cli).error


@pytest.mark.parametrize("number", [28, 27, 122])
def test_disk_full_anywhere(cli: Cli, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """No space, a file size limit or a quota, reported as an internal error."""
    done = fail_with(OSError(number, "x", "out.lcs"), monkeypatch, cli)
    assert done.status == ExitStatus.DISK_FULL
    assert "no space left for out.lcs" in done.error


def test_broken_pipe_is_quiet() -> None:
    """`draftsmith ... | head -1` that ends in a traceback or "Exception ignored"."""
    read, write = os.pipe()
    os.close(read)
    done = run_process("--help", stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_standard_output() -> None:
    """Output lost without a word when stdout cannot be written."""
    with open("/dev/full", "w") as full:
        done = run_process("--help", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == ExitStatus.DISK_FULL
    assert done.stderr.startswith("error: no space left")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
@pytest.mark.parametrize(
    ("args", "status"), [("--version >&-", 0), ("--version >&- 2>&-", 0), ("nonsense 2>&-", 2)]
)
def test_closed_streams(args: str, status: int) -> None:
    """A traceback where the caller has closed stdout, an error on stdout where it closed stderr."""
    done = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" -m draftsmith.cli {args}'],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


def test_no_folder_for_compiled_kernels(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation and a home that cannot be written: an internal error, or another text in
    Numba than the one that is told apart here.
    """
    caching = pytest.importorskip("numba.core.caching")
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError) as caught:
        caching.CompileResultCacheImpl(test_version)
    done = fail_with(caught.value, monkeypatch, cli)
    assert done.status == ExitStatus.OUTPUT_NOT_WRITABLE
    assert "set NUMBA_CACHE_DIR" in done.error


def test_every_status_is_documented() -> None:
    """An exit status that the docs do not know."""
    text = (Path(__file__).parent.parent / "docs" / "exit-status.md").read_text()
    for status in ExitStatus:
        assert f"\n- {int(status)}, `{status.name}`: " in text
