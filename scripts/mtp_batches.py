"""Training rows from shards (mtp_streams.py), and what of a target an MTP head needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.gguf.tensors import open_tensors
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from draftsmith.engine.transformer.dequant import dequantise
from draftsmith.engine.transformer.hparams import read_params
from mtp_model import Sizes, rms_norm
from mtp_streams import LOOP
from torch import Tensor

BANNED = 13  # tokens; a training row that shares so many with a benchmark's prompt is left out


class Target:
    """The frozen parts of the target, float32."""

    def __init__(self, path: Path, features: tuple[int, ...]) -> None:
        self.path = path
        self.metadata = read_metadata(path)
        self.tokenizer = load_tokenizer(path, self.metadata)
        p = self.params = read_params(self.metadata, self.tokenizer.n_vocab)
        if p.architecture != "llama":
            raise SystemExit(f"heads are trained for architecture llama, not {p.architecture}")
        self._tensors = open_tensors(path, self.metadata)
        is_plain = p.rope.scaling == "none" and "rope_freqs.weight" not in self._tensors
        if not is_plain or p.rope.n_rot != p.d_head:
            raise SystemExit("heads are trained for models with RoPE of all dimensions, not scaled")
        self.sizes = Sizes(
            p.n_embd, p.n_head, p.n_head_kv, p.d_head, p.n_ff, p.eps, p.rope.base, features
        )
        self.embeddings = self.tensor("token_embd.weight")
        has_head = "output.weight" in self._tensors
        self.output = self.tensor("output.weight") if has_head else self.embeddings
        self.output_norm = self.tensor("output_norm.weight").flatten()

    def tensor(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        return torch.from_numpy(dequantise(tensor.type, np.array(tensor.data)))


@dataclass
class Batch:
    """Rows of [B, S] places p = 1, 2, ...: what a head sees there, and what it should say.

    Attributes
    ----------
    tokens : x_p
    hidden, features : of p - 1: [B, S, n] after the final norm, [B, S, k, n]
    wanted : [B, S, n], the target's normed state at p, whose logits are those of x_{p+1}
    learn : whether x_{p+1} is one to be predicted
    """

    tokens: Tensor
    hidden: Tensor
    features: Tensor
    wanted: Tensor
    learn: Tensor

    def disturb(self, size: float) -> None:
        """Add noise to the states that are seen, of ``size`` times their root mean square.

        A head that has to see through it learns less of its rows by heart (EAGLE does the same).
        """
        # never in place: ``wanted`` shares the memory of ``hidden``, and has to stay the target's
        self.hidden, self.features = (_noisy(x, size) for x in (self.hidden, self.features))


def _noisy(x: Tensor, size: float) -> Tensor:
    return x + size * x.square().mean(-1, keepdim=True).sqrt() * torch.randn_like(x)


class Shards:
    """All rows of a folder of shards, but those held out, in a random order that a seed gives."""

    def __init__(self, folder: Path, target: Target, n_held: int, banned: set[tuple[int, ...]]):
        self._target = target
        self._shards = []
        self.rows: list[tuple[int, int]] = []
        self._learn = []
        for path in sorted(folder.iterdir()):
            if path.suffix == ".part":
                continue
            tokens = np.load(path / "tokens.npy")
            learn = np.load(path / "learn.npy")
            hidden = np.load(path / "hidden.npy", mmap_mode="r")
            n_features = len(target.sizes.features)
            if hidden.shape[2] != 1 + n_features:
                raise SystemExit(
                    f"{path} holds {hidden.shape[2] - 1} layers' features, not {n_features}; "
                    "give the --features that the shards were made with"
                )
            kept = [i for i, row in enumerate(tokens) if not _holds(row, banned)]
            self.rows += [(len(self._shards), i) for i in kept]
            self._learn.append(learn & ~np.stack([repeated(row) for row in tokens]))
            self._shards.append((tokens, hidden))
        if len(self.rows) <= n_held:
            raise SystemExit(f"{folder} holds too few rows; make more with make_mtp_data.py")
        self.held, self.rows = self.rows[:n_held], self.rows[n_held:]

    @property
    def n_tokens(self) -> int:
        """Tokens of all rows that are trained on."""
        return sum(self._shards[i][0].shape[1] for i, _ in self.rows)

    def learnt_tokens(self) -> np.ndarray:
        """int32: all tokens to be predicted."""
        return np.concatenate([self._shards[i][0][r][self._learn[i][r]] for i, r in self.rows])

    def batches(self, n_rows: int, seed: int, start: int) -> Iterator[Batch]:
        """Batches without end; number ``start`` comes first, as if those before had been drawn."""
        per_epoch = len(self.rows) // n_rows
        if not per_epoch:
            raise SystemExit(f"{len(self.rows)} rows, {n_rows} a batch; make more data")
        at = start
        while True:
            order = np.random.default_rng((seed, at // per_epoch)).permutation(len(self.rows))
            for i in range(at % per_epoch, per_epoch):
                yield self.batch([self.rows[j] for j in order[i * n_rows : (i + 1) * n_rows]])
                at += 1

    def batch(self, rows: list[tuple[int, int]]) -> Batch:
        eps, weight = self._target.params.eps, self._target.output_norm
        tokens = torch.from_numpy(np.stack([self._shards[i][0][r] for i, r in rows])).long()
        learn = torch.from_numpy(np.stack([self._learn[i][r] for i, r in rows]))
        states = torch.from_numpy(np.stack([self._shards[i][1][r] for i, r in rows])).float()
        last = states[:, :, -1]
        normed = rms_norm(last, weight, eps)
        return Batch(
            tokens[:, 1:-1], normed[:, :-2], states[:, :-2, :-1], normed[:, 1:-1], learn[:, 2:]
        )


def repeated(row: np.ndarray) -> np.ndarray:
    """bool [n]: whether the LOOP tokens that end here, int32 [n], have stood in the row before.

    What repeats so many tokens is left to n-gram drafts.
    """
    seen: set[tuple[int, ...]] = set()
    marks = np.zeros(row.size, bool)
    ids = row.tolist()
    for stop in range(LOOP, row.size + 1):
        key = tuple(ids[stop - LOOP : stop])
        marks[stop - 1] = key in seen
        seen.add(key)
    return marks


def banned_grams(ids: list[list[int]]) -> set[tuple[int, ...]]:
    """All runs of ``BANNED`` tokens of some texts."""
    return {tuple(t[i : i + BANNED]) for t in ids for i in range(len(t) - BANNED + 1)}


def _holds(row: np.ndarray, banned: set[tuple[int, ...]]) -> bool:
    ids = row.tolist()
    return any(tuple(ids[i : i + BANNED]) in banned for i in range(len(ids) - BANNED + 1))
