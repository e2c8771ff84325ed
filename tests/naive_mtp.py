"""The slow, obvious MTP draft in float64: every step from the beginning of the text.

Weights come from gguf's own reader, blocks from the naive model, and nothing from mtp/.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from naive_model import NaiveModel, Reals, Trace

_FALLBACKS = {
    "embed_tokens": ("token_embd",),
    "shared_head_norm": ("output_norm",),
    "shared_head_head": ("output", "token_embd"),
}


class NaiveMtp:
    """A model and its heads, of its own file or of another."""

    def __init__(self, model: Path, head: Path | None = None) -> None:
        self.model = NaiveModel(model)
        source = NaiveModel(head or model)
        self.n_heads = source.key("nextn_predict_layers")
        self.is_normed = source.key("nextn.hidden", "normed") == "normed"
        self.feature_layers = source.key("nextn.feature_layers", [])
        self.weights = self.model.weights | source.weights
        self.model.weights = self.weights
        self.model.types |= source.types
        n_vocab = len(self.weights["token_embd.weight"])
        self.d2t = self.weights.get("nextn.d2t", np.arange(n_vocab)).astype(np.int64)

    def probabilities(
        self,
        text: Sequence[int],
        drafted: Sequence[int],
        *,
        start: int = 0,
        temperature: float = 1.0,
    ) -> Reals:
        """float64 [len(drafted) + 1, n_draft]: what each step says of the token after those.

        ``start``: the first token whose hidden state is known.
        """
        trace = self.model.trace(np.asarray(text)[:-1])
        rows = [
            self.first_row(trace, text, place, head)
            for head in range(self.n_heads)
            for place in range(start + 1, len(text))
        ]
        by_head = np.array(rows).reshape(self.n_heads, len(text) - 1 - start, -1)
        hidden: list[Reals] = []
        found = []
        for step in range(len(drafted) + 1):
            head = step % self.n_heads
            more = [
                self.next_row(token, before, head)
                for token, before in zip(drafted[:step], hidden, strict=True)
            ]
            x = np.array([*by_head[head], *more])
            # the tokens' places count from 0 here: RoPE turns by how far they are apart
            out = self.model.layer(self.model.n_layers + head, x, Trace())[-1]
            normed = self.norm(out, self.tensor(head, "shared_head_norm"))
            hidden.append(normed if self.is_normed else out)
            found.append(self.softmax(normed @ self.output(head).T + self.bias(head), temperature))
        return np.array(found)

    def first_row(self, trace: Trace, text: Sequence[int], place: int, head: int) -> Reals:
        """What goes into a block for a token of the text: with the trunk's hidden states."""
        states = trace.normed if self.is_normed else trace.hidden
        parts = self.parts(text[place], states[place - 1], head)
        if not self.feature_layers:
            return np.concatenate(parts) @ self.tensor(head, "eh_proj").T
        weights = np.split(self.tensor(head, "feature_norm"), len(self.feature_layers))
        for layer, weight in zip(self.feature_layers, weights, strict=True):
            parts.append(self.norm(trace.entered[layer][place - 1], weight))
        return np.concatenate(parts) @ self.tensor(head, "eh_proj_first").T

    def next_row(self, token: int, hidden: Reals, head: int) -> Reals:
        """The same for a drafted token: with the hidden state of the step that drafted it."""
        return np.concatenate(self.parts(token, hidden, head)) @ self.tensor(head, "eh_proj").T

    def parts(self, token: int, hidden: Reals, head: int) -> list[Reals]:
        embedding = self.tensor(head, "embed_tokens")[token]
        if self.model.gemma:
            embedding = embedding * math.sqrt(self.model.n_embd)
        return [
            self.norm(embedding, self.tensor(head, "enorm")),
            self.norm(hidden, self.tensor(head, "hnorm")),
        ]

    def output(self, head: int) -> Reals:
        """float64 [n_draft, n_embd]."""
        matrix = self.tensor(head, "shared_head_head")
        return matrix if len(matrix) == len(self.d2t) else matrix[self.d2t]

    def bias(self, head: int) -> Reals | float:
        """Of the model's output matrix, where a head has none of its own."""
        is_own = f"blk.{self.model.n_layers + head}.nextn.shared_head_head.weight" in self.weights
        if is_own or "output.bias" not in self.weights:
            return 0.0
        return self.weights["output.bias"][self.d2t]

    def tensor(self, head: int, name: str) -> Reals:
        own = f"blk.{self.model.n_layers + head}.nextn.{name}"
        for full in (own, *_FALLBACKS.get(name, ())):
            if f"{full}.weight" in self.weights:
                return self.weights[f"{full}.weight"]
        raise KeyError(own)

    def norm(self, x: Reals, weight: Reals) -> Reals:
        return x / np.sqrt((x * x).mean() + self.model.eps) * weight

    def softmax(self, logits: Reals, temperature: float) -> Reals:
        cap = self.model.key("final_logit_softcapping", 0.0)
        if cap:
            logits = cap * np.tanh(logits / cap)
        weights = np.exp((logits - logits.max()) / temperature)
        return weights / weights.sum()
