"""The trained scorer against a slow one, and its files: what comes along, what is refused."""

from __future__ import annotations

import json
import math
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Load
from draftsmith.engine.errors import ModelDamaged, ModelUnsupported, UsageError
from draftsmith.engine.transformer.hparams import ModelParams
from draftsmith.engine.transformer.layer_pass import LayerPass
from draftsmith.engine.transformer.model import Model
from draftsmith.prefill.memory import RUNTIME_BYTES, comparing_bytes, scoring_bytes
from draftsmith.prefill.prompt.parts import PromptParts
from draftsmith.prefill.scorers.attention import AttentionRule, Head
from draftsmith.prefill.scorers.calibration_file import FOLDER
from draftsmith.prefill.scorers.projection import Projection, find_projection, read_projection
from draftsmith.prefill.scorers.trained import TrainedScorer
from draftsmith.prefill.scorers.windows import Windows
from draftsmith.prefill.select import Refusal, Refused, select
from toy_model import SMALL, write_model
from toy_projection import write_projection

N, QUESTION = 330, (300, 321)
DOCUMENT = ((10, 150), (160, 295))
SIZES = {"n_layers": 3, "n_embd": SMALL["n_embd"]}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "toy.gguf"
    return write_model(path, "llama", **SMALL, d_head=32, n_layers=3)


def projected(folder: Path, fingerprint: str = "ab", **options: Any) -> Projection:
    return read_projection(
        write_projection(folder / "scorer.gguf", fingerprint, **{**SIZES, **options})
    )


def parts_of(n: int = N, **changes: Any) -> PromptParts:
    ids = np.random.default_rng(2).integers(0, 400, n).astype(np.int32)
    return replace(PromptParts(ids, QUESTION, DOCUMENT), **changes)


# --- scores ---------------------------------------------------------------------------------------


def naive_states(
    model: Model, ids: Any, layers: tuple[int, ...], **window: int
) -> list[list[float]]:
    """What goes into some layers, divided by its root mean square, of each token."""
    way = LayerPass(model, ids, **window)
    rows: list[list[float]] = [[] for _ in ids]
    for layer in range(layers[-1] + 1):
        if layer in layers:
            for row, state in zip(rows, way.x.astype(np.float64), strict=True):
                row += list(state / math.sqrt(float(np.mean(state**2))))
        if layer < layers[-1]:
            way.run()
    return rows


def naive_values(model: Model, p: Projection, parts: PromptParts) -> list[float]:
    """Token by token, as the docstrings say."""

    def direction(linear: Any, row: list[float]) -> Any:
        out = linear.weight.astype(np.float64) @ np.array(row) + linear.bias
        return out / np.linalg.norm(out)

    start = parts.document[0][0]
    head, asked = parts.ids[:start], parts.ids[slice(*parts.question)]
    rows = naive_states(model, np.concatenate((head, asked)), p.question_layers)[start:]
    queries = [direction(p.question, row) for row in rows]
    raw = [float((p.importance.weight @ np.array(row) + p.importance.bias)[0]) for row in rows]
    weights = [math.log1p(math.exp(x)) for x in raw]
    body = parts.ids[: parts.document[-1][1]]
    states = naive_states(model, body, p.document_layers, window=p.window, n_sink=p.n_sink)
    blocks = [
        list(range(first, min(first + p.block, stop)))
        for begin, stop in parts.document
        for first in range(begin, stop, p.block)
    ]
    part_of = [next(i for i, (a, b) in enumerate(parts.document) if a <= block[0] < b)
               for block in blocks]  # fmt: skip
    near = [
        [max(float(query @ direction(p.document, states[at])) for at in block) for block in blocks]
        for query in queries
    ]
    scores = []
    for i in range(len(blocks)):
        around = [j for j in range(len(blocks))
                  if abs(i - j) <= p.reach and part_of[i] == part_of[j]]  # fmt: skip
        total = sum(w * max(line[j] for j in around) for w, line in zip(weights, near, strict=True))
        scores.append(p.scale * total / sum(weights) ** p.exponent)
    masses = [math.exp(score - max(scores)) for score in scores]
    values = [0.0] * parts.n
    for block, mass in zip(blocks, masses, strict=True):
        for at in block:
            values[at] = mass / sum(masses) / p.block
    return values


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"document_layers": (0, 1), "question_layers": (2,)},
        {"document_layers": (0,), "question_layers": (0,)},
        {"keys": {"block": 5, "reach": 0, "exponent": 1.0}},
        {"keys": {"block": 3, "reach": 60, "window": 0, "n_sink": 0}},
    ],
)
def test_equals_the_slow_one(toy: Path, load: Load, tmp_path: Path, options: Any) -> None:
    """Neighbours across parts, states of other layers or of a text with the question in it."""
    model = load(toy, n_threads=2)
    p = projected(tmp_path, **options)
    parts = parts_of()
    scores = TrainedScorer(model, p).score(parts)
    assert scores.values == pytest.approx(np.array(naive_values(model, p, parts)), abs=2e-5)
    assert scores.values.sum() == pytest.approx(1, abs=0.05)  # but for short last blocks
    assert scores.n_layers == p.document_layers[-1]
    assert scores.query_rows.tolist() == list(range(*QUESTION))
    assert list(scores.seconds) == ["question", "layers", "compare"]


