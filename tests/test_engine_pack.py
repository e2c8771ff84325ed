"""Weights that cannot be packed; tests/test_engine_tiles.py packs those that can."""

from __future__ import annotations

import numpy as np
import pytest
from draftsmith.engine.errors import ModelDamaged, UsageError
from draftsmith.engine.gguf.tensors import Tensor, TensorType
from draftsmith.engine.transformer import pack

# Where blocks have a second scale, or their only one, if that is not at the beginning.
SECOND = dict.fromkeys((TensorType.Q4_1, TensorType.Q5_1, TensorType.Q4_K, TensorType.Q5_K), (0, 2))
PLACES = SECOND | {TensorType.Q6_K: (208,)}
# Bits of NaN and of an infinity, where they are not those of float16.
NOT_FINITE = {TensorType.F32: (0x7FC00001, 0xFF800000), TensorType.BF16: (0x7FC0, 0xFF80)}


def test_weights_beyond_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that the system kills while it packs a model larger than the memory."""
    data = np.ones((16, 32), np.float32).view(np.uint8)
    tensor = Tensor("weights", TensorType.F32, (16, 32), data)
    piece = pack.Piece((0, 0), tensor, np.arange(16), False)
    monkeypatch.setattr(pack, "available_memory_bytes", lambda: 2048)
    arena, _ = pack.pack([piece], (1, 1), n_threads=1)
    assert arena.size == 2048
    monkeypatch.setattr(pack, "available_memory_bytes", lambda: 2047)
    with pytest.raises(UsageError, match=r"the weights take 0\.0 GB"):
        pack.pack([piece], (1, 1), n_threads=1)


@pytest.mark.parametrize("kind", pack.FORMS, ids=lambda kind: kind.name)
def test_weights_that_are_not_finite_are_refused(kind: TensorType) -> None:
    """NaN or infinity in one scale of a large matrix, which a pass would make a number of."""
    n_rows, n = 40, 512
    row_bytes = n // kind.block_items * kind.block_bytes
    size = 4 if kind == TensorType.F32 else 2
    for bits in NOT_FINITE.get(kind, (0x7E00, 0xFC00)):
        for place in PLACES.get(kind, (0,)):
            for row, block in ((0, 0), (39, n // kind.block_items - 1), (17, 1)):
                data = np.full((n_rows, row_bytes), 0x11, np.uint8)
                tensor = Tensor("the weights", kind, (n_rows, n), data)
                piece = pack.Piece((0, 0), tensor, np.arange(n_rows), False)
                pack.pack([piece], (1, 1), n_threads=2)  # 0x1111 is a number of every kind
                at = block * kind.block_bytes + place
                data[row, at : at + size] = np.frombuffer(bits.to_bytes(size, "little"), np.uint8)
                with pytest.raises(ModelDamaged, match="the weights holds a number that is not"):
                    pack.pack([piece], (1, 1), n_threads=2)


def test_rows_of_others_are_not_looked_at() -> None:
    """A fused tensor that is read three times over, a third of it each time."""
    data = np.ones((16, 32), np.float32)
    data[12] = np.nan
    tensor = Tensor("fused", TensorType.F32, (16, 32), data.view(np.uint8))
    pack.pack([pack.Piece((0, 0), tensor, np.arange(4, 12), False)], (1, 1), n_threads=1)
    with pytest.raises(ModelDamaged):
        pack.pack([pack.Piece((0, 0), tensor, np.arange(8, 13), False)], (1, 1), n_threads=1)
