"""What a tokenizer adds to a prompt that has it already is said, in every command, and kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import toy_model
from conftest import Done
from draftsmith.engine.tokens.prompt_ends import TextEnds, doubts_of_prompt
from draftsmith.engine.tokens.tokenizer import load_tokenizer

Cli = Callable[..., Done]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that adds BOS, and one that adds EOS as well."""
    folder = tmp_path_factory.mktemp("models")
    small = {**toy_model.SMALL, "n_ctx": 512}
    toy_model.write_model(folder / "bos.gguf", "llama", **small, vocabulary="spm")
    toy_model.write_model(folder / "eos.gguf", "llama", **small, vocabulary="spm-strip")
    return folder


def test_which_ends_are_doubtful(models: Path) -> None:
    """A plain prompt that is warned of, or two BOS that are made one."""
    bos, eos = (load_tokenizer(models / f"{name}.gguf") for name in ("bos", "eos"))
    assert doubts_of_prompt(bos.encode("the cat"), bos) == []
    assert doubts_of_prompt(bos.encode(""), bos) == []
    ids = bos.encode("<s>the cat")
    assert ids[:2].tolist() == [1, 1]
    (doubt,) = doubts_of_prompt(ids, bos)
    assert doubt.startswith("the model reads '<s>' twice")
    (doubt,) = doubts_of_prompt(eos.encode("the cat"), eos)
    assert "the prompt ends with '</s>' (" in doubt
    first, second = doubts_of_prompt(eos.encode("<s>the cat</s>"), eos)
    assert "reads '<s>' twice" in first
    assert "ends with '</s>' twice" in second


def test_every_command_says_so(cli: Cli, models: Path, tmp_path: Path) -> None:
    """A warning of lookup-run's that the others lack, or one that takes a token away."""
    text = tmp_path / "text.txt"
    text.write_text("<s>the cat")
    common = ("-m", models / "bos.gguf", "--json")
    asked = ("-n", "2", "--temp", "0", "-t", "1", *common)
    for args in (
        ("lookup-run", "-f", text, *asked),
        ("mtp-run", "-f", text, "--drafter", "none", *asked),
        ("prefill-run", "-f", text, "-p", "why?", "--raw", "--scorer", "lexical", *asked),
    ):
        done = cli(*args)
        assert done.status == 0, done.stderr
        assert "warning: the model reads '<s>' twice" in done.stderr
        n = done.record["n_input"]
        text.write_text("the cat")
        plain = cli(*args)
        assert "twice" not in plain.stderr
        assert n == plain.record["n_input"] + 1
        text.write_text("<s>the cat")
    text.write_text("<s>" + "the cat " * 300)
    for more in ((), ("--drafter", "suffix")):
        done = cli("lookup-stats", "-f", text, *more, *common)
        assert "warning: 1 documents begin with two BOS" in done.stderr
    text.write_text("the cat")
    done = cli("lookup-run", "-f", text, "-n", "2", "-m", models / "eos.gguf", "-t", "1", "--json")
    assert "the prompt ends with '</s>'" in done.stderr
    assert json.loads(done.stdout)["n_predict"] == 2


def test_documents_in_pieces(models: Path) -> None:
    """A BOS and an EOS that are counted where a document's pieces meet, or missed there."""
    eos = load_tokenizer(models / "eos.gguf")
    texts = ["<s>a b</s>", "a <s>", "", "<s>", "</s>"]
    for size in (1, 2, 3, 100):
        ends = TextEnds(eos)
        for number, text in enumerate(texts):
            ids = eos.encode(text)
            for at in range(0, ids.size, size):
                ends.add(number, ids[at : at + size])
        ends.finish()
        ends.finish()
        assert (ends.n_two_bos, ends.n_two_eos) == (2, 2)