def test_windows_make_no_difference_to_embeddings(toy: Path, load: Load, tmp_path: Path) -> None:
    """Blocks at the seams of windows taken apart, or counted in one of them alone."""
    p = projected(tmp_path, document_layers=(0,), question_layers=(0,))
    model = load(toy, n_threads=2)
    n = 2500
    parts = parts_of(n, question=(n - 30, n - 5), document=((7, 1100), (1103, n - 40)))
    found = [
        TrainedScorer(model, p, windows=windows).score(parts).values
        for windows in (Windows(8192, 4096, 128), Windows(512, 512, 33))
    ]
    assert found[0] == pytest.approx(found[1], abs=1e-7)
    assert len(np.unique(found[0])) > 100


def test_progress(toy: Path, load: Load, tmp_path: Path) -> None:
    """A bar that runs beyond its end, or never gets there."""
    told: list[tuple[int, int]] = []
    n = 1500
    parts = parts_of(n, question=(n - 30, n - 5), document=((7, n - 40),))
    scorer = TrainedScorer(
        load(toy, n_threads=2),
        projected(tmp_path),
        windows=Windows(512, 512, 0),
        on_progress=lambda done, of: told.append((done, of)),
    )
    scorer.score(parts)
    assert [done for done, _ in told] == list(range(1, told[-1][1] + 1))
    assert {of for _, of in told} == {told[-1][1]}


@pytest.mark.parametrize(
    "changes", [{"question": (300, 300)}, {"document": ()}, {"question": (0, 5)}]
)
def test_odd_prompts(toy: Path, load: Load, tmp_path: Path, changes: Any) -> None:
    """A crash without a question or a document, or with the question in front."""
    scores = TrainedScorer(load(toy, n_threads=2), projected(tmp_path)).score(parts_of(**changes))
    assert scores.values.shape == (N,)
    assert bool(scores.values.any()) is (changes == {"question": (0, 5)})


