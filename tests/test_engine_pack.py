"""Packing weights where there is no room for them; tests/test_engine_tiles.py checks the rest."""

from __future__ import annotations

import numpy as np
import pytest
from draftsmith.engine import pack
from draftsmith.engine.errors import UsageError
from draftsmith.engine.gguf_tensors import Tensor, TensorType


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
