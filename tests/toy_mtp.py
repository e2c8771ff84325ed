"""Write MTP heads for the toy models: embedded in the model's file, or a file of their own.

Seeded like toy_model.py. The weights are drawn, not trained: what such a head drafts is nonsense,
and depends on every part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from draftsmith.engine.transformer.model import Model, Taps
from draftsmith.mtp.drafter import MtpDrafter
from numpy.typing import NDArray
from toy_gguf import vocabulary_values
from toy_model import DEFAULTS, ToyParams, add_key, add_tensor, keys_of, tensors_of, write_model


@dataclass(frozen=True)
class ToyHead:
    """What can be changed of a head.

    Attributes
    ----------
    n_heads : of the chain
    hidden : "normed", "raw", or "" to leave the key out
    feature_layers : of the model; () for none
    n_draft : tokens of the draft's vocabulary; 0 for the model's, without a d2t
    embeddings, norm : whether each head has its own
    output : of each head: "" for the model's, "full" or "draft" vocabulary
    keys, tensors : to replace, without the architecture's prefix and by full name; None leaves out
    names : metadata keys to add, by full name
    """

    n_heads: int = 1
    hidden: str = ""
    feature_layers: tuple[int, ...] = ()
    n_draft: int = 0
    embeddings: bool = False
    norm: bool = True
    output: str = ""
    keys: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, NDArray[Any] | None] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)


# What heads may have and leave out, as arguments of ``ToyHead``.
HEADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "raw": {"hidden": "raw"},
    "fallbacks": {"norm": False, "hidden": "normed"},
    "own": {"embeddings": True, "output": "full"},
    "reduced": {"n_draft": 100},
    "reduced own": {"n_draft": 100, "output": "draft"},
    "reduced full": {"n_draft": 100, "output": "full"},
    "features": {"feature_layers": (1, 0), "n_draft": 200},
    "raw features": {"feature_layers": (1,), "hidden": "raw", "norm": False},
    "chain": {"n_heads": 3},
    "raw chain": {"n_heads": 2, "hidden": "raw", "n_draft": 150},
    "own chain": {"n_heads": 3, "embeddings": True, "output": "draft", "n_draft": 64},
    "feature chain": {"n_heads": 2, "feature_layers": (0, 1)},
}


def write_toy_head(
    path: Path, arch: str = "llama", head: ToyHead | None = None, seed: int = 7, **changes: Any
) -> Path:
    """Write a file of heads for ``write_model(..., arch, **changes)``; matrices of weight_type."""
    head = head or ToyHead()
    weight_type = changes.pop("weight_type", "F32")
    params, tensors, keys = _parts(arch, head, seed, changes)
    writer = gguf.GGUFWriter(path, arch)
    for name, value in {**keys_of(arch, params), **keys}.items():
        if keys.get(name, value) is not None:
            add_key(writer, f"{arch}.{name}", value)
    for name, value in head.names.items():
        add_key(writer, name, value)
    rng = np.random.default_rng(seed + 1)
    for name, weights in tensors.items():
        add_tensor(writer, name, weights, params, weight_type, rng)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_model_with_head(
    path: Path, arch: str = "llama", head: ToyHead | None = None, seed: int = 7, **changes: Any
) -> Path:
    """Write a model whose file holds heads too."""
    head = head or ToyHead()
    _, tensors, keys = _parts(arch, head, seed, dict(changes))
    changes["keys"] = {**changes.get("keys", {}), **keys}
    changes["tensors"] = {**changes.get("tensors", {}), **tensors}
    return write_model(path, arch, **changes)


def _parts(
    arch: str, head: ToyHead, seed: int, changes: dict[str, Any]
) -> tuple[ToyParams, dict[str, NDArray[Any]], dict[str, Any]]:
    """The model's parameters; the heads' tensors; the keys that differ from the model's."""
    changes.pop("weight_type", None)
    params = replace(DEFAULTS[arch], **changes)
    if not params.d_head:
        params = replace(params, d_head=params.n_embd // params.n_head)
    n_vocab = len(vocabulary_values(params.vocabulary)["tokens"])  # type: ignore[arg-type]
    n_blocks = params.n_layers + head.n_heads
    keys: dict[str, Any] = {"block_count": n_blocks, "nextn_predict_layers": head.n_heads}
    if head.hidden:
        keys["nextn.hidden"] = head.hidden
    if head.feature_layers:
        keys["nextn.feature_layers"] = list(head.feature_layers)
    rng = np.random.default_rng(seed)
    deeper = tensors_of(arch, replace(params, n_layers=n_blocks, tensors={}), n_vocab, rng)
    tensors: dict[str, Any] = {}
    for block in range(params.n_layers, n_blocks):
        at = f"blk.{block}."
        tensors |= {name: value for name, value in deeper.items() if name.startswith(at)}
        tensors |= _own_tensors(at + "nextn.", head, params.n_embd, n_vocab, rng)
    if head.n_draft:
        tensors["nextn.d2t"] = d2t_of(head.n_draft, n_vocab)
    tensors |= head.tensors
    tensors = {name: value for name, value in tensors.items() if value is not None}
    return params, tensors, keys | head.keys


def d2t_of(n_draft: int, n_vocab: int) -> NDArray[np.int32]:
    """Ascending ids, seeded."""
    ids = np.random.default_rng(n_draft).choice(n_vocab, n_draft, replace=False)
    return np.sort(ids).astype(np.int32)


def _own_tensors(
    at: str, head: ToyHead, n: int, n_vocab: int, rng: np.random.Generator
) -> dict[str, NDArray[Any]]:
    k = len(head.feature_layers)

    def matrix(n_rows: int, n_columns: int, gain: float) -> NDArray[np.float32]:
        return rng.normal(0, gain / np.sqrt(n_columns), (n_rows, n_columns)).astype(np.float32)

    def norm(size: int, mean: float, spread: float) -> NDArray[np.float32]:
        return rng.normal(mean, spread, size).astype(np.float32)

    tensors = {
        "enorm": norm(n, 1, 0.3),
        "hnorm": norm(n, 1, 0.3),
        "eh_proj": matrix(n, 2 * n, 1.5),
    }
    if k:
        tensors["eh_proj_first"] = matrix(n, (2 + k) * n, 1.5)
        tensors["feature_norm"] = norm(k * n, 1, 0.3)
    if head.norm:
        tensors["shared_head_norm"] = norm(n, 0, 1)
    if head.embeddings:
        tensors["embed_tokens"] = matrix(n_vocab, n, 2.5)
    if head.output:
        n_rows = n_vocab if head.output == "full" else head.n_draft
        tensors["shared_head_head"] = matrix(n_rows, n, 2.5)
    return {f"{at}{name}.weight": weights for name, weights in tensors.items()}


class Story:
    """A text as the loop makes it, with a model that shows a drafter what it computes.

    Parameters
    ----------
    drafter : what it drafts is left to the caller
    """

    def __init__(self, model: Model, drafter: MtpDrafter) -> None:
        self.model, self.drafter = model, drafter
        self.cache = model.new_cache(drafter.n_ctx)
        self.last = -1

    def prompt(self, ids: Sequence[int], n_batch: int = 512) -> None:
        """Evaluate a prompt, and take it into the text."""
        for start in range(0, len(ids), n_batch):
            self.show(ids[start : start + n_batch])
        self.drafter.accept(np.array(ids, np.int32))

    def show(self, ids: Sequence[int]) -> None:
        """Evaluate tokens; they stand in the cache, but not yet in the drafter's text."""
        tokens = np.array(ids, np.int32)
        taps = Taps(hidden_layers=self.drafter.feature_layers)
        done = self.model.forward(tokens, self.cache, rows="none", taps=taps, all_hidden=True)
        self.drafter.see(tokens, done.all_hidden, done.taps.hidden)  # type: ignore[union-attr,arg-type]

    def token(self, token: int) -> None:
        """The first token of the model's."""
        self.drafter.accept([token])
        self.last = token

    def tell(self, ids: Sequence[int]) -> None:
        """A whole text, of which no pass has seen the last token."""
        self.prompt(ids[:-1])
        self.token(ids[-1])

    def round(self, draft: Sequence[int], tokens: Sequence[int]) -> None:
        """A round that verifies a draft and finds these tokens instead."""
        before = self.cache.length
        self.show([self.last, *draft])
        self.cache.truncate(before + len(tokens))
        self.drafter.accept(list(tokens))
        self.last = tokens[-1]
