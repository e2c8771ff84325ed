"""Bytes of tokens: exact for every tokenizer, through any script, and from one to another."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from draftsmith.engine.errors import ModelUnsupported
from draftsmith.engine.tokens.detokenise import token_piece
from draftsmith.engine.tokens.tokenizer import Tokenizer, load_tokenizer
from draftsmith.prefill.prompt.pieces import Pieces
from draftsmith.prefill.prompt.spans import TokenSpans, carry_values, is_border
from toy_gguf import KINDS, MISSING_BYTES, SAMPLE, SPECIALS, write_toy

KOREAN = "\ud55c\uad6d\uc5b4 \ubb38\uc7a5\uc785\ub2c8\ub2e4. "
JAMO = "\u1112\u1161\u11ab\u1100\u116e\u11a8"  # two syllables, spelled by letters
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
THUMB = "\U0001f44d\U0001f3fd"
ACCENTS = "e\u0301\u0323 \u0928\u093f"
SCRAPS = [KOREAN, JAMO, FAMILY, THUMB, ACCENTS, "\u2764\ufe0f", "\u4f60\u597d\u3002", "\u2581"]
SCRAPS += ["  ", "   ", "\n", "\t\t\t", " a", "~", "\x00", "\x7f", "\u2581\u2581\u2581", "fox"]


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """A tokenizer of every kind of toy vocabulary."""
    folder = tmp_path_factory.mktemp("toys")
    return {kind: load_tokenizer(write_toy(folder / kind, kind)) for kind in KINDS}


@pytest.fixture(scope="session")
def real(smollm2: Path) -> Tokenizer:
    """The tokenizer of SmolLM2."""
    return load_tokenizer(smollm2)


def random_text(rng: random.Random, *, specials: bool = True) -> str:
    words = SAMPLE.split()
    parts = []
    for _ in range(rng.randrange(1, 30)):
        kind = rng.random()
        if kind < 0.4:
            parts.append(rng.choice(words) + " ")
        elif kind < 0.9 or not specials:
            parts.append(rng.choice(SCRAPS))
        else:
            parts.append(rng.choice(SPECIALS)[0])
    return "".join(parts)


def spans_of(text: str, tokenizer: Tokenizer, **options: bool) -> TokenSpans:
    return TokenSpans.of(text.encode(), tokenizer.encode(text, **options), tokenizer)


def all_of(spans: TokenSpans) -> Iterator[tuple[int, int]]:
    yield from zip(spans.start.tolist(), spans.stop.tolist(), strict=True)


@pytest.mark.parametrize("kind", [*KINDS, "real"])
def test_tokens_spell_their_bytes(kind: str, toys: dict[str, Tokenizer], real: Tokenizer) -> None:
    """A span that is off by the space before a text, by a dropped byte, by a swallowed blank."""
    tokenizer = real if kind == "real" else toys[kind]
    rng = random.Random(kind)
    texts = ["", " ", "a", "   a", "<|im_start|>", *(random_text(rng) for _ in range(300))]
    missing = {bytes([byte]) for byte in MISSING_BYTES}
    if kind == "real":
        pieces = {token_piece(tokenizer.vocabulary, token) for token in range(tokenizer.n_vocab)}
        missing = {bytes([byte]) for byte in range(256)} - pieces

    def can_drop(gap: bytes) -> bool:
        if kind == "spm-strip":
            return not gap.strip()
        return not gap or (kind != "spm" and {bytes([byte]) for byte in gap} <= missing)

    for text in texts:
        data = text.encode()
        ids = tokenizer.encode(text).tolist()
        spans = spans_of(text, tokenizer)
        assert len(spans.start) == len(ids)
        behind = 0
        for token, (start, stop) in zip(ids, all_of(spans), strict=True):
            assert can_drop(data[behind:start]), text
            piece, found = token_piece(tokenizer.vocabulary, token), data[start:stop]
            if kind.startswith("spm"):  # one and the same to SPM
                piece, found = (b.replace("\u2581".encode(), b" ") for b in (piece, found))
            is_added = token in (tokenizer.bos_id, tokenizer.eos_id) and not found
            has_space = kind == "spm" and piece[1:] == found and piece[:1] == b" "
            assert found == piece or is_added or has_space
            behind = stop
        assert can_drop(data[behind:])


def test_pieces_are_those_of_the_tokenizer(toys: dict[str, Tokenizer], real: Tokenizer) -> None:
    """A short cut that is none for tokens of an odd kind, or for bytes above 127."""
    for tokenizer in (real, *toys.values()):
        pieces = Pieces(tokenizer.vocabulary)
        for token in range(tokenizer.n_vocab):
            assert pieces[token] == token_piece(tokenizer.vocabulary, token)


def test_the_space_before_a_text(toys: dict[str, Tokenizer]) -> None:
    """A first word one byte too long, or a text's own space taken for the added one."""
    spm = toys["spm"]
    for text, first in (("the fox", b"the"), (" the fox", b" the"), ("\u2581the", None)):
        spans = spans_of(text, spm)
        covered = b"".join(text.encode()[a:b] for a, b in all_of(spans))
        assert covered == text.encode()
        assert spans.stop[0] == 0  # BOS
        if first:
            stops = spans.stop.tolist()
            assert len(first) in stops
    text = "<|im_start|>the<|im_end|>the"
    ends = spans_of(text, spm).stop.tolist()
    assert {12, 15, 25, 28} <= set(ends)


