"""SPM: the merge rules of a ``llama`` vocabulary, and where a text may be cut for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelUnsupported
from .bpe import check_unique, power_of_two
from .piece_kernels import MergeRules, fill_token_slots
from .pretokenizers import Fragments
from .special_tokens import Fragment
from .spm_kernels import fill_joined_pairs, last_unjoined, split_spm
from .vocabulary import ESCAPED_SPACE, Vocabulary


def spm_rules(vocabulary: Vocabulary) -> MergeRules:
    """Merge rules of an SPM vocabulary: what two symbols make is a token, the best score first.

    Raises
    ------
    ModelDamaged : a token stands twice.
    ModelUnsupported : a byte has no token, so that some texts have no ids.
    """
    tokens = vocabulary.tokens
    # Offsets into a copy of the tokens alone, not into the whole file.
    data = np.frombuffer(b"".join(tokens), np.uint8).copy()
    start = np.concatenate(([0], np.cumsum(tokens.sizes)))
    slot = np.full(power_of_two(len(tokens)), -1, np.int32)
    check_unique(vocabulary, fill_token_slots(data, start, slot))
    _, rank = np.unique(-vocabulary.scores, return_inverse=True)
    return MergeRules(
        by_text=True,
        whole_pieces=False,
        n_vocab=len(tokens),
        token_slot=slot,
        token_bytes=data,
        token_start=start,
        token_rank=rank.astype(np.int32),
        pair_slot=np.zeros((0, 2), np.int64),
        byte_id=np.zeros(0, np.int32),
        spelled_start=np.arange(257, dtype=np.int32),
        spelled_id=_byte_tokens(vocabulary),
    )


def _byte_tokens(vocabulary: Vocabulary) -> NDArray[np.int32]:
    """Token of every byte: '<0xXX>', or else the byte itself; int32 [256]."""
    tokens = vocabulary.tokens
    is_short = (tokens.sizes == 6) | (tokens.sizes == 1)
    ids = {tokens[token]: token for token in np.flatnonzero(is_short).tolist()}
    found = [ids.get(b"<0x%02X>" % byte, ids.get(bytes([byte]), -1)) for byte in range(256)]
    if -1 in found:
        raise ModelUnsupported(
            f"the vocabulary has no token for byte 0x{found.index(-1):02X}",
            remedy="use a model whose SPM vocabulary has byte tokens",
        )
    return np.array(found, np.int32)


@dataclass(frozen=True)
class SpmSplitter:
    """Cuts where no token of the vocabulary joins what stands on both sides."""

    joined_pairs: NDArray[np.int64] = field(repr=False)

    @staticmethod
    def of(rules: MergeRules) -> SpmSplitter:
        """The splitter for a vocabulary's merge rules."""
        n_slots = power_of_two(4 * len(rules.token_start))
        while True:
            slots = np.full(n_slots, -1, np.int64)
            n_pairs = fill_joined_pairs(rules.token_bytes, rules.token_start, slots)
            if n_pairs >= 0:
                return SpmSplitter(slots)
            n_slots *= 2

    def split(
        self,
        text: NDArray[np.uint8],
        fragments: Fragments,
        piece_start: NDArray[np.int64],
        piece_stop: NDArray[np.int64],
    ) -> int:
        start, stop, token = fragments
        n_pieces = split_spm(text, start, stop, token, self.joined_pairs, piece_start, piece_stop)
        return int(n_pieces)

    def last_cut(self, text: NDArray[np.uint8], low: int, high: int) -> int:
        return int(last_unjoined(text, low, high, self.joined_pairs))


def escape_spaces(
    data: bytes, fragments: list[Fragment], *, prefix_first: bool, prefix_others: bool
) -> tuple[bytes, list[Fragment]]:
    """The fragments' text with its spaces escaped, and the fragments in it.

    ``prefix_first`` puts a space before text that begins the block, ``prefix_others`` before
    text after a special token.
    """
    parts: list[bytes] = []
    escaped: list[Fragment] = []
    at, is_prefixed = 0, prefix_first
    for start, stop, token in fragments:
        if token >= 0:
            escaped.append((at, at, token))
            is_prefixed = prefix_others
            continue
        text = data[start:stop].replace(b" ", ESCAPED_SPACE)
        if is_prefixed:
            text = ESCAPED_SPACE + text
        is_prefixed = False
        parts.append(text)
        escaped.append((at, at + len(text), -1))
        at += len(text)
    return b"".join(parts), escaped
