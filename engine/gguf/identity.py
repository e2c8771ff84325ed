"""What a model is, told by its weights: not by its file's name, its path or the order of its keys.

What was made for one model (an MTP head, a trained scorer, a calibration) says so by two marks.
The vectors of the norms are stored alike in all quantisations of a model, and differ between
models that were trained apart. Sums of all tensors as they are stored (in large models, of parts
of them) differ between quantisations, too, and where a fine-tune has left the norms as they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .file import GgufMetadata
from .tensors import Tensor, open_tensors

# Where a GGUF that was made for a model tells its marks.
TARGET_NORMS = "draftsmith.target.norms"
TARGET_WEIGHTS = "draftsmith.target.weights"

_NORM = "norm.weight"
# Of a small model all bytes are summed, SmolLM2's in 0.02 s. Of a larger one's tensors it is no
# more than so many bytes each, in spans at equal distances: a model of 8 GB takes 0.1 s.
_SMALL_BYTES, _MOST_BYTES, _N_SPANS = 1 << 28, 1 << 20, 16


class Kinship(Enum):
    """What a model is to the one that something was made for."""

    SAME = "the same weights"
    KIN = "it has the same norms: another quantisation, or a fine-tune that left them alone"
    OTHER = "it has other weights"
    UNTOLD = "it is not told for which weights it was made"


class Marks(NamedTuple):
    """Marks of a model, SHA-256 in lower-case hex; None where they are not told."""

    norms: str | None = None
    weights: str | None = None

    @classmethod
    def told_by(cls, metadata: GgufMetadata) -> Marks:
        """Marks of the model that a file was made for.

        Raises
        ------
        ModelDamaged : they are no strings
        """
        return cls(metadata.text(TARGET_NORMS), metadata.text(TARGET_WEIGHTS))


UNTOLD = Marks()


class Identity:
    """The marks of a model, each computed when it is first asked for.

    Parameters
    ----------
    tensors : all of the model, by name
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    @classmethod
    def of(cls, metadata: GgufMetadata) -> Identity:
        """The same of a model whose metadata has been read.

        Raises
        ------
        InputUnreadable, ModelDamaged, ModelUnsupported : the tensors
        """
        return cls(open_tensors(metadata.path, metadata))

    @property
    def marks(self) -> Marks:
        """Both marks."""
        return Marks(self.norms, self.weights)

    @cached_property
    def norms(self) -> str:
        """Digest of the norms' vectors; takes about a millisecond."""
        found = hashlib.sha256()
        for name, tensor in sorted(self._tensors.items()):
            if name.endswith(_NORM):
                found.update(_heading(tensor) + np.ascontiguousarray(tensor.data).tobytes())
        return found.hexdigest()

    @cached_property
    def weights(self) -> str:
        """Digest of a sum over each tensor as it is stored."""
        found = hashlib.sha256()
        n_bytes = sum(tensor.data.size for tensor in self._tensors.values())
        most = n_bytes if n_bytes <= _SMALL_BYTES else _MOST_BYTES
        for _, tensor in sorted(self._tensors.items()):
            found.update(_heading(tensor) + _sum(tensor, most).to_bytes(8, "little"))
        return found.hexdigest()

    def kinship(self, made_for: Marks) -> Kinship:
        """What this model is to one of those marks; weights are read only if the norms agree."""
        if made_for.norms is None:
            return Kinship.UNTOLD
        if made_for.norms != self.norms:
            return Kinship.OTHER
        is_same = made_for.weights is None or made_for.weights == self.weights
        return Kinship.SAME if is_same else Kinship.KIN


def _heading(tensor: Tensor) -> bytes:
    return f"\n{tensor.name} {tensor.type.name} {tensor.shape}\n".encode("utf-8", "replace")


def _sum(tensor: Tensor, most: int) -> int:
    """Sum of the bytes as words of 64 bits, modulo 2**64; what is left over is one more word.

    Of a tensor of more than ``most`` bytes, so many of them.
    """
    data = np.ascontiguousarray(tensor.data).reshape(-1)
    n_whole = data.size // 8 * 8
    words = data[:n_whole].view("<u8")
    total = int.from_bytes(data[n_whole:].tobytes(), "little")
    n_span = words.size if data.size <= most else most // 8 // _N_SPANS
    for i in range(_N_SPANS if n_span < words.size else 1):
        start = (words.size - n_span) * i // (_N_SPANS - 1)
        total += int(np.add.reduce(words[start : start + n_span], dtype=np.uint64))
    return total % 2**64
