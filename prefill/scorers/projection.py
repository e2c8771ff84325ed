"""A trained projection: which states of a model's first layers tell what belongs to a question.

A small GGUF file for a model, whatever its quantisation, its name and its path, written by
``scripts/train_scorer.py``. States go in as they come out of a layer, divided by their root mean
square, those of several layers side by side; 0 is the layer of the embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...engine.errors import (
    REMEDY_DAMAGED,
    ModelDamaged,
    ModelUnsupported,
    UsageError,
    naming_model,
)
from ...engine.gguf.file import TARGET_FINGERPRINT, GgufMetadata, read_metadata
from ...engine.gguf.identity import UNTOLD, Identity, Marks
from ...engine.gguf.tensors import Tensor, TensorType, open_tensors
from ...engine.transformer.dequant import dequantise
from ...engine.transformer.hparams import ModelParams
from ...engine.transformer.unused_tensors import unused_error
from .calibration_file import ForModel, files_in

ARCHITECTURE = "draftsmith-scorer"
PREFIX = "draftsmith.scorer."
MAX_RANK, MAX_BLOCK = 4096, 1024

_TYPES = (TensorType.F16, TensorType.F32)
_EPS = 1e-6


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear map of states.

    Attributes
    ----------
    weight : float32 [n_out, n_in]
    bias : float32 [n_out]
    """

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]

    def __call__(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32 [n, n_in] to float32 [n, n_out]."""
        out: NDArray[np.float32] = states @ self.weight.T + self.bias
        return out


@dataclass(frozen=True, eq=False)
class Projection(ForModel):
    """How states become scores.

    Attributes
    ----------
    path : of the file
    model : name of that which it is for
    vocabulary, n_layers, n_embd, made_for : see ``ForModel``
    document_layers, question_layers : whose inputs go in, ascending
    window, n_sink : tokens that a token of the document sees, itself included; first ones besides
    block : tokens of the document of which the nearest counts
    reach : blocks on either side that count with one
    exponent, scale : of a block's score: scale * sum(importance * nearness)
        / sum(importance) ** exponent
    document, question : to keys and queries, which are compared by their cosine
    importance : of a question's token, before softplus; one row
    """

    path: Path
    model: str
    vocabulary: str
    n_layers: int
    n_embd: int
    document_layers: tuple[int, ...]
    question_layers: tuple[int, ...]
    window: int
    n_sink: int
    block: int
    reach: int
    exponent: float
    scale: float
    document: Linear
    question: Linear
    importance: Linear
    made_for: Marks = UNTOLD

    @property
    def is_embedded(self) -> bool:
        """Whether no layer has to run for a document."""
        return self.document_layers == (0,)

    def keys(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Directions of tokens of the document, float32 [n, rank]."""
        return _directions(self.document(states))

    def queries(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Directions of tokens of the question, float32 [n, rank]."""
        return _directions(self.question(states))

    def weights(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Importance of tokens of the question as parts of one, float32 [n]."""
        raw = np.logaddexp(0, self.importance(states)[:, 0].astype(np.float64))
        weights: NDArray[np.float32] = (raw / raw.sum() ** self.exponent).astype(np.float32)
        return weights


def normed(states: NDArray[np.float32]) -> NDArray[np.float32]:
    """States divided by their root mean square, float32 [n, n_embd]."""
    squares = np.einsum("ij,ij->i", states, states, dtype=np.float64) / states.shape[1]
    out: NDArray[np.float32] = states / np.sqrt(squares + _EPS).astype(np.float32)[:, None]
    return out


def _directions(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    out: NDArray[np.float32] = rows / np.maximum(lengths, np.float32(1e-12))[:, None]
    return out


def find_projection(
    fingerprint: str,
    params: ModelParams,
    folders: Iterable[Path] | None = None,
    *,
    embedded: bool = False,
    identity: Identity | None = None,
) -> Projection | None:
    """The projection of a model; None: there is none.

    Parameters
    ----------
    fingerprint : of its vocabulary, hex
    embedded : one of embeddings alone; else one of deeper layers
    identity : of its weights; None: any of that vocabulary and size
    folders : to look in, one after the other; default: the user's calibrations, the package's

    Raises
    ------
    InputUnreadable, ModelNotGguf, ModelDamaged, ModelUnsupported, UsageError : a file in one
    """
    for path in files_in(folders, "*.gguf"):
        found = read_projection(path)
        if (
            found.is_embedded is embedded
            and found.fits(fingerprint, params)
            and found.fits_weights(identity)
        ):
            return found
    return None


def read_projection(path: Path | str) -> Projection:
    """Read a projection.

    Raises
    ------
    UsageError : a GGUF of something else
    InputUnreadable, ModelNotGguf, ModelDamaged, ModelUnsupported : the file
    """
    metadata = read_metadata(path)
    if metadata.text("general.architecture") != ARCHITECTURE:
        raise UsageError(
            f"{path} holds no trained scorer",
            remedy="name a file of scripts/train_scorer.py",
        )
    return _Reading(metadata).projection()


class _Reading:
    """The metadata and tensors of a file, checked."""

    def __init__(self, metadata: GgufMetadata) -> None:
        self._metadata = metadata
        self._tensors = open_tensors(metadata.path, metadata)
        self._read: set[str] = set()

    def projection(self) -> Projection:
        """All of it."""
        n_layers, n_embd = self._whole("n_layers", 1, 1 << 16), self._whole("n_embd", 1, 1 << 20)
        layers = [self._layers(f"{side}_layers", n_layers) for side in ("document", "question")]
        n_in = [n_embd * len(some) for some in layers]
        document = self._linear("document", n_in[0], None)
        rank = len(document.bias)
        maps = self._linear("question", n_in[1], rank), self._linear("importance", n_in[1], 1)
        unused = self._tensors.keys() - self._read
        if unused:
            with naming_model(self._metadata.path):
                raise unused_error(unused, "a trained scorer")
        vocabulary = self._metadata.text(TARGET_FINGERPRINT)
        if vocabulary is None:
            raise self._damaged(f"'{TARGET_FINGERPRINT}' is missing")
        return Projection(
            path=self._metadata.path,
            model=self._metadata.text("general.name") or self._metadata.path.stem,
            vocabulary=vocabulary,
            n_layers=n_layers,
            n_embd=n_embd,
            document_layers=layers[0],
            question_layers=layers[1],
            window=self._whole("window", 0, 1 << 30),
            n_sink=self._whole("n_sink", 0, 1 << 30),
            block=self._whole("block", 1, MAX_BLOCK),
            reach=self._whole("reach", 0, MAX_BLOCK),
            exponent=self._real("exponent"),
            scale=self._real("scale"),
            document=document,
            question=maps[0],
            importance=maps[1],
            made_for=Marks.told_by(self._metadata),
        )

    def _damaged(self, what: str) -> ModelDamaged:
        return ModelDamaged(f"{self._metadata.path}: {what}", remedy=REMEDY_DAMAGED)

    def _whole(self, key: str, least: int, most: int) -> int:
        found = self._metadata.integer(PREFIX + key)
        if found is None or not least <= found <= most:
            raise self._damaged(f"'{PREFIX}{key}' is {found}, expected {least} to {most}")
        return found

    def _real(self, key: str) -> float:
        found = self._metadata.real(PREFIX + key)
        if found is None or not np.isfinite(found):
            raise self._damaged(f"'{PREFIX}{key}' is {found}, expected a number")
        return found

    def _layers(self, key: str, n_layers: int) -> tuple[int, ...]:
        found = self._metadata.numbers(PREFIX + key)
        if found is None or found.dtype.kind not in "iu" or not 0 < found.size <= n_layers:
            raise self._damaged(f"'{PREFIX}{key}' is no list of layers")
        layers = tuple(int(layer) for layer in found.reshape(-1))
        if list(layers) != sorted(set(layers)) or layers[0] < 0 or layers[-1] >= n_layers:
            raise self._damaged(
                f"'{PREFIX}{key}' is {list(layers)[:16]}, expected layers of 0 to {n_layers - 1}, "
                "ascending"
            )
        return layers

    def _linear(self, name: str, n_in: int, n_out: int | None) -> Linear:
        """A map; with ``n_out`` None it says itself to how many numbers."""
        weight, bias = self._tensor(f"{name}.weight"), self._tensor(f"{name}.bias")
        n = weight.shape[0] if n_out is None else n_out
        if weight.shape != (n, n_in) or bias.shape != (n,) or not 0 < n <= MAX_RANK:
            raise self._damaged(
                f"tensors {name}.weight and {name}.bias are of {weight.shape} and {bias.shape}, "
                f"expected {(n, n_in)} and {(n,)}"
            )
        return Linear(self._numbers(weight), self._numbers(bias))

    def _tensor(self, name: str) -> Tensor:
        found = self._tensors.get(name)
        if found is None:
            raise self._damaged(f"tensor {name} is missing")
        self._read.add(name)
        return found

    def _numbers(self, tensor: Tensor) -> NDArray[np.float32]:
        if tensor.type not in _TYPES:
            raise ModelUnsupported(
                f"{self._metadata.path}: tensor {tensor.name} is {tensor.type.name}, expected F16 "
                "or F32",
                remedy=REMEDY_DAMAGED,
            )
        numbers = dequantise(tensor.type, np.ascontiguousarray(tensor.data)).reshape(tensor.shape)
        if not np.isfinite(numbers).all():
            raise self._damaged(f"tensor {tensor.name} holds what is no number")
        return numbers
