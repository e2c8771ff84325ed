"""The engine against the naive pass, and against itself: batches, threads, truncation, refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Load
from draftsmith.engine.errors import DraftsmithError, ModelDamaged, ModelUnsupported, UsageError
from draftsmith.engine.transformer.kv_cache import KvCache
from draftsmith.engine.transformer.model import Model, Pass, Taps, load_model
from gguf import GGUFReader
from naive_model import NaiveModel, log_softmax
from numpy.typing import NDArray
from toy_model import (
    BLOCK_TYPES,
    CASES,
    FLOAT_TYPES,
    SMALL,
    SUPER_TYPES,
    WEIGHT_TYPES,
    write_case,
    write_model,
)

N_VOCAB = 400  # the toy vocabularies hold some more
# A type of each kind of packed matrix.
FORMS = ("F32", "F16", "BF16", "Q4_1", "Q4_K", "Q8_0", "Q6_K")
FLOAT_CASES = [name for name in CASES if not set(name.split()) & {*WEIGHT_TYPES, "mixed"}]


def tokens(n: int, seed: int = 2) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, N_VOCAB, n)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of one layer a form, and by their names a deeper one and one with a window last."""
    folder = tmp_path_factory.mktemp("small")
    paths = {
        kind: write_model(folder / f"{kind}.gguf", "llama", kind, n_layers=1) for kind in FORMS
    }
    paths["gemma3"] = write_model(
        folder / "gemma3.gguf", "gemma3", "Q4_0", n_layers=2, window=40, pattern=[False, True]
    )
    paths["qwen3"] = write_model(folder / "qwen3.gguf", "qwen3", "Q5_1")
    return paths


def run(model: Model, ids: NDArray[np.int64], sizes: list[int], n_ctx: int = 0) -> Pass:
    """All rows of a text that is given in batches of some sizes, then one by one."""
    cache = model.new_cache(n_ctx or ids.size)
    parts = []
    start = 0
    for size in [*sizes, *[1] * ids.size]:
        if start < ids.size:
            parts.append(model.forward(ids[start : start + size], cache, rows="all"))
            start = cache.length
    return Pass(*(np.concatenate([getattr(part, name) for part in parts]) for name in FIELDS))


FIELDS = ("logits", "hidden", "normed")


def assert_same(found: Pass, expected: Pass, rows: Any = slice(None)) -> None:
    """Bit for bit, in all that a pass gives."""
    for name in FIELDS:
        a, b = getattr(found, name), getattr(expected, name)[rows]
        assert a.dtype == b.dtype == np.float32
        assert a.shape == b.shape
        assert (a.view(np.uint32) == b.view(np.uint32)).all(), name


# --------------------------------------------------------------------------------------------------
# The right numbers


def assert_near(model: Model, path: Path, ids: NDArray[np.int64]) -> None:
    """Of float weights, on every row.

    What is left is float32's own rounding, 1e-6, and that it decides now and then which float16 a
    key or a value is rounded to: 5e-4 of one of them, which came to 0.005 at most (through 62
    layers) and to a mean of 7e-4. A wrong detail moves logits by 0.1 and more (test_toy_model.py).
    """
    want = NaiveModel(path).trace(ids)
    found = model.forward(ids, model.new_cache(ids.size), rows="all")
    apart = np.abs(log_softmax(found.logits) - log_softmax(want.logits))
    assert apart.max() < 0.01
    assert apart.mean() < 1e-3
    scale = np.sqrt((want.hidden**2).mean())
    assert np.abs(found.hidden - want.hidden).max() < 0.01 * scale
    assert np.abs(found.normed - want.normed).max() < 0.02


@pytest.mark.parametrize("name", FLOAT_CASES)
def test_every_architecture_computes_the_naive_logits(
    name: str, load: Load, tmp_path: Path
) -> None:
    """The bug: any detail of an architecture left out, or done in another order."""
    path = write_case(tmp_path / "toy.gguf", name)
    assert_near(load(path), path, tokens(40))


