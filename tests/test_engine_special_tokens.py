"""Special tokens are cut out of a text as llama.cpp does it, in one look at each byte."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from draftsmith.engine.tokens.special_tokens import Fragment, SpecialTokens
from draftsmith.engine.tokens.vocabulary import Attribute
from numpy.typing import NDArray

SPACES = b" \t\n\v\f\r"
ATTRIBUTES = [
    Attribute.CONTROL,
    Attribute.USER_DEFINED,
    Attribute.CONTROL | Attribute.STRIP_LEFT,
    Attribute.CONTROL | Attribute.STRIP_RIGHT,
    Attribute.USER_DEFINED | Attribute.STRIP_LEFT | Attribute.STRIP_RIGHT,
]


@dataclass
class Words:
    """What SpecialTokens needs of a vocabulary of special tokens."""

    tokens: list[bytes]
    attributes: NDArray[np.int64]

    def special_ids(self, *, parse_special: bool) -> list[int]:
        return sorted(range(len(self.tokens)), key=lambda token: -len(self.tokens[token]))


def special_tokens(texts: list[bytes], attributes: list[int] | None = None) -> SpecialTokens:
    kinds = attributes or [int(Attribute.CONTROL)] * len(texts)
    words = Words(texts, np.array(kinds, np.int64))
    return SpecialTokens(cast(Any, words), parse_special=True)


def naive(data: bytes, texts: list[bytes], attributes: list[int]) -> list[Fragment]:
    """The longest token first, over all fragments of text, then the next one in what is left."""
    fragments: list[Fragment] = [(0, len(data), -1)] if data else []
    for token in sorted(range(len(texts)), key=lambda token: -len(texts[token])):
        result: list[Fragment] = []
        for start, stop, known in fragments:
            if known >= 0:
                result.append((start, stop, known))
                continue
            while (at := data.find(texts[token], start, stop)) >= 0:
                left, end = at, at + len(texts[token])
                if attributes[token] & Attribute.STRIP_LEFT:
                    left = start + len(data[start:at].rstrip(SPACES))
                if left > start:
                    result.append((start, left, -1))
                result.append((at, end, token))
                start = end
                if attributes[token] & Attribute.STRIP_RIGHT:
                    start = stop - len(data[end:stop].lstrip(SPACES))
            if start < stop:
                result.append((start, stop, -1))
        fragments = result
    return fragments


def crafted(rng: random.Random) -> tuple[list[bytes], list[int], bytes]:
    """Tokens that are ends, begins and parts of one another, and a text of them and blanks."""
    letters = [b"<", b"|", b"a", b" ", b"<|", b"|>"][: rng.randrange(2, 7)]
    n_tokens = rng.choice((1, 3, 12))
    texts = list({b"".join(rng.choices(letters, k=rng.randrange(1, 6))) for _ in range(n_tokens)})
    texts = sorted(text for text in texts if text.strip())
    attributes = [int(rng.choice(ATTRIBUTES)) for _ in texts]
    pieces = [*letters, *texts, b"\n", b"x"]
    return texts, attributes, b"".join(rng.choices(pieces, k=rng.randrange(40)))


def test_the_fragments_of_a_text() -> None:
    """A short token found inside a longer one, or where two overlap; a blank that is cut twice."""
    rng = random.Random(1)
    n_cut = 0
    for _ in range(1500):
        texts, attributes, data = crafted(rng)
        expected = naive(data, texts, attributes)
        assert special_tokens(texts, attributes).partition(data) == expected, (texts, data)
        n_cut += len(expected) > 1
    assert n_cut > 500


def test_places_that_touch_no_token() -> None:
    """A text that is cut inside a token, or where a token could still have come of it."""
    rng = random.Random(2)
    for _ in range(250):
        texts, _, data = crafted(rng)
        specials = special_tokens(texts)
        text = np.frombuffer(data, np.uint8)
        for cut in range(1, len(data)):
            touches = any(
                data.startswith(token, at) and at < cut <= at + len(token)
                for token in texts
                for at in range(len(data))
            )
            assert specials.may_cut(text, cut) is not touches, (texts, data, cut)


def test_tokens_in_a_text_of_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that is missed where two steps of a long text meet."""
    monkeypatch.setattr("draftsmith.engine.tokens.special_tokens._STEP_BYTES", 7)
    specials = special_tokens([b"<|im_start|>", b"<|", b"im"])
    data = b"xx<|im_start|>yyyyyyy<|yy" * 9
    assert specials.partition(data) == naive(data, [b"<|im_start|>", b"<|", b"im"], [0, 0, 0])


def test_one_look_at_each_byte() -> None:
    """Steps that grow with the square of a text, of a token or of their number: each of these
    would go on for half an hour, with Ctrl-C held back."""
    half = b"<|" * 200_000
    specials = special_tokens([half + b"!", b"<|>"])
    data = b"<|" * 2_000_000 + b"<|>"
    assert specials.partition(data) == [(0, len(data) - 3, -1), (len(data) - 3, len(data), 1)]
    text = np.frombuffer(data, np.uint8)
    assert specials.may_cut(text, len(data) // 2)
    many = [b"<|%d|>" % i for i in range(4000)]
    found = special_tokens(many).partition(b"".join(many) * 10)
    assert [token for _, _, token in found] == list(range(4000)) * 10
    ends = special_tokens([b"<|end|>"], [int(Attribute.CONTROL | Attribute.STRIP_RIGHT)])
    assert len(ends.partition(b"a <|end|> \n" * 300_000)) == 600_000
