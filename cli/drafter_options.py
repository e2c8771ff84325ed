"""Options of the commands that take any n-gram drafter by its name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer


class Carry(StrEnum):
    """Which requests before it a drafter knows of."""

    NONE = "none"
    CONVERSATION = "conversation"
    ALL = "all"


Drafters = Annotated[
    list[str] | None,
    typer.Option(
        "--drafter",
        metavar="NAME[:KEY=VALUE,...]",
        help="Replay with this drafter instead, a row each; may be given many times. 8|12 are "
        "values of a grid, A+B is a combination. Names and keys: docs/lookup-stats.md.",
    ),
]
# A text is generated with one drafter; a list, so that a second one is noticed.
DrafterOfText = Annotated[
    list[str] | None,
    typer.Option(
        "--drafter",
        metavar="NAME[:KEY=VALUE,...]",
        help="Draft with this drafter instead of llama-lookup's; A+B is a combination. Names and "
        "keys: docs/lookup-stats.md.",
    ),
]
UpstreamExactOfText = Annotated[
    bool,
    typer.Option("--upstream-exact", help="--drafter as llama.cpp has it, flaws included."),
]
UpstreamExact = Annotated[
    bool,
    typer.Option(
        "--upstream-exact",
        help="llama.cpp's drafters as they are there, flaws included, each next to its repaired "
        "form.",
    ),
]
CarryOption = Annotated[
    Carry | None,
    typer.Option(
        "--carry",
        help="What drafters know when a request begins: nothing, the requests of its "
        "conversation (the default), or all before it.",
    ),
]
ServerLike = Annotated[
    bool,
    typer.Option(
        "--server-like", help="Carry what one slot of a server would: the same as --carry all."
    ),
]
Chat = Annotated[
    bool,
    typer.Option(
        "--chat",
        help="The files hold conversations; of a folder those that do. Mostly seen without it, "
        "but not of standard input.",
    ),
]
Advise = Annotated[
    bool,
    typer.Option(
        "--advise",
        help="Predict the speed of each row with the costs of --cost, and name the best and its "
        "command line.",
    ),
]
Cost = Annotated[
    str | None,
    typer.Option(
        "--cost",
        metavar="CURVE",
        help="What a pass over so many tokens costs, 1:1.0,2:1.1,4:1.3 or 1:25ms,2:27ms, or a "
        "file: of llama-bench, or of lookup-run --compare --json. Implies --advise.",
    ),
]
ShowExamples = Annotated[
    bool,
    typer.Option(
        "--show-examples",
        help="Show the longest accepted and the most costly rejected drafts of each row: the only "
        "option that puts your text into the output.",
    ),
]


@dataclass(frozen=True)
class DraftersOptions:
    """Which drafters replay what, and what is said of them."""

    drafter: Drafters = None
    upstream_exact: UpstreamExact = False
    carry: CarryOption = None
    server_like: ServerLike = False
    chat: Chat = False
    advise: Advise = False
    cost: Cost = None
    show_examples: ShowExamples = False
