#!/usr/bin/env python3
"""Hold the engine's logits against llama.cpp's, on models that llama.cpp's own generator writes.

    scripts/check_archs.py --llama-bin DIR [--seeds N] [--first-seed N] [--only ARCH]... [--stdev X]

DIR holds llama.cpp's test-llama-archs (built with -DLLAMA_BUILD_TESTS=ON), which writes a random
model with every tensor that its loader knows of an architecture. What llama.cpp makes of them is
asked of the wheel xllamacpp (extra ``peer``). One line a model; ends with status 1 where one is
further off than 2 % of the spread of llama.cpp's logits.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from draftsmith.engine.errors import DraftsmithError
from draftsmith.engine.transformer.hparams import ARCHITECTURES
from draftsmith.engine.transformer.model import load_model

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))  # for peer_logits and naive_model

from naive_model import log_softmax  # noqa: E402
from peer_logits import Continuation, continuations  # noqa: E402

GENERATOR = "test-llama-archs"
LENGTHS, N_PREDICT = (1, 20, 90), 8
TOLERANCE = 0.02


def main() -> int:
    """Check the models that are asked for; returns the exit status."""
    options = _options()
    generator = options.llama_bin / GENERATOR
    if not generator.is_file():
        sys.exit(f"--llama-bin {options.llama_bin} holds no {GENERATOR}")
    worst = 0.0
    for arch in options.only or ARCHITECTURES:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            with tempfile.TemporaryDirectory() as folder:
                model = generate(generator, arch, seed, options.stdev, Path(folder))
                found = difference(model, seed)
            worst = max(worst, found)
            print(f"{arch:8} seed {seed:4}  off by {100 * found:.3f} % of the spread", flush=True)
    print(f"{'worst':8} {100 * worst:.3f} %, allowed are {100 * TOLERANCE:.0f} %")
    return int(worst > TOLERANCE)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--llama-bin", type=Path, required=True, help=f"folder of {GENERATOR}")
    parser.add_argument("--seeds", type=int, default=5, help="models an architecture (5)")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=ARCHITECTURES, help="architecture")
    parser.add_argument("--stdev", type=float, default=0.1, help="of all weights (0.1)")
    return parser.parse_args()


def generate(generator: Path, arch: str, seed: int, stdev: float, folder: Path) -> Path:
    """Let llama.cpp write its dense model of an architecture; returns the path."""
    command = [generator, "-a", arch, "-s", str(seed), "-d", str(stdev), "-o", folder]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    path = folder / f"{arch}-dense.gguf"
    if done.returncode or not path.is_file():
        sys.exit(
            f"{generator} wrote no {path.name}, status {done.returncode}: {done.stderr[-300:]}"
        )
    return path


def difference(path: Path, seed: int) -> float:
    """The largest difference from llama.cpp's log-probabilities, of their standard deviation.

    Both engines keep keys and values in their usual types.
    """
    try:
        model = load_model(path)
    except DraftsmithError as error:
        sys.exit(str(error))
    n_vocab = model.params.n_vocab
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, n_vocab, n) for n in LENGTHS]
    largest, theirs = 0.0, []
    for said in continuations(path, prompts, N_PREDICT, n_vocab):
        found = model.forward(said.history, model.new_cache(said.history.size), rows=said.places)
        theirs.append(_of_all_tokens(said))
        largest = max(largest, float(np.abs(log_softmax(found.logits) - theirs[-1]).max()))
    model.close()
    return largest / float(np.concatenate(theirs).std())


def _of_all_tokens(said: Continuation) -> np.ndarray:
    """llama.cpp's log-probabilities by token, float64 [n, n_vocab]."""
    logprobs = np.empty_like(said.top_logprobs)
    np.put_along_axis(logprobs, said.top_ids.astype(np.int64), said.top_logprobs, axis=1)
    return logprobs


if __name__ == "__main__":
    sys.exit(main())
