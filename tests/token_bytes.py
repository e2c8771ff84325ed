"""What tokens spell, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable

from draftsmith.engine.tokens.detokenise import token_piece
from draftsmith.engine.tokens.tokenizer import Tokenizer


def token_bytes(tokenizer: Tokenizer, ids: Iterable[int]) -> bytes:
    """The texts of the tokens, joined; control tokens show as they are written."""
    return b"".join(token_piece(tokenizer.vocabulary, int(token)) for token in ids)
