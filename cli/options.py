"""Option types that more than one command takes, under llama.cpp's names where it has them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from ..engine.errors import UsageError

CTX_MOST = 2**31 - 256
DRAFT_MOST = 4096


class CacheFormat(StrEnum):
    """File formats of an n-gram cache."""

    NATIVE = "native"
    LLAMA_CPP = "llama.cpp"


def model_option(more: str = "") -> Any:
    """The option -m; ``more`` is said behind what it takes."""
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
    UsageError : something else than a whole number from 0 to ``most``
    """
    found = []
    for word in ",".join(lists).split(","):
        if not (word.strip().isascii() and word.strip().isdecimal() and int(word) <= most):
            raise UsageError(
                f"{flag} {','.join(lists)}: {word!r} is not a number from 0 to {most}",
                remedy="give one number, or several with commas between them",
            )
        found.append(int(word))
    return found


Model = Annotated[str, model_option(" Only its tokenizer is read.")]
Files = Annotated[
    list[str],
    typer.Option(
        "-f",
        "--file",
        metavar="FILE...",
        help="Text to read: a file, a folder, a glob, a .gz, .xz or .bz2 file, - for stdin, "
        "JSON lines (.jsonl with --field), or token ids (.npy of int32). Several may follow.",
    ),
]
MoreFiles = Annotated[list[str] | None, typer.Argument(metavar="FILE...", hidden=True)]
Field = Annotated[
    str | None,
    typer.Option(
        "--field", metavar="NAME", help="Read JSON lines and take the text of this field."
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
Threads = Annotated[
    int | None,
    typer.Option(
        "-t", "--threads", min=1, metavar="N", help="Threads; default: all this process may use."
    ),
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
