"""A text layer by layer: as a whole pass does it, bit for bit, and through windows as told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import Load
from draftsmith.engine.errors import UsageError
from draftsmith.engine.transformer.layer_pass import LayerPass, Look
from draftsmith.engine.transformer.model import Taps
from naive_attention import MaskedModel, window_mask
from numpy.typing import NDArray
from toy_model import write_model

N_VOCAB = 400
SIDES = (False, True)
KINDS = {
    "llama": ("llama", "Q4_1", {"n_layers": 3}),
    "qwen3": ("qwen3", "F32", {"n_layers": 3}),
    "gemma3": ("gemma3", "Q4_0", {"window": 40, "pattern": [False, True, False, True]}),
}


def tokens(n: int, seed: int = 2) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, N_VOCAB, n)


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("toys")
    return {
        name: write_model(folder / f"{name}.gguf", arch, kind, **changes)
        for name, (arch, kind, changes) in KINDS.items()
    }


def assert_bits(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert found.dtype == expected.dtype == np.float32
    assert found.shape == expected.shape
    assert (found.view(np.uint32) == expected.view(np.uint32)).all()


def run(way: LayerPass, rows: tuple[int, int]) -> list[Look]:
    """All layers; the last one only looked at."""
    n_layers = way.model.params.n_layers
    looks = [way.run(rows, SIDES) for _ in range(n_layers - 1)]
    return [*looks, way.peek(rows, SIDES)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 16, 17, 300, 1100])
@pytest.mark.parametrize("window", [0, 5000])
def test_a_window_wider_than_the_text_is_a_plain_pass(
    kind: str, n: int, window: int, toys: dict[str, Path], load: Load
) -> None:
    """The bug: a layer, a batch or a side of RoPE taken for another; a cache of the wrong layer."""
    model = load(toys[kind])
    ids = tokens(n)
    every = range(model.params.n_layers)
    taps = Taps(hidden_layers=every, query_layers=every)
    want = model.forward(ids, model.new_cache(n), taps=taps).taps
    assert want is not None
    way = LayerPass(model, ids, window=window, n_sink=4)
    rows = (n // 3, n - n // 5)
    for layer in every:
        assert_bits(way.x, want.hidden[layer])
        look = way.run(rows, SIDES)
        assert look.layer == layer
        for side in SIDES:
            assert_bits(look.queries[side], want.queries[layer, int(side), slice(*rows)])
            assert_bits(look.keys[side], want.keys[layer, int(side)])
    hidden = model.forward(ids, model.new_cache(n), rows="all").hidden
    assert_bits(way.x, hidden)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize(
    ("n", "window", "n_sink", "wide"),
    [
        (70, 1, 0, (0, 0)),
        (70, 7, 4, (60, 70)),
        (70, 16, 1, (20, 33)),
        (70, 40, 0, (69, 70)),
        (600, 100, 3, (550, 600)),
        (600, 257, 300, (0, 0)),
    ],
)
def test_windows_are_the_naive_mask(
    arch: str,
    n: int,
    window: int,
    n_sink: int,
    wide: tuple[int, int],
    load: Load,
    tmp_path: Path,
) -> None:
    """The bug: a token too few or too many in the window, sinks that are not seen, or by layers
    that have a window of their own."""
    changes = {"window": 30, "pattern": [True, False, True]} if arch == "gemma3" else {}
    path = write_model(tmp_path / "toy.gguf", arch, n_layers=3, **changes)
    mask = window_mask(n, window, n_sink, wide)
    ids = tokens(n)
    want = MaskedModel(path, lambda *_: mask).trace(ids)
    way = LayerPass(load(path, n_threads=2), ids, window=window, n_sink=n_sink, wide=wide)
    for _ in range(3):
        way.run()
    scale = np.sqrt((want.hidden**2).mean())
    assert np.abs(way.x - want.hidden).max() < 0.01 * scale


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_sees_its_tokens_and_no_other(
    kind: str, toys: dict[str, Path], load: Load
) -> None:
    """The bug: what stands before the window changes what is computed after it."""
    model = load(toys[kind])
    ids = tokens(400)
    other = ids.copy()
    other[10:100] = tokens(90, seed=5)
    ways = [LayerPass(model, text, window=50, n_sink=4, wide=(390, 400)) for text in (ids, other)]
    for way in ways:
        way.run()
    # of one layer: a token after 100 + 50 has none of the others in its window
    assert_bits(ways[0].x[150:390], ways[1].x[150:390])
    assert (ways[0].x[390:] != ways[1].x[390:]).any() or kind == "gemma3"


@pytest.mark.parametrize("kind", KINDS)
def test_looking_at_a_layer_leaves_the_text_before_it(
    kind: str, toys: dict[str, Path], load: Load
) -> None:
    """The bug: the rest of a layer that runs, or what a look finds differing from a run."""
    model = load(toys[kind])
    ids = tokens(600)
    way = LayerPass(model, ids, window=64, n_sink=2, wide=(580, 600))
    way.run()
    before = way.x.copy()
    seen = way.peek((580, 600), SIDES)
    assert way.layer == 1
    assert_bits(way.x, before)
    ran = way.run((580, 600), SIDES)
    assert way.layer == 2
    for side in SIDES:
        assert_bits(seen.queries[side], ran.queries[side])
        assert_bits(seen.keys[side], ran.keys[side])
    assert not way.run().keys


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_threads", [2, 3])
def test_any_number_of_threads_computes_the_same(
    kind: str, n_threads: int, toys: dict[str, Path], load: Load
) -> None:
    """The bug: rows that two threads write, or none."""
    ids = tokens(700)
    found = []
    for n in (1, n_threads):
        way = LayerPass(load(toys[kind], n), ids, window=64, n_sink=4, wide=(650, 700))
        found.append((run(way, (650, 700)), way.x))
    for one, other in zip(found[0][0], found[1][0], strict=True):
        for side in SIDES:
            assert_bits(one.queries[side], other.queries[side])
            assert_bits(one.keys[side], other.keys[side])
    assert_bits(found[0][1], found[1][1])


def test_a_cache_keeps_every_layer(toys: dict[str, Path], load: Load) -> None:
    """The bug: keys of a layer in another's place, so that a text cannot go on."""
    for kind in KINDS:
        model = load(toys[kind])
        ids = tokens(530)
        cache, plain = model.new_cache(600), model.new_cache(600)
        way = LayerPass(model, ids, cache=cache)
        for _ in range(model.params.n_layers):
            way.run()
        cache.length = way.n
        model.forward(ids, plain)
        more = tokens(3, seed=4)
        found = model.forward(more, cache, rows="all").logits
        assert_bits(found, model.forward(more, plain, rows="all").logits)


