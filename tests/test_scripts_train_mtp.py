"""Training data and training of an MTP head, at a small setting: needs torch, and a minute."""

from __future__ import annotations

import csv
import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from draftsmith.engine.errors import UsageError
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.gguf.tensors import open_tensors
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from draftsmith.engine.transformer.model import Model, load_model
from draftsmith.mtp.drafter import MtpDrafter
from draftsmith.mtp.head import open_head
from toy_model import write_model

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
ROWS, LENGTH, N_VOCAB = 12, 96, 128


def run(script: str, *args: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, SCRIPTS / script, *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "toy.gguf", "llama", "Q8_0", n_layers=3)


@pytest.fixture(scope="module")
def data(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    text = folder.parent / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog.\n" * 50)
    run("make_mtp_data.py", "-m", model_path, "-o", folder, "--tokens", 2 * ROWS * LENGTH,
        "--rows", ROWS, "--length", LENGTH, "--features", 1, 2, "--text", text)  # fmt: skip
    return folder


def test_shards_hold_what_the_model_computes(model_path: Path, data: Path) -> None:
    """The bug: states of another row or place, or of a text that saw its neighbours."""
    shards = sorted(data.iterdir())
    assert [shard.name for shard in shards] == ["000-0000", "000-0001"]
    model = load_model(model_path, n_threads=1)
    for shard in shards:
        tokens, hidden = np.load(shard / "tokens.npy"), np.load(shard / "hidden.npy")
        learn = np.load(shard / "learn.npy")
        assert tokens.shape == learn.shape == (ROWS, LENGTH)
        assert hidden.shape == (ROWS, LENGTH, 3, model.params.n_embd)
        assert 0.2 < learn.mean() < 1
        for row in (0, ROWS - 1):
            assert_states(model, tokens[row], hidden[row])
    model.close()


def assert_states(model: Model, tokens: np.ndarray, hidden: np.ndarray) -> None:
    found = model.forward(tokens, model.new_cache(LENGTH), rows="all")
    assert (hidden[:, -1] == found.hidden.astype(np.float16)).all()


def test_data_goes_on_where_it_stopped(model_path: Path, data: Path, tmp_path: Path) -> None:
    """The bug: a second sitting that writes what the first one wrote, or something else."""
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*.npy")}
    args = ("-m", model_path, "--tokens", 2 * ROWS * LENGTH, "--rows", ROWS, "--length", LENGTH)
    more = ("--features", 1, 2, "--text", data.parent / "text.txt")
    run("make_mtp_data.py", "-o", data, *args, *more)
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*.npy")} == before


@pytest.mark.slow
def test_noise_leaves_what_is_wanted(
    model_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bug: noise in the states that are to be predicted, which share memory with those seen."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(SCRIPTS)
    batches = importlib.import_module("mtp_batches")
    shards = batches.Shards(data, batches.Target(model_path, (1, 2)), 4, set())
    clean, noisy = shards.batch(shards.held), shards.batch(shards.held)
    noisy.disturb(0.1)
    assert (noisy.wanted == clean.wanted).all()
    for name in ("hidden", "features"):
        seen, disturbed = getattr(clean, name), getattr(noisy, name)
        share = (disturbed - seen).square().mean().sqrt() / seen.square().mean().sqrt()
        assert 0.08 < share < 0.12


def test_a_head_is_read_as_it_was_written(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bug: training that begins with another head, or with one that sees other layers."""
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(SCRIPTS)
    names = ("mtp_batches", "mtp_export", "mtp_model")
    batches, export, models = map(importlib.import_module, names)
    target = batches.Target(model_path, (1, 2))
    torch.manual_seed(1)
    head = models.Head(target.sizes)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
    path, d2t = tmp_path / "head.gguf", torch.tensor([0, 3, 50])
    export.write_head(path, head, d2t, target)
    found, found_d2t = export.read_head(path, target)
    assert found_d2t.tolist() == d2t.tolist()
    for name, parameter in head.named_parameters():
        assert (found.get_parameter(name) - parameter).abs().max() < 0.03, name
    with pytest.raises(SystemExit, match=r"layers \(1, 2\), and --features are \(0, 2\)"):
        export.read_head(path, batches.Target(model_path, (0, 2)))
    other = write_model(tmp_path / "other.gguf", "llama", "Q8_0", n_layers=2)
    with pytest.raises(UsageError, match="another model"):
        export.read_head(path, batches.Target(other, (1, 2)))


@pytest.mark.slow
def test_training_lowers_the_loss_and_writes_a_head(
    model_path: Path, data: Path, tmp_path: Path
) -> None:
    """The bug: a gradient that leads nowhere, a stop that loses steps, a head nobody can read."""
    pytest.importorskip("torch")
    args = ("-m", model_path, "--data", data, "-o", tmp_path / "out", "--vocabulary", N_VOCAB,
            "--features", 1, 2, "--held", 4, "--every", 10, "--exclude", "--rows", 4)  # fmt: skip
    run("train_mtp_head.py", *args, "--steps", 20)
    run("train_mtp_head.py", *args, "--steps", 60)
    rows = curve(tmp_path / "out")
    assert [int(row["step"]) for row in rows] == [10, 20, 30, 40, 50, 60]
    assert float(rows[-1]["train_loss1"]) < float(rows[0]["train_loss1"])
    metadata = read_metadata(model_path)
    tokenizer = load_tokenizer(model_path, metadata)
    model = load_model(model_path, metadata, n_threads=1)
    path = tmp_path / "out" / "head.gguf"
    head = open_head(path, metadata, model, tokenizer.fingerprint.hex())
    drafter = MtpDrafter(head, n_ctx=64)
    tokens = np.load(data / "000-0000" / "tokens.npy")[0, :40]
    assert_drafts(model, drafter, tokens)
    model.close()
    again = ("--steps", 10, "--start", path, "-o", tmp_path / "more")
    run("train_mtp_head.py", *args, *again)
    (begun,) = curve(tmp_path / "more")
    assert float(begun["held_loss1"]) < float(rows[2]["held_loss1"])
    # other numbers, no other lesson
    run("train_mtp_head.py", *args, *again[:-1], tmp_path / "half", "--bf16")
    (halved,) = curve(tmp_path / "half")
    assert float(halved["held_loss1"]) == pytest.approx(float(begun["held_loss1"]), rel=0.01)
    heads = [(tmp_path / name / "head.gguf").read_bytes() for name in ("more", "half")]
    assert heads[0] != heads[1]
    run("train_mtp_head.py", *args, *again[:-1], tmp_path / "few", "--vocabulary", 40)
    few = open_tensors(tmp_path / "few" / "head.gguf")
    assert few["nextn.d2t"].shape == (40,)


def curve(folder: Path) -> list[dict[str, str]]:
    """The rows of a training's curve."""
    with (folder / "curve.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def assert_drafts(model: Model, drafter: MtpDrafter, tokens: np.ndarray) -> None:
    """It can be asked for drafts after a text."""
    from draftsmith.engine.transformer.model import Taps

    taps = Taps(hidden_layers=tuple(drafter.feature_layers))
    done = model.forward(tokens, model.new_cache(64), all_hidden=True, taps=taps)
    assert done.taps is not None
    drafter.see(tokens, done.all_hidden, done.taps.hidden)
    drafter.accept(tokens)
    drafter.accept([int(done.logits[0].argmax())])
    assert 1 <= len(drafter.draft(3)) <= 3