@pytest.mark.parametrize(
    "name", [*BLOCK_TYPES, *SUPER_TYPES, "qwen2 mixed", "gemma3 Q4_0", "llama Q4_K scales"]
)
def test_every_quantised_type_computes_the_naive_logits(
    name: str, load: Load, tmp_path: Path
) -> None:
    """The bug: a scale, a least value or a quant of some block unpacked or multiplied wrong.

    The naive pass rounds activations to 8 bits as the engine does; then 1e-6 is left, and more only
    where a difference of that size decides a rounding, and in what follows: up to 0.2 in some rows
    (of one layer; through more, soon in most). Against the pass that rounds nothing, 0.03 to 0.1
    is what the 8 bits cost.
    """
    path = write_case(tmp_path / "toy.gguf", name)
    ids = tokens(40)
    model = load(path)
    found = log_softmax(model.forward(ids, model.new_cache(40), rows="all").logits)
    naive = NaiveModel(path)
    apart = np.abs(found - log_softmax(naive.trace(ids, rounding="engine").logits)).max(axis=1)
    assert np.median(apart) < 1e-4
    assert apart.max() < 0.4
    assert np.abs(found - log_softmax(naive.trace(ids).logits)).mean() < 0.2


@pytest.mark.parametrize("name", FLOAT_TYPES)
def test_every_float_type_computes_the_naive_logits(name: str, load: Load, tmp_path: Path) -> None:
    """The bug: a panel of another type than its bits, or columns of it in another order."""
    path = write_case(tmp_path / "toy.gguf", name)
    assert_near(load(path), path, tokens(40))


@pytest.mark.parametrize("d_head", [8, 16, 64, 80])
@pytest.mark.parametrize(("n_head", "n_head_kv"), [(2, 2), (3, 1), (8, 1)])
def test_heads_of_every_size(
    d_head: int, n_head: int, n_head_kv: int, load: Load, tmp_path: Path
) -> None:
    """The bug: heads whose columns are no whole panels, or groups that fill no whole block."""
    path = write_model(
        tmp_path / "toy.gguf", "qwen3", n_head=n_head, n_head_kv=n_head_kv, d_head=d_head,
        n_embd=64, n_ff=96, vocabulary="smollm",
    )  # fmt: skip
    assert_near(load(path), path, tokens(70))


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("n", [255, 256, 257, 513, 700])
def test_long_texts(arch: str, n: int, load: Load, tmp_path: Path) -> None:
    """The bug: keys of the second or third split lost, or splits folded with the wrong weights.

    A window of 300 begins inside the first split and ends inside the second.
    """
    window = {"window": 300} if arch == "gemma3" else {}
    path = write_model(tmp_path / "toy.gguf", arch, **window)
    assert_near(load(path, n_threads=2), path, tokens(n))


def test_layers_can_be_looked_into(load: Load, tmp_path: Path) -> None:
    """The bug: queries and keys of another layer, from the wrong side of RoPE, or shuffled."""
    for arch in ("llama", "gemma3"):
        path = write_model(tmp_path / "toy.gguf", arch, n_layers=3)
        ids = tokens(20)
        want = NaiveModel(path).trace(ids)
        model = load(path)
        taps = Taps(hidden_layers=(2, 0), query_layers=(1,))
        found = model.forward(ids, model.new_cache(20), taps=taps).taps
        assert found is not None
        for place, layer in enumerate((2, 0)):
            np.testing.assert_allclose(found.hidden[place], want.entered[layer], atol=0.01)
        d_head = want.keys[1].shape[-1]
        order = np.arange(d_head)
        if arch == "llama":  # it keeps the even dimensions before the odd ones
            order = np.concatenate((order[::2], order[1::2]))
        for name in ("queries", "keys"):
            before, after = getattr(found, name)[0]
            np.testing.assert_allclose(before, getattr(want, name)[1][..., order], atol=0.01)
            turned = getattr(want, f"turned_{name}")[1][..., order]
            np.testing.assert_allclose(after, turned, atol=0.01)


