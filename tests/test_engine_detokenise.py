"""Ids to text: whole characters, the same ones however the ids come, and back to what was."""

from __future__ import annotations

import json
import random
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.tokens.detokenise import TextStream, token_piece
from draftsmith.engine.tokens.tokenizer import Tokenizer, load_tokenizer
from draftsmith.engine.tokens.vocabulary import SPECIAL
from peer_text import ask_peer
from token_bytes import token_bytes
from toy_gguf import BYTE, KINDS, MISSING_BYTES, NORMAL, SAMPLE, write_toy

TYPES = "tokenizer.ggml.token_type"
SPM_KINDS = [kind for kind in KINDS if kind.startswith("spm")]
TOY_TEXTS = json.loads((Path(__file__).parent / "golden/tokenize_toy_golden.json").read_text())
SPLIT = "\U0001f44d\U0001f3fd \ud55c\uad6d\uc5b4 e\u0301 \u0928\u093f \U0001f468\u200d\U0001f469"
RANGES = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x900, 0x980), (0x4E00, 0x9FFF)]
RANGES += [(0xAC00, 0xD7A4), (0x1F300, 0x1F700), (0x10000, 0x10FFFF)]


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """A tokenizer of every kind of toy vocabulary."""
    folder = tmp_path_factory.mktemp("toys")
    return {kind: load_tokenizer(write_toy(folder / kind, kind)) for kind in KINDS}


@pytest.fixture(scope="session")
def real(smollm2: Path) -> Tokenizer:
    """The tokenizer of SmolLM2."""
    return load_tokenizer(smollm2)


def random_text(rng: random.Random) -> str:
    """Words, spaces and characters of one to four bytes."""
    parts = []
    for _ in range(rng.randrange(1, 30)):
        kind = rng.randrange(4)
        if kind == 0:
            parts.append(rng.choice(SAMPLE.split()))
        elif kind == 1:
            parts.append(rng.choice([" ", "  ", "\n", "\r\n", " \n", "   "]))
        else:
            first, last = rng.choice(RANGES)
            parts += [chr(rng.randrange(first, last)) for _ in range(rng.randrange(1, 4))]
    return "".join(parts).replace("\u2581", "")  # what SPM writes for a space is one afterwards


def without_spelled_spaces(folder: Path, kind: str) -> Tokenizer:
    """A toy whose token of three spaces is a normal one.

    As a user-defined token it shows as SPM spells it, in llama.cpp too.
    """
    metadata = read_metadata(write_toy(folder / "toy", kind))
    tokens, types = metadata.strings("tokenizer.ggml.tokens"), metadata.numbers(TYPES)
    assert tokens is not None
    assert types is not None
    changed = [
        NORMAL if text == "\u2581\u2581\u2581".encode() else int(type_)
        for text, type_ in zip(tokens, types, strict=True)
    ]
    return load_tokenizer(write_toy(folder / "changed", kind, types=changed))


def missing_bytes(tokenizer: Tokenizer) -> set[int]:
    """Bytes that no token stands for, which byte-level vocabularies drop."""
    known = {token_piece(tokenizer.vocabulary, token) for token in range(tokenizer.n_vocab)}
    return {byte for byte in range(256) if bytes([byte]) not in known}


def in_groups(ids: list[int], rng: random.Random, most: int) -> list[list[int]]:
    """``ids`` cut into groups of 0 to ``most``."""
    groups = []
    while ids:
        size = rng.randint(0, most)
        groups.append(ids[:size])
        ids = ids[size:]
    return groups


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_grouping_changes_nothing(kind: str, special: bool, toys: dict[str, Tokenizer]) -> None:
    """A character that is lost or broken between two calls; any ids, also no text at all."""
    rng = random.Random(kind)
    vocabulary = toys[kind].vocabulary
    for begins_text in (True, False):
        for most in (1, 1, 3, 50):
            ids = [rng.randrange(toys[kind].n_vocab) for _ in range(300)]
            stream = TextStream(toys[kind], special=special, begins_text=begins_text)
            parts = [stream.feed(group) for group in in_groups(ids, rng, most)]
            text = "".join(parts) + stream.finish()
            whole = TextStream(toys[kind], special=special, begins_text=begins_text)
            assert text == whole.feed(ids) + whole.finish()
            if not begins_text:
                pieces = b"".join(token_piece(vocabulary, id, special=special) for id in ids)
                assert text == pieces.decode("utf-8", "replace")
            assert text.count("\ufffd") > 5  # there was something to get wrong


