"""The toy models: seeded, of the shapes that were asked for, and moved by each of their parts.

That llama.cpp runs them all is tested in test_engine_model_peer.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from naive_model import NaiveModel, forward, log_softmax
from toy_model import CASES, SMALL, WEIGHT_TYPES, write_case, write_model

TOKENS = np.random.default_rng(1).integers(0, 400, 30)


def moved(path: Path, arch: str, **changes: Any) -> float:
    """By how much a change moves the logits of a small model, at most."""
    sizes: dict[str, Any] = {**SMALL, "d_head": 32}
    before = forward(write_model(path / "before.gguf", arch, **sizes), TOKENS)
    after = forward(write_model(path / "after.gguf", arch, **{**sizes, **changes}), TOKENS)
    return float(np.abs(after - before).max())


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    """The bug: a test that fails on one machine or in one run of ten."""
    first, second, other = (
        write_model(tmp_path / f"{i}.gguf", "gemma3", "Q6_K", seed).read_bytes()
        for i, seed in enumerate((3, 3, 4))
    )
    assert first == second
    assert first != other


@pytest.mark.parametrize("name", CASES)
def test_logits_are_neither_flat_nor_saturated(name: str, tmp_path: Path) -> None:
    """The bug: a model that says one token with certainty, or all alike, agrees with any other."""
    model = NaiveModel(write_case(tmp_path / "toy.gguf", name))
    found = model.trace(TOKENS)
    likeliest = log_softmax(found.logits).max(axis=1)
    least, most = (0.01, 0.02) if name == "gemma3 softcap" else (0.03, 0.99)
    assert (likeliest > np.log(least)).all()
    assert (likeliest < np.log(most)).mean() > 0.9
    assert len(set(found.logits.argmax(axis=1))) > 5


@pytest.mark.parametrize("kind", WEIGHT_TYPES)
def test_types_are_those_asked_for(kind: str, tmp_path: Path) -> None:
    """The bug: a type that is never written, so that what reads it is never tested.

    Also, of random blocks: weights that are no longer spread as the others are.
    """
    path = write_model(tmp_path / "toy.gguf", "llama", kind, types={"attn_v": "F32"})
    tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    for name, tensor in tensors.items():
        is_plain = "norm" in name or "attn_v" in name
        assert tensor.tensor_type.name == ("F32" if is_plain else kind)
    weights = NaiveModel(path).weights["blk.0.attn_q.weight"]
    assert np.isfinite(weights).all()
    assert abs(weights.mean()) < 0.1 * weights.std()
    assert weights.std() == pytest.approx(1.5 / np.sqrt(256), rel=0.03)


@pytest.mark.parametrize(
    ("arch", "change"),
    [
        ("llama", {"rope_factors": True}),
        ("llama", {"scaling": "linear", "factor": 4.0}),
        ("llama", {"scaling": "yarn", "factor": 4.0, "n_ctx_original": 64}),
        ("llama", {"eps": 0.1}),
        ("qwen2", {"base": 1e4}),
        ("gemma3", {"window": 9}),
        ("gemma3", {"pattern": 3}),
        ("gemma3", {"base_local": 500.0}),
        ("gemma3", {"softcap": 3.0}),
        ("gemma3", {"scaling": "linear", "factor": 8.0}),
    ],
)
def test_each_setting_moves_the_logits(arch: str, change: dict[str, Any], tmp_path: Path) -> None:
    """The bug: a setting that a toy is too small or too tame to show, ignored unnoticed."""
    assert moved(tmp_path, arch, **change) > 0.1


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        *(("llama", name) for name in ("attn_norm", "ffn_norm")),
        *(("qwen3", name) for name in ("attn_q_norm", "attn_k_norm")),
        *(("gemma3", name) for name in ("post_attention_norm", "post_ffw_norm")),
    ],
)
def test_each_norm_moves_the_logits(arch: str, name: str, tmp_path: Path) -> None:
    """The bug: a norm whose weight is so near one that leaving it out does not show."""
    n = 32 if "_q_" in name or "_k_" in name else SMALL["n_embd"]
    flat = {f"blk.0.{name}.weight": np.ones(n, np.float32)}
    assert moved(tmp_path, arch, tensors=flat) > 0.1


@pytest.mark.parametrize("letter", "qkv")
def test_each_bias_moves_the_logits(letter: str, tmp_path: Path) -> None:
    """The bug: a bias so small that leaving it out does not show.

    (One on all keys alike would not: softmax does not see it. RoPE turns it with the position.)
    """
    n = 64 if letter == "q" else 32
    none = {f"blk.0.attn_{letter}.bias": np.zeros(n, np.float32)}
    assert moved(tmp_path, "qwen2", tensors=none) > 0.1


def test_parts_hold_what_one_file_holds(tmp_path: Path) -> None:
    """The bug: a split model that tests nothing, as its first part holds everything."""
    whole = write_model(tmp_path / "whole.gguf", "llama")
    first = write_model(tmp_path / "part.gguf", "llama", max_tensors=5)
    parts = sorted(tmp_path.glob("part-*.gguf"))
    assert first == parts[0]
    assert len(parts) > 2
    names = [tensor.name for part in parts for tensor in GGUFReader(part).tensors]
    assert names == [tensor.name for tensor in GGUFReader(whole).tensors]
