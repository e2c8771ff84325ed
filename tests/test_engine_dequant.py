"""Rows to float32: the same bits as gguf.quants, for every type."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from draftsmith.engine.gguf.tensors import TensorType, open_tensors
from draftsmith.engine.transformer import dequant
from draftsmith.engine.transformer.dequant import dequantise
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

# Bytes of a block at which a float16 lies.
HALVES = {
    TensorType.Q4_0: (0,), TensorType.Q4_1: (0, 2), TensorType.Q5_0: (0,), TensorType.Q5_1: (0, 2),
    TensorType.Q8_0: (0,), TensorType.Q4_K: (0, 2), TensorType.Q5_K: (0, 2),
    TensorType.Q6_K: (208,),
}  # fmt: skip
WEIGHTS = [kind for kind in TensorType if kind != TensorType.I32]
KINDS = pytest.mark.parametrize("kind", WEIGHTS, ids=lambda kind: kind.name)


def random_rows(kind: TensorType, n_rows: int, n_blocks: int, seed: int = 0) -> NDArray[np.uint8]:
    """Rows of random bytes, uint8 [n_rows, row_bytes], whose numbers are finite."""
    rng = np.random.default_rng(seed)
    if kind.block_items == 1:
        values = rng.normal(0, 1, (n_rows, n_blocks * 32)).astype(np.float32)
        values *= 2.0 ** rng.integers(-14, 15, values.shape)
        if kind == TensorType.F16:
            values = values.astype(np.float16)
        if kind == TensorType.BF16:  # the upper half of a float32
            values = np.ascontiguousarray(values.view(np.uint16)[:, 1::2])
        return values.view(np.uint8)
    blocks = rng.integers(0, 256, (n_rows, n_blocks, kind.block_bytes), np.uint8)
    for at in HALVES[kind]:
        halves = rng.integers(0, 1 << 16, (n_rows, n_blocks), np.uint16)
        halves[halves & 0x7C00 == 0x7C00] ^= 0x4000  # no infinity, no NaN; subnormal ones stay
        blocks[:, :, at : at + 2] = halves[..., None].view(np.uint8)
    return blocks.reshape(n_rows, -1)


def bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """What -0.0 differs from 0.0 by."""
    assert values.dtype == np.float32
    return np.ascontiguousarray(values).view(np.uint32)


def reference(kind: TensorType, data: NDArray[np.uint8]) -> NDArray[np.uint32]:
    values = dequantize(data, gguf.GGMLQuantizationType(int(kind)))
    assert np.isfinite(values).all()
    return bits(values)


@KINDS
@pytest.mark.parametrize(("n_rows", "n_blocks"), [(1, 1), (1, 9), (3, 2), (257, 3)])
def test_random_bytes(kind: TensorType, n_rows: int, n_blocks: int) -> None:
    """A nibble, a high bit, a scale or a sign that goes to the wrong number."""
    data = random_rows(kind, n_rows, n_blocks, seed=n_rows + n_blocks)
    assert (bits(dequantise(kind, data)) == reference(kind, data)).all()


@KINDS
def test_every_byte_value_everywhere(kind: TensorType) -> None:
    """A byte that is read with a sign, or a field that begins one byte off."""
    n_bytes = kind.block_bytes * (32 // kind.block_items if kind.block_items < 32 else 1)
    data = np.repeat(np.arange(256, dtype=np.uint8)[:, None], n_bytes, axis=1)
    data = data ^ np.arange(n_bytes, dtype=np.uint8)
    one = np.array([1.0], np.float16).view(np.uint8)
    for at in HALVES.get(kind, ()):
        data[:, at : at + 2] = one
    ours = dequantise(kind, data)
    theirs = dequantize(data, gguf.GGMLQuantizationType(int(kind)))
    finite = np.isfinite(theirs)
    assert (bits(ours)[finite] == bits(theirs)[finite]).all()
    assert (np.isnan(ours) == np.isnan(theirs)).all()


@KINDS
def test_quantised_weights(kind: TensorType) -> None:
    """What gguf itself quantised, read as other weights."""
    weights = np.random.default_rng(3).normal(0, 0.3, (5, 512)).astype(np.float32)
    try:
        data = quantize(weights, gguf.GGMLQuantizationType(int(kind)))
    except NotImplementedError:
        assert kind.name.endswith("_K"), "gguf quantises all but these"
        return
    values = dequantise(kind, data.view(np.uint8))
    assert (bits(values) == reference(kind, data.view(np.uint8))).all()
    assert np.abs(values - weights).max() < 0.2  # 4 bits of a range of some 2


@KINDS
def test_rows_in_any_order_and_place(kind: TensorType) -> None:
    """Rows of a read-only or strided array, or written beyond the place that was named."""
    data = random_rows(kind, 8, 2)
    expected = reference(kind, data)
    frozen = data.copy()
    frozen.flags.writeable = False
    assert (bits(dequantise(kind, frozen)) == expected).all()
    assert (bits(dequantise(kind, data[::2])) == expected[::2]).all()
    assert (bits(dequantise(kind, data[[5, 0, 5]])) == expected[[5, 0, 5]]).all()
    room = np.full((10, expected.shape[1]), 7, np.float32)
    assert dequantise(kind, data, room[1:9]).base is room
    assert (bits(room[1:9]) == expected).all()
    assert (room[[0, 9]] == 7).all()
    assert dequantise(kind, data[:0]).shape == (0, expected.shape[1])


@KINDS
def test_batches_join(kind: TensorType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows lost or doubled where the kernel's batches meet, or a row longer than a batch."""
    data = random_rows(kind, 11, 2)
    expected = reference(kind, data)
    for n_bytes in (1, data.shape[1], 3 * data.shape[1] + 1):
        monkeypatch.setattr(dequant, "BATCH_BYTES", n_bytes)
        assert (bits(dequantise(kind, data)) == expected).all()


@pytest.mark.parametrize("kind", [TensorType.F32, TensorType.F16, TensorType.BF16])
def test_floats_that_are_not_finite(kind: TensorType) -> None:
    """NaN in a tensor that becomes a number on its way."""
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40], np.float32)
    data = {
        TensorType.F32: special,
        TensorType.F16: special.astype(np.float16),
        TensorType.BF16: np.ascontiguousarray(special.view(np.uint16)[1::2]),
    }[kind].view(np.uint8)[None]  # fmt: skip
    values = dequantise(kind, data)[0]
    assert np.isnan(values[0])
    assert values[1:4].tolist() == [np.inf, -np.inf, 0]
    assert np.signbit(values[3])


def test_wrong_shapes() -> None:
    """Half a block read beyond the row, or numbers written beyond the array."""
    data = random_rows(TensorType.Q8_0, 2, 2)
    with pytest.raises(ValueError, match="blocks of 34"):
        dequantise(TensorType.Q8_0, data[:, :-1])
    for out in (
        np.empty((2, 63), np.float32),
        np.empty((1, 64), np.float32),
        np.empty((2, 64), np.float64),
        np.empty((2, 128), np.float32)[:, ::2],
    ):
        with pytest.raises(ValueError, match="expected float32"):
            dequantise(TensorType.Q8_0, data, out)


def test_the_real_model(smollm2) -> None:  # type: ignore[no-untyped-def]
    """A tensor of a real file that gguf reads otherwise."""
    for name in ("token_embd.weight", "blk.0.ffn_up.weight", "blk.29.attn_norm.weight"):
        tensor = open_tensors(smollm2)[name]
        rows = tensor.data[:64]
        assert (bits(dequantise(tensor.type, rows)) == reference(tensor.type, rows)).all()
