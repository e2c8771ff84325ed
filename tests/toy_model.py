"""Write small GGUFs of the four architectures that both this engine and llama.cpp run.

Everything is seeded: the same arguments give the same bytes. Weights are drawn so that logits are
neither flat nor saturated, and every part of the architecture moves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from toy_gguf import add_vocabulary, vocabulary_values

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
FLOAT_TYPES = ("F32", "F16", "BF16")
BLOCK_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
SUPER_TYPES = ("Q4_K", "Q5_K", "Q6_K")
WEIGHT_TYPES = (*FLOAT_TYPES, *BLOCK_TYPES, *SUPER_TYPES)

# Of a super-block: its bytes, where its float16 factors lie, and the middle of its quants.
_SUPER_BLOCKS = {
    "Q4_K": (144, 0, 2, 7.5),
    "Q5_K": (176, 0, 2, 15.5),
    "Q6_K": (210, 208, None, 0.0),
}


@dataclass(frozen=True)
class ToyParams:
    """What ``write_model`` can be told to change.

    Attributes
    ----------
    d_head : 0 for n_embd / n_head
    tied : no output matrix of its own
    fused : one attn_qkv for attn_q, attn_k and attn_v
    biases : of attn_q, attn_k and attn_v
    all_biases : those, and of attn_output and the feed-forward matrices (llama only)
    head_bias : of the output matrix (qwen2 only)
    scales : a factor of each matrix of a block, and what llama.cpp loads beside it and never reads
    rope_factors : Llama 3's rope_freqs
    scaling, factor, n_ctx_original : RoPE's scaling; "" and 0 leave the keys out
    window, pattern : of gemma3; pattern is every how many layers one is global, or a bool a layer;
        0 and None leave the keys out
    types : tensor types that differ, by a matrix's name without layer: {"ffn_down": "Q6_K"}
    keys : metadata keys (without the architecture's prefix) to replace, None to leave out
    tensors : tensors to replace by another array, None to leave out
    max_tensors : write parts of so many tensors; 0 writes one file
    """

    n_embd: int = 256
    n_layers: int = 2
    n_head: int = 4
    n_head_kv: int = 2
    d_head: int = 0
    n_ff: int = 512
    n_ctx: int = 4096
    eps: float = 1e-5
    tied: bool = True
    fused: bool = False
    biases: bool = False
    all_biases: bool = False
    head_bias: bool = False
    scales: bool = False
    rope_factors: bool = False
    base: float = 10000.0
    base_local: float = 0.0
    scaling: str = ""
    factor: float = 0.0
    n_ctx_original: int = 0
    window: int = 0
    pattern: int | Sequence[bool] | None = None
    softcap: float = 0.0
    vocabulary: str = "smollm"
    types: dict[str, str] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, NDArray[Any] | None] = field(default_factory=dict)
    max_tensors: int = 0


DEFAULTS = {
    "llama": ToyParams(tied=False),
    "qwen2": ToyParams(biases=True, base=1e6),
    "qwen3": ToyParams(n_head=8, d_head=64, base=1e6),
    "gemma3": ToyParams(n_layers=4, n_head=8, d_head=64, base=1e6, window=8, pattern=2),
}


_YARN = {"scaling": "yarn", "factor": 4.0, "n_ctx_original": 64}
SMALL = {"n_embd": 64, "n_ff": 96, "n_head": 2, "n_head_kv": 1}
# What a Q4_K_M file of a model with a tied head holds.
_MIXED = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q6_K"}


def _odd_factors() -> NDArray[np.float32]:
    """Factors of RoPE that no converter writes and llama.cpp takes: negative ones, small ones."""
    return np.linspace(-2, 2.1, 32, dtype=np.float32)


# Every specific of every architecture, as arguments of ``write_model``.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tied": True}),
    "llama fused": ("llama", {"fused": True}),
    "llama biases": ("llama", {"all_biases": True}),
    "llama fused biases": ("llama", {"fused": True, "biases": True}),
    "llama scales": ("llama", {"scales": True, "all_biases": True}),
    "llama fused scales": ("llama", {"scales": True, "fused": True, "biases": True}),
    "llama Q4_K scales": ("llama", {"scales": True, "weight_type": "Q4_K", "n_layers": 1}),
    "llama 3": ("llama", {"rope_factors": True, "base": 500000.0}),
    "llama odd factors": ("llama", {"tensors": {"rope_freqs.weight": _odd_factors()}}),
    "llama linear": ("llama", {"scaling": "linear", "factor": 4.0}),
    "llama factor alone": ("llama", {"factor": 4.0}),
    "llama old factor": ("llama", {"keys": {"rope.scale_linear": 2.0}}),
    "llama no scaling": ("llama", {"scaling": "none", "factor": 4.0}),
    "llama yarn": ("llama", {**_YARN, "keys": {"rope.scaling.attn_factor": 1.2}}),
    "llama defaults": (
        "llama",
        {"n_head_kv": 4, "keys": {"rope.freq_base": None, "attention.head_count_kv": None}},
    ),
    "llama wide epsilon": ("llama", {"eps": 0.1}),
    "llama one key head": ("llama", {"n_head": 8, "n_head_kv": 1}),
    "llama narrow heads": ("llama", {"n_head": 6, "d_head": 16}),
    "llama odd widths": ("llama", {"n_embd": 240, "n_head": 3, "n_head_kv": 1, "n_ff": 104}),
    "qwen2": ("qwen2", {}),
    "qwen2 separate fused": ("qwen2", {"tied": False, "fused": True}),
    "qwen2 without biases": ("qwen2", {"biases": False}),
    "qwen2 scales": ("qwen2", {"scales": True, "head_bias": True}),
    "qwen2 yarn": ("qwen2", {**_YARN, "n_ctx": 256}),
    "qwen3": ("qwen3", {}),
    "qwen3 scales": ("qwen3", {"scales": True, "biases": True}),
    "qwen3 separate": ("qwen3", {"tied": False, "d_head": 128}),
    "gemma3": ("gemma3", {}),
    "gemma3 scales": ("gemma3", {"scales": True, "biases": True}),
    "gemma3 linear": ("gemma3", {"scaling": "linear", "factor": 8.0}),
    "gemma3 own pattern": ("gemma3", {"pattern": [True, False, False, True]}),
    "gemma3 usual pattern": ("gemma3", {**SMALL, "pattern": None, "n_layers": 7}),
    "gemma3 no window": ("gemma3", {"window": 0, "pattern": None}),
    "gemma3 partly turned": ("gemma3", {"keys": {"rope.dimension_count": 32}}),
    "gemma3 local base": ("gemma3", {"base_local": 500.0}),
    "gemma3 softcap": ("gemma3", {"softcap": 3.0}),
    "gemma3 of 62 layers": ("gemma3", {**SMALL, "d_head": 16, "n_layers": 62}),
    "gemma3 separate fused": ("gemma3", {"tied": False, "fused": True, "vocabulary": "spm"}),
    **{kind: ("llama", {"weight_type": kind, "n_layers": 1}) for kind in WEIGHT_TYPES},
    "qwen2 mixed": ("qwen2", {"weight_type": "Q4_K", "n_layers": 1, "types": _MIXED}),
    "gemma3 Q4_0": ("gemma3", {"weight_type": "Q4_0", "n_layers": 1, "pattern": [True]}),
}


def write_case(path: Path, name: str) -> Path:
    """Write one of ``CASES``."""
    arch, changes = CASES[name]
    return write_model(path, arch, **changes)


def write_model(
    path: Path, arch: str = "llama", weight_type: str = "F32", seed: int = 0, **changes: Any
) -> Path:
    """Write a model whose matrices are of ``weight_type``; return the path (of the first part).

    ``changes`` replace fields of the architecture's ``ToyParams``. Rows of K-quants need a multiple
    of 256 columns, those of the other quantised types of 32.
    """
    params = replace(DEFAULTS[arch], **changes)
    if not params.d_head:
        params = replace(params, d_head=params.n_embd // params.n_head)
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=params.max_tensors)
    values = vocabulary_values(params.vocabulary)
    add_vocabulary(writer, values)
    for name, value in keys_of(arch, params).items():
        add_key(writer, f"{arch}.{name}", value)
    tensors = tensors_of(arch, params, len(values["tokens"]), np.random.default_rng(seed))  # type: ignore[arg-type]
    rng = np.random.default_rng(seed + 1)
    for name, weights in tensors.items():
        add_tensor(writer, name, weights, params, weight_type, rng)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if params.max_tensors:
        return min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))
    return path


def keys_of(arch: str, params: ToyParams) -> dict[str, Any]:
    """Metadata below the architecture's prefix; int as uint32, float as float32."""
    keys: dict[str, Any] = {
        "context_length": params.n_ctx,
        "embedding_length": params.n_embd,
        "block_count": params.n_layers,
        "feed_forward_length": params.n_ff,
        "attention.head_count": params.n_head,
        "attention.head_count_kv": params.n_head_kv,
        "attention.layer_norm_rms_epsilon": params.eps,
        "rope.freq_base": params.base,
    }
    if params.d_head * params.n_head != params.n_embd or arch in ("qwen3", "gemma3"):
        keys["attention.key_length"] = params.d_head
        keys["attention.value_length"] = params.d_head
    optional: dict[str, Any] = {
        "rope.freq_base_swa": params.base_local,
        "rope.scaling.type": params.scaling,
        "rope.scaling.factor": params.factor,
        "rope.scaling.original_context_length": params.n_ctx_original,
        "attention.sliding_window": params.window,
        "final_logit_softcapping": params.softcap,
    }
    keys |= {name: value for name, value in optional.items() if value}
    if params.pattern is not None:
        keys["attention.sliding_window_pattern"] = params.pattern
    keys |= params.keys
    return {name: value for name, value in keys.items() if value is not None}


def add_key(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    else:
        writer.add_array(name, value)


def tensors_of(
    arch: str, params: ToyParams, n_vocab: int, rng: np.random.Generator
) -> dict[str, NDArray[Any]]:
    """All tensors as float32, by their full names."""
    n_embd, n_ff = params.n_embd, params.n_ff
    n_q, n_kv = params.n_head * params.d_head, params.n_head_kv * params.d_head
    tensors: dict[str, NDArray[Any]] = {}

    def matrix(name: str, n_rows: int, n_columns: int, gain: float, bias: bool = False) -> None:
        weights = rng.normal(0, gain / np.sqrt(n_columns), (n_rows, n_columns))
        tensors[f"{name}.weight"] = weights.astype(np.float32)
        if bias:
            tensors[f"{name}.bias"] = rng.normal(0, 0.5, n_rows).astype(np.float32)

    def norm(name: str, n: int, mean: float, spread: float) -> None:
        tensors[f"{name}.weight"] = rng.normal(mean, spread, n).astype(np.float32)

    matrix("token_embd", n_vocab, n_embd, 2.5)
    # Of random signs, or a tied head would give each token itself again.
    norm("output_norm", n_embd, 0, 1)
    if not params.tied:
        matrix("output", n_vocab, n_embd, 2.5)
    if params.rope_factors:
        factors = np.linspace(1, 8, params.d_head // 2)
        tensors["rope_freqs.weight"] = factors.astype(np.float32)
    biases = params.biases or params.all_biases
    for il in range(params.n_layers):
        at = f"blk.{il}."
        norm(at + "attn_norm", n_embd, 1, 0.3)
        if params.fused:
            matrix(at + "attn_qkv", n_q + 2 * n_kv, n_embd, 1.3, biases)
        else:
            matrix(at + "attn_q", n_q, n_embd, 1.5, biases)
            matrix(at + "attn_k", n_kv, n_embd, 1.5, biases)
            matrix(at + "attn_v", n_kv, n_embd, 1, biases)
        matrix(at + "attn_output", n_embd, n_q, 0.7, params.all_biases)
        if arch in ("qwen3", "gemma3"):
            norm(at + "attn_q_norm", params.d_head, 1.5, 0.4)
            norm(at + "attn_k_norm", params.d_head, 1, 0.3)
        norm(at + "ffn_norm", n_embd, 1, 0.3)
        matrix(at + "ffn_gate", n_ff, n_embd, 1, params.all_biases)
        matrix(at + "ffn_up", n_ff, n_embd, 1, params.all_biases)
        matrix(at + "ffn_down", n_embd, n_ff, 1.5, params.all_biases)
        if arch == "gemma3":
            norm(at + "post_attention_norm", n_embd, 1, 0.3)
            norm(at + "post_ffw_norm", n_embd, 1, 0.3)
    if params.head_bias:
        tensors["output.bias"] = rng.normal(0, 1, n_vocab).astype(np.float32)
    if params.scales:
        for name in [
            name for name in tensors if name.startswith("blk.") and tensors[name].ndim == 2
        ]:
            matrix_name = name.removesuffix(".weight")
            factor = rng.choice((-1, 1), 1) * rng.uniform(0.7, 1.4, 1)
            tensors[f"{matrix_name}.scale"] = factor.astype(np.float32)
            tensors[f"{matrix_name}.input_scale"] = np.full(1, 7.0, np.float32)
    tensors |= {name: value for name, value in params.tensors.items() if value is not None}
    return {
        name: value
        for name, value in tensors.items()
        if params.tensors.get(name, value) is not None
    }


def add_tensor(
    writer: gguf.GGUFWriter,
    name: str,
    weights: NDArray[Any],
    params: ToyParams,
    weight_type: str,
    rng: np.random.Generator,
) -> None:
    kind = params.types.get(name.removesuffix(".weight").split(".")[-1], weight_type)
    if weights.ndim == 1 or kind == "F32" or weights.dtype == np.int32:
        writer.add_tensor(name, weights)
    elif kind == "F16":
        writer.add_tensor(name, weights.astype(np.float16))
    else:
        numbers = GGMLQuantizationType[kind]
        if kind in _SUPER_BLOCKS:
            # gguf has no quantiser for these; the spread of the weights is what is kept.
            rows = random_super_blocks(kind, weights.shape, float(weights.std()), rng)
        else:
            rows = quantize(weights, numbers)
        writer.add_tensor(name, rows.view(np.uint8), raw_dtype=numbers)


def random_super_blocks(
    kind: str, shape: tuple[int, ...], spread: float, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Blocks of random bits whose values have mean zero and a standard deviation of ``spread``.

    uint8 [n_rows, bytes of a row]. Every quant, scale and sign is used; the float16 factors differ
    from block to block.
    """
    n_bytes, at, at_least, middle = _SUPER_BLOCKS[kind]
    n_rows, n_columns = shape
    blocks = rng.integers(0, 256, (n_rows * n_columns // 256, n_bytes), np.uint8)
    factors = rng.uniform(0.5, 1.5, len(blocks))
    leasts = rng.uniform(0.8, 1.2, len(blocks)) * middle

    def put(unit: float) -> NDArray[np.float32]:
        blocks[:, at : at + 2] = _half_bytes(factors * unit)
        if at_least is not None:
            blocks[:, at_least : at_least + 2] = _half_bytes(factors * leasts * unit)
        return dequantize(blocks, GGMLQuantizationType[kind])

    put(spread / float(put(1.0).std()))
    return blocks.reshape(n_rows, -1)


def _half_bytes(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    return values.astype("<f2").view(np.uint8).reshape(-1, 2)
