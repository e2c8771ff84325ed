"""Which tensor of a GGUF goes to which slot of which layer, and whether it has the right shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import (
    REMEDY_CONVERT,
    REMEDY_DAMAGED,
    ModelDamaged,
    ModelUnsupported,
)
from ..gguf.tensors import Tensor, TensorType
from . import forward_kernels as kernels
from .hparams import ModelParams
from .pack import Piece
from .unused_tensors import refuse_unused

ROPE_FACTORS = "rope_freqs.weight"
EMBEDDINGS = "token_embd.weight"
_QKV = ("attn_q", "attn_k", "attn_v")


@dataclass(frozen=True)
class Part:
    """A tensor of a layer: its name in the GGUF, its place, its shape, and whether it must be."""

    name: str
    place: int
    n_rows: int
    n_columns: int | None = None  # None: a vector
    needed: bool = True
    heads: int = 0  # rows of that many heads, whose pairs RoPE turns


def parts_of_layer(p: ModelParams) -> list[Part]:
    """What a layer may have, and what it must.

    As llama.cpp's loaders have it (load_arch_tensors of its models/, and the factors that its
    load_tensors adds to all of them), where its graphs read it.
    """
    k = kernels
    n_q, n_kv, n, n_ff = p.n_head * p.d_head, p.n_head_kv * p.d_head, p.n_embd, p.n_ff
    llama, gemma = p.architecture == "llama", p.architecture == "gemma3"
    parts = [
        Part("attn_norm.weight", k.ATTN_NORM, n),
        *_matrix("attn_q", (n_q, n), k.ATTN_Q, k.Q_SCALE, k.Q_BIAS, p.n_head),
        *_matrix("attn_k", (n_kv, n), k.ATTN_K, k.K_SCALE, k.K_BIAS, p.n_head_kv),
        *_matrix("attn_v", (n_kv, n), k.ATTN_V, k.V_SCALE, k.V_BIAS),
        *_matrix("attn_output", (n, n_q), k.ATTN_OUT, k.OUT_SCALE, k.OUT_BIAS if llama else None),
    ]
    if p.architecture in ("qwen3", "gemma3"):
        parts.append(Part("attn_q_norm.weight", k.Q_NORM, p.d_head))
        parts.append(Part("attn_k_norm.weight", k.K_NORM, p.d_head))
    if gemma:
        parts.append(Part("post_attention_norm.weight", k.POST_ATTN_NORM, n))
    parts.append(Part("ffn_norm.weight", k.FFN_NORM, n))
    for name, shape, places in (
        ("ffn_gate", (n_ff, n), (k.FFN_GATE, k.GATE_SCALE, k.GATE_BIAS)),
        ("ffn_up", (n_ff, n), (k.FFN_UP, k.UP_SCALE, k.UP_BIAS)),
        ("ffn_down", (n, n_ff), (k.FFN_DOWN, k.DOWN_SCALE, k.DOWN_BIAS)),
    ):
        scale = places[1] if p.architecture in ("llama", "qwen3") else None
        parts += _matrix(name, shape, places[0], scale, places[2] if llama else None)
    if gemma:
        parts.append(Part("post_ffw_norm.weight", k.POST_FFN_NORM, n))
    return parts


def _matrix(
    name: str,
    shape: tuple[int, int],
    place: int,
    scale: int | None,
    bias: int | None,
    heads: int = 0,
) -> Iterator[Part]:
    """A matrix, and its factor and its bias where it may have them."""
    yield Part(f"{name}.weight", place, *shape, heads=heads)
    if scale is not None:
        yield Part(f"{name}.scale", scale, 1, needed=False)
    if bias is not None:
        yield Part(f"{name}.bias", bias, shape[0], needed=False, heads=heads)


def pieces_of(params: ModelParams, tensors: dict[str, Tensor]) -> list[Piece]:
    """All that the kernels read, in the order in which a pass reads it.

    Raises
    ------
    ModelDamaged : a tensor that is missing or of another shape than the metadata say, or of a block
        that they do not know of
    ModelUnsupported : a matrix of quantised rows that the kernels cannot cut into blocks, or a
        tensor that would not be used
    """
    pieces = []
    for layer in range(params.n_layers):
        pieces += pieces_of_layer(params, tensors, layer, layer)
    shaped(tensors, EMBEDDINGS, (params.n_vocab, params.n_embd))
    head = "output.weight" if "output.weight" in tensors else EMBEDDINGS
    parts = [
        Part("output_norm.weight", kernels.OUT_NORM, params.n_embd),
        Part(head, kernels.HEAD, params.n_vocab, params.n_embd),
    ]
    if params.architecture == "qwen2":
        parts.append(Part("output.bias", kernels.HEAD_BIAS, params.n_vocab, needed=False))
    last = [_piece(params, tensors, "", part, params.n_layers) for part in parts]
    pieces += [piece for piece in last if piece is not None]
    used = {piece.tensor.name for piece in pieces} | {EMBEDDINGS}
    if params.architecture == "llama":
        used.add(ROPE_FACTORS)
    refuse_unused(params, tensors, used)
    return pieces


def pieces_of_layer(
    params: ModelParams, tensors: dict[str, Tensor], block: int, row: int
) -> list[Piece]:
    """What a layer reads of a block of the file, for a row of slots; raises as ``pieces_of``."""
    prefix = f"blk.{block}."
    biases = [f"{prefix}{name}.bias" for name in _QKV]
    if params.architecture == "qwen2" and any(name in tensors for name in biases):
        # made with all three or, as llama.cpp allows, with none: without one it talks nonsense
        for name in biases:
            if name not in tensors:
                raise ModelDamaged(f"the model has no tensor {name}", remedy=REMEDY_DAMAGED)
    found = [_piece(params, tensors, prefix, part, row) for part in parts_of_layer(params)]
    return [piece for piece in found if piece is not None]


def _piece(
    params: ModelParams, tensors: dict[str, Tensor], prefix: str, part: Part, layer: int
) -> Piece | None:
    order = np.arange(part.n_rows, dtype=np.int64)
    if part.heads and params.rope.adjacent:
        order = _halves_of_pairs(part.heads, params.d_head, params.rope.n_rot)
    name, first, n_rows = _source(params, tensors, prefix, part)
    if name not in tensors and not part.needed:
        return None
    shape = (n_rows,) if part.n_columns is None else (n_rows, part.n_columns)
    tensor = shaped(tensors, name, shape)
    return Piece((layer, part.place), tensor, order + first, part.n_columns is None)


def _source(
    params: ModelParams, tensors: dict[str, Tensor], prefix: str, part: Part
) -> tuple[str, int, int]:
    """Where a part is: the tensor's name, the part's first row in it, and all rows of it.

    A block that holds queries, keys and values in one matrix has one factor for all three, and
    their biases in one tensor or apart.
    """
    n_q, n_kv = params.n_head * params.d_head, params.n_head_kv * params.d_head
    firsts = dict(zip(_QKV, (0, n_q, n_q + n_kv), strict=True))
    matrix, _, kind = part.name.rpartition(".")
    fused = f"{prefix}attn_qkv.{kind}"
    if matrix not in firsts or f"{prefix}attn_qkv.weight" not in tensors:
        return prefix + part.name, 0, part.n_rows
    if kind == "scale":
        return fused, 0, 1
    # llama.cpp takes biases that are apart all together; fewer are left to be refused by name
    apart = all(f"{prefix}{name}.bias" in tensors for name in _QKV)
    if kind == "bias" and apart and fused not in tensors:
        return prefix + part.name, 0, part.n_rows
    return fused, firsts[matrix], n_q + 2 * n_kv


def _halves_of_pairs(n_heads: int, d_head: int, n_rot: int) -> NDArray[np.int64]:
    """Rows of heads so that the pair (2 i, 2 i + 1) comes to (i, i + n_rot / 2)."""
    head = np.arange(d_head)
    head[:n_rot] = np.concatenate([np.arange(0, n_rot, 2), np.arange(1, n_rot, 2)])
    return (np.arange(n_heads)[:, None] * d_head + head).reshape(-1).astype(np.int64)


def shaped(tensors: dict[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor of weights that has to be there, and of that shape; raises as ``pieces_of``."""
    tensor = tensors.get(name)
    if tensor is None:
        raise ModelDamaged(f"the model has no tensor {name}", remedy=REMEDY_DAMAGED)
    if tensor.shape != shape:
        raise ModelDamaged(
            f"tensor {name} has the shape {_text(tensor.shape)}, not {_text(shape)}",
            remedy=REMEDY_DAMAGED,
        )
    if tensor.type == TensorType.I32:
        raise ModelUnsupported(
            f"tensor {name} is of type I32, expected weights", remedy=REMEDY_CONVERT
        )
    if len(shape) == 2 and tensor.type.block_items == 1 and shape[1] % 8:
        raise ModelUnsupported(
            f"tensor {name} has rows of {shape[1]} numbers, no multiple of 8",
            remedy="use another model",
        )
    return tensor


def _text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
