"""Which tensor of a GGUF goes to which slot of which layer, and whether it has the right shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import forward_kernels as kernels
from .errors import REMEDY_CONVERT, REMEDY_DAMAGED, ModelDamaged, ModelUnsupported
from .gguf_tensors import Tensor, TensorType
from .hparams import ModelParams
from .pack import Piece


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
    """What a layer may have, and what it must."""
    n_q, n_kv = p.n_head * p.d_head, p.n_head_kv * p.d_head
    gemma, qk_norm = p.architecture == "gemma3", p.architecture in ("qwen3", "gemma3")
    qwen2 = p.architecture == "qwen2"
    return [
        Part("attn_norm.weight", kernels.ATTN_NORM, p.n_embd),
        Part("attn_q.weight", kernels.ATTN_Q, n_q, p.n_embd, heads=p.n_head),
        Part("attn_k.weight", kernels.ATTN_K, n_kv, p.n_embd, heads=p.n_head_kv),
        Part("attn_v.weight", kernels.ATTN_V, n_kv, p.n_embd),
        Part("attn_output.weight", kernels.ATTN_OUT, p.n_embd, n_q),
        Part("attn_q.bias", kernels.Q_BIAS, n_q, needed=qwen2, heads=p.n_head),
        Part("attn_k.bias", kernels.K_BIAS, n_kv, needed=qwen2, heads=p.n_head_kv),
        Part("attn_v.bias", kernels.V_BIAS, n_kv, needed=qwen2),
        Part("attn_output.bias", kernels.OUT_BIAS, p.n_embd, needed=False),
        Part("attn_q_norm.weight", kernels.Q_NORM, p.d_head, needed=qk_norm),
        Part("attn_k_norm.weight", kernels.K_NORM, p.d_head, needed=qk_norm),
        Part("post_attention_norm.weight", kernels.POST_ATTN_NORM, p.n_embd, needed=gemma),
        Part("ffn_norm.weight", kernels.FFN_NORM, p.n_embd),
        Part("ffn_gate.weight", kernels.FFN_GATE, p.n_ff, p.n_embd),
        Part("ffn_up.weight", kernels.FFN_UP, p.n_ff, p.n_embd),
        Part("ffn_down.weight", kernels.FFN_DOWN, p.n_embd, p.n_ff),
        Part("ffn_gate.bias", kernels.GATE_BIAS, p.n_ff, needed=False),
        Part("ffn_up.bias", kernels.UP_BIAS, p.n_ff, needed=False),
        Part("ffn_down.bias", kernels.DOWN_BIAS, p.n_embd, needed=False),
        Part("post_ffw_norm.weight", kernels.POST_FFN_NORM, p.n_embd, needed=gemma),
    ]


def pieces_of(params: ModelParams, tensors: dict[str, Tensor]) -> list[Piece]:
    """All that the kernels read, in the order in which a pass reads it.

    Raises
    ------
    ModelDamaged : a tensor that is missing or of another shape than the metadata say
    ModelUnsupported : a matrix of quantised rows that the kernels cannot cut into blocks
    """
    pieces = []
    for layer in range(params.n_layers):
        pieces += pieces_of_layer(params, tensors, layer, layer)
    embeddings = "token_embd.weight"
    shaped(tensors, embeddings, (params.n_vocab, params.n_embd))
    head = "output.weight" if "output.weight" in tensors else embeddings
    for part in (
        Part("output_norm.weight", kernels.OUT_NORM, params.n_embd),
        Part(head, kernels.HEAD, params.n_vocab, params.n_embd),
    ):
        last = _piece(params, tensors, "", part, params.n_layers)
        assert last is not None  # both are needed
        pieces.append(last)
    return pieces


def pieces_of_layer(
    params: ModelParams, tensors: dict[str, Tensor], block: int, row: int
) -> list[Piece]:
    """What a layer reads of a block of the file, for a row of slots; raises as ``pieces_of``."""
    found = [_piece(params, tensors, f"blk.{block}.", p, row) for p in parts_of_layer(params)]
    return [piece for piece in found if piece is not None]


def _piece(
    params: ModelParams, tensors: dict[str, Tensor], prefix: str, part: Part, layer: int
) -> Piece | None:
    order = np.arange(part.n_rows, dtype=np.int64)
    if part.heads and params.rope.adjacent:
        order = _halves_of_pairs(part.heads, params.d_head, params.rope.n_rot)
    name = prefix + part.name
    shape = (part.n_rows,) if part.n_columns is None else (part.n_rows, part.n_columns)
    fused, first, n_rows = _fused(params, tensors, prefix, part)
    if name not in tensors and fused is not None:
        tensor = shaped(tensors, fused, (n_rows, *shape[1:]))
        return Piece((layer, part.place), tensor, order + first, part.n_columns is None)
    if name not in tensors and not part.needed:
        return None
    return Piece((layer, part.place), shaped(tensors, name, shape), order, part.n_columns is None)


def _fused(
    params: ModelParams, tensors: dict[str, Tensor], prefix: str, part: Part
) -> tuple[str | None, int, int]:
    """The tensor that holds queries, keys and values together, if there: name, first row, rows."""
    n_q, n_kv = params.n_head * params.d_head, params.n_head_kv * params.d_head
    kind = part.name.rpartition(".")[2]
    firsts = {f"attn_q.{kind}": 0, f"attn_k.{kind}": n_q, f"attn_v.{kind}": n_q + n_kv}
    name = f"{prefix}attn_qkv.{kind}"
    if part.name not in firsts or name not in tensors:
        return None, 0, 0
    return name, firsts[part.name], n_q + 2 * n_kv


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
