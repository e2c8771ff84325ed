"""The scorer that is trained: projection.py and trained.py of prefill/scorers in torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class Example:
    """A document with its questions.

    Attributes
    ----------
    document : float16 [n, n_in]; question : float16 [n_asked, n_in]
    owner : int64 [n_asked], which question each token is of
    share : float32 [n_questions, n_blocks], of a block's tokens that are in the needle
    arrays : the file's others
    """

    document: Tensor
    question: Tensor
    owner: Tensor
    share: Tensor
    arrays: dict[str, np.ndarray]

    @property
    def n_questions(self) -> int:
        return len(self.share)


def read_example(
    path: Path, document_layers: Sequence[int], question_layers: Sequence[int], block: int
) -> Example:
    """Read a file of scorer_data.py; of its layers those at some places."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    document, question = arrays.pop("document"), arrays.pop("question")
    spans, needle = arrays["spans"], arrays["needle"]
    starts = np.arange(0, len(document), block)
    first, stop = needle[:, :1], needle[:, 1:]
    inside = np.minimum(stop, starts + block) - np.maximum(first, starts)
    return Example(
        torch.from_numpy(document[:, document_layers].reshape(len(document), -1)),
        torch.from_numpy(question[:, question_layers].reshape(len(question), -1)),
        torch.from_numpy(np.repeat(np.arange(len(spans)), spans[:, 1] - spans[:, 0])),
        torch.from_numpy(np.maximum(0, inside).astype(np.float32) / block),
        arrays,
    )


class Net(nn.Module):
    """Scores of blocks.

    Both projections begin as the same random one of the last layer's states: so like is near to
    like from the start, as far as a cosine of so many random directions tells.
    """

    def __init__(self, n_document: int, n_question: int, n_embd: int, rank: int) -> None:
        super().__init__()
        same = torch.randn(rank, n_embd) / n_embd**0.5
        self.document = nn.Linear(n_document, rank)
        self.question = nn.Linear(n_question, rank)
        self.importance = nn.Linear(n_question, 1)
        for linear in (self.document, self.question):
            nn.init.normal_(linear.weight, std=0.005)
            nn.init.zeros_(linear.bias)
            linear.weight.data[:, -n_embd:] += same
        nn.init.zeros_(self.importance.weight)
        nn.init.zeros_(self.importance.bias)
        self.log_scale = nn.Parameter(torch.tensor(3.0))
        self.exponent = nn.Parameter(torch.tensor(0.5))
        for name, size in (("document", n_document), ("question", n_question)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_std", torch.ones(size))

    def measure(self, examples: Sequence[Example]) -> None:
        """Take mean and spread of the inputs from examples."""
        for name in ("document", "question"):
            rows = torch.cat([getattr(example, name)[::7].float() for example in examples])
            getattr(self, f"{name}_mean").copy_(rows.mean(0))
            getattr(self, f"{name}_std").copy_(rows.std(0) + 1e-3)

    def forward(self, example: Example, block: int, reach: int, drop: float) -> Tensor:
        """float32 [n_questions, n_blocks]; their softmax is the mass of each block."""
        document, question = (
            functional.dropout(
                (getattr(example, name).float() - getattr(self, f"{name}_mean"))
                / getattr(self, f"{name}_std"),
                drop,
                self.training,
            )
            for name in ("document", "question")
        )
        keys = functional.normalize(self.document(document), dim=1)
        queries = functional.normalize(self.question(question), dim=1)
        near = queries @ keys.T
        n_questions, n_blocks = example.share.shape
        near = functional.pad(near, (0, n_blocks * block - near.shape[1]), value=-1e4)
        near = near.view(len(near), n_blocks, block).amax(-1)
        near = functional.max_pool1d(near[None], 2 * reach + 1, 1, reach)[0]
        weights = functional.softplus(self.importance(question))
        totals = torch.zeros(n_questions, 1).index_add(0, example.owner, weights)
        sums = torch.zeros(n_questions, n_blocks).index_add(0, example.owner, weights * near)
        return sums / totals**self.exponent * self.log_scale.exp()

    @torch.no_grad()
    def folded(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Weight and bias of a projection of inputs as they are, float32."""
        linear = getattr(self, name)
        side = "document" if name == "document" else "question"
        weight = linear.weight / getattr(self, f"{side}_std")
        bias = linear.bias - weight @ getattr(self, f"{side}_mean")
        return weight.numpy(), bias.numpy()


def loss_of(scores: Tensor, example: Example) -> Tensor:
    """How little of the mass is in the needle: its negative logarithm, mean over the questions."""
    masses = torch.softmax(scores, 1)
    return -torch.log((masses * example.share).sum(1) + 1e-9).mean()
