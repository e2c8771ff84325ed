"""Texts that a model writes itself, with its hidden states: the training data of an MTP head.

``n_rows`` streams run side by side, a token of each a pass. Where a text ends, the next begins in
the same stream and sees what stands before it, as the later turns of a conversation do. A shard
holds, for all rows of equal length:
    tokens  int32   [n_rows, length]
    learn   bool    [n_rows, length]   whether the token at that place is one to be predicted
    hidden  float16 [n_rows, length, 1 + n_features, n_embd]   the layers' inputs, last: the output
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from draftsmith.engine.transformer.forward_kernels import SPLIT
from draftsmith.engine.transformer.model import Model, Taps
from mtp_prompts import Prompts

TEMPERATURES = (0.0, 0.3, 0.6, 0.8, 1.0)
WEIGHTS = (0.6, 0.12, 0.12, 0.1, 0.06)
FARTHEST = 9.0  # a token e^9 times less likely than the likeliest is never drawn
LOOP = 16  # a text that repeats so many tokens teaches no more


class Stream:
    """One row: what it has to take next, and what it holds."""

    def __init__(self, prompts: Prompts, rng: np.random.Generator, stop: frozenset[int]) -> None:
        self._prompts = prompts
        self._rng = rng
        self._stop = stop
        self._loops: dict[tuple[int, ...], int] = {}
        self._text: list[int] = []
        self._begin()

    def _begin(self) -> None:
        beginning = self._prompts.draw()
        self._forced = list(beginning.ids)
        self._then = list(beginning.then)
        self._kept = beginning.kept
        self._text = []
        self._loops.clear()
        # who writes both sides of a conversation has to be free to say anything
        self._temperature = 1.0 if self._then else self._draw_temperature()

    def _draw_temperature(self) -> float:
        return float(self._rng.choice(TEMPERATURES, p=WEIGHTS))

    def next(self, logits: np.ndarray | None) -> tuple[int, bool]:
        """The next token, and whether it is to be learnt."""
        if self._forced:
            return self._forced.pop(0), self._kept
        if logits is None or self._kept or self._looping():
            self._begin()
            return self.next(None)
        token = self._sample(logits)
        self._text.append(token)
        if token in self._stop:
            if self._then:
                self._forced, self._then = self._then, []
                self._temperature = self._draw_temperature()
                self._text = []
            else:
                self._begin()
        return token, True

    def _looping(self) -> bool:
        if len(self._text) < LOOP:
            return False
        key = tuple(self._text[-LOOP:])
        self._loops[key] = self._loops.get(key, 0) + 1
        return self._loops[key] > 2

    def _sample(self, logits: np.ndarray) -> int:
        if self._temperature == 0:
            return int(logits.argmax())
        near = np.flatnonzero(logits > logits.max() - FARTHEST * self._temperature)
        weights = np.exp((logits[near] - logits.max()) / self._temperature)
        return int(near[np.searchsorted(np.cumsum(weights), self._rng.random() * weights.sum())])


def write_shard(
    path: Path,
    model: Model,
    prompts: Prompts,
    stop: frozenset[int],
    *,
    n_rows: int,
    length: int,
    feature_layers: Sequence[int],
    seed: int,
    on_step: Callable[[int], None] = lambda n: None,
) -> None:
    """Let ``n_rows`` streams run for ``length`` tokens, and write what they held to a folder."""
    n_embd = model.params.n_embd
    rng = np.random.default_rng(seed)
    streams = [Stream(prompts, rng, stop) for _ in range(n_rows)]
    room = -(-length // SPLIT) * SPLIT
    cache = model.new_cache(n_rows * room)
    starts = room * np.arange(n_rows, dtype=np.int64)
    tokens = np.zeros((n_rows, length), np.int32)
    learn = np.zeros((n_rows, length), bool)
    part = path.with_name(path.name + ".part")
    part.mkdir(parents=True, exist_ok=True)
    shape = (n_rows, length, 1 + len(feature_layers), n_embd)
    hidden = np.lib.format.open_memmap(part / "hidden.npy", "w+", np.float16, shape)
    logits: np.ndarray | None = None
    for t in range(length):
        for b, stream in enumerate(streams):
            tokens[b, t], learn[b, t] = stream.next(None if logits is None else logits[b])
        taps = Taps(hidden_layers=feature_layers)
        done = model.forward_streams(
            tokens[:, t], cache, starts=starts, slots=starts + t, taps=taps
        )
        logits = done.logits
        limit = np.finfo(np.float16).max
        hidden[:, t, -1] = np.clip(done.hidden, -limit, limit)
        for k in range(len(feature_layers)):
            hidden[:, t, k] = np.clip(done.taps.hidden[k], -limit, limit)
        on_step(n_rows)
    hidden.flush()
    np.save(part / "tokens.npy", tokens)
    np.save(part / "learn.npy", learn)
    os.replace(part, path)