@pytest.mark.parametrize("kind", ["smollm", "spm"])
def test_whole_characters_only(kind: str, toys: dict[str, Tokenizer]) -> None:
    """U+FFFD for the first byte of an emoji, or a character that comes a token late."""
    tokenizer = toys[kind]
    ids = tokenizer.encode(SPLIT, add_special=False).tolist()
    stream = TextStream(tokenizer, begins_text=True)
    parts = [stream.feed([token]) for token in ids]
    assert "".join(parts) == SPLIT
    assert "" in parts
    ends = np.cumsum([len(token_piece(tokenizer.vocabulary, token)) for token in ids])
    data = token_bytes(tokenizer, ids)
    n_before = len(data) - len(SPLIT.encode())  # 1 where SPM puts a space before the text
    for end, shown in zip(ends.tolist(), accumulate(parts), strict=True):
        assert shown == data[n_before:end].decode("utf-8", "ignore")
    assert stream.finish() == ""


def test_bytes_that_are_no_text(toys: dict[str, Tokenizer]) -> None:
    """U+FFFD too early, for what may still become a character, or too late or too often."""
    first = 4  # the token of byte 0 in the toy
    assert toys["spm"].vocabulary.tokens[first] == b"<0x00>"
    stream = TextStream(toys["spm"])

    def feed(data: bytes) -> str:
        return stream.feed([first + byte for byte in data])

    assert feed(b"\xf0\x9f\x91") == ""
    assert feed(b"\x8d") == "\U0001f44d"
    assert feed(b"a\xff") == "a\ufffd"  # no character has this byte
    assert feed(b"\xe2\x82") == ""
    assert feed(b"b") == "\ufffdb"
    assert feed(b"\xed\xa0") + feed(b"\x80") == "\ufffd" * 3  # half a surrogate pair
    assert feed(b"\xc3") == ""
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""
    assert feed(b"c") == "c"


@pytest.mark.parametrize("kind", KINDS)
def test_decodes_what_it_encoded(kind: str, tmp_path: Path) -> None:
    """A space or a byte that comes or goes on the way to ids and back."""
    rng = random.Random(kind)
    tokenizer = without_spelled_spaces(tmp_path, kind)
    missing = missing_bytes(tokenizer)
    assert missing == (set() if kind in SPM_KINDS else set(MISSING_BYTES))
    texts = [random_text(rng) for _ in range(100)]
    texts += ["", " ", "  a", " a ", "\u00e9", SPLIT, "a" * 50, "  \n  b"]
    for text in texts:
        text = "".join(c for c in text if missing.isdisjoint(c.encode()))
        for add_special in (True, False):
            ids = tokenizer.encode(text, add_special=add_special)
            assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", ["kjv_test", "sqlite_test"])
def test_decodes_real_texts(name: str, real: Tokenizer, golden: Path) -> None:
    """A text of some length that does not come back."""
    text = (golden / f"{name}.txt").read_text(encoding="utf-8")
    ids = real.encode(text)
    assert real.decode(ids) == text
    stream = TextStream(real)
    assert "".join(stream.feed([token]) for token in ids) + stream.finish() == text


