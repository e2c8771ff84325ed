"""How much memory scoring and the target's pass will take, before anything is loaded.

Counted are packed weights, keys and values, and the buffers of passes; nothing is touched. What
Python, its libraries and compiled kernels take is measured where it can be, and allowed for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..engine.errors import naming_model
from ..engine.gguf.file import GgufMetadata
from ..engine.gguf.tensors import open_tensors
from ..engine.transformer.hparams import ModelParams
from ..engine.transformer.kv_cache import KvCache
from ..engine.transformer.model import BATCH, Scratch
from ..engine.transformer.pack import FORGET_BYTES
from ..engine.transformer.weights import pieces_of
from .scorers.attention import AttentionRule
from .scorers.projection import Projection

# Kernels, threads and what libraries allocate once they run; without a compiler at work.
RUNTIME_BYTES = 96 << 20
_LINES = 64


@dataclass(frozen=True)
class Need:
    """Bytes on top of what the process holds already.

    Attributes
    ----------
    scoring_weights : of the model that scores; 0: it is the target, or none scores
    scoring : what scoring takes besides, or loading those weights
    target_weights, target : the same of the target
    """

    scoring_weights: int
    scoring: int
    target_weights: int
    target: int

    @property
    def together(self) -> int:
        """With all weights loaded from the start."""
        return self.scoring_weights + self.target_weights + max(self.scoring, self.target)

    @property
    def least(self) -> int:
        """With those of another model released before the target's are unpacked."""
        if not self.scoring_weights:
            return self.together
        return max(self.scoring_weights + self.scoring, self.target_weights + self.target)


def weights_bytes(metadata: GgufMetadata, params: ModelParams) -> tuple[int, int]:
    """Memory of a model's weights when they are packed; of the file, while that goes on.

    Raises
    ------
    InputUnreadable, ModelDamaged, ModelUnsupported : the file
    """
    tensors = open_tensors(metadata.path, metadata)
    with naming_model(metadata.path):
        pieces = pieces_of(params, tensors)
    packed = sum(piece.n_bytes for piece in pieces)
    largest = max(piece.tensor.data.nbytes for piece in pieces)
    mapped = sum(piece.tensor.data.nbytes for piece in pieces)
    return packed, min(mapped, FORGET_BYTES + largest)


def target_bytes(params: ModelParams, n_tokens: int, n_threads: int) -> int:
    """Keys and values of ``n_tokens``, the buffers of their passes, and what runs them."""
    cache = KvCache(params, max(1, n_tokens))
    return RUNTIME_BYTES + cache.n_bytes + _scratch_bytes(params, cache.n_ctx, n_threads)


def scoring_bytes(
    params: ModelParams,
    n_text: int,
    n_threads: int,
    rule: AttentionRule,
    *,
    n_held: int = 1,
    n_looked: int = 1,
) -> int:
    """Buffers of an attention scorer, and what runs it.

    Parameters
    ----------
    n_text : tokens of the longest text that it reads
    n_held : layers whose keys and values are held at a time
    n_looked : layers whose keys are looked at at a time
    """
    n_text = max(1, n_text)
    held = replace(params, n_layers=n_held)
    states = 4 * n_text * params.n_embd
    looked = 4 * n_text * params.n_head_kv * params.d_head
    n_sides = n_looked * len({head.rope for head in rule.heads})
    n_lines = len(rule.heads) + 2 * _LINES
    return (
        RUNTIME_BYTES
        + KvCache(held, n_text).n_bytes
        + _scratch_bytes(params, n_text, n_threads)
        + states
        + n_sides * looked
        + 4 * n_text * n_lines
    )


def comparing_bytes(projection: Projection, n_text: int) -> int:
    """What a trained scorer takes besides: states and keys of a text of ``n_text`` tokens, and
    how near they are to a question of usual length."""
    n_in = len(projection.document_layers) * projection.n_embd
    return 4 * max(1, n_text) * (2 * n_in + len(projection.document.bias) + _LINES)


def _scratch_bytes(params: ModelParams, n_ctx: int, n_threads: int) -> int:
    scratch = Scratch(params, BATCH, n_ctx, n_threads)
    return sum(_sizes(scratch.buffers))


def _sizes(values: Iterable[Any]) -> Iterable[int]:
    for value in values:
        if isinstance(value, np.ndarray):
            yield value.nbytes
        else:
            yield from _sizes(value)
