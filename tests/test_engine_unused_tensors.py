"""All that a file holds is computed with, or the file is refused by the tensor's name.

The names are those that llama.cpp's loader creates for the four architectures (load_arch_tensors in
its models/, create_tensor_qkv and load_tensors in its llama-model.cpp), written down here again.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Load
from draftsmith.engine.errors import ModelDamaged, ModelUnsupported
from draftsmith.engine.transformer.model import Model
from naive_model import NaiveModel
from numpy.typing import NDArray
from toy_model import ARCHITECTURES, write_model
from toy_mtp import ToyHead, write_model_with_head

SMALL: dict[str, Any] = {
    "n_embd": 32, "n_ff": 48, "n_head": 2, "n_head_kv": 2, "d_head": 16, "n_layers": 2,
}  # fmt: skip
Reals = NDArray[np.float64]
IDS = np.random.default_rng(4).integers(0, 400, 12)

EVERYTHING: dict[str, dict[str, Any]] = {
    "llama": {"scales": True, "all_biases": True, "rope_factors": True},
    "qwen2": {"scales": True, "head_bias": True, "tied": False},
    "qwen3": {"scales": True, "biases": True, "tied": False},
    "gemma3": {"scales": True, "biases": True, "tied": False, "pattern": 2},
}
FUSED: dict[str, dict[str, Any]] = {
    arch: {**changes, "fused": True, "biases": True, "all_biases": False}
    for arch, changes in EVERYTHING.items()
}

_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
_FEED_FORWARD = ("ffn_gate", "ffn_up", "ffn_down")
MATRICES = (*_ATTENTION, *_FEED_FORWARD)
# Of a block: the names that enter the logits, and those that llama.cpp loads and does not read.
READ = {
    "llama": [f"{name}.{kind}" for name in MATRICES for kind in ("weight", "scale", "bias")],
    "qwen2": [f"{name}.weight" for name in MATRICES],
    "qwen3": [f"{name}.{kind}" for name in MATRICES for kind in ("weight", "scale")],
    "gemma3": [f"{name}.weight" for name in MATRICES],
}
for _arch, _names in READ.items():
    _names += ["attn_norm.weight", "ffn_norm.weight"]
    if _arch != "llama":
        _names += [f"attn_{letter}.bias" for letter in "qkv"]
    if _arch in ("qwen2", "gemma3"):
        _names += [f"{name}.scale" for name in _ATTENTION]
    if _arch in ("qwen3", "gemma3"):
        _names += ["attn_q_norm.weight", "attn_k_norm.weight"]
READ["gemma3"] += ["post_attention_norm.weight", "post_ffw_norm.weight"]
UNREAD = {
    arch: [f"{name}.input_scale" for name in MATRICES]
    + ([f"{name}.scale" for name in _FEED_FORWARD] if arch in ("qwen2", "gemma3") else [])
    for arch in ARCHITECTURES
}
GLOBAL = {
    "llama": ["token_embd.weight", "output.weight", "output_norm.weight", "rope_freqs.weight"],
    "qwen2": ["token_embd.weight", "output.weight", "output_norm.weight", "output.bias"],
    "qwen3": ["token_embd.weight", "output.weight", "output_norm.weight"],
    "gemma3": ["token_embd.weight", "output.weight", "output_norm.weight"],
}
# What its loader knows besides, for files of other kinds; and what it does not know.
REFUSED = {
    "llama": [
        "rope_factors_long.weight", "rope_factors_short.weight", "output.scale",
        "output.input_scale",
        *(f"blk.1.{name}" for name in (
            "ffn_gate_inp.weight", "ffn_gate_exps.weight", "ffn_down_exps.weight",
            "ffn_up_exps.weight", "ffn_gate_exps.scale", "ffn_gate_exps.input_scale",
            "ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight",
            "attn_qkv.bias", "attn_qkv.scale", "attn_qkv.input_scale", "attn_gate.scale",
            "attn_q_norm.weight", "post_attention_norm.weight", "ssm_in.scale",
        )),
    ],
    "qwen2": [
        "rope_freqs.weight", "output.scale", "blk.0.attn_output.bias", "blk.0.ffn_gate.bias",
        "blk.0.ffn_up.bias", "blk.0.ffn_down.bias", "blk.0.attn_k_norm.weight",
        "cls.output.weight",
    ],
    "qwen3": [
        "rope_freqs.weight", "output.bias", "output.scale", "blk.0.attn_output.bias",
        "blk.0.ffn_down.bias", "cls.output.bias", "cls.weight",
    ],
    "gemma3": [
        "rope_freqs.weight", "output.bias", "output.scale", "blk.0.attn_output.bias",
        "blk.0.ffn_up.bias", "dense_2.weight", "dense_3.weight", "blk.0.layer_output_scale.weight",
    ],
}  # fmt: skip
MADE_UP = ["made_up.weight", "blk.0.made_up.weight", "blk.0.attn_q.weight2",
           "blk.01.attn_q.weight", "blk.0.attn_q", "nextn.d2t", "blk.0.attn_norm.bias",
           "blk.0.attn_norm.input_scale", "token_embd.scale", "output_norm.bias",
           "blk.x.attn_q.weight", "OUTPUT.bias"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("base")


@cache
def base_of(arch: str, is_fused: bool, folder: Path) -> tuple[dict[str, Reals], Reals]:
    """The weights of a model with all that its architecture knows, and its logits."""
    changes = FUSED if is_fused else EVERYTHING
    path = write_model(folder / f"{arch}-{is_fused}.gguf", arch, **SMALL, **changes[arch])
    naive = NaiveModel(path)
    return naive.weights, naive.trace(IDS).logits


def logits(model: Model) -> NDArray[np.float32]:
    return model.forward(IDS, model.new_cache(IDS.size), rows="all").logits


def assert_naive(path: Path, load: Load) -> Reals:
    """Assert that the engine's logits are the naive pass's, and return those."""
    want = NaiveModel(path).trace(IDS).logits
    np.testing.assert_allclose(logits(load(path)), want, atol=0.01 * want.std())
    return want


def assert_moves(
    arch: str, name: str, folder: Path, load: Load, tmp_path: Path, *, is_fused: bool
) -> None:
    """Assert that other numbers in a tensor change the logits as they change the naive pass's."""
    weights, base = base_of(arch, is_fused, folder)
    old = weights[name]
    other = -2 * old if old.size == 1 else np.random.default_rng(8).normal(0.3, 1, old.shape)
    changes = (FUSED if is_fused else EVERYTHING)[arch]
    tensors = {name: other.astype(np.float32)}
    path = write_model(tmp_path / "toy.gguf", arch, **SMALL, **changes, tensors=tensors)
    assert np.abs(assert_naive(path, load) - base).max() > 0.02 * base.std()


