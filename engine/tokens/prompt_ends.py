"""What a tokenizer adds at the ends of a prompt that a model is seldom meant to read.

Nothing is taken away again: the ids are those of llama.cpp, which warns of the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .detokenise import token_piece
from .tokenizer import Tokenizer


def has_two_bos(ids: NDArray[np.int32], tokenizer: Tokenizer) -> bool:
    """Whether a text (int32 [n]) that begins with BOS was given another one."""
    return tokenizer.add_bos and ids.size > 1 and bool((ids[:2] == tokenizer.bos_id).all())


def has_two_eos(ids: NDArray[np.int32], tokenizer: Tokenizer) -> bool:
    """Whether a text (int32 [n]) that ends with EOS was given another one."""
    return tokenizer.add_eos and ids.size > 1 and bool((ids[-2:] == tokenizer.eos_id).all())


def doubts_of_prompt(ids: NDArray[np.int32], tokenizer: Tokenizer) -> list[str]:
    """Why the ends of a prompt (int32 [n]) may not be as they were meant; a line each."""
    found = []
    if has_two_bos(ids, tokenizer):
        bos = _text(tokenizer, tokenizer.bos_id)
        found.append(
            f"the model reads {bos} twice: the prompt begins with it, and the tokenizer puts one "
            f"before every text; leave {bos} out of the prompt"
        )
    if tokenizer.add_eos and ids.size and ids[-1] == tokenizer.eos_id:
        eos = _text(tokenizer, tokenizer.eos_id)
        twice = " twice" if has_two_eos(ids, tokenizer) else ""
        found.append(
            f"the tokenizer puts {eos} after every text, so the model goes on after an end of "
            f"text: the prompt ends with {eos}{twice} (tokenizer.ggml.add_eos_token of the file)"
        )
    return found


def _text(tokenizer: Tokenizer, token: int | None) -> str:
    piece = b"" if token is None else token_piece(tokenizer.vocabulary, token)
    return repr(piece.decode("utf-8", "replace"))


class TextEnds:
    """Counts texts, whose ids come in pieces, that were given a second BOS or EOS.

    Attributes
    ----------
    n_two_bos, n_two_eos : texts so far; the last one when ``finish`` was called.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.n_two_bos = self.n_two_eos = 0
        self._tokenizer = tokenizer
        self._number = -1
        self._head = self._tail = np.empty(0, np.int32)

    def add(self, number: int, ids: NDArray[np.int32]) -> None:
        """Take the next piece, int32 [n], of a text; texts come in the order of their numbers."""
        if number != self._number:
            self.finish()
            self._number = number
        if self._head.size < 2:
            self._head = np.concatenate((self._head, ids[:2]))[:2]
        self._tail = np.concatenate((self._tail, ids[-2:]))[-2:]

    def finish(self) -> None:
        """Count the text that ends here."""
        self.n_two_bos += has_two_bos(self._head, self._tokenizer)
        self.n_two_eos += has_two_eos(self._tail, self._tokenizer)
        self._head = self._tail = np.empty(0, np.int32)