def test_looking_into_layers_changes_nothing(small: dict[str, Path], load: Load) -> None:
    """The bug: what is looked at is taken away, or its batches are put together wrong."""
    model = load(small["qwen3"])
    ids = tokens(600)
    taps = Taps(hidden_layers=(0, 1), query_layers=(0, 1))
    whole = model.forward(ids, model.new_cache(600), rows="all", taps=taps)
    assert_same(whole, run(model, ids, [600]))
    cache = model.new_cache(600)
    first = model.forward(ids[:10], cache, taps=taps).taps
    second = model.forward(ids[10:], cache, taps=taps).taps
    for name, axis in (("hidden", 1), ("queries", 2), ("keys", 2)):
        both = [getattr(part, name) for part in (first, second)]
        assert (np.concatenate(both, axis) == getattr(whole.taps, name)).all()


def test_a_split_model_is_one(load: Load, tmp_path: Path) -> None:
    """The bug: tensors of later parts missing, or read from the first part's offsets."""
    whole = load(write_model(tmp_path / "whole.gguf", "qwen2", "Q4_0"))
    parts = load(write_model(tmp_path / "part.gguf", "qwen2", "Q4_0", max_tensors=7))
    assert len(list(tmp_path.glob("part-*"))) > 2
    assert_same(run(parts, tokens(20), [20]), run(whole, tokens(20), [20]))


# --------------------------------------------------------------------------------------------------
# The same bits


@pytest.mark.parametrize("kind", [*FORMS, "gemma3", "qwen3"])
def test_a_batch_of_any_size_is_its_tokens_one_by_one(
    kind: str, small: dict[str, Path], load: Load
) -> None:
    """The bug: a tile of 4, 2 or 1 tokens that adds in another order than the others.

    Then a draft is verified against other logits than plain decoding has.
    """
    model = load(small[kind])
    ids = tokens(70)
    singles = run(model, ids, [])
    for n in range(1, 71):
        assert_same(run(model, ids[:n], [n]), singles, slice(n))


@pytest.mark.parametrize("kind", ["Q4_1", "F16", "gemma3"])
def test_batches_of_any_split_are_one_batch(kind: str, small: dict[str, Path], load: Load) -> None:
    """The bug: keys of earlier batches weighed otherwise; splits of keys, blocks of tokens."""
    model = load(small[kind])
    ids = tokens(620)
    whole = run(model, ids, [620])
    rng = np.random.default_rng(9)
    splits = [[1, 619], [256, 364], [257, 1, 362], [512, 16, 92], [15, 16, 17, 255, 317]]
    splits += [rng.integers(1, 60, 40).tolist() for _ in range(3)]
    for sizes in splits:
        assert_same(run(model, ids, sizes), whole)


@pytest.mark.parametrize("kind", [*FORMS, "gemma3"])
def test_any_number_of_threads_computes_the_same(
    kind: str, small: dict[str, Path], load: Load
) -> None:
    """The bug: a sum whose order depends on who did which part; rows that two threads write."""
    ids = tokens(300)
    expected = run(load(small[kind]), ids, [290])
    for n_threads in (2, 3):
        model = load(small[kind], n_threads=n_threads)
        assert model.n_threads == n_threads
        for _ in range(3):
            assert_same(run(model, ids, [290]), expected)


@pytest.mark.parametrize("kept", [0, 1, 15, 16, 17, 255, 256, 257, 299])
@pytest.mark.parametrize("kind", ["Q4_1", "gemma3"])
def test_truncated_then_extended_is_never_extended(
    kind: str, kept: int, small: dict[str, Path], load: Load
) -> None:
    """The bug: keys that were forgotten, and still count."""
    model = load(small[kind])
    ids, forgotten = tokens(300), tokens(320, seed=8)
    forgotten[:kept] = ids[:kept]
    cache = model.new_cache(320)
    model.forward(forgotten, cache)
    cache.truncate(kept)
    assert cache.length == kept
    found = model.forward(ids[kept:], cache, rows="all")
    assert cache.length == 300
    assert_same(found, run(model, ids, [300]), slice(kept, None))


