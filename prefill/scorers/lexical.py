"""Score by words that question and document share, the rarer the better; no model.

A word is a token without its leading blank, in one case. What a chunk shares with the question
counts once, with the weight ln(1 + (N - n + 0.5) / (n + 0.5)) for a word that n of N chunks have
(the idf of BM25). It finds what a question names, and nothing that a question only means.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from ...engine.tokens.tokenizer import Tokenizer
from ...engine.tokens.vocabulary import SPECIAL, Vocabulary
from ..prompt.parts import CHUNK, PromptParts
from ..prompt.pieces import Pieces
from .lexical_kernels import overlap_values
from .scores import Scores

_SPECIAL = int(SPECIAL)
_UNKNOWN, _NO_WORD = -2, -1


class Folding:
    """Which tokens of a vocabulary are the same word; looked up once for each token that comes.

    Parameters
    ----------
    vocabulary : of the tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pieces = Pieces(vocabulary)
        self._type_of = np.full(len(vocabulary.tokens), _UNKNOWN, np.int32)
        self._type_by_word: dict[bytes, int] = {}

    def types(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """A number for the word that each token is, int32 [n], below the vocabulary's size.

        -1 for what is no word: special tokens, blanks, punctuation.
        """
        types = self._type_of[ids]
        if (types == _UNKNOWN).any():
            for token in np.unique(ids[types == _UNKNOWN]).tolist():
                self._type_of[token] = self._look_up(token)
            types = self._type_of[ids]
        return types

    def _look_up(self, token: int) -> int:
        if self._pieces.attributes[token] & _SPECIAL:
            return _NO_WORD
        word = _folded(self._pieces[token])
        return self._type_by_word.setdefault(word, token) if word else _NO_WORD


def _folded(piece: bytes) -> bytes:
    """A token's word, or nothing. A part of a character is a word, since many make up none."""
    try:
        text = piece.decode().lstrip().casefold()
    except UnicodeDecodeError:
        return piece.lstrip()
    return text.encode() if any(map(str.isalnum, text)) else b""


class LexicalScorer:
    """The scorer "lexical"; see the module.

    Parameters
    ----------
    tokenizer : whose ids the prompts are of.
    chunk : tokens that are looked at together; as in the selection.
    """

    name = "lexical"

    def __init__(self, tokenizer: Tokenizer, *, chunk: int = CHUNK) -> None:
        self._folding = Folding(tokenizer.vocabulary)
        self._n_vocab = tokenizer.n_vocab
        self._chunk = chunk

    def score(self, parts: PromptParts) -> Scores:
        """Score a prompt; without a shared word all values are 0."""
        start = time.perf_counter()
        types = self._folding.types(parts.ids)
        asked = types[slice(*parts.question)]
        words = np.unique(asked[asked >= 0])
        place = np.full(self._n_vocab, -1, np.int32)
        place[words] = np.arange(words.size)
        values = np.zeros(parts.n, np.float32)
        overlap_values(types, parts.chunks(self._chunk), place, values)
        return Scores(
            scorer=self.name,
            values=values,
            query_rows=np.arange(*parts.question, dtype=np.int32),
            seconds={"score": time.perf_counter() - start},
        )
