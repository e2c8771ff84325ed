"""Models that the commands refuse, each with its line and its status; toy models that they take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Done
from draftsmith.engine.errors import ExitStatus
from toy_gguf import write_toy

Cli = Callable[..., Done]


@pytest.fixture
def create(cli: Cli, tmp_path: Path) -> Cli:
    """Create a cache with a model; more options may follow."""
    (tmp_path / "text.txt").write_text("some text to count, some text to count\n")

    def run(model: Path, *args: str | Path) -> Done:
        text, out = tmp_path / "text.txt", tmp_path / "out.lcs"
        return cli("lookup-create", "-m", model, "-f", text, "-lcs", out, *args)

    return run


def refused(done: Done, status: ExitStatus, *messages: str) -> None:
    assert done.status == status, done.stderr
    assert done.stdout == ""
    for message in messages:
        assert message in done.error
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("kind", ["gpt-2", "llama-bpe", "qwen2", "spm"])
def test_toy_models_work(create: Cli, tmp_path: Path, kind: str) -> None:
    """A vocabulary that only the one real model does not have."""
    model = write_toy(tmp_path / "toy.gguf", kind)
    assert create(model, "--json").record["n_tokens"] > 5


def test_not_a_gguf(create: Cli, tmp_path: Path) -> None:
    """Another format, or the text file and the model mixed up."""
    path = tmp_path / "x.gguf"
    path.write_text("In the beginning God created the heaven and the earth.")
    refused(create(path), ExitStatus.MODEL_NOT_GGUF, str(path))
    path.write_bytes(b"")
    refused(create(path), ExitStatus.MODEL_NOT_GGUF, str(path))


def test_truncated_gguf(create: Cli, tmp_path: Path) -> None:
    """A download that was cut short, at a few places all over the metadata."""
    data = write_toy(tmp_path / "toy.gguf", "gpt-2").read_bytes()
    path = tmp_path / "x.gguf"
    for n_bytes in range(5, len(data) - 64, len(data) // 9):
        path.write_bytes(data[:n_bytes])
        refused(create(path), ExitStatus.MODEL_DAMAGED, str(path))


def test_gguf_without_tokenizer(create: Cli, tmp_path: Path) -> None:
    """An image model, or a projector."""
    absent = dict.fromkeys(("model", "pre", "tokens", "types", "merges"))
    path = write_toy(tmp_path / "x.gguf", "gpt-2", **absent)
    refused(create(path), ExitStatus.MODEL_NO_TOKENIZER, str(path))


def test_unknown_pre_tokenizer(create: Cli, tmp_path: Path) -> None:
    """A pre-tokenizer guessed at: ids that are nearly right."""
    path = write_toy(tmp_path / "x.gguf", "gpt-2", pre="nonsense-9")
    done = create(path)
    refused(done, ExitStatus.MODEL_UNSUPPORTED, "nonsense-9", "smollm", "qwen2", "llama-bpe")


def test_unknown_tokenizer(create: Cli, tmp_path: Path) -> None:
    """A WordPiece vocabulary taken for BPE."""
    path = write_toy(tmp_path / "x.gguf", "gpt-2", model="bert")
    refused(create(path), ExitStatus.MODEL_UNSUPPORTED, "bert")


def test_cache_of_another_model(cli: Cli, create: Cli, tmp_path: Path) -> None:
    """A cache used with a model whose ids mean other words."""
    assert create(write_toy(tmp_path / "a.gguf", "gpt-2")).status == 0
    other = write_toy(tmp_path / "b.gguf", "qwen2")
    np.save(tmp_path / "ids.npy", np.zeros(300, np.int32))
    args = ("-f", tmp_path / "ids.npy", "-lcs", tmp_path / "out.lcs", "-c", "256")
    refused(cli("lookup-stats", "-m", other, *args), ExitStatus.CACHE_OTHER_VOCABULARY)


def test_empty_text_with_bos(create: Cli, tmp_path: Path) -> None:
    """A lone BOS that counts as text."""
    (tmp_path / "text.txt").write_bytes(b"")
    model = write_toy(tmp_path / "toy.gguf", "spm", add_bos=True)
    refused(create(model), ExitStatus.INPUT_EMPTY, "no text")


def test_context_unknown(cli: Cli, tmp_path: Path) -> None:
    """A model that does not say its context, and no -c: a chunk of nothing."""
    model = write_toy(tmp_path / "toy.gguf", "gpt-2")
    np.save(tmp_path / "ids.npy", np.zeros(600, np.int32))
    refused(cli("lookup-stats", "-m", model, "-f", tmp_path / "ids.npy"), ExitStatus.USAGE, "-c N")
