"""Rotary position embedding: positions in, cosines and sines out.

Angles are float64, so that they are as right at position 100,000 as at 0; ggml's are float32
products, which drift. The rules of scaling are ggml's (rope_yarn in its ops.cpp) with what
llama.cpp passes it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..errors import REMEDY_DAMAGED, ModelDamaged
from .hparams import ModelParams, RopeParams


class RopeTable:
    """What each pair of numbers of a head turns by, at any position.

    Parameters
    ----------
    params : of the model
    factors : float32 [n_rot / 2], by which the pairs' frequencies are divided (rope_freqs.weight,
        of llama models only), or None

    Raises
    ------
    ModelDamaged : factors of another length, or one that is 0 or not finite
    """

    def __init__(self, params: ModelParams, factors: NDArray[np.float32] | None = None) -> None:
        rope = params.rope
        half = rope.n_rot // 2
        divisors = np.ones(half)
        if factors is not None:
            divisors = _checked(factors, half)
        everywhere = _frequencies(rope, rope.base) / divisors * _stretching(rope)
        # Local layers keep the frequencies that they were trained with, and yarn leaves them alone.
        local = _frequencies(rope, rope.base_local) / divisors
        self._frequencies = np.stack([everywhere, local])  # float64 [2, n_rot / 2]
        self._sizes = np.array([rope.attn_factor * _growth(rope), rope.attn_factor])
        self._has_local = any(params.local)

    def turns(self, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return cosines and sines, float32 [2, n, 2, n_rot / 2], of ``positions``, int64 [n].

        First axis: global layers, local layers (the same, where the model has none). Third axis:
        cosine, sine; both carry the growth that yarn asks for.
        """
        n_kinds = 2 if self._has_local else 1
        frequencies, sizes = self._frequencies[:n_kinds], self._sizes[:n_kinds]
        angles = frequencies[:, None, :] * positions[None, :, None].astype(np.float64)
        turns = np.empty((2, positions.size, 2, frequencies.shape[1]), np.float32)
        turns[:n_kinds, :, 0] = np.cos(angles) * sizes[:, None, None]
        turns[:n_kinds, :, 1] = np.sin(angles) * sizes[:, None, None]
        if not self._has_local:
            turns[1] = turns[0]
        return turns


def _checked(factors: NDArray[np.float32], half: int) -> NDArray[np.float64]:
    if factors.shape != (half,):
        raise ModelDamaged(
            f"the rope factors have the shape {factors.shape}, expected ({half},)",
            remedy=REMEDY_DAMAGED,
        )
    if not (np.isfinite(factors) & (factors != 0)).all():  # 0 makes llama.cpp's logits NaN
        raise ModelDamaged("a rope factor is 0 or not finite", remedy=REMEDY_DAMAGED)
    return factors.astype(np.float64)


def _frequencies(rope: RopeParams, base: float) -> NDArray[np.float64]:
    """Radians a position, float64 [n_rot / 2], before any scaling."""
    exponents = -2.0 / rope.n_rot * np.arange(rope.n_rot // 2)
    frequencies: NDArray[np.float64] = np.power(base, exponents)
    return frequencies


def _stretching(rope: RopeParams) -> NDArray[np.float64] | float:
    """By what frequencies are multiplied on global layers: a number, or [n_rot / 2] with yarn."""
    scale = 1.0 / rope.factor
    if rope.ext_factor == 0:
        return scale
    # Between the two pairs whose wavelengths fit the original context beta_fast and beta_slow
    # times, from 1 down to the scale.
    pairs = np.arange(rope.n_rot // 2)
    first = max(0, math.floor(_pair_of(rope, rope.beta_fast)))
    last = min(rope.n_rot - 1, math.ceil(_pair_of(rope, rope.beta_slow)))
    kept = 1 - np.clip((pairs - first) / max(0.001, last - first), 0, 1)
    mix = kept * rope.ext_factor
    return scale * (1 - mix) + mix


def _pair_of(rope: RopeParams, n_turns: float) -> float:
    """The pair, as a real number, that turns ``n_turns`` times within the original context."""
    wavelength = rope.n_ctx_original / (n_turns * 2 * math.pi)
    return rope.n_rot * math.log(wavelength) / (2 * math.log(rope.base))


def _growth(rope: RopeParams) -> float:
    """Yarn's growth of cosine and sine on global layers."""
    return 1 + 0.1 * math.log(rope.factor) if rope.ext_factor != 0 else 1.0
