#!/usr/bin/env python3
"""Train an MTP head for a model on texts that it wrote itself (make_mtp_data.py), on the CPU.

    scripts/train_mtp_head.py --data FOLDER -o FOLDER [-m MODEL] [--steps N]

Needs the extra ``train`` (torch). The output folder gets ``head.gguf``, ``curve.csv`` (losses and
hits by step of the draft) and ``state.pt``, from which the same command goes on after a stop. The
learning rate is constant but for its first steps and its last fifth: ``stable.pt`` is from
before that, and ``--resume-stable`` goes on from it with more steps or more data.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
from collections import deque
from pathlib import Path

import mtp_export
import numpy as np
import torch
from arguments import thread_count
from draftsmith.engine.models import resolve_model
from mtp_batches import Shards, Target, banned_grams
from mtp_model import Head
from mtp_training import Muon, learning_rate, start_head, steps_loss

HERE = Path(__file__).resolve().parent
VOCABULARY = 8192


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2000, help="of the optimiser, in all")
    parser.add_argument("--rows", type=int, default=4, help="rows a step")
    parser.add_argument("--draft-steps", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.25, help="places that go on to step 2")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--noise", type=float, default=0.1, help="of hidden states, relative")
    parser.add_argument("--decay", type=float, default=0.2, help="share of the steps that decay")
    parser.add_argument("--optimizer", choices=("muon", "adamw"), default="muon")
    parser.add_argument(
        "--vocabulary",
        type=int,
        help=f"tokens that are drafted, the data's most frequent; default {VOCABULARY}, or, with "
        "--start, those of that head",
    )
    parser.add_argument("--features", type=int, nargs="*", default=[10, 20])
    parser.add_argument("--held", type=int, default=24, help="rows that are not trained on")
    parser.add_argument(
        "--exclude",
        type=Path,
        nargs="*",
        default=[HERE / "prompts.jsonl", HERE.parent / "mtp" / "suite.jsonl"],
        help="JSONL files of prompts; rows that share 13 tokens with one are left out",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=100, help="steps between checks")
    parser.add_argument(
        "--bf16",
        action="store_true",
        help="products in bfloat16: faster on processors that have them (AMX, AVX512-BF16)",
    )
    parser.add_argument("--resume-stable", action="store_true")
    parser.add_argument(
        "--start", type=Path, help="a head.gguf to begin with, for more data; not its optimisers"
    )
    parser.add_argument("--export", action="store_true", help="write the head as it is, and stop")
    parser.add_argument("-t", "--threads", type=thread_count, default=0)
    return parser.parse_args()


def banned(target: Target, files: list[Path]) -> set[tuple[int, ...]]:
    """What no training row may hold: runs of the benchmarks' prompts."""
    texts = []
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            texts += (
                [record["prompt"]]
                if "prompt" in record
                else [message["content"] for message in record["messages"]]
            )
    return banned_grams([target.tokenizer.encode(text).tolist() for text in texts])


