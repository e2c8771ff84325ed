"""Option types that more than one command takes, under llama.cpp's names where it has them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from ..engine.errors import UsageError
from .output import Output

CTX_MOST = 2**31 - 256
DRAFT_MOST = 4096
# Of numbers that need no bound of their own: they go into int32 and float32.
WHOLE_MOST = 2**31 - 1
REAL_MOST = 1e9
REPEAT_MOST = 10_000
# Values of one list; more is a typing error or an attack.
LIST_MOST = 1000
# Rows of a sweep, or prompts of --niah, that several lists make together.
GRID_MOST = 10_000
# Name it first where llama.cpp has two: the other one is of earlier builds.
DRAFT_MAX_VARIABLES = ["LLAMA_ARG_SPEC_DRAFT_N_MAX", "LLAMA_ARG_DRAFT_MAX"]


class CacheFormat(StrEnum):
    """File formats of an n-gram cache."""

    NATIVE = "native"
    LLAMA_CPP = "llama.cpp"


def model_option(more: str = "") -> Any:
    """The option -m; ``more`` is said after what it takes."""
    return typer.Option(
        "-m",
        "--model",
        metavar="MODEL",
        envvar="LLAMA_ARG_MODEL",
        help="A .gguf file (of a split one, the first part), or a known name: smollm2." + more,
    )


def numbers(flag: str, lists: list[str], most: int) -> list[int]:
    """Return the numbers in comma lists, in order.

    Raises
    ------
    UsageError : something else than a whole number from 0 to ``most``, or more than LIST_MOST
    """
    words = ",".join(lists).split(",")
    if len(words) > LIST_MOST:
        raise too_many(flag, len(words), LIST_MOST)
    return [_number(flag, word, ",".join(lists), most) for word in words]


def too_many(flag: str, n: int, most: int, what: str = "values") -> UsageError:
    """The error for a list that is longer than anybody means."""
    return UsageError(f"{flag} names {n} {what}, more than {most}", remedy="give fewer")


def _number(flag: str, word: str, text: str, most: int) -> int:
    digits = word.strip()
    # its length first: int() refuses some thousand digits with an error of its own
    is_number = digits.isascii() and digits.isdecimal() and len(digits) < 20
    if not is_number or int(digits) > most:
        raise UsageError(
            f"{flag} {text}: {word!r} is not a number from 0 to {most}",
            remedy="give one number, or several with commas between them",
        )
    return int(digits)


def is_typed(context: typer.Context, name: str) -> bool:
    """Whether the command line itself says a parameter: not its default, nor the environment."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def finite(value: float | None) -> float | None:
    """Refuse what is no number; the callback of all options that take a fraction."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


def thread_count(value: int | None) -> int | None:
    """Refuse more threads than a machine could use; the callback of -t."""
    if value is not None:
        from ..engine.host import check_threads

        check_threads(value)
    return value


def threads_option(help: str, envvar: str | None = "LLAMA_ARG_THREADS") -> Any:
    """The option -t."""
    return typer.Option(
        "-t",
        "--threads",
        min=1,
        callback=thread_count,
        metavar="N",
        envvar=envvar,
        help=help,
    )


def repeat_option(help: str) -> Any:
    """The option --repeat."""
    return typer.Option("--repeat", min=1, max=REPEAT_MOST, metavar="K", help=help)


Model = Annotated[str, model_option(" Only its tokenizer is read.")]
Files = Annotated[
    list[str],
    typer.Option(
        "-f",
        "--file",
        metavar="FILE...",
        help="Text to read: a file, a folder, a glob, a .gz, .xz, .bz2 or .zst file, - for stdin, "
        "JSON lines or .parquet (with --field), or token ids (.npy of int32). Several may follow.",
    ),
]
MoreFiles = Annotated[list[str] | None, typer.Argument(metavar="FILE...", hidden=True)]
Field = Annotated[
    str | None,
    typer.Option(
        "--field",
        metavar="NAME",
        help="Read JSON lines, or .parquet, and take the text of this field.",
    ),
]
AsText = Annotated[
    bool, typer.Option("--text", help="The files are plain text, also where they hold JSON.")
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="End at the first file in a folder or pattern that can't be read, instead of skipping "
        "and counting it.",
    ),
]
Escape = Annotated[
    bool,
    typer.Option(
        "--escape/--no-escape",
        "-e",
        help=r"Turn \n, \t, \xHH and the like in the text into what they stand for. "
        "Off here; llama.cpp's tools do it unless told not to.",
    ),
]
# Without the variable: beside --drafter it says how many rows are replayed side by side.
Threads = Annotated[
    int | None, threads_option("Threads; default: all this process may use.", envvar=None)
]
ThreadsOfCorpus = Annotated[
    int | None, threads_option("Threads; default: all this process may use.")
]
Format = Annotated[
    CacheFormat,
    typer.Option("--format", help="native: checked and memory-mapped; llama.cpp: for its tools."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print a header and a row instead of tables.")]
NoHeader = Annotated[
    bool, typer.Option("--no-header", help="With --csv: the row alone, for a loop that appends.")
]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="No progress and no notes on stderr; warnings stay.")
]


@dataclass(frozen=True)
class CorpusOptions:
    """How files of texts are read."""

    field: Field = None
    escape: Escape = False
    as_text: AsText = False
    strict: Strict = False


@dataclass(frozen=True)
class ResultOptions:
    """How a result is printed."""

    json: Json = False
    quiet: Quiet = False

    @property
    def output(self) -> Output:
        """Where it goes."""
        return Output.from_options(json=self.json, csv=False, no_header=False, quiet=self.quiet)


@dataclass(frozen=True)
class RowsOptions:
    """How a result is printed that may be rows."""

    json: Json = False
    csv: Csv = False
    no_header: NoHeader = False
    quiet: Quiet = False

    @property
    def output(self) -> Output:
        """Where it goes.

        Raises
        ------
        UsageError : options that exclude each other
        """
        return Output.from_options(
            json=self.json, csv=self.csv, no_header=self.no_header, quiet=self.quiet
        )
