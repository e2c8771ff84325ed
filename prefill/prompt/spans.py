"""Where in its text each token of a prompt stands, in bytes; so two tokenizers meet in one text.

Tokens are laid along the text by their pieces. What a tokenizer adds or drops is known: BOS and
EOS, the space that SPM vocabularies put before a text and after special tokens, bytes that no
token stands for, blanks that some special tokens swallow. Anything else is refused: a span that is
wrong by one byte would cut a character.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...engine.errors import ModelUnsupported
from ...engine.tokens.bpe import ALPHABET
from ...engine.tokens.tokenizer import Tokenizer
from ...engine.tokens.vocabulary import ESCAPED_SPACE, SPECIAL, Attribute, Vocabulary
from .pieces import Pieces

# Plain numbers: those of an enumeration take longer than all the rest of a walk.
_SPECIAL, _PLAIN = int(SPECIAL), int(Attribute.NORMAL | Attribute.BYTE)
_STRIP_LEFT, _STRIP_RIGHT = int(Attribute.STRIP_LEFT), int(Attribute.STRIP_RIGHT)

_BLANKS = frozenset(b" \t\n\v\f\r")
_JOINER = "\u200d"
_MARKS_MOST = 32  # tokens of one character that is made of several
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_JAMO_THAT_FOLLOW = range(0x1160, 0x1200)


@dataclass(frozen=True, eq=False)
class TokenSpans:
    """Bytes of a text that each of its tokens stands for.

    Token i is ``text[start[i]:stop[i]]``, which is empty for one that is not in the text. Spans
    ascend and do not overlap; bytes between two of them have no token.

    Attributes
    ----------
    text : UTF-8.
    start, stop : int64 [n].
    """

    text: bytes
    start: NDArray[np.int64]
    stop: NDArray[np.int64]

    @classmethod
    def of(cls, text: bytes, ids: NDArray[np.int32], tokenizer: Tokenizer) -> TokenSpans:
        """Spans of the ids (int32 [n]) that ``tokenizer`` made of a text.

        Raises
        ------
        ModelUnsupported : the tokens do not spell the text.
        """
        known = Pieces(tokenizer.vocabulary)
        pieces = [known[token] for token in ids.tolist()]
        # Byte by byte the same is by far the commonest case, and takes no walk.
        if b"".join(pieces) == text:
            sizes = np.fromiter(map(len, pieces), np.int64, len(pieces))
            stop = np.cumsum(sizes)
            return cls(text, stop - sizes, stop)
        return cls(text, *_Walk(text, tokenizer.vocabulary, known).along(ids))

    def bytes_of(self, kept: NDArray[np.int32], *, whole: bool = True) -> NDArray[np.int64]:
        """Spans of bytes, int64 [n_spans, 2], of ascending tokens; neighbours make one span.

        Parameters
        ----------
        kept : int32 [n_kept], indices of tokens.
        whole : widen each span so that it cuts no character, nor one that is made of several:
            a letter and its accents, a family of emoji.
        """
        if not kept.size:
            return np.empty((0, 2), np.int64)
        begins = np.flatnonzero(np.diff(kept, prepend=kept[0] - 2) != 1)
        first, last = kept[begins], kept[np.append(begins[1:], kept.size) - 1]
        spans = np.stack([self.start[first], self.stop[last]], axis=1)
        spans = spans[spans[:, 0] < spans[:, 1]]
        if whole:
            spans = np.array(
                [(self._border(int(a), -1), self._border(int(b), 1)) for a, b in spans], np.int64
            ).reshape(-1, 2)
        return _merged(spans)

    def tokens_of(self, spans: NDArray[np.int64]) -> NDArray[np.int32]:
        """Tokens, int32 [n_kept], that share a byte with ascending spans, int64 [n_spans, 2]."""
        first = np.searchsorted(self.stop, spans[:, 0], "right")
        end = np.searchsorted(self.start, spans[:, 1], "left")
        # +1 where a span's tokens begin, -1 after them: what lies inside some span sums above 0
        change = np.zeros(self.start.size + 1, np.int64)
        filled = first < end
        np.add.at(change, first[filled], 1)
        np.add.at(change, end[filled], -1)
        inside = (np.cumsum(change)[:-1] > 0) & (self.start < self.stop)
        return np.flatnonzero(inside).astype(np.int32)

    def text_of(self, kept: NDArray[np.int32]) -> list[bytes]:
        """Texts of the runs of kept tokens (int32 [n_kept]), each of whole characters."""
        return [self.text[a:b] for a, b in self.bytes_of(kept).tolist()]

    def is_inside(self, token: int) -> bool:
        """Whether a token begins inside a character."""
        at = int(self.start[token])
        return at < len(self.text) and self.text[at] & 0xC0 == 0x80

    @cached_property
    def begins_character(self) -> NDArray[np.bool_]:
        """Whether each token, and what comes after the last, begins a character; bool [n + 1]."""
        text = np.frombuffer(self.text + b" ", np.uint8)
        return np.append((text[self.start] & 0xC0) != 0x80, True)

    def next_border(self, token: int) -> int:
        """The first token from one on that begins what is seen as one character, or else the
        first that begins a character; the number of tokens if there is none."""
        n, first = self.start.size, token
        while first < n and self.is_inside(first):
            first += 1
        for at in range(first, min(n, first + _MARKS_MOST)):
            if is_border(self.text, int(self.start[at])):
                return at
        return first

    def _border(self, at: int, step: int) -> int:
        """The nearest place from ``at`` on, in one direction, that parts no character."""
        while not is_border(self.text, at):
            at += step
        return at


def is_border(text: bytes, at: int) -> bool:
    """Whether a text may be cut before byte ``at`` without parting what is seen as one character.

    Marks go with what they are on, emoji that are joined or coloured stay together, Hangul that is
    spelled by letters stays a syllable. Flags, made of two letters, are not looked at.
    """
    if at <= 0 or at >= len(text):
        return True
    if text[at] & 0xC0 == 0x80:
        return False
    behind = text[at : at + 4].decode("utf-8", "ignore")[0]
    if behind == _JOINER or text.endswith(_JOINER.encode(), max(0, at - 3), at):
        return False
    code_point = ord(behind)
    joins = code_point in _SKIN_TONES or code_point in _JAMO_THAT_FOLLOW
    return not (joins or unicodedata.category(behind).startswith("M"))


def _merged(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ascending spans, with those that touch or overlap made one."""
    if not spans.size:
        return spans
    furthest = np.maximum.accumulate(spans[:, 1])
    begins = np.flatnonzero(np.append(True, spans[1:, 0] > furthest[:-1]))
    ends = np.append(begins[1:], len(spans)) - 1
    return np.stack([spans[begins, 0], furthest[ends]], axis=1)


