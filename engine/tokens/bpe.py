"""Byte-level BPE: the merge rules of a ``gpt2`` vocabulary, over bytes instead of its alphabet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import REMEDY_CONVERT, ModelDamaged
from ..gguf.file import GgufStrings
from .alphabet_kernels import spell_out
from .piece_kernels import (
    MergeRules,
    fill_pair_slots,
    fill_token_slots,
    resolve_merges,
)
from .vocabulary import Vocabulary

# Texts of merges that are no tokens. Real vocabularies have few; each takes some 150 bytes.
_MAX_OTHER_SYMBOLS = 1 << 20


def _alphabet() -> list[int]:
    """Code point that stands for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    code_point = {byte: byte for byte in printable}
    code_point.update((byte, 0x100 + place) for place, byte in enumerate(hidden))
    return [code_point[byte] for byte in range(256)]


ALPHABET = _alphabet()
_BYTE_OF = np.full(0x144, -1, np.int16)
_BYTE_OF[ALPHABET] = np.arange(256)


def power_of_two(n: int) -> int:
    """The least power of two that is at least twice ``n``: a table at most half full."""
    return 1 << max(4, (2 * n - 1).bit_length())


def bpe_rules(vocabulary: Vocabulary) -> MergeRules:
    """Merge rules of a byte-level vocabulary.

    Symbols that are no tokens get ids from n_vocab on: llama.cpp merges by text and does not
    ask the vocabulary until the end, where it spells such a symbol by single bytes.

    Raises
    ------
    ModelDamaged : a token stands twice, a merge has no two sides, or merges make no tokens.
    """
    assert vocabulary.pre is not None
    assert vocabulary.merges is not None
    n_vocab = len(vocabulary.tokens)
    data, start, _ = _spell(vocabulary.tokens)
    slot = np.full(power_of_two(n_vocab), -1, np.int32)
    check_unique(vocabulary, fill_token_slots(data, start, slot))
    _check_unspellable(vocabulary, np.flatnonzero(start[1:] == start[:-1]))

    found, rank, byte_id = _find_merges(vocabulary.merges, slot, data, start)
    pair_slot = np.full((power_of_two(len(found)), 2), -1, np.int64)
    fill_pair_slots(found, rank, pair_slot)
    spelled_start, spelled_id = _spelled_bytes(vocabulary.tokens)
    return MergeRules(
        by_text=False,
        whole_pieces=vocabulary.pre.ignore_merges,
        n_vocab=n_vocab,
        token_slot=slot,
        token_bytes=data,
        token_start=start,
        token_rank=np.zeros(0, np.int32),
        pair_slot=pair_slot,
        byte_id=byte_id,
        spelled_start=spelled_start,
        spelled_id=spelled_id,
    )


def check_unique(vocabulary: Vocabulary, repeated: int) -> None:
    """Raise ModelDamaged if ``repeated`` is the id of a token that stands twice, not -1."""
    if repeated >= 0:
        raise ModelDamaged(
            f"the vocabulary holds the token {vocabulary.tokens[repeated]!r} twice",
            remedy=REMEDY_CONVERT,
        )


def _check_unspellable(vocabulary: Vocabulary, ids: NDArray[np.int64]) -> None:
    seen: set[bytes] = set()
    for token in ids.tolist():
        text = vocabulary.tokens[token]
        check_unique(vocabulary, token if text in seen else -1)
        seen.add(text)


def _spell(
    strings: GgufStrings,
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Bytes that strings of the alphabet stand for, their starts [n + 1] and middles [n]."""
    n = len(strings)
    out = np.empty(int(strings.sizes.sum()), np.uint8)
    start, middle = np.empty(n + 1, np.int64), np.empty(n, np.int64)
    spell_out(strings.data, strings.start, strings.stop, _BYTE_OF, out, start, middle)
    return out[: start[-1]], start, middle


def _find_merges(
    merges: GgufStrings,
    token_slot: NDArray[np.int32],
    token_bytes: NDArray[np.uint8],
    token_start: NDArray[np.int64],
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Ids and rank of the merges that can happen, and the id of every byte.

    Returns left, right and result (int32 [n, 3]), ranks (int32 [n]) and byte ids (int32 [256]).
    """
    data, start, middle = _spell(merges)
    is_whole = (middle == -1) | (middle == start[:-1]) | (middle == start[1:])
    if is_whole.any():
        merge = merges[int(np.argmax(is_whole))]
        raise ModelDamaged(
            f"the merge {merge!r} has no two sides, expected 'left right'", remedy=REMEDY_CONVERT
        )
    # The 256 bytes are looked up along with the merges, as merges without a left side.
    byte_start = len(data) + np.arange(1, 257)
    data = np.concatenate((data, np.arange(256, dtype=np.uint8)))
    start = np.concatenate((start, byte_start))
    middle = np.concatenate((middle, byte_start - 1))
    found = np.empty((len(middle), 3), np.int32)
    resolve_merges(token_slot, token_bytes, token_start, data, start, middle, found)
    byte_id = found[-256:, 2]
    # A merge with a character that stands for no byte (-2) joins what no text can hold.
    rank = np.flatnonzero(middle[:-256] >= 0)
    _number_symbols(found, rank, len(token_start) - 1, data, start, middle)
    return found[rank], rank.astype(np.int32), byte_id.copy()


def _number_symbols(
    found: NDArray[np.int32],
    merges: NDArray[np.int64],
    n_vocab: int,
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    middle: NDArray[np.int64],
) -> None:
    """Give symbols that are no tokens (-1 in ``found``) ids from n_vocab on: by their text."""
    number: dict[bytes, int] = {}
    spans = ((start[:-1], middle), (middle, start[1:]), (start[:-1], start[1:]))
    is_used = np.zeros(len(found), bool)
    is_used[merges] = True
    is_used[-256:] = True
    rows, sides = np.nonzero((found < 0) & is_used[:, None])
    if rows.size > _MAX_OTHER_SYMBOLS:
        raise ModelDamaged(
            f"the merges name {rows.size} texts that are no tokens, at most {_MAX_OTHER_SYMBOLS} "
            "expected",
            remedy=REMEDY_CONVERT,
        )
    for row, side in zip(rows, sides, strict=True):
        first, last = spans[side]
        text = data[first[row] : last[row]].tobytes()
        found[row, side] = number.setdefault(text, n_vocab + len(number))


def _spelled_bytes(tokens: GgufStrings) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Ids that stand for each byte of a symbol that is no token: start [257] and ids.

    llama.cpp looks up each byte of the symbol as the alphabet spells it. A printable byte is
    one byte there, any other is two, which no proper vocabulary holds: it is dropped.
    """
    ids = {tokens[token]: token for token in np.flatnonzero(tokens.sizes == 1).tolist()}
    start, spelled = [0], []
    for code_point in ALPHABET:
        raw = chr(code_point).encode()
        spelled += [ids[raw[i : i + 1]] for i in range(len(raw)) if raw[i : i + 1] in ids]
        start.append(len(spelled))
    return np.array(start, np.int32), np.array(spelled, np.int32)