class Training:
    """A head, its optimisers, and the steps made so far."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen = chosen
        self.target = Target(resolve_model(chosen.model), tuple(chosen.features))
        forbidden = banned(self.target, chosen.exclude)
        self.shards = Shards(chosen.data, self.target, chosen.held, forbidden)
        print(f"{self.shards.n_tokens} tokens to train on", flush=True)
        state = chosen.output / ("stable.pt" if chosen.resume_stable else "state.pt")
        self.head = Head(self.target.sizes)
        self.step = self.visits = 0
        saved = torch.load(state, weights_only=True) if state.exists() else None
        if saved is not None and chosen.start is not None:
            print(f"going on from {state}, begun already: --start is not looked at", flush=True)
        if saved is not None:
            self.head.load_state_dict(saved["head"])
            self.d2t = saved["d2t"]
            self.step, self.visits = saved["step"], saved["visits"]
        elif chosen.start is not None:
            self.head, self.d2t = mtp_export.read_head(chosen.start, self.target)
        else:
            self.head = start_head(self.target, self.shards)
        # a head's output is the target's, whatever rows of it are drafted
        if saved is None and (chosen.start is None or chosen.vocabulary is not None):
            n_drafted = chosen.vocabulary or VOCABULARY
            self.d2t = most_frequent(self.shards.learnt_tokens(), n_drafted)
        self.matrix = self.target.output[self.d2t].contiguous()
        self.products = torch.bfloat16 if chosen.bf16 else torch.float32
        self.trained_matrix = self.matrix.to(self.products)
        self.optimizers = self._optimizers()
        if saved is not None:
            for optimizer, old in zip(self.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(old)

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        matrices = [p for p in self.head.parameters() if p.ndim == 2]
        vectors = [p for p in self.head.parameters() if p.ndim == 1]
        if self.chosen.optimizer == "adamw":
            groups = [{"params": matrices, "weight_decay": 0.02}, {"params": vectors}]
            return [torch.optim.AdamW(groups, self.chosen.lr, betas=(0.9, 0.95), weight_decay=0.0)]
        rest = torch.optim.AdamW(vectors, self.chosen.lr, betas=(0.9, 0.95), weight_decay=0.0)
        return [Muon(iter(matrices), self.chosen.lr, products=self.products), rest]

    def save(self, name: str) -> None:
        path = self.chosen.output / name
        state = {
            "head": self.head.state_dict(), "d2t": self.d2t, "step": self.step,
            "visits": self.visits, "optimizers": [o.state_dict() for o in self.optimizers],
        }  # fmt: skip
        torch.save(state, path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)

    def train_step(self, batch) -> list[tuple[float, float, int]]:
        c = self.chosen
        rate = learning_rate(self.step, c.steps, c.lr, 50, c.decay)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad(set_to_none=True)
        batch.disturb(c.noise)
        with torch.autocast("cpu", torch.bfloat16, enabled=c.bf16):
            loss, records = steps_loss(
                self.head, self.target, self.trained_matrix, batch,
                c.draft_steps, c.share, self.step,
            )  # fmt: skip
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.step += 1
        self.visits += batch.tokens.numel()
        return records

    @torch.no_grad()
    def check(self) -> list[tuple[float, float, int]]:
        """The same of the rows that are held out, going on from every second place."""
        records = []
        for start in range(0, len(self.shards.held), 4):
            batch = self.shards.batch(self.shards.held[start : start + 4])
            records.append(
                steps_loss(
                    self.head, self.target, self.matrix, batch, self.chosen.draft_steps, 0.5, 1
                )[1]
            )
        return merged(records)


def merged(records: list[list[tuple[float, float, int]]]) -> list[tuple[float, float, int]]:
    """Loss and hits a place, by step of the draft, and the number of places."""
    sums = np.array(records).sum(0)  # [steps, 3]
    return [(loss / max(1, n), hits / max(1, n), int(n)) for loss, hits, n in sums]


def most_frequent(tokens: np.ndarray, n: int) -> torch.Tensor:
    """The n most frequent tokens, ascending; the lower id of equals."""
    counts = np.bincount(tokens)
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:n]).astype(np.int64))


def main() -> None:
    chosen = options()
    torch.manual_seed(chosen.seed)
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    chosen.output.mkdir(parents=True, exist_ok=True)
    training = Training(chosen)
    if chosen.export:
        export(training)
        return
    curve = chosen.output / "curve.csv"
    is_new = not curve.exists()
    recent: deque = deque(maxlen=50)
    stable = int(chosen.steps * (1 - chosen.decay))
    with curve.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            names = [
                f"{k}{i + 1}"
                for k in ("train_loss", "train_hits", "held_loss", "held_hits")
                for i in range(chosen.draft_steps)
            ]
            writer.writerow(["step", "visits", *names])
        started, before = time.perf_counter(), training.step
        batches = training.shards.batches(chosen.rows, chosen.seed, training.step)
        while training.step < chosen.steps:
            recent.append(training.train_step(next(batches)))
            if training.step % chosen.every == 0 or training.step in (10, chosen.steps):
                row = [training.step, training.visits]
                for records in (merged(list(recent)), training.check()):
                    row += [f"{x[0]:.4f}" for x in records] + [f"{x[1]:.4f}" for x in records]
                writer.writerow(row)
                file.flush()
                each = (time.perf_counter() - started) / (training.step - before)
                left = each * (chosen.steps - training.step) / 60
                print(*row, f"{each:.2f} s a step, {left:.0f} minutes left", flush=True)
                training.save("state.pt")
            if training.step == stable:
                training.save("stable.pt")
    training.save("state.pt")
    export(training)


def export(training: Training) -> None:
    path = training.chosen.output / "head.gguf"
    mtp_export.write_head(path, training.head, training.d2t, training.target)


if __name__ == "__main__":
    main()