def test_the_lists_hold_all_that_the_toys_do(folder: Path) -> None:
    """The bug: a toy without a tensor that the lists name, so that nothing is tried with it."""
    for arch in ARCHITECTURES:
        names = set(GLOBAL[arch])
        for block in (0, 1):
            names |= {f"blk.{block}.{name}" for name in READ[arch] + UNREAD[arch]}
        assert names == set(base_of(arch, False, folder)[0])


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        *((arch, name) for arch in ARCHITECTURES for name in GLOBAL[arch]),
        *((arch, f"blk.1.{name}") for arch in ARCHITECTURES for name in READ[arch]),
    ],
)
def test_each_tensor_enters_the_logits(
    arch: str, name: str, folder: Path, load: Load, tmp_path: Path
) -> None:
    """The bug: a tensor that is loaded and not computed with, or in another place.

    ``blk.0.attn_q.scale`` and the like were skipped without a word.
    """
    assert_moves(arch, name, folder, load, tmp_path, is_fused=False)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_what_llama_cpp_does_not_read_changes_nothing(
    arch: str, folder: Path, load: Load, tmp_path: Path
) -> None:
    """The bug: a tensor that llama.cpp's graph leaves out computed with, or refused."""
    path = write_model(tmp_path / "a.gguf", arch, **SMALL, **EVERYTHING[arch])
    base = logits(load(path))
    names = [f"blk.{block}.{name}" for block in (0, 1) for name in UNREAD[arch]]
    tensors: dict[str, Any] = dict.fromkeys(names, np.full(1, -3.0, np.float32))
    if arch == "qwen3":
        tensors["cls.output.weight"] = np.ones((2, 32), np.float32)
    path = write_model(tmp_path / "b.gguf", arch, **SMALL, **EVERYTHING[arch], tensors=tensors)
    assert (logits(load(path)) == base).all()


@pytest.mark.parametrize("kind", ["weight", "scale", "bias"])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_each_fused_tensor_enters_the_logits(
    arch: str, kind: str, folder: Path, load: Load, tmp_path: Path
) -> None:
    """The bug: a factor of all three matrices that is taken for one of them only."""
    assert_moves(arch, f"blk.0.attn_qkv.{kind}", folder, load, tmp_path, is_fused=True)


