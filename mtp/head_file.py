"""Files of MTP heads, opened and checked against the model that they draft for.

A head is embedded in the model's GGUF, under llama.cpp's names, or is a GGUF of its own with the
same names. docs/mtp.md tells what a file holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..engine.errors import (
    REMEDY_CONVERT,
    REMEDY_DAMAGED,
    ModelDamaged,
    ModelUnsupported,
    UsageError,
)
from ..engine.gguf.file import (
    TARGET_FINGERPRINT,
    GgufMetadata,
    GgufStrings,
    MetadataValue,
    read_metadata,
)
from ..engine.gguf.identity import UNTOLD, Marks
from ..engine.gguf.tensors import Tensor, TensorType, open_tensors
from ..engine.transformer.hparams import MAX_LAYERS, ModelParams

D2T = "nextn.d2t"


@dataclass(frozen=True)
class HeadFile:
    """What a file says about its heads; the shapes of its other tensors are not checked yet.

    Attributes
    ----------
    path : of the file
    tensors : of the file
    trunk : tensors of the model, which stand in where the file has none of its own
    params : of the model, but for its layers: those of the heads, which see the whole text
    first_block : number of the first head's block
    is_normed : hidden states go in after the model's last norm; else before it
    feature_layers : layers of the model whose input a first step takes too
    d2t : int32 [n_draft], ascending: the token of each row of the draft's logits
    made_for : of the model that it was made for, as far as the file tells
    """

    path: Path
    tensors: dict[str, Tensor]
    trunk: dict[str, Tensor]
    params: ModelParams
    first_block: int
    is_normed: bool
    feature_layers: tuple[int, ...]
    d2t: NDArray[np.int32]
    made_for: Marks = UNTOLD

    @property
    def n_heads(self) -> int:
        """Heads of the chain; a single one recurs."""
        return self.params.n_layers


def open_head_file(
    path: Path | None, metadata: GgufMetadata, params: ModelParams, fingerprint: str
) -> HeadFile:
    """Open the heads of ``path``; None: those of the model's own file.

    Parameters
    ----------
    metadata, params : of the model
    fingerprint : of the model's vocabulary, hexadecimal

    Raises
    ------
    UsageError : there is no head, or it is one for another model
    InputUnreadable, ModelNotGguf, ModelDamaged, ModelUnsupported : the file
    """
    trunk = open_tensors(metadata.path, metadata)
    checked = _Checks(metadata if path is None else read_metadata(path), params, path is None)
    n_heads = checked.n_heads()
    checked.is_for_model(n_heads, fingerprint)
    tensors = trunk if path is None else open_tensors(path, checked.metadata)
    return HeadFile(
        path=checked.metadata.path,
        tensors=tensors,
        trunk=trunk,
        params=replace(params, n_layers=n_heads, local=(False,) * n_heads, window=0),
        first_block=params.n_layers,
        is_normed=checked.is_normed(),
        feature_layers=checked.feature_layers(),
        d2t=checked.d2t(tensors.get(D2T)),
        made_for=Marks.told_by(checked.metadata),
    )


class _Checks:
    """The metadata of a file with heads, read for a model."""

    def __init__(self, metadata: GgufMetadata, params: ModelParams, is_embedded: bool) -> None:
        self.metadata, self._params, self._is_embedded = metadata, params, is_embedded

    def _damaged(self, what: str) -> ModelDamaged:
        return ModelDamaged(f"{self.metadata.path}: {what}", remedy=REMEDY_DAMAGED)

    def _other_model(self, what: str) -> UsageError:
        return UsageError(
            f"{self.metadata.path} holds a head for another model: {what}",
            remedy="name a head that was made for this model",
        )

    def _name(self, key: str) -> str:
        return f"{self._params.architecture}.{key}"

    def n_heads(self) -> int:
        """MTP layers of the file."""
        architecture = self.metadata.text("general.architecture")
        if architecture != self._params.architecture:
            raise self._other_model(
                f"'general.architecture' is {str(architecture)[:64]!r}, expected "
                f"{self._params.architecture!r}"
            )
        name = self._name("nextn_predict_layers")
        found = self.metadata.integer(name)
        if not found:
            raise self._no_head(f"'{name}' is {'missing' if found is None else found}")
        n_blocks = self.metadata.integer(self._name("block_count"))
        if n_blocks is None:
            raise self._damaged(f"'{self._name('block_count')}' is missing")
        if not 0 < found <= min(n_blocks, MAX_LAYERS):
            raise self._damaged(
                f"'{name}' is {found}, expected 1 to the {n_blocks} of "
                f"'{self._name('block_count')}'"
            )
        if n_blocks - found != self._params.n_layers:
            raise self._other_model(
                f"'{self._name('block_count')}' is {n_blocks} with {found} MTP layers, "
                f"expected {self._params.n_layers + found}"
            )
        return found

    def _no_head(self, what: str) -> UsageError:
        remedy = "name a GGUF that holds MTP layers"
        if self._is_embedded:
            remedy = "name a head for it with --mtp-head, or draft with --drafter ngram"
        return UsageError(f"{self.metadata.path} has no MTP layers: {what}", remedy=remedy)

    def is_for_model(self, n_heads: int, fingerprint: str) -> None:
        """Refuse a head whose width, block, positions or vocabulary are another model's."""
        p = self._params
        expected: dict[str, float] = {
            "embedding_length": p.n_embd,
            "feed_forward_length": p.n_ff,
            "attention.head_count": p.n_head,
            "attention.head_count_kv": p.n_head_kv,
            "attention.key_length": p.d_head,
            "attention.value_length": p.d_head,
            "attention.layer_norm_rms_epsilon": p.eps,
            "rope.dimension_count": p.rope.n_rot,
            "rope.freq_base": p.rope.base,
            "rope.scaling.factor": p.rope.factor,
        }
        for key, number in expected.items():
            name = self._name(key)
            found = self.metadata.values.get(name, number)
            if not _is_all(found, number):
                raise self._other_model(f"'{name}' is {_shown(found)}, expected {number}")
        text = self.metadata.text(TARGET_FINGERPRINT)
        if text is not None and text != fingerprint:
            raise self._other_model(
                f"its vocabulary is {text[:12]!r}..., expected {fingerprint[:12]!r}..."
            )

    def is_normed(self) -> bool:
        """Whether hidden states go in after the last norm."""
        name = self._name("nextn.hidden")
        found = self.metadata.text(name) or "normed"
        if found not in ("normed", "raw"):
            raise ModelUnsupported(
                f"{self.metadata.path}: '{name}' is {found[:64]!r}, expected 'normed' or 'raw'",
                remedy=REMEDY_CONVERT,
            )
        return found == "normed"

    def feature_layers(self) -> tuple[int, ...]:
        """Layers, in the file's order; none where it names none."""
        name = self._name("nextn.feature_layers")
        found = self.metadata.numbers(name)
        if found is None:
            return ()
        n_layers = self._params.n_layers
        layers = tuple(int(layer) for layer in found.reshape(-1)[: n_layers + 1])
        is_sound = found.dtype.kind in "iu" and len(set(layers)) == len(layers) == found.size
        if not is_sound or any(not 0 <= layer < n_layers for layer in layers):
            raise self._damaged(
                f"'{name}' is {str(found)[:64]}, expected layers of 0 to {n_layers - 1}, each once"
            )
        return layers

    def d2t(self, tensor: Tensor | None) -> NDArray[np.int32]:
        """The draft's vocabulary; without a tensor, the model's."""
        n_vocab = self._params.n_vocab
        if tensor is None:
            return np.arange(n_vocab, dtype=np.int32)
        if tensor.type != TensorType.I32 or len(tensor.shape) != 1:
            shape = " x ".join(map(str, tensor.shape))
            raise self._damaged(
                f"tensor {D2T} is {tensor.type.name} of {shape}, expected a vector of I32"
            )
        ids = np.array(tensor.data.reshape(-1).view(np.int32))
        if ids.size > n_vocab or ids.min() < 0 or ids.max() >= n_vocab:
            raise self._damaged(
                f"tensor {D2T} holds {ids.size} ids from {ids.min()} to {ids.max()}, expected some "
                f"of the {n_vocab} from 0 to {n_vocab - 1}"
            )
        falls = np.flatnonzero(np.diff(ids) <= 0)
        if falls.size:
            at = int(falls[0])
            raise self._damaged(
                f"tensor {D2T} holds {ids[at + 1]} after {ids[at]}, expected ascending ids"
            )
        return ids


def _is_all(found: MetadataValue, number: float) -> bool:
    """Whether a value is that number, or an array of it alone, one for each layer."""
    if isinstance(found, np.ndarray):
        return found.size > 0 and bool((found == number).all())
    return not isinstance(found, str | GgufStrings) and found == number


def _shown(found: MetadataValue) -> str:
    if isinstance(found, GgufStrings):
        return f"an array of {len(found)} strings"
    return str(found)[:64]