def test_rows_are_those_asked_for(small: dict[str, Path], load: Load) -> None:
    """The bug: rows moved to the front in the wrong order, or attended with another's window."""
    for kind in ("F32", "Q4_1", "gemma3"):
        model = load(small[kind])
        ids = tokens(600)
        whole = run(model, ids, [600])

        def asked(rows: Any, model: Model = model, ids: NDArray[np.int64] = ids) -> Pass:
            cache = model.new_cache(700)
            found = model.forward(ids, cache, rows=rows)
            # the keys of all tokens have to be there, whichever rows were asked for
            after = model.forward(ids[:1], cache)
            assert_same(after, run(model, np.append(ids, ids[0]), [601]), slice(-1, None))
            return found

        assert_same(asked("last"), whole, slice(-1, None))
        for places in ([0], [599], [3, 4, 511, 512, 598], list(range(600))):
            assert_same(asked(np.array(places)), whole, places)
        nothing = asked("none")
        assert nothing.logits.shape == (0, whole.logits.shape[1])
        assert nothing.hidden.shape == nothing.normed.shape == (0, 256)


@pytest.mark.parametrize("kind", ["F32", "Q4_1", "gemma3"])
def test_hidden_states_of_all_tokens(kind: str, small: dict[str, Path], load: Load) -> None:
    """The bug: hidden states of the rows with logits alone, or logits of the wrong rows."""
    model = load(small[kind], n_threads=2)
    ids = tokens(600)
    whole = run(model, ids, [600])
    taps = Taps(hidden_layers=(0,))
    for rows in ("last", "all", "none", np.array([3, 511, 512])):
        caches = [model.new_cache(601) for _ in range(2)]
        plain = model.forward(ids, caches[0], rows=rows)
        found = model.forward(ids, caches[1], rows=rows, taps=taps, all_hidden=True)
        assert plain.all_hidden is None
        assert_same(found, plain)
        assert (found.all_hidden == whole.hidden).all()
        after = [model.forward(ids[:1], cache) for cache in caches]
        assert_same(*after)


def test_results_are_the_callers(small: dict[str, Path], load: Load) -> None:
    """The bug: results that are views of buffers which the next pass overwrites."""
    model = load(small["Q4_1"])
    cache = model.new_cache(64)
    found = model.forward(tokens(5), cache, rows="all", all_hidden=True)
    kept = Pass(*(getattr(found, name).copy() for name in FIELDS))
    model.forward(tokens(40, seed=3), cache, rows="all", all_hidden=True)
    assert_same(found, kept)
    assert (found.all_hidden == kept.hidden).all()


def test_caches_do_not_mix(small: dict[str, Path], load: Load) -> None:
    """The bug: a model that remembers the last text, or the size of the last cache."""
    model = load(small["gemma3"], n_threads=2)
    texts = [tokens(60, seed=seed) for seed in range(3)]
    caches = [model.new_cache(n_ctx) for n_ctx in (60, 2000, 64)]
    expected = [run(model, ids, [60]) for ids in texts]
    for start in range(0, 60, 20):
        for ids, cache, whole in zip(texts, caches, expected, strict=True):
            rows = slice(start, start + 20)
            assert_same(model.forward(ids[rows], cache, rows="all"), whole, rows)