def test_positions_are_those_given(toys: dict[str, Path], load: Load) -> None:
    """The bug: positions of one batch for all, or slots in their place."""
    model = load(toys["llama"])
    ids = tokens(600)
    positions = np.arange(600, dtype=np.int64) * 3 + 7
    way = LayerPass(model, ids, positions=positions)
    for _ in range(3):
        way.run()
    want = model.forward(ids, model.new_cache(600), rows="all", positions=positions)
    assert_bits(way.x, want.hidden)


def test_small_and_large_texts_share_a_model(toys: dict[str, Path], load: Load) -> None:
    """The bug: buffers of another text's size, while it is under way."""
    model = load(toys["llama"])
    long, short = tokens(900), tokens(9, seed=3)
    one, other = LayerPass(model, short), LayerPass(model, long)
    for way in (one, other, other, one, one, other):
        way.run()
    for way, ids in ((one, short), (other, long)):
        assert_bits(way.x, model.forward(ids, model.new_cache(900), rows="all").hidden)


def test_what_cannot_run_is_refused(toys: dict[str, Path], load: Load) -> None:
    """The bug: an empty text, or keys written after a cache's end."""
    model = load(toys["llama"])
    with pytest.raises(UsageError, match="no token"):
        LayerPass(model, [])
    with pytest.raises(UsageError, match="vocabulary"):
        LayerPass(model, [10**6])
    with pytest.raises(UsageError, match="20 tokens"):
        LayerPass(model, tokens(20), cache=model.new_cache(16))
    way = LayerPass(model, tokens(5))
    for _ in range(3):
        way.run()
    with pytest.raises(ValueError, match="no layer 3"):
        way.run()
