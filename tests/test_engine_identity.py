"""What a model is: its weights, and not its file's name, its path or the order of its keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import toy_model
from conftest import Done
from draftsmith.engine.errors import ExitStatus
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.gguf.identity import (
    TARGET_NORMS,
    TARGET_WEIGHTS,
    UNTOLD,
    Identity,
    Kinship,
    Marks,
)
from draftsmith.engine.gguf.tensors import open_tensors
from draftsmith.engine.models import KNOWN_MODELS, KnownModel
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from draftsmith.engine.transformer.hparams import read_params
from draftsmith.mtp import shipped
from draftsmith.mtp.head_file import open_head_file
from draftsmith.prefill.scorers import calibration_file
from draftsmith.prefill.scorers.calibration_file import read_calibration
from draftsmith.prefill.scorers.projection import read_projection
from toy_mtp import ToyHead, write_toy_head
from toy_projection import write_projection

Cli = Callable[..., Done]
SMOLLM2 = Marks(KNOWN_MODELS["smollm2"].norms, KNOWN_MODELS["smollm2"].weights)


def identity(path: Path) -> Identity:
    return Identity.of(read_metadata(path))


def rewritten(
    source: Path,
    path: Path,
    change: Callable[[str, np.ndarray], np.ndarray] = lambda name, data: data,
    *,
    backwards: bool = False,
    told: dict[str, str] | None = None,
) -> Path:
    """The same GGUF in another file, its keys and tensors in another order or changed."""
    reader = gguf.GGUFReader(source)
    order = -1 if backwards else 1
    writer = gguf.GGUFWriter(path, str(reader.fields["general.architecture"].contents()))
    for field in list(reader.fields.values())[::order]:
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kinds = [*field.types, None]
            writer.add_key_value(field.name, field.contents(), kinds[0], kinds[1])
    for key, value in (told or {}).items():
        writer.add_string(key, value)
    for tensor in list(reader.tensors)[::order]:
        data = change(tensor.name, np.array(tensor.data))
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A small model in float32."""
    return toy_model.write_model(tmp_path / "toy.gguf", "llama", seed=3, **toy_model.SMALL)


def test_not_the_file_but_the_weights(toy: Path, tmp_path: Path) -> None:
    """A model that is not known again under another name, path or order."""
    other = rewritten(toy, tmp_path / "x.gguf", backwards=True)
    assert list(open_tensors(other)) != list(open_tensors(toy))
    assert identity(other).marks == identity(toy).marks


def test_split_in_parts(toy: Path, tmp_path: Path) -> None:
    """A split model that is another one than the same in one file."""
    (tmp_path / "parts").mkdir()
    first = toy_model.write_model(
        tmp_path / "parts" / "toy.gguf", "llama", seed=3, max_tensors=5, **toy_model.SMALL
    )
    assert "-00001-of-" in first.name
    assert identity(first).marks == identity(toy).marks


def test_other_weights(toy: Path, tmp_path: Path) -> None:
    """A model of the same size with other weights that is taken for this one."""
    marks = identity(toy).marks
    assert identity(toy).kinship(marks) is Kinship.SAME
    assert identity(toy).kinship(UNTOLD) is Kinship.UNTOLD
    assert identity(toy).kinship(Marks(marks.norms)) is Kinship.SAME
    other = toy_model.write_model(tmp_path / "o.gguf", "llama", seed=4, **toy_model.SMALL)
    assert identity(other).kinship(marks) is Kinship.OTHER
    # LoRA leaves the norms as they were; one number of one matrix is enough
    for at in (0, -1):

        def change(name: str, data: np.ndarray, at: int = at) -> np.ndarray:
            if name == "blk.1.ffn_up.weight":
                data.reshape(-1)[at] += 0.25
            return data

        tuned = rewritten(toy, tmp_path / f"tuned{at}.gguf", change)
        assert identity(tuned).norms == marks.norms
        assert identity(tuned).kinship(marks) is Kinship.KIN


