"""A trained MTP head as a GGUF file of its own, as mtp/head_file.py reads it, and back again."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import torch
from draftsmith.engine.gguf.file import TARGET_FINGERPRINT
from draftsmith.engine.gguf.identity import TARGET_NORMS, TARGET_WEIGHTS, Identity
from draftsmith.engine.transformer.dequant import dequantise
from draftsmith.mtp.head_file import D2T, open_head_file
from mtp_batches import Target
from mtp_model import Head

NEXTN = ("enorm", "hnorm", "feature_norm", "eh_proj", "eh_proj_first", "shared_head_norm")


def write_head(path: Path, head: Head, d2t: torch.Tensor, target: Target) -> None:
    """Write matrices as Q8_0, vectors as F32, and what a reader has to know of the target.

    The output matrix is the target's own. In Q4_1 a draft would read half as much, and be right
    less often: for SmolLM2 the one makes up for the other.
    """
    p = target.params
    arch = p.architecture
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, arch)
    writer.add_name(f"MTP head of {target.path.stem}")
    writer.add_license("apache-2.0")
    writer.add_block_count(p.n_layers + 1)
    writer.add_uint32(f"{arch}.nextn_predict_layers", 1)
    writer.add_context_length(p.n_ctx_train)
    writer.add_embedding_length(p.n_embd)
    writer.add_feed_forward_length(p.n_ff)
    writer.add_head_count(p.n_head)
    writer.add_head_count_kv(p.n_head_kv)
    writer.add_layer_norm_rms_eps(p.eps)
    writer.add_rope_freq_base(p.rope.base)
    writer.add_rope_dimension_count(p.rope.n_rot)
    if target.sizes.features:
        writer.add_array(f"{arch}.nextn.feature_layers", [int(i) for i in target.sizes.features])
    writer.add_string(TARGET_FINGERPRINT, target.tokenizer.fingerprint.hex())
    marks = Identity.of(target.metadata).marks
    writer.add_string(TARGET_NORMS, marks.norms)
    writer.add_string(TARGET_WEIGHTS, marks.weights)
    for name, parameter in head.state_dict().items():
        full = tensor_name(name, p.n_layers)
        numbers = parameter.numpy().astype(np.float32)
        if numbers.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(full, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
        else:
            writer.add_tensor(full, numbers)
    writer.add_tensor(D2T, d2t.numpy().astype(np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, path)


def read_head(path: Path, target: Target) -> tuple[Head, torch.Tensor]:
    """The head that ``write_head`` wrote for the same target, and its draft vocabulary.

    Raises
    ------
    UsageError : it is one for another model
    SystemExit : it takes other layers' states
    """
    fingerprint = target.tokenizer.fingerprint.hex()
    file = open_head_file(path, target.metadata, target.params, fingerprint)
    if file.feature_layers != target.sizes.features:
        raise SystemExit(
            f"{path} takes the inputs of layers {file.feature_layers}, "
            f"and --features are {target.sizes.features}"
        )
    head = Head(target.sizes)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            tensor = file.tensors[tensor_name(name, target.params.n_layers)]
            numbers = dequantise(tensor.type, np.array(tensor.data))
            parameter.copy_(torch.from_numpy(numbers).view_as(parameter))
    return head, torch.from_numpy(file.d2t.astype(np.int64))


def tensor_name(name: str, block: int) -> str:
    """What a number of ``Head`` is called in a file."""
    return f"blk.{block}.{'nextn.' if name in NEXTN else ''}{name}.weight"