def test_ids_of_another_text(real: Tokenizer) -> None:
    """Spans that are made up where tokens and text do not agree."""
    ids = real.encode("The fox is here.")
    for other in (b"The fox is there.", b"The fox is here", b"The fox is here..", b""):
        with pytest.raises(ModelUnsupported, match="do not spell its text at byte"):
            TokenSpans.of(other, ids, real)


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("abc", 4),
        ("\ud55c\uad6d", 3),
        (JAMO, 3),
        (FAMILY, 2),
        (THUMB, 2),
        ("e\u0301\u0323x", 3),
        ("\u0928\u093f", 2),
        ("\u2764\ufe0f", 2),
        ("a\u200db", 2),
        ("\xe9\xe8", 3),
        ("", 1),
    ],
)
def test_borders_of_characters(text: str, n: int) -> None:
    """A cut through a character of several bytes, or of several code points."""
    data = text.encode()
    borders = [at for at in range(len(data) + 1) if is_border(data, at)]
    assert len(borders) == n
    assert {0, len(data)} <= set(borders)


@pytest.mark.parametrize("kinds", [("real", "spm"), ("spm", "real"), ("real", "qwen2")])
def test_maps_to_another_tokenizer_and_back(
    kinds: tuple[str, str], toys: dict[str, Tokenizer], real: Tokenizer
) -> None:
    """A byte lost or gained on the way, half a character, tokens that no one kept."""
    rng = random.Random(4)
    source, target = (real if kind == "real" else toys[kind] for kind in kinds)
    for _ in range(150):
        text = random_text(rng, specials=False)
        data = text.encode()
        one, other = spans_of(text, source), spans_of(text, target)
        n = one.start.size
        kept = np.array(sorted(rng.sample(range(n), rng.randrange(n + 1))), np.int32)
        exact = one.bytes_of(kept, whole=False)
        has_bytes = one.start[kept] < one.stop[kept]
        assert one.tokens_of(exact).tolist() == kept[has_bytes].tolist()
        wide = one.bytes_of(kept)
        assert (wide[1:, 0] > wide[:-1, 1]).all()
        for start, stop in wide.tolist():
            assert is_border(data, start)
            assert is_border(data, stop)
            data[start:stop].decode()  # whole characters
        inside = np.zeros(len(data) + 1, np.bool_)
        for start, stop in wide.tolist():
            inside[start:stop] = True
        for start, stop in exact.tolist():
            assert inside[start:stop].all()
        there = other.tokens_of(wide)
        for token, (start, stop) in enumerate(all_of(other)):
            assert (token in there) == inside[start:stop].any()
        back = set(one.tokens_of(other.bytes_of(there)).tolist())
        if kinds != ("real", "qwen2"):  # whose bytes without a token lead nowhere
            assert set(kept[has_bytes].tolist()) <= back
        assert one.text_of(kept) == [data[a:b] for a, b in wide.tolist()]


def test_places_where_both_cut_map_back_exactly(
    toys: dict[str, Tokenizer], real: Tokenizer
) -> None:
    """A span that grows by a token each time it goes there and back."""
    rng = random.Random(9)
    n_spans = 0
    for _ in range(50):
        text = random_text(rng, specials=False).translate(dict.fromkeys((0, 0x7F, 0x85)))
        data = text.encode()
        one, other = spans_of(text, real), spans_of(text, toys["spm"])
        assert one.stop[-1] == other.stop[-1] == len(data)
        ends = set(one.stop.tolist()) & set(other.stop.tolist()) | {0}
        cuts = sorted(cut for cut in ends if is_border(data, cut))
        for a, b in pairwise(cuts):
            n_spans += 1
            span = np.array([[a, b]], np.int64)
            assert other.bytes_of(other.tokens_of(span)).tolist() == [[a, b]]
            assert one.bytes_of(one.tokens_of(span)).tolist() == [[a, b]]
    assert n_spans > 500


def test_values_are_carried_over(toys: dict[str, Tokenizer], real: Tokenizer) -> None:
    """Mass that is lost between two tokenizers, or lands on the token beside; NaN that is lost."""
    rng = random.Random(3)
    for _ in range(60):
        text = random_text(rng, specials=False)
        one, other = spans_of(text, real), spans_of(text, toys["spm"])
        values = np.random.default_rng(1).random(one.start.size).astype(np.float32)
        carried = carry_values(values, one, other)
        by_byte = np.zeros(len(text.encode()))
        for value, (start, stop) in zip(values.tolist(), all_of(one), strict=True):
            if start < stop:
                by_byte[start:stop] += value / (stop - start)
        expected = [by_byte[start:stop].sum() for start, stop in all_of(other)]
        np.testing.assert_allclose(carried, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(carry_values(values, one, one), values, rtol=1e-5, atol=1e-6)
        assert carried.dtype == np.float32
        values[:] = np.nan
        assert np.isnan(carry_values(values, one, other)).any()
    nothing = spans_of("", real)
    assert carry_values(np.empty(0, np.float32), nothing, nothing).size == 0


def test_no_tokens(real: Tokenizer) -> None:
    """An empty selection, or tokens without bytes."""
    spans = spans_of("The fox", real)
    none = np.empty(0, np.int32)
    assert spans.bytes_of(none).shape == (0, 2)
    assert spans.tokens_of(np.empty((0, 2), np.int64)).tolist() == []
    assert spans.text_of(none) == []