def test_another_quantisation(tmp_path: Path) -> None:
    """A quantisation of the same model that is another model, or taken for the same file."""
    made = [
        identity(toy_model.write_model(tmp_path / f"{kind}.gguf", "llama", kind, seed=3))
        for kind in ("F32", "F16", "Q8_0")
    ]
    assert len({one.norms for one in made}) == 1
    assert len({one.weights for one in made}) == 3
    assert made[0].kinship(made[1].marks) is Kinship.KIN


def test_large_tensors_are_sampled(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of a large tensor, or the bytes after its last whole word, left out."""
    monkeypatch.setattr("draftsmith.engine.gguf.identity._SMALL_BYTES", 0)
    [tensor] = [t for t in open_tensors(toy).values() if t.name == "token_embd.weight"]
    for n in (8, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (1 << 21) + 5):
        data = np.zeros((1, n), np.uint8)
        seen = set()
        for value, at in enumerate((0, 0, 1, n - 1)):
            changed = data.copy()
            changed[0, at] = value
            one = Identity({"x": type(tensor)("x", tensor.type, (1, n), changed)})
            seen.add(one.weights)
        assert len(seen) == 4, n
    monkeypatch.undo()
    data = np.zeros((1, 1 << 22), np.uint8)
    marks = set()
    for at in (*range(0, data.size, 1 << 17), 100_001):
        data[0, at] ^= 7  # in a small model no byte is passed over
        marks.add(Identity({"x": type(tensor)("x", tensor.type, (1, 1 << 22), data)}).weights)
    assert len(marks) == 33


def test_the_real_model(smollm2: Path) -> None:
    """Marks in the package that are not the model's: no head, and no scorer."""
    assert identity(smollm2).marks == SMOLLM2
    metadata = read_metadata(smollm2)
    tokenizer = load_tokenizer(smollm2, metadata)
    params = read_params(metadata, tokenizer.n_vocab)
    head = shipped.FOLDER / shipped.SHIPPED["smollm2"]
    fingerprint = tokenizer.fingerprint.hex()
    assert open_head_file(head, metadata, params, fingerprint).made_for == SMOLLM2
    for path in calibration_file.FOLDER.glob("*.gguf"):
        assert read_projection(path).made_for == SMOLLM2
    for path in calibration_file.FOLDER.glob("*.json"):
        assert read_calibration(path).made_for == SMOLLM2


def test_the_real_model_elsewhere(cli: Cli, smollm2: Path, tmp_path: Path) -> None:
    """The bug: a model that has "no MTP layers" where it lies under the user's own path."""
    own = tmp_path / "my own.gguf"
    own.symlink_to(smollm2)
    args = ("-p", "The cat", "-n", "2", "--temp", "0", "--json", "--drafter", "mtp", "-c", "64")
    done = cli("mtp-run", "-m", own, *args)
    assert done.status == 0, done.stderr
    named = cli("mtp-run", "-m", "smollm2", *args)
    assert done.record["tokens"] == named.record["tokens"]
    assert done.record["n_drafted"] == named.record["n_drafted"]


# --- a toy that is known, and its kin -------------------------------------------------------------


@pytest.fixture
def known(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy is a known model, with a head and a scorer that come along."""
    marks = identity(toy).marks
    assert marks.norms
    assert marks.weights
    folder = tmp_path / "along"
    folder.mkdir()
    model = KnownModel("toy.gguf", "", "", 0, "", marks.norms, marks.weights)
    monkeypatch.setattr(shipped, "KNOWN_MODELS", {"toy": model})
    monkeypatch.setattr(shipped, "FOLDER", folder)
    monkeypatch.setattr(calibration_file, "FOLDER", folder)
    monkeypatch.setenv("DRAFTSMITH_CACHE", str(tmp_path / "none"))
    write_toy_head(folder / "head.bin", "llama", ToyHead(), **toy_model.SMALL)
    monkeypatch.setattr(shipped, "SHIPPED", {"toy": "head.bin"})
    fingerprint = load_tokenizer(toy).fingerprint.hex()
    sizes = {"n_layers": 2, "n_embd": toy_model.SMALL["n_embd"], "document_layers": (1,)}
    path = write_projection(tmp_path / "s.gguf", fingerprint, **sizes, question_layers=(1,))
    told = {TARGET_NORMS: marks.norms, TARGET_WEIGHTS: marks.weights}
    rewritten(path, folder / "s.gguf", told=told)
    return toy


@pytest.fixture
def tuned(known: Path, tmp_path: Path) -> Path:
    """The same, but for numbers of a matrix."""
    return rewritten(
        known, tmp_path / "tuned.gguf", lambda name, data: data * (1 + 0.1 * ("ffn_up" in name))
    )


@pytest.fixture
def other(known: Path, tmp_path: Path) -> Path:
    """A model of the same size with other weights."""
    return toy_model.write_model(tmp_path / "other.gguf", "llama", seed=9, **toy_model.SMALL)


MTP = ("-p", "the cat", "-n", "4", "--temp", "0", "--json", "--ignore-eos", "-t", "1")


def test_the_head_of_a_known_model(cli: Cli, known: Path, tuned: Path, other: Path) -> None:
    """A head given to other weights without a word, or one that is named and not taken."""
    done = cli("mtp-run", "-m", known, *MTP)
    assert (done.status, done.stderr) == (0, "")
    head = shipped.FOLDER / "head.bin"
    for model, what in ((tuned, "or a fine-tune"), (other, "with other weights")):
        done = cli("mtp-run", "-m", model, *MTP)
        assert done.status == ExitStatus.USAGE
        assert "has no MTP layers: the head that comes along is for toy" in done.error
        assert what in done.error
        assert f"--mtp-head {head}" in done.error
        assert cli("mtp-run", "-m", model, *MTP, "--mtp-head", head).status == 0
        assert cli("mtp-run", "-m", model, *MTP, "--drafter", "ngram").status == 0


def test_a_named_head_for_other_weights(cli: Cli, known: Path, other: Path, tmp_path: Path) -> None:
    """A head that was made for other weights and drafts badly, and nobody knows why."""
    marks = identity(known).marks
    told = {TARGET_NORMS: str(marks.norms), TARGET_WEIGHTS: str(marks.weights)}
    head = rewritten(shipped.FOLDER / "head.bin", tmp_path / "named.gguf", told=told)
    assert cli("mtp-run", "-m", known, *MTP, "--mtp-head", head).stderr == ""
    done = cli("mtp-run", "-m", other, *MTP, "--mtp-head", head)
    assert done.status == 0
    assert "was not made for other.gguf itself (it has other weights)" in done.stderr


def test_the_scorer_of_a_known_model(
    cli: Cli, known: Path, tuned: Path, other: Path, tmp_path: Path
) -> None:
    """A scorer given to other weights without a word, or one that is named and not taken."""
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat. " * 20)
    args = ("-f", text, "-p", "where?", "--raw", "-n", "2", "--temp", "0", "--json", "-t", "1")
    args = (*args, "--min-tokens", "0", "--keep", "0.5")

    def run(model: Path, *more: str | Path) -> tuple[str, str]:
        done = cli("prefill-run", "-m", model, *args, *more)
        assert done.status == 0, done.stderr
        return done.record["scorer"], done.stderr

    assert run(known) == ("trained", "")
    scorer, told = run(tuned)
    assert scorer == "trained"
    assert "s.gguf was not made for tuned.gguf itself (it has the same norms" in told
    scorer, told = run(other)
    assert scorer == "lexical"
    assert "was trained for toy, of which other.gguf has vocabulary and size, but not" in told
    scorer, told = run(other, "--calibration", calibration_file.FOLDER / "s.gguf")
    assert scorer == "trained"
    assert "was not made for other.gguf itself (it has other weights)" in told