@pytest.mark.parametrize("kind", ["Q4_1", "gemma3"])
@pytest.mark.parametrize("n_streams", [1, 5, 20])
def test_texts_that_share_a_cache_do_not_see_each_other(
    kind: str, n_streams: int, small: dict[str, Path], load: Load
) -> None:
    """The bug: a text that reads its neighbour's keys, or is rounded otherwise than alone."""
    model = load(small[kind], n_threads=2)
    texts = np.stack([tokens(45, seed=seed) for seed in range(n_streams)])
    expected = [run(model, ids, [45]) for ids in texts]
    # text b starts b steps late, in the places from the last to the first
    starts = 256 * np.arange(n_streams, dtype=np.int64)[::-1].copy()
    cache = model.new_cache(256 * n_streams)
    for step in range(45 + n_streams):
        going = np.array([b for b in range(n_streams) if 0 <= step - b < 45], np.int64)
        if not going.size:
            continue
        places = step - going
        found = model.forward_streams(
            texts[going, places], cache, starts=starts[going], slots=starts[going] + places
        )
        for row, (b, place) in enumerate(zip(going.tolist(), places.tolist(), strict=True)):
            for name in FIELDS:
                alone = getattr(expected[b], name)[place]
                assert (getattr(found, name)[row].view(np.uint32) == alone.view(np.uint32)).all()


# --------------------------------------------------------------------------------------------------
# Refusals


def assert_refused(kind: type[DraftsmithError], word: str, act: Callable[[], object]) -> None:
    """An error of that kind, one line and a remedy of one line, that names the thing."""
    with pytest.raises(kind) as caught:
        act()
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["token_embd", "blk.0.attn_q", "blk.0.attn_norm"])
def test_ids_in_place_of_weights_are_refused(name: str, load: Load, tmp_path: Path) -> None:
    """The bug: a crash, or the bits of whole numbers taken for weights."""
    path = write_model(tmp_path / "toy.gguf", "llama")
    tensor = next(t for t in GGUFReader(path).tensors if t.name == f"{name}.weight")
    ids = np.zeros(tuple(tensor.shape[::-1]), np.int32)
    write_model(path, "llama", tensors={f"{name}.weight": ids})
    assert_refused(ModelUnsupported, "I32", lambda: load(path))


def test_a_full_context_is_refused_and_left_alone(small: dict[str, Path], load: Load) -> None:
    """The bug: tokens written after the cache's end, or half of a batch kept."""
    model = load(small["Q4_1"])
    ids = tokens(20)
    cache = model.new_cache(20)
    assert_refused(UsageError, "21", lambda: model.forward(tokens(21), cache))
    assert cache.length == 0
    model.forward(ids[:15], cache)
    assert_refused(UsageError, "20", lambda: model.forward(ids[:6], cache))
    assert cache.length == 15
    found = model.forward(ids[15:], cache, rows="all")
    assert cache.length == cache.n_ctx == 20
    assert_same(found, run(model, ids, [20]), slice(15, None))
    assert_refused(UsageError, "20", lambda: model.forward(ids[:1], cache))


@pytest.mark.parametrize("wrong", [-1, 10**6, 2**31])
def test_tokens_outside_the_vocabulary_are_refused(
    wrong: int, small: dict[str, Path], load: Load
) -> None:
    """The bug: an embedding read from before the first or after the last."""
    model = load(small["Q4_1"])
    cache = model.new_cache(20)
    assert_refused(UsageError, "vocabulary", lambda: model.forward(np.array([1, wrong, 2]), cache))
    assert cache.length == 0


def test_no_token_is_refused(small: dict[str, Path], load: Load) -> None:
    """The bug: an empty prompt that takes the logits of nothing."""
    model = load(small["Q4_1"])
    assert_refused(
        UsageError, "no token", lambda: model.forward(np.array([], int), model.new_cache(20))
    )


@pytest.mark.parametrize("rows", [[3], [-1], [1, 1], [2, 0]])
def test_rows_that_are_not_there_are_refused(
    rows: list[int], small: dict[str, Path], load: Load
) -> None:
    """The bug: rows of an earlier pass."""
    model = load(small["Q4_1"])
    cache = model.new_cache(20)
    assert_refused(UsageError, "rows", lambda: model.forward(tokens(3), cache, rows=np.array(rows)))
    assert cache.length == 0


