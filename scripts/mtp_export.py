"""A trained MTP head as a GGUF file of its own, as mtp/head_file.py reads it."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import torch
from mtp_batches import Target
from mtp_model import Head

NEXTN = ("enorm", "hnorm", "feature_norm", "eh_proj", "eh_proj_first", "shared_head_norm")


def write_head(path: Path, head: Head, d2t: torch.Tensor, target: Target) -> None:
    """Write matrices as Q8_0, vectors as F32, and what a reader has to know of the target."""
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
    writer.add_string("draftsmith.target.fingerprint", target.tokenizer.fingerprint.hex())
    for name, parameter in head.state_dict().items():
        full = f"blk.{p.n_layers}.{'nextn.' if name in NEXTN else ''}{name}.weight"
        numbers = parameter.numpy().astype(np.float32)
        if numbers.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(full, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
        else:
            writer.add_tensor(full, numbers)
    writer.add_tensor("nextn.d2t", d2t.numpy().astype(np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, path)
