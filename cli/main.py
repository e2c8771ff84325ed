"""The application: its commands, and the one place where errors become a line and a status.

Nothing heavy is imported before ``main`` runs, so that Ctrl-C during start-up ends like Ctrl-C
at any other time. Typer only parses: a command function returns its work as a callable, which
runs outside Typer, whose own treatment of interrupts and broken pipes is not ours.
"""

from __future__ import annotations

import _thread
import errno
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..engine.errors import DraftsmithError, ExitStatus

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Words of an error that no line has room for: numbers of many digits, and what is longer than any
# path. They are cut to what is shown.
_ENDLESS, _SHOWN = re.compile(r"\d{65,}|\S{4300,}"), 40
# Set when a callback from C has swallowed Ctrl-C.
_interrupted = threading.Event()


def run() -> int:
    """Run the command line of this process; the console script's entry point."""
    sys.unraisablehook = _interrupt_again
    try:
        try:
            line, status = _attempt(sys.argv[1:])
        finally:
            # The work is done or given up: Ctrl-C changes nothing now, and one more, or one that
            # is sent again, must not cut the last line short.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt as error:  # just before the work, or just after it
        line, status = _describe(error)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if line is not None:
        _give_up(line)
    if status == ExitStatus.INTERRUPTED:
        # At once, for LLVM may crash while winding down when its compilation was cut short.
        # Files are put right already, and what was printed is flushed.
        os._exit(status)
    return status


def main(args: Sequence[str]) -> int:
    """Run one command line and return its exit status; errors become a line on stderr."""
    line, status = _attempt(args)
    if line is not None:
        _give_up(line)
    return status


def _attempt(args: Sequence[str]) -> tuple[str | None, int]:
    """Run one command line; return (line still to print, exit status), the line None when done."""
    try:
        from ..engine import kernel_cache
        from . import output

        output.accept_any_text()
        kernel_cache.tell = output.warning_line
        status = _dispatch(list(args) or ["--help"])
        sys.stdout.flush()
    except BaseException as error:
        if os.environ.get("DRAFTSMITH_DEBUG"):
            sys.excepthook(type(error), error, error.__traceback__)
        return _describe(KeyboardInterrupt() if _interrupted.is_set() else error)
    return None, int(status)


def _interrupt_again(lost: sys.UnraisableHookArgs) -> None:
    """Interrupt once more where Ctrl-C fell into a callback from C, which drops exceptions.

    LLVM calls back into Python while a kernel is compiled or loaded. A timer, because an
    interrupt inside this very hook would be lost as well; an event, because compilation may
    fail before that for the want of what the callback was to store.
    """
    if lost.exc_type is KeyboardInterrupt:
        _interrupted.set()
        threading.Timer(0.01, _interrupt_main).start()
    else:
        sys.__unraisablehook__(lost)


def _interrupt_main() -> None:
    """Send the main thread a SIGINT, a real one where that can be: it ends a blocking call too."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


def build_app() -> Any:
    """Return the Typer application with every command registered."""
    import typer

    from . import (
        environment,
        fetch_model,
        lookup_create,
        lookup_merge,
        lookup_run,
        lookup_stats,
        mtp_run,
        output,
        plot,
        prefill_calibrate,
        prefill_niah,
        prefill_run,
    )
    from .option_groups import spread

    app = typer.Typer(
        name="draftsmith",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # the plain help shows every long name whole, and comes sooner
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        version: bool = typer.Option(
            False,
            "--version",
            is_eager=True,
            callback=output.show_version,
            help="Show the version.",
        ),
    ) -> None:
        """Measure what drafting saves before the big model's next token."""

    app.command("lookup-create", cls=environment.Command)(spread(lookup_create.command))
    app.command("lookup-merge", cls=environment.Command)(spread(lookup_merge.command))
    app.command("lookup-stats", cls=environment.Command)(spread(lookup_stats.command))
    app.command("lookup-run", cls=environment.Command)(spread(lookup_run.command))
    app.command("mtp-run", cls=environment.Command)(spread(mtp_run.command))
    app.command("prefill-run", cls=environment.Command)(spread(prefill_run.command))
    app.command("prefill-niah", cls=environment.Command)(spread(prefill_niah.command))
    app.command("prefill-calibrate", cls=environment.Command)(spread(prefill_calibrate.command))
    app.command("fetch-model", cls=environment.Command)(spread(fetch_model.command))
    app.command("plot-figure", cls=environment.Command, hidden=True)(plot.command)
    return app


def _dispatch(args: list[str]) -> int:
    """Parse a command line and do what it asks for."""
    work: Callable[[], None] | int | None = build_app()(
        args=args, prog_name="draftsmith", standalone_mode=False
    )
    if callable(work):
        work()
        return ExitStatus.OK
    if work == ExitStatus.INTERRUPTED:
        raise KeyboardInterrupt  # caught by Typer while it parsed
    return work or ExitStatus.OK  # --help and --version end inside Typer, with a status


def _describe(error: BaseException) -> tuple[str, int]:
    """Return the line to print (empty: nothing) and the exit status for whatever was raised."""
    if isinstance(error, DraftsmithError):
        return f"error: {error}", error.exit_status
    if isinstance(error, KeyboardInterrupt):
        return "error: interrupted; no file is left half-written", ExitStatus.INTERRUPTED
    if isinstance(error, BrokenPipeError | SystemExit):  # the latter from Typer, for the former
        return "", ExitStatus.OK  # the reader has what it wanted
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        where = f" for {error.filename}" if error.filename else ""
        what = f"no space left{where} ({os.strerror(error.errno)})"
        return f"error: {what}; free some space or choose another folder", ExitStatus.DISK_FULL
    if isinstance(error, MemoryError):
        remedy = "use fewer n-gram sizes, or split the corpus and merge the caches"
        return f"error: out of memory; {remedy}", ExitStatus.INTERNAL
    if isinstance(error, RuntimeError) and "no locator available" in str(error):  # from Numba
        what = "no folder to keep compiled kernels in: neither the installed one nor the user's"
        remedy = "set NUMBA_CACHE_DIR to a folder that can be written"
        return f"error: {what} can be written; {remedy}", ExitStatus.OUTPUT_NOT_WRITABLE
    if hasattr(error, "format_message"):  # Typer's own complaints about the command line
        return _describe_usage(error), ExitStatus.USAGE
    kind = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    remedy = "please report it with the traceback that DRAFTSMITH_DEBUG=1 shows"
    return f"error: internal error ({kind}); {remedy}", ExitStatus.INTERNAL


def _describe_usage(error: Any) -> str:
    """Return one line for a command line that Typer refuses, naming the help to read."""
    from .environment import describe_parameter

    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "draftsmith"
    if hasattr(error, "param_hint") and hasattr(error, "param"):
        error.param_hint = error.param_hint or describe_parameter(error)
    complaint = error.format_message().rstrip(".").replace(": Value error, ", ": ", 1)
    return f"error: {complaint}; see {path} --help"


def _shortened(word: re.Match[str]) -> str:
    """Return the beginning of a word that is too long to be read."""
    return f"{word[0][:_SHOWN]}... ({len(word[0])} characters)"


def _give_up(line: str) -> None:
    """Print the last line on stderr, and leave nothing for Python to flush into a dead pipe."""
    from . import output

    if line:
        output.error_line(_ENDLESS.sub(_shortened, line))
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
