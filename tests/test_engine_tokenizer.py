"""The tokenizer: llama.cpp's ids, whatever the text, the blocks and the threads."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from draftsmith.engine.errors import (
    InputMalformed,
    ModelDamaged,
    ModelHasNoTokenizer,
    ModelUnsupported,
)
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.tokens import bpe, piece_encoder, unicode_classes, unicode_table
from draftsmith.engine.tokens.blocks import cut_blocks
from draftsmith.engine.tokens.tokenizer import Tokenizer, load_tokenizer
from draftsmith.engine.tokens.vocabulary import Attribute
from token_bytes import token_bytes
from toy_gguf import BPE_KINDS, CONTROL, KINDS, NORMAL, SAMPLE, SPECIALS, USER_DEFINED, write_toy

GOLDEN = Path(__file__).parent / "golden"
TOY_GOLDEN = json.loads((GOLDEN / "tokenize_toy_golden.json").read_text())
REAL_GOLDEN = json.loads((GOLDEN / "tokenize_golden.json").read_text())
REAL_TEXTS = json.loads((GOLDEN / "lookup_golden.json").read_text())["tokens"]

SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\v", "\f", "\x85", "\xa0", "\u1680"]
SPACES += ["\u2003", "\u2028", "\u3000", "\u200b", "\ufeff", "\u2581"]
SCRAPS = ["'s", "'T", "'re", "'VE", "'", "1", "23", "456", "7890", "\u0663", "\uff11", "\u00bd"]
SCRAPS += [
    "e\u0301",
    "\u0301",
    "!",
    "?!",
    "...",
    "->",
    "$",
    "`",
    "^~",
    "\u3002",
    "\u201c",
    "\u4e2d\u6587",
]
SCRAPS += [
    "\x00",
    "\x7f",
    "\U0001f600",
    "\U0010ffff",
    "\u0e2a\u0e27\u0e31",
    "aaaa",
    "ABC",
    "\u01c5",
]


def fuzz_text(rng: random.Random) -> str:
    """Words, whitespace, scraps and special tokens, whole or broken, in a row."""
    words = SAMPLE.split()
    parts = []
    for _ in range(rng.randrange(1, 40)):
        kind = rng.randrange(6)
        if kind < 2:
            parts.append(rng.choice(words))
        elif kind < 4:
            parts.append(rng.choice(SPACES))
        elif kind == 4:
            parts.append(rng.choice(SCRAPS))
        else:
            special = rng.choice(SPECIALS)[0]
            start = rng.randrange(len(special)) if rng.random() < 0.3 else 0
            parts.append(special[start:])
    return "".join(parts)


@cache
def toy_path(kind: str, folder: Path) -> Path:
    return write_toy(folder / f"{kind}.gguf", kind)


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """A tokenizer of every kind of toy vocabulary."""
    folder = tmp_path_factory.mktemp("toys")
    return {kind: load_tokenizer(toy_path(kind, folder)) for kind in KINDS}


@pytest.fixture(scope="session")
def real(smollm2: Path) -> Tokenizer:
    """The tokenizer of SmolLM2."""
    return load_tokenizer(smollm2)


def encode_in_blocks(tokenizer: Tokenizer, chunks: Iterable[bytes], **options: Any) -> list[int]:
    parts = list(tokenizer.encode_documents([chunks], **options))
    assert {document for document, _ in parts} == {0}
    assert all(ids.dtype == np.int32 for _, ids in parts)
    return np.concatenate([ids for _, ids in parts]).tolist()


def chunks_of(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


# ---- ids


@pytest.mark.parametrize("case", REAL_GOLDEN["cases"], ids=lambda case: ascii(case["text"])[:30])
def test_real_cases(real: Tokenizer, case: dict[str, Any]) -> None:
    """Ids that differ from llama-tokenize's on SmolLM2's vocabulary."""
    ids = real.encode(case["text"], parse_special=case["parse_special"])
    assert ids.tolist() == case["ids"]


@pytest.mark.parametrize("name", sorted(REAL_TEXTS))
def test_real_texts(real: Tokenizer, golden: Path, name: str) -> None:
    """A text of some length that goes astray, whole or in blocks."""
    data = (golden / f"{name}.txt").read_bytes()
    expected = np.frombuffer(gzip.decompress((golden / f"{name}.ids.gz").read_bytes()), "<i4")
    ids = real.encode(data)
    assert ids.tolist() == expected.tolist()
    assert (
        hashlib.sha256(ids.astype("<i4").tobytes()).hexdigest()
        == (REAL_TEXTS[name]["sha256_int32_le"])
    )
    assert token_bytes(real, ids) == data
    blocks = encode_in_blocks(real, chunks_of(data, 1000), n_threads=2, block_bytes=5000)
    assert blocks == expected.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_toy_texts(toys: dict[str, Tokenizer], kind: str) -> None:
    """Ids that differ from llama.cpp's for any splitter or SPM: see golden/PROVENANCE.md."""
    recorded = TOY_GOLDEN["kinds"][kind]
    tokens = b"\n".join(toys[kind].vocabulary.tokens)
    assert hashlib.sha256(tokens).hexdigest() == recorded["tokens_sha256"], "record it again"
    for text, expected in zip(TOY_GOLDEN["texts"], recorded["ids"], strict=True):
        ids = [toys[kind].encode(text, **flags).tolist() for flags in TOY_GOLDEN["flags"]]
        assert ids == expected, repr(text)


