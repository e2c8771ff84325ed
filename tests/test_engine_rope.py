"""Rotations by position, against ggml's own loop written out, and against longer arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from draftsmith.engine.errors import ModelDamaged
from draftsmith.engine.transformer.hparams import ModelParams, RopeParams
from draftsmith.engine.transformer.rope import RopeTable
from numpy.typing import NDArray

POSITIONS = np.array([0, 1, 2, 7, 8, 511, 4096, 100_000])
# Half a unit in the last place of float32 near 1, and the same again for yarn's growth.
CLOSE = 1.2e-7


def model(*, local: bool = False, **rope: object) -> ModelParams:
    """A model of which only the rotation matters."""
    values = {
        "adjacent": False,
        "n_rot": 64,
        "base": 1e4,
        "base_local": 1e4,
        "n_ctx_original": 4096,
    }
    params = RopeParams(**(values | rope))  # type: ignore[arg-type]
    return ModelParams(
        architecture="qwen2", n_vocab=10, n_ctx_train=4096, n_embd=64, n_layers=2, n_nextn=0,
        n_head=1, n_head_kv=1, d_head=64, n_ff=64, eps=1e-6, attn_scale=0.125, embd_scale=1.0,
        gelu=False, softcap=0.0, local=(local, False), window=4 if local else 0, rope=params,
    )  # fmt: skip


def as_ggml(
    rope: RopeParams, position: int, factors: NDArray[np.float32] | None, *, local: bool
) -> list[tuple[float, float]]:
    """Cosine and sine of each pair as llama.cpp sets ggml up, and ggml computes them."""
    base = rope.base_local if local else rope.base
    freq_scale = 1.0 if local else 1 / rope.factor
    attn_factor = rope.attn_factor
    if rope.ext_factor != 0:  # llama_context
        attn_factor *= 1 + 0.1 * math.log(rope.factor) if rope.factor > 1 else 1
        attn_factor /= 1 + 0.1 * math.log(rope.factor)

    def corr_dim(n_rot: float) -> float:
        inside = rope.n_ctx_original / (n_rot * 2 * math.pi)
        return rope.n_rot * math.log(inside) / (2 * math.log(base))

    low = max(0, math.floor(corr_dim(rope.beta_fast)))
    high = min(rope.n_rot - 1, math.ceil(corr_dim(rope.beta_slow)))
    pairs = []
    theta = float(position)
    for i0 in range(0, rope.n_rot, 2):
        extrapolated = theta / (1.0 if factors is None else float(factors[i0 // 2]))
        angle = freq_scale * extrapolated
        size = attn_factor
        if rope.ext_factor != 0:
            ramp = 1 - min(1, max(0, (i0 // 2 - low) / max(0.001, high - low)))
            ramp *= rope.ext_factor
            angle = angle * (1 - ramp) + extrapolated * ramp
            size *= 1 + 0.1 * math.log(1 / freq_scale)
        pairs.append((math.cos(angle) * size, math.sin(angle) * size))
        theta *= base ** (-2 / rope.n_rot)
    return pairs


FACTORS = np.linspace(1, 32, 32, dtype=np.float32)
CASES = {
    "plain": model(),
    "part of a head": model(n_rot=6),
    "one pair": model(n_rot=2),
    "linear": model(scaling="linear", factor=8.0),
    "yarn": model(scaling="yarn", factor=4.0, ext_factor=1.0),
    "yarn, Qwen's": model(
        scaling="yarn", factor=4.0, ext_factor=1.0, base=1e6, n_ctx_original=32768
    ),
    "yarn by 1": model(scaling="yarn", factor=1.0, ext_factor=1.0),
    "yarn, short context": model(scaling="yarn", factor=40.0, ext_factor=1.0, n_ctx_original=1),
    "growth": model(scaling="yarn", factor=4.0, ext_factor=1.0, attn_factor=0.5),
    "growth without yarn": model(attn_factor=1.5),
    "windows": model(local=True, base=1e6, scaling="linear", factor=8.0),
    "windows and yarn": model(
        local=True, base=1e6, scaling="yarn", factor=8.0, ext_factor=1.0, attn_factor=0.9
    ),
}


@pytest.mark.parametrize("with_factors", [False, True])
@pytest.mark.parametrize("params", CASES.values(), ids=CASES)
def test_equals_ggml(params: ModelParams, with_factors: bool) -> None:
    """A scaling applied to the wrong pairs or layers, or a growth that is lost or squared."""
    half = params.rope.n_rot // 2
    factors = FACTORS[:half] if with_factors else None
    turns = RopeTable(params, factors).turns(POSITIONS)
    assert turns.shape == (2, POSITIONS.size, 2, half)
    assert turns.dtype == np.float32
    for kind in range(2):
        for i, position in enumerate(POSITIONS.tolist()):
            local = kind == 1 and params.local[0]
            pairs = as_ggml(params.rope, position, factors, local=local)
            expected = np.array(pairs).T
            # the loop's float64 product of 32 factors is off by some 1e-15, times the position
            np.testing.assert_allclose(turns[kind, i], expected, rtol=0, atol=2 * CLOSE)


def test_far_positions_are_as_right_as_near_ones() -> None:
    """Angles in float32, which at position 100,000 are off by more than a hundredth."""
    turns = RopeTable(model(), None).turns(POSITIONS)
    exponents = -2 * np.arange(32, dtype=np.longdouble) / 64
    angles = POSITIONS[:, None].astype(np.longdouble) * np.longdouble(10000) ** exponents
    np.testing.assert_allclose(turns[0, :, 0], np.cos(angles), rtol=0, atol=CLOSE / 2)
    np.testing.assert_allclose(turns[0, :, 1], np.sin(angles), rtol=0, atol=CLOSE / 2)


def test_position_0_turns_nothing_and_angles_add() -> None:
    """Sine and cosine swapped, or positions counted from 1."""
    turns = RopeTable(model(), None).turns(np.array([0, 3, 4, 7])).astype(np.float64)
    cosine, sine = turns[0, :, 0], turns[0, :, 1]
    assert (cosine[0] == 1).all()
    assert (sine[0] == 0).all()
    np.testing.assert_allclose(
        cosine[1] * cosine[2] - sine[1] * sine[2], cosine[3], rtol=0, atol=4 * CLOSE
    )
    assert sine[1, 0] == pytest.approx(math.sin(3), abs=CLOSE)


def test_local_layers_are_their_own_model() -> None:
    """Windows' layers scaled like the others, or the others turned by the windows' base."""
    params = model(local=True, base=1e6, base_local=2e4, scaling="linear", factor=8.0)
    turns = RopeTable(params, None).turns(POSITIONS)
    local = RopeTable(model(base=2e4), None).turns(POSITIONS)
    everywhere = RopeTable(replace(params, local=(False, False), window=0), None).turns(POSITIONS)
    assert (turns[1] == local[0]).all()
    assert (turns[0] == everywhere[0]).all()
    assert (everywhere[1] == everywhere[0]).all()


def test_positions_do_not_depend_on_the_batch() -> None:
    """A rotation with other bits when its token comes alone, by which drafts would be rejected."""
    for params in CASES.values():
        table = RopeTable(params, None)
        positions = np.arange(1000, 1300)
        whole = table.turns(positions)
        for i in (0, 1, 17, 299):
            assert (table.turns(positions[i : i + 1])[:, 0] == whole[:, i]).all()
    assert table.turns(positions[:0]).shape == (2, 0, 2, 32)


@pytest.mark.parametrize(
    "factors",
    [
        np.ones(31, np.float32),
        np.ones(33, np.float32),
        np.ones(0, np.float32),
        np.ones((1, 32), np.float32),
        np.full(32, np.nan, np.float32),
        np.full(32, np.inf, np.float32),
        np.zeros(32, np.float32),
    ],
)
def test_factors_that_cannot_be(factors: NDArray[np.float32]) -> None:
    """NaN in every logit from one bad factor, or a pair without one."""
    with pytest.raises(ModelDamaged, match="rope factor"):
        RopeTable(model(), factors)
