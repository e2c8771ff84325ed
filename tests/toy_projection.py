"""Write projections for the toy models, as scripts/train_scorer.py does; drawn, not trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

PREFIX = "draftsmith.scorer."


def write_projection(
    path: Path,
    fingerprint: str,
    *,
    n_layers: int,
    n_embd: int,
    document_layers: tuple[int, ...] = (2,),
    question_layers: tuple[int, ...] = (1, 2),
    rank: int = 16,
    seed: int = 0,
    keys: dict[str, Any] | None = None,
    tensors: dict[str, NDArray[Any] | None] | None = None,
    architecture: str = "draftsmith-scorer",
) -> Path:
    """Write one; ``keys`` (without their prefix) and ``tensors`` replace, None leaves out."""
    rng = np.random.default_rng(seed)
    sizes = {
        "document": (rank, n_embd * len(document_layers)),
        "question": (rank, n_embd * len(question_layers)),
        "importance": (1, n_embd * len(question_layers)),
    }
    arrays: dict[str, NDArray[Any] | None] = {}
    for name, (n_out, n_in) in sizes.items():
        dtype = np.float32 if name == "importance" else np.float16
        arrays[f"{name}.weight"] = (rng.normal(size=(n_out, n_in)) / n_in**0.5).astype(dtype)
        arrays[f"{name}.bias"] = rng.normal(size=n_out).astype(np.float32) / 8
    values: dict[str, Any] = {
        "n_layers": n_layers, "n_embd": n_embd, "window": 24, "n_sink": 2, "block": 8, "reach": 2,
        "exponent": 0.5, "scale": 6.0, "document_layers": list(document_layers),
        "question_layers": list(question_layers),
    }  # fmt: skip
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("toy")
    if fingerprint:
        writer.add_string("draftsmith.target.fingerprint", fingerprint)
    for key, value in (values | (keys or {})).items():
        if isinstance(value, list):
            writer.add_array(PREFIX + key, value)
        elif isinstance(value, float):
            writer.add_float32(PREFIX + key, value)
        elif value is not None:
            writer.add_uint32(PREFIX + key, value)
    for name, array in (arrays | (tensors or {})).items():
        if array is not None:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
