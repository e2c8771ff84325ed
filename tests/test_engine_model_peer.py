"""The engine and the naive pass against llama.cpp itself, fed the same token histories.

What tests of our own cannot see, for they would share the mistake: another RoPE, another order of
pairs, another norm, a type unpacked another way. llama.cpp (from the wheel ``xllamacpp``) continues
each prompt greedily and tells its log-probabilities at every place; ours read the same history.

How near the two can come depends on the weights' type. With float weights both engines compute in
float32 what is left, and the figures asked for are met with room to spare. With quantised weights
both round activations to 8 bits, 1 % of a standard deviation each time, and whatever moves one of
these roundings (the order of a sum is enough) moves all that follow. On SmolLM2 of 30 layers, Q4_1,
over these 20 x 64 places, llama.cpp was 0.029 (mean difference of log-probability) from the same
weights multiplied without rounding, and chose another token than those at 2.2 % of them; the engine
was 0.032 from them (2.1 %), and 0.034 from llama.cpp (2.5 %). llama.cpp with another of its own
attention kernels comes 0.01 to 0.07 from itself. So the strict figures are asked of the model's
weights unpacked to float16, and of the file as it is that the engine rounds no worse.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
import toy_model
from draftsmith.engine.gguf.file import GgufStrings, read_metadata
from draftsmith.engine.gguf.tensors import open_tensors
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from draftsmith.engine.transformer.dequant import dequantise
from draftsmith.engine.transformer.model import Model, load_model
from naive_model import NaiveModel, log_softmax
from numpy.typing import NDArray
from peer_logits import Continuation, continuations

Reals = NDArray[np.float64]

N_PREDICT = 64
NEAR_TIE = 0.05

PROMPTS = {
    "code": "def binary_search(values, target):\n    low, high = 0, len(values) - 1\n",
    "c": "static int compare(const void *a, const void *b) {\n    const struct entry *x = a;\n",
    "refactoring": "Rename the variable `x` to `total` in this function:\n\n"
    "def add(items):\n    x = 0\n    for item in items:\n        x += item.price\n    return x\n\n"
    "The new function:\n\n",
    "summary": "Summarise in one sentence: The river rose for three days. On the fourth the mill "
    "was cut off, and the miller's family waited on the roof until a boat came from the village."
    "\n\nSummary:",
    "translation": "English: Where is the railway station?\nFrench:",
    "question": "Passage: The Kelvin is the unit of temperature of the SI. Zero kelvin is absolute "
    "zero.\nQuestion: What is absolute zero in kelvin?\nAnswer:",
    "story": "Once upon a time, in a village by the sea, there lived a girl who collected",
    "arithmetic": "2 + 3 = 5\n7 + 8 = 15\n12 + 9 = 21\n14 + 17 =",
    "json": 'Extract the fields as JSON. Text: "Ada Lovelace, born 1815 in London."\n{"name":',
    "chat": "<|im_start|>user\nGive me three tips for better sleep.<|im_end|>\n"
    "<|im_start|>assistant\n",
    "list": "Shopping list:\n1. Bread\n2. Milk\n3.",
    "letter": "Dear Sir or Madam,\n\nI am writing to complain about",
    "poem": "Shall I compare thee to a summer's day?\nThou art",
    "repetition": "tick tock tick tock tick tock tick tock tick tock",
    "sql": "-- customers who ordered in the last month\nSELECT",
    "markup": '<html>\n<head><title>Example</title></head>\n<body>\n<ul>\n  <li class="',
    "log": "2024-03-01 12:00:01 INFO started\n2024-03-01 12:00:02 WARN slow disk\n2024-03-01",
    "dialogue": "ROMEO: But soft, what light through yonder window breaks?\nJULIET:",
    "science": "Photosynthesis is the process by which",
    "word": "The",
}


class Agreement(NamedTuple):
    """How near two sets of log-probabilities are, over all places.

    Attributes
    ----------
    same : part of the places with the same likeliest token
    widest : by how much log-probability, at most, a place with another likeliest token prefers
        its own, as llama.cpp sees it
    mean : mean absolute difference of log-probability of llama.cpp's chosen tokens
    """

    same: float
    widest: float
    mean: float


def ours(model: Model, said: Continuation) -> Reals:
    """The engine's log-probabilities [n, n_vocab] at the places of llama.cpp's tokens."""
    history = said.history
    found = model.forward(history, model.new_cache(history.size), rows=said.places)
    return log_softmax(found.logits)


def of_chosen(logprobs: Reals, said: Continuation) -> Reals:
    return logprobs[np.arange(said.tokens.size), said.tokens]


def agreement(all_ours: list[Reals], all_said: list[Continuation]) -> Agreement:
    n_same, widest, differences = 0, 0.0, []
    for logprobs, said in zip(all_ours, all_said, strict=True):
        likeliest = logprobs.argmax(axis=1)
        for place in np.flatnonzero(likeliest != said.top_ids[:, 0]):
            among = np.flatnonzero(said.top_ids[place] == likeliest[place])
            least = said.top_logprobs[place, among[0] if among.size else -1]
            widest = max(widest, said.top_logprobs[place, 0] - least)
        n_same += int((likeliest == said.top_ids[:, 0]).sum())
        differences.append(np.abs(of_chosen(logprobs, said) - said.logprobs))
    return Agreement(
        n_same / sum(said.tokens.size for said in all_said),
        widest,
        float(np.concatenate(differences).mean()),
    )


# --------------------------------------------------------------------------------------------------
# The real model


class Real(NamedTuple):
    """What llama.cpp said about the real model, as it is and unpacked, and both in the engine."""

    said: list[Continuation]
    said_unpacked: list[Continuation]
    ours: list[Reals]
    ours_unpacked: list[Reals]
    unpacked_on_said: list[Reals]


def write_unpacked(source: Path, path: Path) -> Path:
    """Copy a GGUF with its matrices unpacked to float16; return the path."""
    metadata = read_metadata(source)
    writer = gguf.GGUFWriter(path, metadata.values.pop("general.architecture"))
    for name, value in metadata.values.items():
        add: dict[type, Any] = {
            str: writer.add_string,
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
        }
        if isinstance(value, GgufStrings | np.ndarray):
            writer.add_array(
                name, list(value) if isinstance(value, GgufStrings) else value.tolist()
            )
        else:
            add[type(value)](name, value)
    for name, tensor in open_tensors(source).items():
        weights = dequantise(tensor.type, tensor.data).reshape(tensor.shape)
        writer.add_tensor(name, weights.astype(np.float16) if weights.ndim == 2 else weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def real(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Real:
    tokenizer = load_tokenizer(smollm2)
    prompts = [tokenizer.encode(text) for text in PROMPTS.values()]
    unpacked = tmp_path_factory.mktemp("unpacked") / "f16.gguf"
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(continuations, smollm2, prompts, N_PREDICT, 20)
        write_unpacked(smollm2, unpacked)
        said_unpacked = continuations(unpacked, prompts, N_PREDICT, 20)
        said = job.result()
    packed, floats = load_model(smollm2), load_model(unpacked)
    unpacked.unlink()
    found = Real(
        said,
        said_unpacked,
        [ours(packed, one) for one in said],
        [ours(floats, one) for one in said_unpacked],
        [ours(floats, one) for one in said],
    )
    packed.close()
    floats.close()
    return found


def test_real_weights_give_the_same_tokens(real: Real) -> None:
    """The bug: a detail of the architecture that only real weights and real text bring out.

    99.9 % were the same, the one other by 0.004, and the mean was 0.001.
    """
    assert len(real.said_unpacked) == 20
    found = agreement(real.ours_unpacked, real.said_unpacked)
    assert found.same >= 0.99
    assert found.widest < NEAR_TIE
    assert found.mean < 0.02


def test_the_real_file_is_rounded_no_worse_than_by_llama_cpp(real: Real) -> None:
    """The bug: weights unpacked wrong here and there, or activations rounded too coarsely.

    The bounds are what the roundings of both explain (above), half as much again.
    """
    found = agreement(real.ours, real.said)
    exact = agreement(real.unpacked_on_said, real.said)  # llama.cpp's own distance
    of_ours = np.mean(
        [
            np.abs(of_chosen(a, said) - of_chosen(b, said)).mean()
            for a, b, said in zip(real.ours, real.unpacked_on_said, real.said, strict=True)
        ]
    )
    assert of_ours < 1.5 * exact.mean
    assert found.mean < 1.5 * np.hypot(of_ours, exact.mean)
    assert found.mean < 0.05
    assert 1 - found.same < 1.5 * 0.025
    assert found.widest < 0.6


# --------------------------------------------------------------------------------------------------
# Toy models


class Toy(NamedTuple):
    """A toy model and what llama.cpp said about it."""

    path: Path
    said: list[Continuation]


@pytest.fixture(scope="module", params=toy_model.CASES)
def toy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toy]:
    """A seeded model, continued from one token and from 20, with a cache of float32.

    (llama.cpp's usual float16 cache would hide small mistakes of the naive pass.)
    """
    path = tmp_path_factory.mktemp("toy") / "toy.gguf"
    toy_model.write_case(path, request.param)
    n_vocab = NaiveModel(path).weights["token_embd.weight"].shape[0]
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, n_vocab, n) for n in (1, 20)]
    settings = {"cache_type_k": 0, "cache_type_v": 0, "flash_attn_type": 0}
    yield Toy(path, continuations(path, prompts, 12, n_vocab, **settings))
    path.unlink()


def differences(logprobs: Reals, said: Continuation) -> Reals:
    """Absolute differences of the log-probabilities of all tokens that llama.cpp finds possible."""
    theirs = np.empty_like(logprobs)
    np.put_along_axis(theirs, said.top_ids.astype(np.int64), said.top_logprobs, axis=1)
    return np.abs(logprobs - theirs)[theirs > -12]


def test_the_naive_pass_is_llama_cpps(toy: Toy) -> None:
    """The bug: the engine held against a naive pass that is wrong in the same way.

    1e-5 is what float32 leaves. Where a difference of that size decides a rounding to 8 bits, all
    that follows differs by up to 0.2; that happens at few places. Gemma 3's GELU comes from a table
    of float16, where roundings to decide are many, and little follows from them.
    """
    model = NaiveModel(toy.path)
    found = []
    for said in toy.said:
        trace = model.trace(said.history, half_cache=False, rounding="llama.cpp")
        found.append(differences(log_softmax(trace.logits)[said.places], said))
    assert np.median(np.concatenate(found)) < (1e-3 if model.gemma else 1e-5)
    assert np.concatenate(found).max() < 0.2


def test_toys_give_the_same_tokens(toy: Toy) -> None:
    """The bug: a part of an architecture, or a tensor type, that the engine computes otherwise.

    Float weights leave the rounding of llama.cpp's activations to float16 or bfloat16, and of the
    engine's keys and values to float16: the figures asked for hold (the mean was 0.001, for BF16
    0.012). Quantised ones leave the roundings to 8 bits, for K-quants in other blocks: the mean was
    0.02 to 0.1, and each token is as likely as the next in a toy, so that more are near.
    """
    model = load_model(toy.path, n_threads=1)
    all_ours = [ours(model, said) for said in toy.said]
    model.close()
    mean = np.concatenate(
        [differences(*pair) for pair in zip(all_ours, toy.said, strict=True)]
    ).mean()
    found = agreement(all_ours, toy.said)
    if {"F32", "F16", "BF16"}.issuperset(NaiveModel(toy.path).types.values()):
        assert mean < 0.02
        assert found.widest < NEAR_TIE
        assert found.mean < 0.02
    else:
        assert mean < 0.15
        assert found.widest < 0.3
        assert found.mean < 0.1
    assert found.same > 0.8
