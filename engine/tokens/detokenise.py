"""Token ids to text, piece by piece as they are generated.

A token's piece is the bytes that llama.cpp (build 11434) gives for it; pieces are joined as bytes,
and characters are made of the bytes, since a token may hold a part of one. One thing differs: a
character of a byte-level token that stands for no byte shows as itself, not as a note of the
failure.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from typing import Protocol

from .bpe import ALPHABET
from .vocabulary import ESCAPED_SPACE, HIDDEN, SPECIAL, Attribute, Vocabulary

_BYTE_OF_CHARACTER = {chr(code_point): bytes([byte]) for byte, code_point in enumerate(ALPHABET)}
_HEX = re.compile(rb"[0-9A-Fa-f]{0,2}")


class HasVocabulary(Protocol):
    """What the text of ids needs of a tokenizer."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Pieces and attributes of the tokens."""


def token_piece(vocabulary: Vocabulary, token: int, *, special: bool = True) -> bytes:
    """Bytes of one token; control and unknown tokens have none unless ``special``.

    Raises
    ------
    IndexError : the vocabulary has no such token.
    """
    if not 0 <= token < len(vocabulary.tokens):
        raise IndexError(f"token {token} of a vocabulary of {len(vocabulary.tokens)}")
    text = vocabulary.tokens[token]
    attribute = int(vocabulary.attributes[token])
    if attribute & SPECIAL:
        return text if special or not attribute & HIDDEN else b""
    if attribute & Attribute.NORMAL:
        return _spelled(vocabulary, text)
    if attribute & Attribute.BYTE:
        return _byte(text)
    return b""


def _spelled(vocabulary: Vocabulary, text: bytes) -> bytes:
    """What the text of a normal token stands for."""
    if vocabulary.pre is None:
        return text.replace(ESCAPED_SPACE, b" ")
    characters = text.decode("utf-8", "replace")
    return b"".join(_BYTE_OF_CHARACTER.get(c, c.encode()) for c in characters)


def _byte(text: bytes) -> bytes:
    """The byte that '<0xXX>' names; 0 where a hostile file names none."""
    digits = _HEX.match(text, 3)
    return bytes([int(digits[0] or b"0", 16) if digits else 0])


class TextStream:
    """The text of ids that come one by one, or some at a time; how they come changes nothing.

    ``feed`` holds back the bytes of a character that is not whole yet. Bytes that begin no
    character become U+FFFD as soon as that is certain.

    Parameters
    ----------
    special : show control tokens as they are written; without it they are left out.
    begins_text : the first id begins a text that ``Tokenizer.encode`` encoded. SPM vocabularies
        put a space before a text, which is left out again. Without it the ids go on from a text
        that is already there, as generated ones do: a space is a space.
    """

    def __init__(
        self, tokenizer: HasVocabulary, *, special: bool = False, begins_text: bool = False
    ) -> None:
        self._vocabulary = tokenizer.vocabulary
        self._special = special
        self._drops_space = begins_text and tokenizer.vocabulary.add_space_prefix
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Iterable[int]) -> str:
        """The characters that ``ids`` complete.

        Raises
        ------
        IndexError : the vocabulary has no such token.
        """
        return self._characters.decode(b"".join(self._piece(int(token)) for token in ids))

    def finish(self) -> str:
        """What is left at the end: U+FFFD for a character that never became whole, or nothing."""
        return self._characters.decode(b"", final=True)

    def _piece(self, token: int) -> bytes:
        piece = token_piece(self._vocabulary, token, special=self._special)
        if self._drops_space and not self._vocabulary.attributes[token] & SPECIAL:
            self._drops_space = False
            return piece.removeprefix(b" ")
        return piece
