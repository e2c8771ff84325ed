"""Show what lookup-stats --json said about several replays in one table, a row each."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def caches_of(options: dict[str, Any]) -> str:
    """Name the caches that a replay used."""
    flags = {"static": "-lcs", "dynamic": "-lcd"}
    return " ".join(flag for name, flag in flags.items() if options[name] is not None) or "none"


def main(paths: list[str]) -> None:
    """Print the table of the records in some files."""
    table = Table(title="what drafting saves", title_justify="left", box=box.SIMPLE_HEAD)
    table.show_edge = table.pad_edge = False
    table.add_column("text")
    table.add_column("caches")
    for name in ("drafted", "accepted", "accept", "tokens/round", "us/token"):
        table.add_column(name, justify="right")
    for path in paths:
        record = json.loads(Path(path).read_text())
        table.add_row(
            Path(record["inputs"][0]["path"]).stem,
            caches_of(record["options"]),
            f"{record['n_drafted']:,}",
            f"{record['n_accept']:,}",
            f"{record['accept_percent'] or 0:.1f}%",
            f"{record['tokens_per_round']:.3f}",
            f"{record['draft_us_per_token'] or 0:.3f}",
        )
    Console(highlight=False).print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
