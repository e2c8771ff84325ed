"""Texts that end a generation: what comes before one is the answer, itself left out.

A stop string may begin inside a token, span several, and end inside one; so it is looked for in
the text, token by token. The first token with which one is complete is the last of the text,
whether it was drafted or not. A control token, which shows as nothing, ends the text if a stop
string is just what it is written as.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InputMalformed, UsageError
from .detokenise import TextStream
from .vocabulary import SPECIAL

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

STOPS_MOST, CHARACTERS_MOST = 64, 1024


@dataclass(frozen=True)
class StopStrings:
    """The texts that end a generation, in the order in which they were given; may be none.

    Raises
    ------
    UsageError : one is empty or too long, or they are too many.
    """

    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if "" in self.texts:
            raise UsageError("a stop string is empty", remedy="give some characters")
        if len(self.texts) > STOPS_MOST:
            raise UsageError(
                f"{len(self.texts)} stop strings are too many", remedy=f"give at most {STOPS_MOST}"
            )
        longest = max(map(len, self.texts), default=0)
        if longest > CHARACTERS_MOST:
            raise UsageError(
                f"a stop string has {longest} characters",
                remedy=f"give one of at most {CHARACTERS_MOST}",
            )

    def __bool__(self) -> bool:
        return bool(self.texts)

    def stream(self, tokenizer: Tokenizer) -> StopStream:
        """A text that begins now, after a prompt."""
        return StopStream(self.texts, tokenizer)


def stop_field(value: object) -> tuple[str, ...]:
    """The stop strings of a request's field "stop": a text, a list of texts, or null.

    Raises
    ------
    InputMalformed : it is something else.
    """
    texts = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise InputMalformed(
            'the field "stop" holds no stop strings', remedy="give a text, or a list of texts"
        )
    return tuple(texts)


class StopStream:
    """The text of ids as they come, up to a stop string.

    What may be the beginning of one is held back until that is certain.

    Parameters
    ----------
    texts : stop strings, none of them empty; of several in one place the first counts.

    Attributes
    ----------
    found : the stop string that ended the text; None: none did so far.
    """

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer) -> None:
        self.found: str | None = None
        self._texts = texts
        self._decoder = TextStream(tokenizer)
        self._held = ""
        self._text_of = _special_tokens(texts, tokenizer)

    def feed(self, ids: Sequence[int]) -> str:
        """The characters that ``ids`` complete and that stand before any stop string."""
        return "".join(self._step(int(token)) for token in ids)

    def finish(self) -> str:
        """What was held back, if no stop string came of it."""
        if self.found is not None:
            return ""
        held, self._held = self._held, ""
        return held + self._decoder.finish()

    def n_until_stop(self, ids: Sequence[int]) -> int | None:
        """How many of ``ids`` belong to the text, the one that completes a stop string included;
        None: none completes one, and all do."""
        for n, token in enumerate(ids, 1):
            self._step(int(token))
            if self.found is not None:
                return n
        return None

    def _step(self, token: int) -> str:
        if self.found is not None:
            return ""
        text = self._held + self._decoder.feed((token,))
        places = [(at, stop) for stop in self._texts if (at := text.find(stop)) >= 0]
        if places:
            at, self.found = min(places, key=lambda place: place[0])
            return text[:at]
        if token in self._text_of:
            self.found = self._text_of[token]
            return text
        n_held = max(_n_begun(text, stop) for stop in self._texts)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]


def _n_begun(text: str, stop: str) -> int:
    """Characters at the end of a text that may be the beginning of a stop string."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-n:]):
            return n
    return 0


def _special_tokens(texts: Sequence[str], tokenizer: Tokenizer) -> dict[int, str]:
    """The special tokens that are written as a stop string."""
    vocabulary = tokenizer.vocabulary
    found = {}
    for text in texts:
        ids = tokenizer.encode(text, add_special=False)
        if ids.size == 1 and int(vocabulary.attributes[ids[0]]) & SPECIAL:
            found[int(ids[0])] = text
    return found