def test_bad_numbers_are_refused(
    toy: Path, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that computes no numbers, whose prompts are cut at random."""
    model = load(toy, n_threads=2)
    embed = model.embed

    def broken(ids: Any) -> Any:
        rows = embed(ids)
        rows[len(rows) // 2 :] = np.inf
        return rows

    monkeypatch.setattr(model, "embed", broken)
    for layers in ((0,), (2,)):
        p = projected(tmp_path, document_layers=layers)
        parts = parts_of()
        found = select(parts, TrainedScorer(model, p).score(parts), keep=0.5, min_tokens=1)
        assert isinstance(found, Refused)
        assert found.kind is Refusal.NOT_FINITE


def test_long_prompts_take_bounded_memory(toy: Path, load: Load, tmp_path: Path) -> None:
    """Comparisons of all tokens with all of the question's at once: 400 MB here."""
    p = projected(tmp_path, document_layers=(0,), question_layers=(0,))
    n = 200_000
    parts = parts_of(n, question=(n - 600, n - 5), document=((7, n - 700),))
    scorer = TrainedScorer(load(toy, n_threads=2), p)
    tracemalloc.start()
    try:
        values = scorer.score(parts).values
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.isfinite(values).all()
    assert peak < 250e6


def test_memory_is_foretold(toy: Path, load: Load, tmp_path: Path) -> None:
    """A --memory-limit that is kept on paper alone."""
    model = load(toy, n_threads=2)
    for layers in ((0,), (0, 2)):
        p = projected(tmp_path, document_layers=layers, rank=64)
        n = 8000
        parts = parts_of(n, question=(n - 50, n - 5), document=((7, n - 60),))
        scorer = TrainedScorer(model, p, windows=Windows(8192, 4096, 0))
        scorer.score(parts)
        tracemalloc.start()
        try:
            scorer.score(parts)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        rule = AttentionRule((Head(0, 0),))
        foretold = comparing_bytes(p, n) + scoring_bytes(model.params, n, 2, rule) - RUNTIME_BYTES
        assert peak < foretold < 4 * peak


def test_another_model(toy: Path, load: Load, tmp_path: Path) -> None:
    """States of another width that fail in the middle of a prompt."""
    model = load(toy, n_threads=2)
    p = projected(tmp_path, n_layers=9)
    with pytest.raises(UsageError, match="is for a model of 9 layers and"):
        TrainedScorer(model, p)


# --- files ----------------------------------------------------------------------------------------


def test_read(tmp_path: Path) -> None:
    """A number taken for another."""
    p = projected(tmp_path, fingerprint="cd", document_layers=(0, 2), keys={"window": 99})
    assert (p.model, p.vocabulary, p.n_layers, p.n_embd) == ("toy", "cd", 3, SIZES["n_embd"])
    assert (p.document_layers, p.question_layers) == ((0, 2), (1, 2))
    assert (p.window, p.n_sink, p.block, p.reach) == (99, 2, 8, 2)
    assert (p.exponent, p.scale) == (0.5, 6.0)
    assert p.document.weight.shape == (16, 2 * SIZES["n_embd"])
    assert p.importance.weight.dtype == p.document.weight.dtype == np.float32


BAD = np.full((1, 2 * SIZES["n_embd"]), np.nan, np.float32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": {"n_layers": 0}}, "n_layers' is 0"),
        ({"keys": {"n_embd": None}}, "n_embd' is None"),
        ({"keys": {"block": 0}}, "block' is 0"),
        ({"keys": {"reach": 1 << 20}}, "reach' is 1048576"),
        ({"keys": {"scale": math.inf}}, "scale' is inf"),
        ({"keys": {"exponent": math.nan}}, "exponent' is nan"),
        ({"keys": {"document_layers": [3]}}, r"document_layers' is \[3\]"),
        ({"keys": {"question_layers": [2, 1]}}, r"question_layers' is \[2, 1\]"),
        ({"keys": {"question_layers": [1.5]}}, "is no list of layers"),
        ({"keys": {"document_layers": [0, 1]}}, "expected"),
        ({"tensors": {"document.weight": None}}, "document.weight is missing"),
        ({"tensors": {"question.bias": np.zeros(3, np.float32)}}, "expected"),
        ({"tensors": {"importance.weight": BAD}}, "holds what is no number"),
        ({"fingerprint": ""}, "fingerprint' is missing"),
    ],
)
def test_damaged(tmp_path: Path, options: Any, message: str) -> None:
    """A file that crashes, or scores with nonsense."""
    with pytest.raises(ModelDamaged, match=message):
        projected(tmp_path, **options)


def test_a_tensor_that_would_not_be_used(tmp_path: Path) -> None:
    """A scorer of another kind, of which a part is left out."""
    with pytest.raises(ModelUnsupported, match=r"tensor second\.weight is none that"):
        projected(tmp_path, tensors={"second.weight": np.zeros((16, 4), np.float32)})


def test_other_files(toy: Path, tmp_path: Path) -> None:
    """A model, or numbers of another type, taken for a projection."""
    with pytest.raises(UsageError, match="holds no trained scorer"):
        read_projection(toy)
    weights = np.zeros((16, SIZES["n_embd"]), np.float64)
    with pytest.raises(ModelUnsupported):
        projected(tmp_path, tensors={"document.weight": weights})


def test_find(tmp_path: Path, toy: Path, load: Load) -> None:
    """One for another vocabulary, size or depth; a user's own that the package's goes before."""
    params: ModelParams = load(toy, n_threads=1).params
    folders = tmp_path / "own", tmp_path / "package"
    for folder in folders:
        folder.mkdir()
    assert find_projection("ab", params, folders) is None
    write_projection(folders[1] / "b.gguf", "ab", **SIZES)
    write_projection(folders[1] / "a.gguf", "ab", **SIZES, document_layers=(0,))
    write_projection(folders[0] / "c.gguf", "cd", **SIZES)
    found = find_projection("ab", params, folders)
    assert found is not None
    assert found.path == folders[1] / "b.gguf"
    found = find_projection("ab", params, folders, embedded=True)
    assert found is not None
    assert found.path == folders[1] / "a.gguf"
    assert find_projection("ef", params, folders) is None
    write_projection(folders[0] / "d.gguf", "ab", **SIZES)
    found = find_projection("ab", params, folders)
    assert found is not None
    assert found.path == folders[0] / "d.gguf"


def test_those_that_come_along() -> None:
    """A file of another model or depth, or one that is too large to come along."""
    found = [read_projection(path) for path in sorted(FOLDER.glob("*.gguf"))]
    assert sorted(p.is_embedded for p in found) == [False, True]
    heads = json.loads((FOLDER / "smollm2-135m-instruct.json").read_text())
    for p in found:
        assert (p.vocabulary, p.n_layers, p.n_embd) == (heads["vocabulary"], 30, 576)
        assert p.document_layers[-1] <= 7
        assert p.path.stat().st_size < 1e6
