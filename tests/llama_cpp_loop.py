"""What llama-cpp-python's ``Llama.generate`` does with a draft model, without the library.

Written from its behaviour in release 0.3.36: the draft model sees all ids up to the token just
sampled; a draft is evaluated after that; the first sampled token that differs from it cuts the
rest off; what a caller sends into the generator is
shown to the draft model and then evaluated as a draft is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

DraftModel = Callable[[np.ndarray], np.ndarray]
# The next token of a text: the model, greedy.
Predict = Callable[[list[int]], int]


@dataclass
class LoopLlama:
    """The part of ``Llama`` that deals with drafts.

    Attributes
    ----------
    input_ids : intc [n_ctx], as the library's: garbage after ``n_tokens``, rejected drafts in it
    asked : every text that the draft model was shown
    evaluated : called with the size of each batch
    n_drafted, n_accepted : counted here, from what was evaluated
    """

    predict: Predict
    draft_model: DraftModel | None = None
    n_ctx: int = 512
    evaluated: Callable[[int], None] = lambda n: None
    n_tokens: int = 0
    asked: list[list[int]] = field(default_factory=list)
    n_drafted: int = 0
    n_accepted: int = 0

    def __post_init__(self) -> None:
        self.input_ids = np.full(self.n_ctx, -559038737, np.intc)

    def generate(self, prompt: list[int]) -> Iterator[int]:
        """Yield tokens without end; what is sent is evaluated like a draft, and shown before."""
        self.n_tokens = 0
        pending, n_sure = list(prompt), len(prompt)
        while True:
            self.input_ids[self.n_tokens : self.n_tokens + len(pending)] = pending
            self.n_tokens += len(pending)
            self.evaluated(len(pending))
            while n_sure <= self.n_tokens:
                token = self.predict(self.input_ids[:n_sure].tolist())
                sent = yield token
                pending = [token, *(sent or [])]
                if n_sure < self.n_tokens and token != self.input_ids[n_sure]:
                    self.n_tokens = n_sure
                    break
                self.n_accepted += n_sure < self.n_tokens
                n_sure += 1
            n_sure = self.n_tokens + 1
            if self.draft_model is not None:
                stop = self.n_tokens + len(pending)
                self.input_ids[self.n_tokens : stop] = pending
                text = self.input_ids[:stop]
                self.asked.append(text.tolist())
                draft = self.draft_model(text).astype(int)[: self.n_ctx - stop]
                self.n_drafted += len(draft)
                pending += draft.tolist()