@pytest.mark.parametrize(
    ("starts", "slots", "word"),
    [
        ([0], [0], "2 tokens"),
        ([0, 100], [0, 100], "share a cache"),
        ([0, -256], [0, 0], "share a cache"),
        ([0, 256], [0, 255], "share a cache"),
        ([0, 256], [0, 512], "slot 512"),
    ],
)
def test_streams_out_of_place_are_refused(
    starts: list[int], slots: list[int], word: str, small: dict[str, Path], load: Load
) -> None:
    """The bug: keys written outside of the cache."""
    model = load(small["Q4_1"])
    cache = model.new_cache(512)
    places = [np.array(numbers, np.int64) for numbers in (starts, slots)]
    assert_refused(
        UsageError,
        word,
        lambda: model.forward_streams([1, 2], cache, starts=places[0], slots=places[1]),
    )


def test_impossible_caches_are_refused(small: dict[str, Path], load: Load) -> None:
    """The bug: a crash, or a machine that swaps, for a context that nobody can hold."""
    model = load(small["Q4_1"])
    for n_ctx in (0, -5, 2**50, 2**70):
        assert_refused(UsageError, "context", lambda n=n_ctx: model.new_cache(n))
    cache: KvCache = model.new_cache(20)
    model.forward(tokens(5), cache)
    for n in (-1, 6):
        assert_refused(UsageError, "5", lambda n=n: cache.truncate(n))
    assert cache.length == 5