def test_biases_beside_a_fused_matrix(load: Load, tmp_path: Path) -> None:
    """The bug: biases apart from the matrix that they belong to, left out."""
    rng = np.random.default_rng(8)
    apart: dict[str, Any] = {
        f"blk.{block}.attn_{letter}.bias": rng.normal(0, 1, 32).astype(np.float32)
        for block in (0, 1)
        for letter in "qkv"
    }
    changes = {**FUSED["llama"], "biases": False}
    plain = assert_naive(write_model(tmp_path / "a.gguf", **SMALL, **changes), load)
    path = write_model(tmp_path / "b.gguf", **SMALL, **changes, tensors=apart)
    assert np.abs(assert_naive(path, load) - plain).max() > 0.1 * plain.std()
    # llama.cpp takes all three or none, and says nothing of one that it leaves out
    del apart["blk.0.attn_k.bias"]
    path = write_model(tmp_path / "c.gguf", **SMALL, **changes, tensors=apart)
    with pytest.raises(ModelUnsupported, match=r"blk\.0\.attn_q\.bias \(and 1 more\)"):
        load(path)


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        *((arch, name) for arch in ARCHITECTURES for name in REFUSED[arch]),
        *(("llama", name) for name in MADE_UP),
    ],
)
def test_other_tensors_are_refused_by_name(
    arch: str, name: str, load: Load, tmp_path: Path
) -> None:
    """The bug: a model that is more than what is computed of it, and runs."""
    tensors = {name: np.ones(1, np.float32)}
    path = write_model(tmp_path / "toy.gguf", arch, **SMALL, tensors=tensors)
    with pytest.raises(ModelUnsupported) as caught:
        load(path)
    assert f"{path}: tensor {name} is none that the engine uses" in caught.value.message


def test_two_ways_at_once_are_refused(load: Load, tmp_path: Path) -> None:
    """The bug: queries from one of two matrices, whichever is looked for first."""
    for name in ("attn_q.weight", "attn_q.scale", "attn_q.bias"):
        full = f"blk.1.{name}"
        tensors = {full: np.ones((32, 32) if "weight" in name else 1, np.float32)}
        path = write_model(tmp_path / "toy.gguf", **SMALL, **FUSED["llama"], tensors=tensors)
        with pytest.raises(ModelUnsupported, match=full):
            load(path)


# --------------------------------------------------------------------------------------------------
# Blocks


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"block_count": 2}, ["block 2 is left over", "block_count' is 2"]),
        ({"block_count": 1}, ["block 2 is left over", "block_count' is 1"]),
        ({"nextn_predict_layers": 1}, ["block 2 is left over", "nextn_predict_layers' is 1"]),
        ({"nextn_predict_layers": 2}, ["block 1 is left over", "nextn_predict_layers' is 2"]),
        ({"block_count": 4}, ["no tensor blk.3."]),
        ({"block_count": 4, "nextn_predict_layers": 1}, ["block 3", "nextn_predict_layers' is 1"]),
    ],
)
def test_a_block_that_is_left_over_is_refused(
    arch: str, keys: dict[str, int], words: list[str], load: Load, tmp_path: Path
) -> None:
    """The bug: a model whose last layer is dropped, and which writes garbage."""
    path = write_model(tmp_path / "toy.gguf", arch, **{**SMALL, "n_layers": 3}, keys=keys)
    with pytest.raises(ModelDamaged) as caught:
        load(path)
    assert all(word in caught.value.message for word in (str(path), *words))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"nextn_predict_layers": 0}, "block 2 holds an MTP layer"),
        ({"nextn_predict_layers": None}, "block 2 holds an MTP layer"),
        ({"nextn_predict_layers": 2}, "block 1 is left over"),
        ({"block_count": 2, "nextn_predict_layers": 0}, "block 2 is left over"),
        ({"block_count": 2}, "block 2 is left over"),
    ],
)
def test_an_mtp_block_that_the_keys_deny_is_refused(
    keys: dict[str, int | None], words: str, load: Load, tmp_path: Path
) -> None:
    """The bug: a head's block run as the model's last layer, or dropped without a word."""
    good = write_model_with_head(tmp_path / "good.gguf", **SMALL)
    assert load(good).params.n_nextn == 1
    path = write_model_with_head(tmp_path / "toy.gguf", head=ToyHead(keys=keys), **SMALL)
    with pytest.raises(ModelDamaged, match=words):
        load(path)