def test_the_space_before_a_text(toys: dict[str, Tokenizer]) -> None:
    """A space too many at the beginning, or one that is missing between prompt and answer."""
    spm = toys["spm"]
    assert spm.add_bos
    with_bos, without = spm.encode("the fox"), spm.encode("the fox", add_special=False)
    assert spm.decode(with_bos) == spm.decode(without) == "the fox"
    assert spm.decode(with_bos, special=True) == "<s>the fox"
    assert TextStream(spm).feed(without) == " the fox"  # an answer goes on
    assert spm.decode(spm.encode("  the fox")) == "  the fox"
    assert TextStream(spm, begins_text=True).feed([]) == ""
    plain = toys["spm-strip"]  # a vocabulary that puts no space there
    assert plain.decode(plain.encode(" the fox")) == " the fox"
    begin = TextStream(spm, begins_text=True)
    assert [begin.feed(part) for part in ([1], [], without[:1], without[:1])] == ["", "", "t", " t"]


def test_special_tokens_are_hidden(toys: dict[str, Tokenizer]) -> None:
    """<|im_end|> on the screen, or a word that the user added to the vocabulary missing."""
    smollm = toys["smollm"]
    text = "<|im_start|>int<|im_end|> <|user|><unk>"
    ids = smollm.encode(text)
    assert smollm.decode(ids) == "int <|user|>"
    assert smollm.decode(ids, special=True) == text
    assert token_bytes(smollm, ids) == text.encode()
    hidden = [token for token in ids.tolist() if smollm.vocabulary.attributes[token] & SPECIAL]
    assert len(hidden) == 4


def test_hostile_tokens(tmp_path: Path) -> None:
    """A traceback for a byte token that names no byte, or text that is no UTF-8."""
    names = ["<0x41>", "<0xZZ>", "x", "<0x", "<0x4>", "a"]
    path = write_toy(
        tmp_path / "toy", "smollm", tokens=names, types=[BYTE] * 5 + [NORMAL], merges=["a a"],
        bos_id=None, eos_id=None,
    )  # fmt: skip
    tokenizer = load_tokenizer(path)
    assert tokenizer.decode(range(6)) == "A\0\0\0\x04a"
    for token in (-1, 6, 10**9):
        with pytest.raises(IndexError, match=f"token {token} of a vocabulary of 6"):
            tokenizer.decode([token])


def test_takes_arrays(real: Tokenizer) -> None:
    """Ids as NumPy gives them that are taken for something else."""
    ids = real.encode("Hello")
    assert TextStream(real).feed(ids) == "Hello"
    assert TextStream(real).feed(np.array(ids, np.uint16)) == "Hello"
    assert TextStream(real).feed(iter(ids.tolist())) == "Hello"


@pytest.mark.parametrize("kind", ["spm", "smollm"])
def test_pieces_are_those_of_llama_cpp(kind: str, tmp_path: Path) -> None:
    """Bytes that llama.cpp's token_to_piece does not give, or another space before a text."""
    path = write_toy(tmp_path / "toy.gguf", kind, weights=True)
    tokenizer = load_tokenizer(path)
    texts = [*TOY_TEXTS["texts"][:60], SPLIT]
    options = {"add_special": False, "parse_special": True, "with_pieces": True}
    ids = [tokenizer.encode(text, add_special=False).tolist() for text in texts]
    requests: list[tuple[str, dict[str, Any]]] = [
        *(("/tokenize", {"content": text, **options}) for text in texts),
        *(("/detokenize", {"tokens": some}) for some in ids),
    ]
    answers = ask_peer(path, requests).answers
    found = {}
    for answer in answers[: len(texts)]:
        for token in answer["tokens"]:
            piece = token["piece"]
            found[token["id"]] = piece.encode() if isinstance(piece, str) else bytes(piece)
    assert len(found) > 100
    assert found == {token: token_piece(tokenizer.vocabulary, token) for token in found}
    shown = [TextStream(tokenizer, special=True).feed(some) for some in ids]
    assert [answer["content"] for answer in answers[len(texts) :]] == shown