@pytest.mark.parametrize("kind", KINDS)
def test_one_text_at_a_time(toys: dict[str, Tokenizer], kind: str) -> None:
    """Ids that depend on the texts encoded before, through the table of pieces."""
    rng = random.Random(3)
    texts = [fuzz_text(rng) for _ in range(30)]
    fresh = Tokenizer(toys[kind].vocabulary)
    assert [fresh.encode(text).tolist() for text in texts] == [
        Tokenizer(fresh.vocabulary).encode(text).tolist() for text in texts
    ]


@pytest.mark.parametrize("kind", ["smollm", "llama-bpe", "spm"])
def test_forgetting_changes_nothing(
    toys: dict[str, Tokenizer], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full table of pieces that loses ids, or an endless loop when it is full."""
    text = "".join(fuzz_text(random.Random(seed)) for seed in range(40))
    expected = toys[kind].encode(text).tolist()
    monkeypatch.setattr(piece_encoder, "SMALLEST_TABLE", 16)
    monkeypatch.setattr(piece_encoder, "LARGEST_TABLE", 64)
    assert Tokenizer(toys[kind].vocabulary).encode(text).tolist() == expected


def naive_merge(text: str, rank: dict[tuple[str, ...], int]) -> list[str]:
    symbols = list(text)
    while True:
        pairs = pairwise(symbols)
        ranked = [(rank[pair], place) for place, pair in enumerate(pairs) if pair in rank]
        if not ranked:
            return symbols
        _, place = min(ranked)
        symbols[place : place + 2] = ["".join(symbols[place : place + 2])]


def test_merges_by_rank_then_leftmost(tmp_path: Path) -> None:
    """A heap that loses a pair, or takes the right one of two equal pairs."""
    merges = ["a b", "b a", "ab a", "b b", "aba b", "ba b", "bb ab", "a a", "aa aa"]
    pairs = [tuple(merge.split()) for merge in merges]
    tokens = ["a", "b", *("".join(pair) for pair in pairs)]
    tokens = list(dict.fromkeys(tokens))
    path = write_toy(
        tmp_path / "ab.gguf", "gpt-2", tokens=tokens, types=[NORMAL] * len(tokens), merges=merges,
        bos_id=None, eos_id=None, add_eos=False,
    )  # fmt: skip
    tokenizer = load_tokenizer(path)
    rank = {pair: place for place, pair in reversed(list(enumerate(pairs)))}
    rng = random.Random(5)
    for n in (1, 2, 3, 7, 30, 200, 3000):
        text = "".join(rng.choice("aab") for _ in range(n))
        expected = [tokens.index(symbol) for symbol in naive_merge(text, rank)]
        assert tokenizer.encode(text).tolist() == expected


# ---- blocks and threads


@pytest.mark.parametrize("parse_special", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_change_nothing(toys: dict[str, Tokenizer], kind: str, parse_special: bool) -> None:
    """A cut inside a piece, a special token, a character, or beside a stripped space."""
    rng = random.Random(kind)
    n_cut = 0
    for _ in range(40):
        data = "".join(fuzz_text(rng) for _ in range(rng.choice([1, 1, 4]))).encode()
        expected = toys[kind].encode(data, parse_special=parse_special).tolist()
        for block_bytes in (1, 2, 3, 7, 64, 4096):
            chunk_bytes = rng.choice([1, 5, 100, 10_000])
            parts = list(
                toys[kind].encode_documents(
                    [chunks_of(data, chunk_bytes)],
                    block_bytes=block_bytes,
                    parse_special=parse_special,
                )
            )
            assert np.concatenate([ids for _, ids in parts]).tolist() == expected
            n_cut += len(parts) - 1
    assert n_cut > 400  # there was something to get wrong


@pytest.mark.parametrize("kind", KINDS)
def test_threads_change_nothing(toys: dict[str, Tokenizer], kind: str) -> None:
    """Results out of order, or threads that share a table."""
    rng = random.Random(9)
    documents = [fuzz_text(rng).encode() for _ in range(60)] + [b""]
    runs = []
    for n_threads, block_bytes in ((1, 1 << 18), (1, 16), (2, 16), (5, 64)):
        found: list[list[int]] = [[] for _ in documents]
        order = []
        parts = toys[kind].encode_documents(
            ([data] for data in documents), n_threads=n_threads, block_bytes=block_bytes
        )
        for document, ids in parts:
            order.append(document)
            found[document] += ids.tolist()
        assert sorted(order) == order
        assert set(order) == set(range(len(documents)))
        runs.append(found)
    assert all(run == runs[0] for run in runs)
    assert runs[0] == [toys[kind].encode(data).tolist() for data in documents]


@pytest.mark.parametrize("kind", ["smollm", "llama-bpe", "qwen2", "default", "spm"])
@pytest.mark.parametrize("unit", ["a", " ", "\n", "=", "7", "\u4e2d", " \t", "!\n"])
def test_endless_words(toys: dict[str, Tokenizer], kind: str, unit: str) -> None:
    """Text without a place to cut that is cut all the same, or taken apart by quadratic work."""
    data = ("x " + unit * 20_000 + " y").encode()
    expected = toys[kind].encode(data).tolist()
    assert encode_in_blocks(toys[kind], chunks_of(data, 4096), block_bytes=512) == expected


@pytest.mark.parametrize("unit", ["a", " "])
def test_a_word_beyond_all_bounds(unit: str, toys: dict[str, Tokenizer]) -> None:
    """200 MB of one letter, which take 8 GB of memory to merge."""
    endless = (unit.encode() * (1 << 20) for _ in range(200))
    with pytest.raises(InputMalformed, match=f"more than 4 MiB as one word.*'{unit * 20}'"):
        list(toys["smollm"].encode_documents([endless], n_threads=2))
    assert sum(1 for _ in endless) > 190


def test_blocks_stay_small(toys: dict[str, Tokenizer]) -> None:
    """A corpus that is collected as a whole because no cut is ever found."""
    for kind in ("smollm", "llama-bpe", "spm"):
        tokenizer = toys[kind]
        blocks = cut_blocks(
            chunks_of(SAMPLE.encode() * 50, 3000),
            tokenizer._splitter,
            tokenizer._specials[True],
            1000,
        )
        sizes = [len(block.data) for block in blocks]
        assert max(sizes) < 3000
        assert sum(sizes) == 50 * len(SAMPLE.encode())


def test_empty_documents_yield(toys: dict[str, Tokenizer]) -> None:
    """A document that vanishes, and with it the count of documents."""
    tokenizer = toys["llama-bpe"]
    parts = list(tokenizer.encode_documents([[], [b""], [b"", b"a", b""]], n_threads=2))
    assert [document for document, _ in parts] == [0, 1, 2]
    assert [ids.tolist()[:1] for _, ids in parts] == [[tokenizer.bos_id]] * 3
    assert [len(ids) for _, ids in parts] == [1, 1, 2]


def test_reads_no_further_than_needed(toys: dict[str, Tokenizer]) -> None:
    """Memory that grows with the corpus: documents read far ahead of their use."""
    read = []

    def documents() -> Iterator[list[bytes]]:
        for index in range(1000):
            read.append(index)
            yield [b"some text " * 2000]

    for n_threads in (1, 3):
        read.clear()
        parts = toys["smollm"].encode_documents(documents(), n_threads=n_threads)
        next(parts)
        assert len(read) <= 2 * n_threads + 1
        parts.close()


def test_short_documents_go_together(
    toys: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job for a thread each: 200,000 JSON lines take three times as long with threads as
    without.
    """
    n_jobs = 0
    submit = ThreadPoolExecutor.submit

    def counted(pool: ThreadPoolExecutor, *args: Any) -> Any:
        nonlocal n_jobs
        n_jobs += 1
        return submit(pool, *args)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", counted)
    texts = [b"document %d" % index for index in range(1000)]
    found = list(toys["smollm"].encode_documents(([text] for text in texts), n_threads=2))
    assert n_jobs < 10
    assert [index for index, _ in found] == list(range(1000))
    assert found[567][1].tolist() == toys["smollm"].encode(texts[567]).tolist()


def test_an_error_in_the_documents_comes_through(toys: dict[str, Tokenizer]) -> None:
    """A reader's error that is swallowed, or a pool that waits for ever."""

    def documents() -> Iterator[list[bytes]]:
        yield [b"one"]
        raise InputMalformed("a broken document", remedy="mend it")

    for n_threads in (1, 2):
        with pytest.raises(InputMalformed):
            list(toys["smollm"].encode_documents(documents(), n_threads=n_threads))


def test_interrupted_at_once(toys: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C that waits for seconds, while a thread compiles a kernel or encodes a long word."""
    release = threading.Event()

    def encode(*_: object) -> np.ndarray:
        release.wait(10)
        return np.empty(0, np.int32)

    def documents() -> Iterator[list[bytes]]:
        yield [b"one"]
        raise KeyboardInterrupt

    monkeypatch.setattr(toys["smollm"], "_encode_block", encode)
    start = time.perf_counter()
    try:
        with pytest.raises(KeyboardInterrupt):
            list(toys["smollm"].encode_documents(documents(), n_threads=2))
        assert time.perf_counter() - start < 5
    finally:
        release.set()


# ---- vocabularies


def load_toy(path: Path, kind: str, **changes: Any) -> Tokenizer:
    return load_tokenizer(write_toy(path / "toy.gguf", kind, **changes))


def test_refuses_unknown_names(tmp_path: Path) -> None:
    """An unknown splitter that is replaced by a similar one without a word."""
    with pytest.raises(ModelUnsupported) as caught:
        load_toy(tmp_path, "gpt-2", pre="tekken")
    assert "'tekken'" in caught.value.message
    assert "llama-bpe, " in caught.value.remedy
    assert "smollm" in caught.value.remedy
    with pytest.raises(ModelUnsupported, match="'bert'"):
        load_toy(tmp_path, "gpt-2", model="bert")


@pytest.mark.parametrize("changes", [{"model": None}, {"model": "none"}, {"tokens": None}])
def test_refuses_a_file_without_tokenizer(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A traceback for a GGUF that holds no vocabulary."""
    path = write_toy(tmp_path / "toy.gguf", "gpt-2", **changes)
    with pytest.raises(ModelHasNoTokenizer, match=str(path)):
        load_tokenizer(path)


BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("gpt-2", {"merges": None}, "without 'tokenizer.ggml.merges'"),
    ("gpt-2", {"merges": ["a b", "ab"]}, "b'ab' has no two sides"),
    ("gpt-2", {"tokens": ["a", "b", "a"], "types": [1, 1, 1], "bos_id": 0, "eos_id": 0}, "twice"),
    ("smollm", {"tokens": ["\u2603", "b", "\u2603"], "types": [1, 1, 1]}, "twice"),
    ("smollm", {"tokens": ["a", "x" * (1 << 20)], "types": [1, 4]}, "special tokens hold more"),
    ("spm", {"scores": [0.0] * 3}, "3 scores"),
    ("spm", {"types": [1] * 3}, "3 token types"),
    ("glm4", {"bos_id": None, "add_bos": True}, "adds BOS but has none"),
]


@pytest.mark.parametrize(("kind", "changes", "found"), BROKEN)
def test_refuses_contradictions(
    tmp_path: Path, kind: str, changes: dict[str, Any], found: str
) -> None:
    """A vocabulary that contradicts itself and is used all the same, or one token of some
    megabytes that takes gigabytes of memory to look for.
    """
    path = write_toy(tmp_path / "toy.gguf", kind, **changes)
    with pytest.raises(ModelDamaged) as caught:
        load_tokenizer(path)
    assert found in caught.value.message
    assert str(path) in caught.value.message


def test_refuses_spm_without_byte_tokens(tmp_path: Path) -> None:
    """A character that vanishes because the vocabulary cannot spell it."""
    changes = {"tokens": ["<unk>", "<s>", "</s>", "a"], "types": [2, 3, 3, 1], "scores": [0.0] * 4}
    with pytest.raises(ModelUnsupported, match="byte 0x00"):
        load_toy(tmp_path, "spm", **changes)


def test_defaults_by_pre_tokenizer(tmp_path: Path) -> None:
    """BOS or whole pieces that follow the wrong name."""
    plain = {"add_bos": None, "add_eos": None}
    llama = load_toy(tmp_path, "llama-bpe", **plain)
    assert (llama.add_bos, llama.add_eos, llama.name) == (True, False, "gpt2/llama-bpe")
    assert llama.vocabulary.tokens[llama.encode("qzx", add_special=False)[0]] == b"qzx"
    qwen = load_toy(tmp_path, "qwen2", **plain)
    assert not qwen.add_bos
    assert len(qwen.encode("qzx")) == 3
    spm = load_toy(tmp_path, "spm", **plain)
    assert (spm.add_bos, spm.add_eos, spm.name) == (True, False, "llama")
    assert load_toy(tmp_path, "default", **plain).name == "gpt2/default"


def test_ids_out_of_range_fall_back(tmp_path: Path) -> None:
    """An id beyond the vocabulary that reaches the cache."""
    assert load_toy(tmp_path, "qwen2", bos_id=10**6).bos_id == 11
    assert load_toy(tmp_path, "spm", eos_id=10**6).eos_id == 2
    assert load_toy(tmp_path, "glm4", bos_id=10**6, add_bos=False).bos_id is None


def test_empty_tokens_get_a_name(tmp_path: Path) -> None:
    """An empty token that matches everywhere, or shifts all that follow."""
    tokens = ["a", "", "b", "c"]
    tokenizer = load_toy(
        tmp_path, "gpt-2", tokens=tokens, types=[1, 3, 1, 1], merges=["a b"], add_eos=False
    )
    assert list(tokenizer.vocabulary.tokens) == [b"a", b"[EMPTY_1]", b"b", b"c"]
    assert tokenizer.encode("abc[EMPTY_1]a").tolist() == [0, 2, 3, 1, 0]


def test_absurd_vocabularies_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many times a file's size in memory: names for empty tokens, symbols that are no tokens."""
    empty = ["a", *[""] * 65537]
    with pytest.raises(ModelDamaged, match="65537 tokens without a text, at most 65536"):
        load_toy(tmp_path, "gpt-2", tokens=empty, types=[1] * len(empty), merges=["a b"])
    monkeypatch.setattr(bpe, "_MAX_OTHER_SYMBOLS", 3 * 256)  # bytes without a token count, too
    plain: dict[str, Any] = {"tokens": ["a", "b"], "types": [1, 1], "add_eos": False}
    assert load_toy(tmp_path, "gpt-2", **plain, merges=["a b"]).encode("ab").tolist() == [0, 1]
    with pytest.raises(ModelDamaged, match=r"texts that are no tokens, at most 768"):
        load_toy(tmp_path, "gpt-2", **plain, merges=["p q", "r s", "t u"])


def attributes_of(path: Path, texts: dict[str, int], **changes: Any) -> dict[str, int]:
    """Attributes after the corrections, of a vocabulary of ``texts`` with their types."""
    tokens, types = ["a", "b", *texts], [NORMAL, NORMAL, *texts.values()]
    tokenizer = load_toy(
        path, "gpt-2", tokens=tokens, types=types, merges=["a b"], bos_id=0, eos_id=1, **changes
    )
    return dict(zip(tokens, tokenizer.vocabulary.attributes.tolist(), strict=True))


def test_corrects_end_tokens(tmp_path: Path) -> None:
    """An end-of-turn token that a converter left a normal one, taken as text."""
    found = attributes_of(tmp_path, {"<|im_end|>": NORMAL, "<EOT>": USER_DEFINED, "<x>": NORMAL})
    assert found["<|im_end|>"] == Attribute.NORMAL | Attribute.CONTROL
    assert found["<EOT>"] == Attribute.USER_DEFINED | Attribute.CONTROL
    assert found["<x>"] == Attribute.NORMAL


def test_corrects_one_fill_in_token(tmp_path: Path) -> None:
    """Each of several candidates made a control token; llama.cpp takes one."""
    found = attributes_of(tmp_path, {"<PRE>": NORMAL, "<fim_prefix>": NORMAL, "[PAD]": NORMAL})
    assert found["<PRE>"] & Attribute.CONTROL
    assert not found["<fim_prefix>"] & Attribute.CONTROL
    assert found["[PAD]"] & Attribute.CONTROL


def test_shows_tokens_of_harmony(tmp_path: Path) -> None:
    """<|end|> cut out as control text although the family of models writes it."""
    texts = {"<|return|>": CONTROL, "<|call|>": CONTROL, "<|end|>": CONTROL, "<|start|>": CONTROL}
    found = attributes_of(tmp_path, texts)
    assert found["<|end|>"] == found["<|start|>"] == Attribute.USER_DEFINED
    del texts["<|call|>"]
    assert attributes_of(tmp_path, texts)["<|end|>"] == Attribute.CONTROL


def test_normal_end_of_sentence(tmp_path: Path) -> None:
    """</s> cut out of a text where it is a tag like any other."""
    texts = {"</s>": CONTROL, "<|tool_response>": CONTROL}
    assert attributes_of(tmp_path, texts)["</s>"] == Attribute.NORMAL
    assert attributes_of(tmp_path, {"</s>": CONTROL})["</s>"] == Attribute.CONTROL


def test_strips_by_name_only(tmp_path: Path) -> None:
    """Whitespace that goes with a token of another family of models."""
    texts = {"<mask>": CONTROL, "<s>": CONTROL, "<|user|>": CONTROL}
    strip_right, strip_left = Attribute.STRIP_RIGHT, Attribute.STRIP_LEFT
    found = attributes_of(tmp_path, texts, name="Phi-3 mini")
    assert found["<|user|>"] == Attribute.CONTROL | strip_right
    assert found["<s>"] == Attribute.CONTROL
    found = attributes_of(tmp_path, texts, pre="jina-v2-de")
    assert found["<mask>"] == Attribute.CONTROL | strip_left
    assert attributes_of(tmp_path, texts)["<mask>"] == Attribute.CONTROL


def test_strips_left(tmp_path: Path) -> None:
    """Spaces before <mask> that become tokens, or spaces beyond the fragment that vanish."""
    tokens = ["a", "\u0120", "<mask>", "<x>", "\u010a"]
    tokenizer = load_toy(
        tmp_path, "jina-v2-de", tokens=tokens, types=[1, 1, 3, 3, 1], merges=["a a"], bos_id=0,
        eos_id=0, add_eos=False, add_bos=False,
    )  # fmt: skip
    assert tokenizer.encode("a \n<mask> a").tolist() == [0, 2, 1, 0]
    assert tokenizer.encode(" <mask>  <mask><x> <x>").tolist() == [2, 2, 3, 1, 3]


def test_fingerprint_follows_the_ids(tmp_path: Path) -> None:
    """Two vocabularies that give other ids under one fingerprint, or one under two."""
    first = load_toy(tmp_path, "llama-bpe")
    assert len(first.fingerprint) == 32
    changes = ({"name": "another"}, {"pre": "llama3"})
    same = [load_toy(tmp_path, "llama-bpe", **change) for change in changes]
    assert {tokenizer.fingerprint for tokenizer in same} == {first.fingerprint}
    tokens = [token.decode() for token in first.vocabulary.tokens]
    merges = [merge.decode() for merge in first.vocabulary.merges or ()]
    types = [NORMAL] * len(tokens)
    others = [
        load_toy(tmp_path, "llama-bpe", pre="dbrx", add_bos=True),
        load_toy(tmp_path, "llama-bpe", pre="qwen2", add_bos=True),
        load_toy(tmp_path, "llama-bpe", add_bos=False),
        load_toy(tmp_path, "llama-bpe", bos_id=0),
        load_toy(tmp_path, "llama-bpe", types=types),
        load_toy(tmp_path, "llama-bpe", merges=merges[::-1]),
        load_toy(tmp_path, "llama-bpe", tokens=[*tokens[:-1], "other"]),
    ]
    assert len({first.fingerprint, *(tokenizer.fingerprint for tokenizer in others)}) == 8


# ---- text


@pytest.mark.parametrize("kind", [*BPE_KINDS, "spm"])
def test_decodes_what_it_encoded(toys: dict[str, Tokenizer], kind: str) -> None:
    """Bytes that are lost or doubled on the way back."""
    text = "The quick <|im_start|> caf\u00e9\n12345 doesn't  \u4f60\u597d"
    ids = toys[kind].encode(text, add_special=False)
    prefix = b" " if kind == "spm" else b""
    shown = token_bytes(toys[kind], ids)
    assert shown.replace(b"<|im_start|>  ", b"<|im_start|> ") == prefix + text.encode()


def test_malformed_text(toys: dict[str, Tokenizer]) -> None:
    """A traceback for bytes that are no text."""
    for text in (b"\xff\xfe", b"abc\xe2\x82", "\ud800"):
        with pytest.raises(InputMalformed):
            toys["smollm"].encode(text)


def test_unicode_classes() -> None:
    """A table of another Unicode version than the one that llama.cpp follows."""
    table = unicode_classes.class_table()
    assert unicode_table.UNICODE_VERSION == "15.1.0"
    assert np.bincount(table).tolist() == [0, 975_530, 136_726, 1_831, 25]
    marks = unicode_classes.class_table(marks_are_letters=True)
    assert marks[0x301] == unicode_classes.LETTER
    assert table[0x301] == unicode_classes.OTHER
    assert table[0x2EBF0] == unicode_classes.LETTER  # new in 15.1
    assert table[0x1C89] == unicode_classes.OTHER  # a letter since 16.0
    assert table[0x85] == table[0x3000] == unicode_classes.WHITESPACE
    assert table[0x200B] == unicode_classes.OTHER
    isolated = unicode_classes.class_table(isolate_punctuation=True)
    assert isolated[list(b"!$~")].tolist() == [unicode_classes.ISOLATED] * 3
    assert isolated[ord("`")] == unicode_classes.OTHER


@pytest.mark.parametrize("name", ["kjv_test", "sqlite_test"])
def test_equal_to_the_tokenizers_library(name: str, smollm2: Path) -> None:
    """A fault of the merger that llama.cpp's recorded texts, known while it was written, hide: the
    same vocabulary and merges in a library by other hands."""
    values = read_metadata(smollm2)
    tokens = [token.decode() for token in values.strings("tokenizer.ggml.tokens")]
    merges = [
        tuple(pair.decode().split(" ", 1)) for pair in values.strings("tokenizer.ggml.merges")
    ]
    library = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges)
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    text = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    ours = load_tokenizer(smollm2).encode(text, add_special=False, parse_special=False)
    assert ours.tolist() == library.encode(text, add_special_tokens=False).ids
