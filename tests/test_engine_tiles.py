"""Register tiles against plain NumPy, packed weights against dequantised ones, and the threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from draftsmith.engine.gguf.tensors import Tensor, TensorType
from draftsmith.engine.transformer import forward_kernels as kernels
from draftsmith.engine.transformer.dequant import dequantise
from draftsmith.engine.transformer.pack import FORMS, Piece, pack
from draftsmith.engine.transformer.tile_kernels import (
    float_of_half,
    half_bits,
    quantise_row,
    row_activate,
    row_exp,
    row_max,
    row_squares,
)
from draftsmith.engine.transformer.workers import Workers
from numba import njit

QUANTISED = [kind for kind in FORMS if kind.block_items > 1]
FLOATS = [kind for kind in FORMS if kind.block_items == 1]


def tensor_of(kind: TensorType, n_rows: int, n: int, seed: int = 0) -> Tensor:
    """Random bytes whose scales are small finite numbers, or random floats."""
    rng = np.random.default_rng(seed)
    if kind == TensorType.F32:
        data = rng.normal(size=(n_rows, n)).astype(np.float32).view(np.uint8)
    elif kind == TensorType.F16:
        data = rng.normal(size=(n_rows, n)).astype(np.float16).view(np.uint8)
    elif kind == TensorType.BF16:
        bits = rng.normal(size=(n_rows, n)).astype(np.float32).view(np.uint32) >> 16
        data = bits.astype(np.uint16).view(np.uint8)
    else:
        blocks = rng.integers(0, 256, (n_rows, n // kind.block_items, kind.block_bytes), np.uint8)
        n_scales = 2 if kind.name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else 1
        scales = rng.uniform(0.001, 0.05, (*blocks.shape[:2], n_scales)).astype(np.float16)
        at = kind.block_bytes - 2 if kind == TensorType.Q6_K else 0
        blocks[:, :, at : at + 2 * n_scales] = scales.view(np.uint8)
        data = blocks.reshape(n_rows, -1)
    return Tensor("weights", kind, (n_rows, n), data)


@njit(**{**kernels.KERNEL, "cache": False})
def multiply_all(arena, slot, act, n_tokens, out):  # type: ignore[no-untyped-def]
    kernels.quantise(act, 0, n_tokens, 0, slot[kernels.COLUMNS])
    for tid in range(3):
        kernels.matmul(arena, slot, act, n_tokens, out, tid, 3)


def activations(x: np.ndarray) -> tuple[np.ndarray, ...]:
    n_tokens, n = x.shape
    blocks = -(-n // 32)
    return (
        x.copy(),
        np.zeros((n_tokens, 32 * blocks), np.int8),
        np.zeros((n_tokens, 32 * blocks), np.int16),
        np.zeros((n_tokens, blocks), np.float32),
        np.zeros((n_tokens, blocks), np.float32),
        np.zeros((n_tokens, 2 * blocks), np.float32),
        np.zeros((n_tokens, blocks), np.int32),
    )


def product(tensor: Tensor, order: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the kernels make of it, and the activations that they used, as float64."""
    arena, slots = pack([Piece((0, 0), tensor, order, False)], (1, 1), n_threads=2)
    act = activations(x)
    out = np.full((x.shape[0], -(-order.size // 16) * 16), np.nan, np.float32)
    multiply_all(arena, slots[0, 0], act, x.shape[0], out)
    used = x.astype(np.float64)
    if tensor.type.block_items > 1:
        blocks = act[1].reshape(x.shape[0], -1, 32) * act[3].astype(np.float64)[:, :, None]
        used = blocks.reshape(x.shape)
    return out[:, : order.size], used


@pytest.mark.parametrize("kind", FORMS, ids=lambda kind: kind.name)
def test_products(kind: TensorType) -> None:
    """A nibble, a scale or a lane in the wrong place; rows that no tile is full of."""
    n = 256 if kind in QUANTISED else 72
    for n_rows in (1, 8, 19, 40):
        tensor = tensor_of(kind, n_rows, n)
        order = np.random.default_rng(1).permutation(n_rows).astype(np.int64)
        x = np.random.default_rng(2).normal(size=(11, n)).astype(np.float32)
        out, used = product(tensor, order, x)
        weights = dequantise(kind, tensor.data).astype(np.float64)[order]
        # the sums of activations that go with least values are rounded to float16, as llama.cpp's
        size = np.abs(used) @ np.abs(weights).T
        assert np.all(np.abs(out - used @ weights.T) <= 1e-3 * size)


@pytest.mark.parametrize("kind", FORMS, ids=lambda kind: kind.name)
def test_a_token_does_not_depend_on_its_batch(kind: TensorType) -> None:
    """Sums in another order in tiles of another size: drafting would change greedy text."""
    tensor = tensor_of(kind, 24, 256)
    order = np.arange(24)
    x = np.random.default_rng(3).normal(size=(131, 256)).astype(np.float32)
    whole, _ = product(tensor, order, x)
    for start, stop in ((0, 1), (1, 3), (3, 6), (6, 10), (10, 15), (15, 131)):
        assert np.array_equal(product(tensor, order, x[start:stop])[0], whole[start:stop])


@pytest.mark.parametrize("kind", FORMS, ids=lambda kind: kind.name)
def test_a_row_does_not_depend_on_its_neighbours(kind: TensorType) -> None:
    """Two tiles at once that come to other bits than one after the other: threads split rows."""
    tensor = tensor_of(kind, 40, 256)
    x = np.random.default_rng(5).normal(size=(13, 256)).astype(np.float32)
    whole, _ = product(tensor, np.arange(40), x)
    for start in range(0, 40, 8):
        alone, _ = product(tensor, np.arange(start, start + 8), x)
        assert np.array_equal(alone, whole[:, start : start + 8])


@njit
def quantise_one(x, x8, x16, d, s, h, z):  # type: ignore[no-untyped-def]
    quantise_row(
        x.ctypes.data, x.size // 32, x8.ctypes.data, x16.ctypes.data, d.ctypes.data,
        s.ctypes.data, h.ctypes.data, z.ctypes.data,
    )  # fmt: skip


def test_quantised_activations() -> None:
    """Rounding that is not to nearest, a block of zeros divided by zero, sums of other blocks."""
    x = np.random.default_rng(4).normal(size=160).astype(np.float32)
    x[32:64] = 0
    x[64:96] *= 1e-30
    x[96] = 1e6
    (floats,), (x8,), (x16,), (d,), (s,), (h,), (z,) = activations(x[None])
    quantise_one(floats, x8, x16, d, s, h, z)
    assert np.array_equal(z, -128 * x8.reshape(-1, 32).astype(np.int32).sum(axis=1))
    blocks = x.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1) / np.float32(127)
    assert np.array_equal(d, scale.astype(np.float16).astype(np.float32))
    inverse = np.divide(127, np.abs(blocks).max(axis=1), where=scale > 0, out=np.zeros(5))
    expected = np.rint(blocks * inverse.astype(np.float32)[:, None]).astype(np.int8)
    assert np.array_equal(x8.reshape(-1, 32), expected)
    assert np.array_equal(x16, x8)
    sums = expected.astype(np.float32).reshape(-1, 2, 16).sum(axis=2) * scale[:, None]
    assert np.array_equal(h.reshape(-1, 2), sums)


@njit
def rows_of_floats(x, y, out, gelu):  # type: ignore[no-untyped-def]
    top = row_max(x.ctypes.data, x.size // 8)
    squares = row_squares(x.ctypes.data, x.size // 8)
    row_activate(x.ctypes.data, y.ctypes.data, x.size // 8, out.ctypes.data, gelu)
    return top, squares, row_exp(x.ctypes.data, x.size // 8, top)


def test_rows_of_floats() -> None:
    """A polynomial that is off, or infinities and huge numbers that become NaN."""
    x = (np.random.default_rng(5).normal(size=4096) * 20).astype(np.float32)
    x[:6] = (-np.inf, -1e30, -88, -87, 0, 88)
    wide = x.astype(np.float64)
    y = np.ones_like(x)
    for gelu in (False, True):
        exps, out = x.copy(), np.empty_like(x)
        exps[0] = out[0] = -1e30  # no infinity is activated
        wide[0] = -1e30
        top, squares, total = rows_of_floats(exps, y, out, gelu)
        expected = np.exp((wide.astype(np.float32) - x.max()).astype(np.float64))
        assert top == x.max()
        assert total == pytest.approx(expected.sum(), rel=1e-5)
        np.testing.assert_allclose(exps, expected, rtol=3e-6, atol=1e-37)
        assert np.isinf(squares)
        with np.errstate(over="ignore"):
            if gelu:
                inner = 0.7978845608028654 * (wide + 0.044715 * wide**3)
                expected = 0.5 * wide * (1 + np.tanh(inner))
            else:
                expected = wide / (1 + np.exp(-wide))
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@njit
def there_and_back(x, bits):  # type: ignore[no-untyped-def]
    rounded = np.empty(x.size, np.uint16)
    for i in range(x.size):
        rounded[i] = half_bits(x[i])
    widened = np.empty(bits.size, np.float32)
    for i in range(bits.size):
        widened[i] = float_of_half(bits[i])
    return rounded, widened


def test_halves() -> None:
    """Keys rounded otherwise than to the nearest float16, subnormal numbers, infinities."""
    bits = np.arange(65536).astype(np.uint16)
    x = np.random.default_rng(6).integers(0, 2**32, 100_000, np.uint32).view(np.float32)
    halfway = (bits[:31743].view(np.float16).astype(np.float64) + np.float64(2**-25)).astype("f4")
    x = np.concatenate([x, halfway, np.float32([0, -0.0, 65504, 65519, 65520, np.inf, 1e-8])])
    x = x[~np.isnan(x)]
    rounded, widened = there_and_back(x, bits)
    with np.errstate(over="ignore"):
        assert np.array_equal(rounded, x.astype(np.float16).view(np.uint16))
    expected = bits.view(np.float16).astype(np.float32)
    number = ~np.isnan(expected)
    assert np.array_equal(widened[number].view(np.uint32), expected[number].view(np.uint32))
    assert np.isnan(widened[~number]).all()


PORTABLE = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import test_engine_tiles as tests
from draftsmith.engine.transformer import tile_kernels
assert not tile_kernels.HAS_AVX2 and not tile_kernels.HAS_FMA
for kind in tests.FORMS:
    tests.test_products(kind)
tests.test_halves()
tests.test_quantised_activations()
tests.test_rows_of_floats()
"""


@pytest.mark.slow
def test_without_vector_instructions(tmp_path: Path) -> None:
    """Tiles that only work with AVX2."""
    if sys.platform != "linux":
        pytest.skip("names an x86 CPU")
    environment = {
        **os.environ,
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    command = [sys.executable, "-c", PORTABLE, str(Path(__file__).parent)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_workers() -> None:
    """A thread that never ran, ran twice, or whose error was lost; a call after an error."""
    workers = Workers(3)
    seen: list[tuple[int, int]] = []
    for _ in range(50):
        seen.clear()
        workers.run(lambda tid, n, *_: seen.append((tid, n)), "argument")
        assert sorted(seen) == [(0, 3), (1, 3), (2, 3)]

    def fail(tid: int, _: int) -> None:
        if tid == 2:
            raise ValueError("thread 2")

    with pytest.raises(ValueError, match="thread 2"):
        workers.run(fail)
    workers.run(lambda tid, n: seen.append((tid, n)))
    workers.close()
