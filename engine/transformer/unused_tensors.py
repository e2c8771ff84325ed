"""The tensors of a file that nothing reads: those that may stay unread, and the error of any other.

A tensor that is left out would be a model computed wrongly without a word. llama.cpp refuses such
files too ("wrong number of tensors"), but for tensors that it loads and that its graphs never read.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from ..errors import (
    REMEDY_CONVERT,
    REMEDY_DAMAGED,
    ModelDamaged,
    ModelUnsupported,
)
from .hparams import ModelParams

_BLOCK = re.compile(r"blk\.([0-9]{1,9})\.(.+)", re.DOTALL)
_MTP = "nextn."

# What llama.cpp loads for these architectures, and what its graphs make no logits of:
# - scales of a matrix's input, which only its 4-bit activations (NVFP4 on a GPU) are made with;
# - factors of the feed-forward matrices where the graph of the architecture does not pass them on;
# - the head of Qwen3's rerankers, which only a pooled score is computed with.
_MATRICES = (
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
)
_INPUT_SCALES = tuple(f"{name}.input_scale" for name in _MATRICES)
_FACTORS = ("ffn_gate.scale", "ffn_up.scale", "ffn_down.scale")
_UNREAD_FACTORS = {"qwen2": _FACTORS, "gemma3": _FACTORS}
_UNREAD_GLOBAL = {"qwen3": ("cls.output.weight",)}


def refuse_unused(params: ModelParams, names: Collection[str], used: Collection[str]) -> None:
    """Refuse a model's file with a tensor that enters no logits though it might.

    Parameters
    ----------
    names : of the file's tensors; those of MTP blocks are left to who drafts with them
    used : of those that are read

    Raises
    ------
    ModelDamaged : a tensor of a block that the metadata do not know of, or take for another kind
    ModelUnsupported : another tensor that is not used
    """
    _check_blocks(params, names)
    unused = [
        name
        for name in names
        if name not in used
        and not _may_stay(params, names, name)
        and not (params.n_nextn and is_of_mtp(name, params.n_layers, params.n_nextn))
    ]
    if unused:
        raise unused_error(unused, f"a {params.architecture} model")


def unused_error(unused: Collection[str], what: str) -> ModelUnsupported:
    """The error of tensors that the engine does not use in ``what``."""
    name, *others = sorted(unused)
    more = f" (and {len(others)} more)" if others else ""
    return ModelUnsupported(
        f"tensor {name}{more} is none that the engine uses in {what}, and without it the result "
        "would be wrong",
        remedy=f"use a model without it, or {REMEDY_CONVERT}",
    )


def is_of_mtp(name: str, first_block: int, n_blocks: int) -> bool:
    """Whether a tensor is one of the heads in these blocks."""
    found = _BLOCK.fullmatch(name)
    if found is None:
        return name.startswith(_MTP)
    return first_block <= int(found[1]) < first_block + n_blocks


def may_stay_in_block(params: ModelParams, names: Collection[str], name: str) -> bool:
    """Whether a tensor of a block is one that llama.cpp loads and never reads."""
    found = _BLOCK.fullmatch(name)
    if found is None:
        return False
    if found[2] in _INPUT_SCALES:
        return f"{name.removesuffix('input_scale')}weight" in names
    return found[2] in _UNREAD_FACTORS.get(params.architecture, ())


def _may_stay(params: ModelParams, names: Collection[str], name: str) -> bool:
    if name in _UNREAD_GLOBAL.get(params.architecture, ()):
        return True
    return may_stay_in_block(params, names, name)


def _check_blocks(params: ModelParams, names: Collection[str]) -> None:
    """Refuse blocks that the counts of blocks and of MTP layers contradict."""
    n_blocks, n_nextn = params.n_layers + params.n_nextn, params.n_nextn
    arch = params.architecture
    count, nextn = f"{arch}.block_count", f"{arch}.nextn_predict_layers"
    found = [found for found in map(_BLOCK.fullmatch, names) if found]
    last = max((int(one[1]) for one in found), default=0)
    if last >= n_blocks:
        raise _contradicted(
            f"block {last} is left over: '{count}' is {n_blocks}, and the file holds tensors of "
            f"blocks up to {last}"
        )
    with_mtp = {int(one[1]) for one in found if one[2].startswith(_MTP)}
    for block in range(n_blocks):
        if block in with_mtp and block < params.n_layers:
            raise _contradicted(
                f"block {block} holds an MTP layer, but '{nextn}' is {n_nextn} and '{count}' "
                f"{n_blocks}, by which it is one of the model's own layers"
            )
        if block not in with_mtp and block >= params.n_layers:
            raise _contradicted(
                f"block {block} is left over: '{nextn}' is {n_nextn}, but the block holds no MTP "
                f"layer (no tensor blk.{block}.{_MTP}*)"
            )


def _contradicted(what: str) -> ModelDamaged:
    return ModelDamaged(what, remedy=f"correct the key, or {REMEDY_DAMAGED}")
