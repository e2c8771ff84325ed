"""What a corpus has handed on, repaired and skipped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ...engine.errors import DraftsmithError, InputEmpty
from .store import show_path

SKIPPED_SHOWN = 100


class Skipped(NamedTuple):
    """A file in a folder, or a line of it, that was left out: its path, and why."""

    path: str
    reason: str


@dataclass
class CorpusStats:
    """What a corpus has handed on so far.

    Attributes
    ----------
    n_documents : documents yielded, empty ones too.
    n_bytes : bytes of text, decompressed, as UTF-8 and repaired.
    invalid_by_file : replaced sequences of each file that has any, by its path.
    n_skipped : files, and lines of them, that a folder or pattern held and that are at fault.
    skipped : the first SKIPPED_SHOWN of them.
    n_null : rows without a text in the wanted column, which are no documents.
    """

    n_documents: int = 0
    n_bytes: int = 0
    invalid_by_file: dict[str, int] = field(default_factory=dict)
    n_skipped: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    n_null: int = 0

    @property
    def n_invalid_utf8(self) -> int:
        """Invalid sequences that were replaced by U+FFFD."""
        return sum(self.invalid_by_file.values())

    @property
    def n_invalid_files(self) -> int:
        """Files that held at least one of them."""
        return len(self.invalid_by_file)

    def add_invalid(self, path: str, n_replaced: int) -> None:
        """Count ``n_replaced`` sequences of one file."""
        self.invalid_by_file[path] = self.invalid_by_file.get(path, 0) + n_replaced

    def skip(self, path: str, error: DraftsmithError) -> None:
        """Count what is left out for its fault."""
        self.n_skipped += 1
        if len(self.skipped) < SKIPPED_SHOWN:
            reason = error.message.removeprefix(f"{show_path(path)}: ")
            self.skipped.append(Skipped(path, reason))

    def add(self, more: CorpusStats) -> None:
        """Add what another part of the corpus came to."""
        self.n_documents += more.n_documents
        self.n_bytes += more.n_bytes
        for path, n_replaced in more.invalid_by_file.items():
            self.add_invalid(path, n_replaced)
        self.n_skipped += more.n_skipped
        self.skipped = (self.skipped + more.skipped)[:SKIPPED_SHOWN]
        self.n_null += more.n_null


def nothing_in(stats: CorpusStats) -> InputEmpty:
    """The error of a corpus without text."""
    if not stats.skipped:
        return InputEmpty("the input holds no text", remedy="name files that hold text")
    path, reason = stats.skipped[0]
    first = f"{show_path(path)}: {reason}"
    return InputEmpty(
        f"the input holds no text; {stats.n_skipped} skipped, the first {first}",
        remedy="mend the files, or name others",
    )
