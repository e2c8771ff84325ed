"""Generated text on stdout as it comes, accepted draft tokens coloured in a terminal.

A character shows when all its bytes are there. In a terminal control characters are escaped, for
a model may say anything; a pipe gets the text as it is.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

BLUE, PLAIN = "\x1b[94m", "\x1b[0m"
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Color(StrEnum):
    """When to colour."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class Decoder(Protocol):
    """Tokens in, whole characters out: ``tokens.detokenise.TextStream``."""

    def feed(self, ids: Sequence[int]) -> str: ...

    def finish(self) -> str: ...


class TextPrinter:
    """Shows and keeps the text of one generation.

    Parameters
    ----------
    decoder : of the model's vocabulary, going on after a prompt
    shown : print it, too
    color : whether accepted draft tokens are coloured

    Attributes
    ----------
    text : so far
    tokens : so far, also those whose characters are not whole yet
    """

    def __init__(self, decoder: Decoder, *, shown: bool, color: Color = Color.OFF) -> None:
        self._decoder = decoder
        self._shown = shown
        self._safe = shown and sys.stdout.isatty()
        self._colored = shown and colored(color)
        self._pieces: list[str] = []
        self.tokens: list[int] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def add(self, ids: Sequence[int], n_from_draft: int) -> None:
        """Take the tokens of one round, of which the first ones were drafted."""
        self.tokens += ids
        drafted = self._decoder.feed(ids[:n_from_draft]) if n_from_draft else ""
        own = self._decoder.feed(ids[n_from_draft:])
        self._pieces += (drafted, own)
        if self._shown and (drafted or own):
            if self._safe:
                drafted, own = shown_safely(drafted), shown_safely(own)
            if self._colored and drafted:
                drafted = f"{BLUE}{drafted}{PLAIN}"
            sys.stdout.write(drafted + own)
            sys.stdout.flush()

    def finish(self) -> None:
        """Show what is left of a character that was never finished, and end the line."""
        rest = self._decoder.finish()
        self._pieces.append(rest)
        if self._shown:
            sys.stdout.write(rest if self.text.endswith("\n") else rest + "\n")
            sys.stdout.flush()


def colored(color: Color) -> bool:
    """Whether stdout is to be coloured; what NO_COLOR says counts unless the user insists."""
    if color is not Color.AUTO:
        return color is Color.ON
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def shown_safely(text: str) -> str:
    """Return text with control characters escaped, but for line breaks and tabs."""
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)