def carry_values(
    values: NDArray[np.float32], source: TokenSpans, target: TokenSpans
) -> NDArray[np.float32]:
    """Values of one tokenizer's tokens for another's tokens of the same text.

    A token's value is spread evenly over its bytes, and a token gets what its bytes got, so that
    sums stay. What a token without bytes had, and bytes without a token got, is lost. A value that
    is not finite stays so, and spoils every token after it.

    Parameters
    ----------
    values : float32 [n_source].

    Returns
    -------
    float32 [n_target].
    """
    widths = source.stop - source.start
    shares = np.where(widths > 0, values.astype(np.float64) / np.maximum(widths, 1), 0.0)
    total = np.concatenate(([0.0], np.cumsum(shares * widths)))
    # Sum of all values up to a byte: linear inside a token, level in the gaps.
    places = np.stack([source.start, source.stop], axis=1).ravel()
    if not places.size:
        return np.zeros(target.start.size, np.float32)
    places, first = np.unique(places, return_index=True)
    sums = np.repeat(total, 2)[1:-1][first]
    upto = [np.interp(ends, places, sums) for ends in (target.start, target.stop)]
    carried: NDArray[np.float64] = upto[1] - upto[0]
    return carried.astype(np.float32)


class _Walk:
    """Lays tokens along a text where they do not simply spell it."""

    def __init__(self, text: bytes, vocabulary: Vocabulary, pieces: Pieces) -> None:
        self._vocabulary = vocabulary
        self._is_spm = vocabulary.pre is None
        self._raw = text
        # To SPM a space and the character that stands for one are the same.
        self._text = text.replace(ESCAPED_SPACE, b" ") if self._is_spm else text
        self._raw_of = self._raw_places()
        self._droppable = _droppable_bytes(vocabulary)
        self._pieces, self._attributes = pieces, pieces.attributes

    def along(self, ids: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Start and stop of each token in the raw text, int64 [n] each.

        Raises
        ------
        ModelUnsupported : the tokens do not spell the text.
        """
        spans = np.array(list(self._spans(ids)), np.int64).reshape(-1, 2)
        end = int(spans[-1, 1]) if len(spans) else 0
        if not self._droppable.issuperset(self._text[end:].strip()):
            raise self._unspelled(end)
        return self._raw_of[spans[:, 0]], self._raw_of[spans[:, 1]]

    def _spans(self, ids: NDArray[np.int32]) -> Iterator[tuple[int, int]]:
        """Start and stop of each token in the text whose spaces are spaces."""
        vocabulary = self._vocabulary
        at, is_prefixed, is_stripped = 0, vocabulary.add_space_prefix, False
        for token in ids.tolist():
            attribute = self._attributes[token]
            strips = is_stripped or bool(attribute & _STRIP_LEFT)
            place = self._place_of_special(token, at, strips) if attribute & _SPECIAL else -1
            is_cut_out = place >= 0
            if is_cut_out:
                at = place + len(self._piece(token))
            elif token in (vocabulary.bos_id, vocabulary.eos_id):
                yield at, at  # the tokenizer added it
                continue
            else:
                piece = self._piece(token)
                piece = piece.removeprefix(b" ") if is_prefixed else piece
                place = self._place(piece, self._behind_blanks(at) if is_stripped else at)
                at = place + len(piece)
            is_prefixed = is_cut_out and vocabulary.add_space_prefix
            is_stripped = is_cut_out and bool(attribute & _STRIP_RIGHT)
            yield place, at

    def _behind_blanks(self, at: int) -> int:
        """After the blanks that a special token swallowed; what only stands for one it did not."""
        while at < len(self._text) and self._raw[self._raw_of[at]] in _BLANKS:
            at += 1
        return at

    def _place(self, piece: bytes, at: int) -> int:
        """Where a piece stands from ``at`` on, after nothing but what is dropped.

        Raises
        ------
        ModelUnsupported : nowhere.
        """
        start = at
        while not self._text.startswith(piece, at):
            if at >= len(self._text) or self._text[at] not in self._droppable:
                raise self._unspelled(start)
            at += 1
        return at

    def _place_of_special(self, token: int, at: int, strips: bool) -> int:
        """The same for a special token that was cut out of the text, as it is written; -1: nowhere.

        One that SPM merged of spaces is written in another way.
        """
        wanted = self._vocabulary.tokens[token]
        droppable = self._droppable | _BLANKS if strips else self._droppable
        while not self._raw.startswith(wanted, raw_at := int(self._raw_of[at])):
            if raw_at >= len(self._raw) or self._raw[raw_at] not in droppable:
                return -1
            at += 1
        return at

    def _piece(self, token: int) -> bytes:
        """What a token stands for; spaces are spaces in all of them."""
        if self._is_spm and not self._attributes[token] & _PLAIN:
            return self._vocabulary.tokens[token].replace(ESCAPED_SPACE, b" ")
        return self._pieces[token]

    def _raw_places(self) -> NDArray[np.int64]:
        """Place in the raw text of each byte of the text, and of its end; int64 [n_bytes + 1]."""
        if len(self._raw) == len(self._text):
            return np.arange(len(self._text) + 1)
        widths = np.concatenate(
            [
                np.append(np.ones(len(part), np.int64), len(ESCAPED_SPACE))
                for part in self._raw.split(ESCAPED_SPACE)
            ]
        )[:-1]
        return np.concatenate(([0], np.cumsum(widths)))

    def _unspelled(self, at: int) -> ModelUnsupported:
        return ModelUnsupported(
            f"the tokens of the prompt do not spell its text at byte {at}",
            remedy="use another model, or prefill in full",
        )


def _droppable_bytes(vocabulary: Vocabulary) -> frozenset[int]:
    """Bytes that may stand in a text without a token, since none stands for them."""
    if vocabulary.pre is None:
        return frozenset()
    short = np.flatnonzero(vocabulary.tokens.sizes <= 2).tolist()
    known = {vocabulary.tokens[token] for token in short}
    return frozenset(
        byte for byte, shown in enumerate(ALPHABET) if chr(shown).encode() not in known
    )
