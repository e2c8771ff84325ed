"""Block-sparse layers: FlashPrefill's choice as the naive one makes it, and dense where all is
chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Load
from draftsmith.engine.errors import UsageError
from draftsmith.engine.transformer.layer_pass import LayerPass
from draftsmith.prefill.scorers.blocksparse import BlockPass, BlockRule
from naive_attention import Mask, MaskedModel, block_mask, chosen_blocks
from naive_model import Reals
from numpy.typing import NDArray
from toy_model import write_model

SIDES = (False, True)


def tokens(n: int, seed: int = 2) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, 400, n)


def assert_bits(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert found.shape == expected.shape
    assert (found.view(np.uint32) == expected.view(np.uint32)).all()


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("n", [1, 15, 64, 300, 530, 1100])
@pytest.mark.parametrize(
    "rule",
    [
        BlockRule(size=64, alpha=0.0),
        BlockRule(size=16, alpha=1.0, n_full=100),
        BlockRule(size=256, alpha=1.0, n_local=100),
        BlockRule(size=32, alpha=1.0, n_sink=100),
    ],
    ids=["alpha", "full", "local", "sink"],
)
def test_all_blocks_are_dense_attention(
    arch: str, n: int, rule: BlockRule, load: Load, tmp_path: Path
) -> None:
    """The bug: a block that is lost, or seen from before it, at any border of blocks and splits."""
    changes = {"window": 40, "pattern": [False, True, False]} if arch == "gemma3" else {}
    model = load(write_model(tmp_path / "toy.gguf", arch, n_layers=3, **changes), n_threads=2)
    dense, sparse = LayerPass(model, tokens(n)), BlockPass(model, tokens(n), rule)
    for _ in range(2):
        dense.run()
        sparse.run()
        assert_bits(sparse.x, dense.x)
    assert_bits(*(way.peek((0, n), SIDES).keys[True] for way in (sparse, dense)))
    assert_bits(*(way.run((0, n), SIDES).queries[False] for way in (sparse, dense)))
    assert_bits(sparse.x, dense.x)
    n_blocks = -(-n // rule.size)
    assert (sparse.chosen == np.tri(n_blocks, dtype=np.uint8)).all()


@pytest.mark.parametrize(
    ("n", "changes", "wide"),
    [
        (170, {"size": 16, "alpha": 0.9, "n_sink": 1, "n_local": 1, "n_full": 0}, (0, 0)),
        (170, {"size": 16, "alpha": 0.97, "n_sink": 0, "n_local": 2, "n_full": 1}, (70, 90)),
        (600, {"size": 32, "alpha": 0.95, "n_sink": 2, "n_local": 3, "n_full": 2}, (590, 600)),
        (640, {"size": 64, "alpha": 0.97, "n_sink": 0, "n_local": 1, "n_full": 0}, (0, 0)),
        (700, {"size": 128, "alpha": 0.98, "n_sink": 0, "n_local": 1, "n_full": 0}, (0, 0)),
        (1100, {"size": 64, "alpha": 0.96, "n_sink": 1, "n_local": 2, "n_full": 1}, (0, 0)),
    ],
)
def test_blocks_are_the_naive_choice(
    n: int, changes: dict[str, Any], wide: tuple[int, int], load: Load, tmp_path: Path
) -> None:
    """The bug: scores that are not normalised over the row (as published ports have it), a block
    chosen by queries that cannot see it, means of the wrong keys, a future token in the own
    block."""
    # Of one layer that counts: in the next, a rounding could decide a choice otherwise.
    path = write_model(tmp_path / "toy.gguf", "qwen3", n_layers=1)
    rule = BlockRule(**changes)
    n_blocks = -(-n // rule.size)
    is_full = [i >= n_blocks - rule.n_full for i in range(n_blocks)]
    for i in range(n_blocks):
        is_full[i] |= any(wide[0] <= t < wide[1] for t in range(i * rule.size, (i + 1) * rule.size))
    chosen: dict[int, Mask] = {}

    def mask_of(il: int, head: int, q: Reals, k: Reals, scale: float) -> Mask:
        chosen[head] = chosen_blocks(
            q, k, scale, rule.size, rule.alpha, rule.n_sink, rule.n_local, is_full
        )
        return block_mask(n, rule.size, chosen[head])

    want = MaskedModel(path, mask_of).trace(tokens(n))
    way = BlockPass(load(path, n_threads=2), tokens(n), rule, wide=wide)
    way.run()
    assert (way.chosen == np.stack([chosen[head] for head in range(8)])).all()
    assert 0.1 < way.chosen.mean() / np.tri(way.chosen.shape[1]).mean() < 0.9
    scale = np.sqrt((want.hidden**2).mean())
    assert np.abs(way.x - want.hidden).max() < 0.01 * scale


def test_no_token_sees_a_later_one(load: Load, tmp_path: Path) -> None:
    """The bug: a whole diagonal block that is seen, as one published kernel does.

    Later tokens of the own block have a say in what the block sees, so all else is seen here.
    """
    model = load(write_model(tmp_path / "toy.gguf"))
    ids = tokens(300)
    other = ids.copy()
    other[280:] = tokens(20, seed=7)
    rule = BlockRule(size=64, alpha=1.0, n_local=100)
    ways = [BlockPass(model, text, rule) for text in (ids, other)]
    for way in ways:
        way.run()
    assert_bits(ways[0].x[:280], ways[1].x[:280])
    assert (ways[0].x[280:] != ways[1].x[280:]).any()


@pytest.mark.parametrize("n_threads", [2, 3])
def test_any_number_of_threads_computes_the_same(
    n_threads: int, load: Load, tmp_path: Path
) -> None:
    """The bug: a block's mean that another thread reads before it is there."""
    path = write_model(tmp_path / "toy.gguf", "llama", "Q4_1", n_layers=3)
    rule = BlockRule(size=16, alpha=0.8, n_sink=1, n_local=1, n_full=0)
    one, other = (BlockPass(load(path, n), tokens(1100), rule) for n in (1, n_threads))
    for _ in range(3):
        one.run()
        other.run()
        assert_bits(one.x, other.x)
        assert (one.chosen == other.chosen).all()


@pytest.mark.parametrize(
    "wrong",
    [{"size": 48}, {"alpha": 1.1}, {"alpha": float("nan")}, {"n_sink": -1}, {"n_local": 0}],
)
def test_rules_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    """The bug: blocks that cross the engine's splits, or a token that does not see itself."""
    with pytest.raises(UsageError) as caught:
        BlockRule(**wrong)
    assert caught.value.remedy
