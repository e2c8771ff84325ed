"""Bytes of the tokens of one vocabulary, each looked up once and faster than one by one."""

from __future__ import annotations

from ...engine.tokens.bpe import ALPHABET
from ...engine.tokens.detokenise import token_piece
from ...engine.tokens.vocabulary import ESCAPED_SPACE, Attribute, Vocabulary

_NORMAL = int(Attribute.NORMAL)

# Character of a byte-level token to the one with the byte's number, which Latin-1 encodes as that
# byte. Characters that stand for no byte become one that it cannot encode.
_BYTE_OF = dict.fromkeys(range(256), 0xFFFF)
_BYTE_OF.update({int(shown): byte for byte, shown in enumerate(ALPHABET)})


class Pieces:
    """``token_piece`` of a vocabulary's tokens.

    Parameters
    ----------
    vocabulary : of the tokens.

    Attributes
    ----------
    attributes : of each token, as numbers.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.attributes: list[int] = vocabulary.attributes.tolist()
        self._vocabulary = vocabulary
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token: int) -> bytes:
        if token not in self._known:
            self._known[token] = self._look_up(token)
        return self._known[token]

    def _look_up(self, token: int) -> bytes:
        if self.attributes[token] != _NORMAL:
            return token_piece(self._vocabulary, token)
        text = self._vocabulary.tokens[token]
        if self._vocabulary.pre is None:
            return text.replace(ESCAPED_SPACE, b" ")
        try:
            return text.decode().translate(_BYTE_OF).encode("latin-1")
        except UnicodeError:  # no byte-level token
            return token_piece(self._vocabulary, token)
