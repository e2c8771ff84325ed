#!/usr/bin/env python3
"""Train a scorer on early states of a model (prefill/scorers/trained.py), on the CPU, in an hour.

    scripts/train_scorer.py --data FOLDER -o FILE.gguf [-m MODEL] --wordnet /usr/share/wordnet

First makes documents with sentences hidden in them and questions about these (scorer_texts.py),
and writes what the model's first layers make of them to the folder; what is there already is not
made again. Then trains a projection of both sides into one space, so that the sentence that
answers a question is near to it, and writes it as a small GGUF file. Facts, nouns, names, frames
and passages are halved before: recall is measured on those that are held out.

Needs the extra ``train`` (torch). Without ``--wordnet`` (Debian's wordnet-base), a scorer has
some hundred facts to learn from, and is the worse for it.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from arguments import thread_count
from draftsmith.engine.chat.template import ChatTemplate
from draftsmith.engine.errors import ChatTemplateUnusable
from draftsmith.engine.gguf.file import TARGET_FINGERPRINT, read_metadata
from draftsmith.engine.gguf.identity import TARGET_NORMS, TARGET_WEIGHTS, Identity
from draftsmith.engine.models import resolve_model
from draftsmith.engine.tokens.tokenizer import Tokenizer, load_tokenizer
from draftsmith.engine.transformer.hparams import ModelParams
from draftsmith.engine.transformer.model import load_model
from draftsmith.prefill.calibration.calibrate import KEEPS, KINDS
from draftsmith.prefill.calibration.calibrate_kernels import count_kept
from draftsmith.prefill.needles.niah import Haystack, bundled_text
from draftsmith.prefill.prompt.parts import CHUNK
from draftsmith.prefill.scorers.projection import ARCHITECTURE, PREFIX
from scorer_data import Collector, Sight, collect
from scorer_model import Example, Net, loss_of, read_example
from scorer_texts import DEV, TRAIN, Nouns, Source

_TEXT_MOST, _TEXT_HELD = 2_000_000, 0.4  # characters of a haystack; share of it that is held out
_WAYS = ("words", "trained", "both")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--wordnet", type=Path, help="folder of data.noun and index.noun")
    parser.add_argument("--haystack", type=Path, nargs="*", default=[], help="besides the bundled")
    parser.add_argument("--documents", type=int, default=200, help="to train on")
    parser.add_argument("--held", type=int, default=24, help="documents that are held out")
    parser.add_argument("--layers", type=int, nargs="+", default=[5], help="of the document")
    parser.add_argument("--question-layers", type=int, nargs="+", default=[7])
    parser.add_argument("--collect-layers", type=int, nargs="*", default=[0, 3, 5, 7],
                        help="of documents and questions, to choose from later")  # fmt: skip
    parser.add_argument("--rank", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--drop", type=float, default=0.5, help="of inputs")
    parser.add_argument("--decay", type=float, default=0.05)
    parser.add_argument("--block", type=int, default=8, help="tokens")
    parser.add_argument("--reach", type=int, default=2, help="blocks")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-t", "--threads", type=thread_count, default=1)
    return parser.parse_args()


def collect_both(chosen: argparse.Namespace, path: Path, tokenizer: Tokenizer) -> ModelParams:
    """Make the documents of both halves; returns the sizes of the model."""
    metadata = read_metadata(path)
    model = load_model(path, metadata, n_threads=chosen.threads)
    try:
        template = ChatTemplate.of(metadata, tokenizer.vocabulary)
    except ChatTemplateUnusable:
        template = None
    layers = tuple(sorted({*chosen.collect_layers, *chosen.layers, *chosen.question_layers}))
    texts = [bundled_text(), *(file.read_text(errors="ignore") for file in chosen.haystack)]
    nouns = None if chosen.wordnet is None else Nouns(chosen.wordnet, counter(tokenizer))
    for half, n in ((TRAIN, chosen.documents), (DEV, chosen.held)):
        cuts = [(0.0, 1 - _TEXT_HELD), (1 - _TEXT_HELD, 1.0)][half == DEV]
        haystacks = [
            Haystack(text[int(cuts[0] * len(text)) : int(cuts[1] * len(text))], tokenizer)
            for text in (text[:_TEXT_MOST] for text in texts)
        ]
        collector = Collector(model, tokenizer, template, haystacks, Source(half, nouns),
                              Sight(layers, layers, chosen.window))  # fmt: skip
        started = time.perf_counter()

        def tell(done: int, half: str = half, n: int = n, started: float = started) -> None:
            if done % 10 == 0 or done == n:
                left = (time.perf_counter() - started) / done * (n - done) / 60
                print(f"{half}: {done} of {n} documents, {left:.0f} minutes left", flush=True)

        collect(chosen.data / half, collector, n, chosen.seed, tell)
    model.close()
    return model.params


def counter(tokenizer: Tokenizer):
    """Counts the tokens of a word inside a text."""
    return lambda word: tokenizer.encode(f" {word}", add_special=False, parse_special=False).size


def read_half(chosen: argparse.Namespace, half: str, n: int) -> list[Example]:
    layers = sorted({*chosen.collect_layers, *chosen.layers, *chosen.question_layers})
    at = [[layers.index(i) for i in sorted(some)] for some in (chosen.layers,
          chosen.question_layers)]  # fmt: skip
    paths = sorted((chosen.data / half).glob("*.npz"))[:n]
    return [read_example(path, *at, chosen.block) for path in paths]


def train(chosen: argparse.Namespace, net: Net, examples: Sequence[Example]) -> None:
    """Adam, a document a step; the rate rises for 50 steps and falls as a cosine."""
    matrices = [net.document.weight, net.question.weight]
    others = [p for p in net.parameters() if all(p is not matrix for matrix in matrices)]
    groups = [{"params": matrices, "weight_decay": chosen.decay}, {"params": others}]
    optimizer = torch.optim.AdamW(groups, chosen.lr, weight_decay=0.0)
    order = list(examples)
    step, n_steps, started = 0, chosen.epochs * len(order), time.perf_counter()
    for epoch in range(chosen.epochs):
        net.train()
        random.shuffle(order)
        total = 0.0
        for example in order:
            rate = 0.5 * (1 + math.cos(math.pi * step / n_steps))
            for group in optimizer.param_groups:
                group["lr"] = chosen.lr * min(1, (step + 1) / 50) * max(0.02, rate)
            optimizer.zero_grad()
            loss = loss_of(net(example, chosen.block, chosen.reach, chosen.drop), example)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
            step += 1
        print(f"epoch {epoch + 1}: loss {total / len(order):.3f}, "
              f"{time.perf_counter() - started:.0f} s", flush=True)  # fmt: skip


@torch.no_grad()
def recall(
    chosen: argparse.Namespace, net: Net, examples: Sequence[Example], *, other: bool = False
) -> dict[str, np.ndarray]:
    """Share of needles kept whole, by kind: float64 [n_keeps, 3], by words, the net, and both.

    Parameters
    ----------
    other : score by another question about the same document: what then is found is found without
        looking at the question
    """
    net.eval()
    found: dict[str, list[np.ndarray]] = {kind: [] for kind in KINDS}
    for example in examples:
        masses = torch.softmax(net(example, chosen.block, chosen.reach, 0.0), 1).numpy()
        if other:
            masses = np.roll(masses, len(masses) // 2, axis=0)
        n = len(example.document)
        values = np.repeat(masses / chosen.block, chosen.block, axis=1)[:, :n]
        starts = np.arange(0, n, CHUNK)
        chunks = np.stack([starts, np.minimum(n, starts + CHUNK)], 1).astype(np.int32)
        sums = np.add.reduceat(values, starts, axis=1)
        for i, kind in enumerate(example.arrays["kind"].tolist()):
            words, trained = example.arrays["words"][i], sums[i] / sums[i].sum()
            ways = np.stack([words, trained, (words + trained) / 2]).astype(np.float32)
            first, stop = example.arrays["needle"][i]
            needle = np.arange(first // CHUNK, (stop - 1) // CHUNK + 1, dtype=np.int64)
            kept = np.zeros((len(KEEPS), len(ways)), np.uint8)
            for row, left in zip(kept, example.arrays["left"][i].tolist(), strict=True):
                count_kept(ways, chunks, left, needle, np.zeros(n, np.uint8), row)
            found[kind].append(kept)
    return {kind: np.mean(kept, axis=0) for kind, kept in found.items() if kept}


def show(title: str, recalls: dict[str, np.ndarray]) -> None:
    for kind, shares in recalls.items():
        told = (
            f"{way} {' / '.join(f'{100 * share:.0f}' for share in shares[:, i])} %"
            for i, way in enumerate(_WAYS)
        )
        print(f"{title}, {kind}: {', '.join(told)}", flush=True)


def write(chosen: argparse.Namespace, net: Net, params: ModelParams, tokenizer: Tokenizer) -> None:
    """Write the file that prefill/scorers/projection.py reads."""
    part = chosen.output.with_suffix(".part")
    writer = gguf.GGUFWriter(part, ARCHITECTURE)
    writer.add_name(resolve_model(chosen.model).stem)
    writer.add_license("apache-2.0")
    writer.add_string(TARGET_FINGERPRINT, tokenizer.fingerprint.hex())
    marks = Identity.of(read_metadata(resolve_model(chosen.model))).marks
    writer.add_string(TARGET_NORMS, marks.norms)
    writer.add_string(TARGET_WEIGHTS, marks.weights)
    for key, number in (
        ("n_layers", params.n_layers), ("n_embd", params.n_embd), ("window", chosen.window),
        ("n_sink", Sight((0,), (0,)).n_sink), ("block", chosen.block), ("reach", chosen.reach),
    ):  # fmt: skip
        writer.add_uint32(PREFIX + key, number)
    writer.add_array(f"{PREFIX}document_layers", sorted(chosen.layers))
    writer.add_array(f"{PREFIX}question_layers", sorted(chosen.question_layers))
    writer.add_float32(f"{PREFIX}exponent", net.exponent.item())
    writer.add_float32(f"{PREFIX}scale", net.log_scale.exp().item())
    for name in ("document", "question", "importance"):
        weight, bias = net.folded(name)
        dtype = np.float32 if name == "importance" else np.float16
        writer.add_tensor(f"{name}.weight", weight.astype(dtype))
        writer.add_tensor(f"{name}.bias", bias.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, chosen.output)
    print(f"wrote {chosen.output}: {chosen.output.stat().st_size} bytes")


def main() -> None:
    chosen = options()
    torch.manual_seed(chosen.seed)
    random.seed(chosen.seed)
    torch.set_num_threads(chosen.threads)
    path = resolve_model(chosen.model)
    tokenizer = load_tokenizer(path)
    params = collect_both(chosen, path, tokenizer)
    examples = read_half(chosen, TRAIN, chosen.documents)
    held = read_half(chosen, DEV, chosen.held)
    print(f"{sum(example.n_questions for example in examples)} questions to train on", flush=True)
    n_in = [params.n_embd * len(some) for some in (chosen.layers, chosen.question_layers)]
    net = Net(*n_in, params.n_embd, chosen.rank)
    net.measure(examples)
    train(chosen, net, examples)
    show("held out", recall(chosen, net, held))
    show("held out, asked something else", recall(chosen, net, held, other=True))
    write(chosen, net, params, tokenizer)


if __name__ == "__main__":
    main()
