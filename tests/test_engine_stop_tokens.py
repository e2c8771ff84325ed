"""The tokens that end a generation: llama.cpp's, by key, by text, and taken back."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from draftsmith.engine.errors import ModelDamaged
from draftsmith.engine.gguf.file import GgufMetadata, read_metadata
from draftsmith.engine.tokens.stop_tokens import eog_ids
from draftsmith.engine.tokens.vocabulary import END_TEXTS, read_vocabulary
from peer_text import ask_peer
from toy_gguf import CONTROL, NORMAL, write_toy

PLAIN = ["a", "b", "c", "\u0120", "\u010a"]
N_PLAIN = len(PLAIN)
HARMONY = ["<|end|>", "<|return|>", "<|call|>"]
SOLAR = ["<|flush|>", "<|calls|>", "<|end|>"]
GEMMA = ["</s>", "<turn|>", "<|tool_response>", "<eos>"]
FILL_IN = ["<|fim_prefix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|fim_suffix|>"]


def write_with(path: Path, texts: list[str], eos_id: int | None = 0, **changes: object) -> Path:
    """A toy model whose ids from N_PLAIN on are ``texts``."""
    tokens = [*PLAIN, *texts]
    types = [NORMAL] * N_PLAIN + [CONTROL] * len(texts)
    return write_toy(
        path / "toy.gguf", "smollm", weights=True, tokens=tokens, types=types, merges=["a b"],
        bos_id=None, eos_id=eos_id, **changes,
    )  # fmt: skip


def with_keys(metadata: GgufMetadata, **ids: object) -> GgufMetadata:
    """The same with some of tokenizer.ggml.*_token_id."""
    keys = {f"tokenizer.ggml.{name}_token_id": token for name, token in ids.items()}
    return replace(metadata, values=metadata.values | keys)


def ends(metadata: GgufMetadata) -> list[int]:
    """Places of the ending tokens: 0 is the first text, below 0 are the plain tokens."""
    return [token - N_PLAIN for token in sorted(eog_ids(metadata))]


def peer_ends(path: Path) -> list[tuple[int, str]]:
    """What llama.cpp notes while it loads a model."""
    noted = re.findall(
        r"print_info: EOG token *= (\d+) '(.*)'$", ask_peer(path, []).log, re.MULTILINE
    )
    return sorted({(int(token), text) for token, text in noted})


def test_of_the_real_model(smollm2: Path) -> None:
    """A chat that goes on after <|im_end|>, or ends nowhere; as llama.cpp notes them itself."""
    metadata = read_metadata(smollm2)
    vocabulary = read_vocabulary(metadata)
    found = eog_ids(metadata, vocabulary)
    assert found == {0, 2, 4} == eog_ids(metadata)
    named = [(token, vocabulary.tokens[token].decode()) for token in sorted(found)]
    assert named == [(0, "<|endoftext|>"), (2, "<|im_end|>"), (4, "<reponame>")]
    assert named == peer_ends(smollm2)


@pytest.mark.parametrize("kind", ["spm", "llama-bpe"])
def test_of_a_toy_model(kind: str, tmp_path: Path) -> None:
    """An end that only one kind of vocabulary knows."""
    path = write_toy(tmp_path / "toy.gguf", kind, weights=True)
    metadata = read_metadata(path)
    tokens = read_vocabulary(metadata).tokens
    named = [(token, tokens[token].decode()) for token in sorted(eog_ids(metadata))]
    assert named == peer_ends(path)
    own = ["</s>", "<|endoftext|>"] if kind == "spm" else ["<|eos|>"]
    assert [text for _, text in named] == [*own, "<|im_end|>"]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["<|im_start|>", "<|eot_id|>", "<|eom_id|>"], [-5, 1, 2]),
        (HARMONY, [-5, 1, 2]),
        (["<|end|>", "<|return|>"], [-5, 0, 1]),
        (SOLAR, [-5, 0, 1]),
        (GEMMA, [-5, 1, 2, 3]),
        (FILL_IN, [-5, 1, 2, 3]),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else "",
)
def test_by_text(texts: list[str], expected: list[int], tmp_path: Path) -> None:
    """A text that is missing or too many; <|end|> and </s> where a model writes them midway."""
    path = write_with(tmp_path, texts)
    assert ends(read_metadata(path)) == expected
    assert [token - N_PLAIN for token, _ in peer_ends(path)] == expected


def test_every_text(tmp_path: Path) -> None:
    """A text of the list that is not looked for; all at once some would take others back."""
    texts = END_TEXTS.split()
    assert len(texts) == 22
    for place, text in enumerate(texts):
        metadata = read_metadata(write_with(tmp_path, [f"<{place}>", text]))
        assert ends(metadata) == [-5, 1], text


def test_by_key(tmp_path: Path) -> None:
    """Ids under the file's own keys that are ignored, or that hide what a text says."""
    metadata = read_metadata(write_with(tmp_path, ["<x>", "<y>", "<|im_end|>", "<z>", "<PAD>"]))
    assert ends(metadata) == [-5, 2, 4]
    assert ends(with_keys(metadata, eot=N_PLAIN, eom=N_PLAIN + 1)) == [-5, 0, 1, 2, 4]
    assert ends(with_keys(metadata, eos=N_PLAIN + 2)) == [2, 4]
    # a padding token under its key: then none is looked for by text
    assert ends(with_keys(metadata, fim_pad=N_PLAIN + 3)) == [-5, 2, 3]
    others = with_keys(metadata, fim_rep=N_PLAIN, fim_sep=N_PLAIN + 1, fim_pre=N_PLAIN + 3)
    assert ends(others) == [-5, 0, 1, 2, 4]


def test_one_of_several_fill_in_tokens(tmp_path: Path) -> None:
    """Each token that looks like padding taken for an end; llama.cpp takes one."""
    metadata = read_metadata(write_with(tmp_path, ["[PAD]", "<fim_pad>", "<|fim_pad|>"]))
    assert ends(metadata) == [-5, 0]


def test_the_end_of_plamo(tmp_path: Path) -> None:
    """</s> taken for an end where another token is; it stands in texts there."""
    metadata = read_metadata(write_with(tmp_path, ["</s>", "<|plamo:eos|>"]))
    assert ends(metadata) == [-5, 0]
    assert ends(with_keys(metadata, eos=N_PLAIN + 1)) == [1]


@pytest.mark.parametrize("token", [10**6, -1, 2**63])
def test_ids_out_of_range(token: int, tmp_path: Path) -> None:
    """An id that no logit has: a crash far from its cause, or an endless generation."""
    metadata = read_metadata(write_with(tmp_path, ["<|im_end|>"]))
    assert ends(with_keys(metadata, eot=token, eom=token, fim_sep=token)) == [-5, 0]
    assert ends(with_keys(metadata, eos=token)) == [0]  # the default, 11, is out of range too


def test_ids_of_another_type(tmp_path: Path) -> None:
    """A traceback for a text where an id should be."""
    metadata = read_metadata(write_with(tmp_path, ["<|im_end|>"]))
    with pytest.raises(ModelDamaged, match="eot_token_id"):
        eog_ids(with_keys(metadata, eot="<|im_end|>"))