@pytest.mark.parametrize(("value", "row"), [(np.nan, 5), (np.nan, -1), (-np.inf, 5)])
@pytest.mark.parametrize("kind", ["F32", "F16", "Q4_0", "Q8_0"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.0.attn_norm.weight", (64,)),
        ("output_norm.weight", (64,)),
        ("blk.1.attn_q.bias", (64,)),
        ("blk.1.attn_q.weight", (64, 64)),
        ("blk.1.attn_k.weight", (32, 64)),
        ("blk.0.attn_v.weight", (32, 64)),
        ("blk.0.attn_output.weight", (64, 64)),
        ("blk.0.ffn_gate.weight", (96, 64)),
        ("blk.1.ffn_up.weight", (96, 64)),
        ("blk.1.ffn_down.weight", (64, 96)),
        ("output.weight", (484, 64)),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of gguf's quantiser
def test_numbers_that_are_not_finite_are_refused(
    name: str,
    shape: tuple[int, ...],
    kind: str,
    value: float,
    row: int,
    load: Load,
    tmp_path: Path,
) -> None:
    """The bug: NaN that spreads through the cache, or that a maximum drops silently.

    As where activations are rounded to 8 bits: NaN became 0, and the model ran on without it.
    """
    weights = np.random.default_rng(1).normal(0, 0.1, shape).astype(np.float32)
    weights.reshape(shape[0], -1)[row, 0] = value
    path = write_model(
        tmp_path / "toy.gguf", "llama", kind, biases=True, tensors={name: weights}, **SMALL
    )

    def act() -> None:
        model = load(path)
        model.forward(tokens(20), model.new_cache(20))

    assert_refused(ModelDamaged, "finite", act)


@pytest.mark.parametrize("weight", [3e38, -3e38])
def test_logits_that_overflow_are_refused(weight: float, load: Load, tmp_path: Path) -> None:
    """The bug: a logit of -inf, which the largest logit says nothing about."""
    path = write_model(tmp_path / "toy.gguf", "llama", **SMALL)
    normed = load(path).forward([5], load(path).new_cache(1)).normed[0]
    column = int(np.abs(normed).argmax())
    assert abs(normed[column]) > 1.2
    weights = np.random.default_rng(1).normal(0, 0.1, (484, 64)).astype(np.float32)
    weights[9, column] = weight
    write_model(path, "llama", tensors={"output.weight": weights}, **SMALL)
    model = load(path)
    assert_refused(ModelDamaged, "finite", lambda: model.forward([5], model.new_cache(1)))


def test_an_embedding_that_is_not_finite_is_refused(load: Load, tmp_path: Path) -> None:
    """The bug: a token that is never in the tests, and NaN in the text that has it."""
    weights = np.random.default_rng(1).normal(0, 0.1, (N_VOCAB + 84, 256)).astype(np.float32)
    n_vocab = (
        NaiveModel(write_model(tmp_path / "a.gguf", "llama")).weights["output.weight"].shape[0]
    )
    weights = weights[:n_vocab]
    weights[7, 3] = np.nan
    path = write_model(tmp_path / "b.gguf", "llama", tensors={"token_embd.weight": weights})

    def act() -> None:
        model = load(path)
        cache = model.new_cache(20)
        model.forward([1, 7, 2], cache)

    assert_refused(ModelDamaged, "finite", act)


@pytest.mark.parametrize(
    "name",
    [
        "token_embd.weight",
        "output_norm.weight",
        *(
            f"blk.1.{name}.weight"
            for name in ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm",
                         "attn_k_norm", "post_attention_norm", "ffn_norm", "ffn_gate", "ffn_up",
                         "ffn_down", "post_ffw_norm")
        ),
    ],
)  # fmt: skip
def test_missing_and_misshapen_tensors_are_refused(name: str, load: Load, tmp_path: Path) -> None:
    """The bug: a layer computed without a norm, or from memory that is another tensor's."""
    shapes = {
        key: weights.shape
        for key, weights in NaiveModel(write_model(tmp_path / "a.gguf", "gemma3")).weights.items()
    }
    path = write_model(tmp_path / "b.gguf", "gemma3", tensors={name: None})
    assert_refused(ModelDamaged, name, lambda: load(path))
    for wrong in ((*shapes[name][:-1], shapes[name][-1] + 32), (32, *shapes[name])):
        changed = np.full(wrong, 0.1, np.float32)
        path = write_model(tmp_path / "c.gguf", "gemma3", tensors={name: changed})
        # (of the embeddings, the number of rows is that of the vocabulary)
        word = "vocabulary" if name == "token_embd.weight" and len(wrong) == 3 else name
        assert_refused(ModelDamaged, word, lambda: load(path))  # noqa: B023


def test_a_missing_bias_of_qwen2_is_refused(load: Load, tmp_path: Path) -> None:
    """The bug: a damaged Qwen2 that runs, and talks nonsense."""
    name = "blk.0.attn_k.bias"
    path = write_model(tmp_path / "toy.gguf", "qwen2", tensors={name: None})
    assert_refused(ModelDamaged, name, lambda: load(path))


@pytest.mark.parametrize(
    "key",
    [
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_missing_keys_are_refused(key: str, load: Load, tmp_path: Path) -> None:
    """The bug: KeyError, or a default that fits no model."""
    path = write_model(tmp_path / "toy.gguf", "llama", keys={key: None})
    assert_refused(ModelDamaged, key, lambda: load(path))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 3),
        ("block_count", 2**31),
        ("attention.head_count", 0),
        ("attention.head_count", 3),
        ("attention.head_count_kv", 3),
        ("attention.head_count_kv", 4),
        ("attention.key_length", 32),
        ("embedding_length", 128),
        ("feed_forward_length", 2**30),
        ("feed_forward_length", 256),
        ("rope.scaling.type", "longrope"),
        ("rope.scaling.type", 7),
    ],
)
def test_keys_that_lie_are_refused(key: str, value: Any, load: Load, tmp_path: Path) -> None:
    """The bug: sizes that are believed, and read or allocated."""
    path = write_model(tmp_path / "toy.gguf", "llama", keys={key: value})
    with pytest.raises((ModelDamaged, ModelUnsupported)):
        load(path)


def test_progress_ends_where_it_said(small: dict[str, Path], load: Load) -> None:
    """The bug: a bar that stops short of its end, or goes back."""
    told: list[tuple[int, int]] = []
    load_model(small["Q4_K"], n_threads=1, on_progress=lambda *now: told.append(now)).close()
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] > 0
    model = load(small["Q4_K"])
    told.clear()
    model.forward(tokens(1030), model.new_cache(1030), on_progress=lambda *now: told.append(now))
    assert told == [(512, 1030), (1024, 1030), (1030, 1030)]
