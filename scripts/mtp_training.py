"""Training of an MTP head: closed-form start, then distillation over several steps at once."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from mtp_batches import Batch, Shards, Target
from mtp_model import Head, SoftCrossEntropy
from torch import Tensor

STEP_WEIGHT = 0.8  # of a step's loss, against the one before
RIDGE = 1e-3
SCALE = 20.0  # root mean square of the first u: a residual stream's own; less, and Adam undoes it


def start_head(target: Target, shards: Shards, n_batches: int = 24, n_rows: int = 8) -> Head:
    """A head that predicts the target's next state by least squares, and whose block adds nothing.

    The block's matrices are the target's last block's, but for the two that write to the
    residual stream.
    """
    head = Head(target.sizes)
    block = f"blk.{target.params.n_layers - 1}."
    with torch.no_grad():
        for name in ("attn_norm", "attn_q", "attn_k", "attn_v", "ffn_norm", "ffn_gate", "ffn_up"):
            parameter = getattr(head, name)
            parameter.copy_(target.tensor(f"{block}{name}.weight").view_as(parameter))
        head.shared_head_norm.copy_(target.output_norm)
        first, following = _Ridge(), _Ridge()
        for batch, _ in zip(shards.batches(n_rows, 12345, 0), range(n_batches), strict=False):
            e = target.embeddings[batch.tokens]
            # the state before its norm is not kept: the norm's own direction does as well
            y = batch.wanted / target.output_norm
            first.add(head.inputs_first(e, batch.hidden, batch.features), y)
            following.add(head.inputs_next(e, batch.hidden), y)
        head.eh_proj_first.copy_(SCALE * first.solve())
        head.eh_proj.copy_(SCALE * following.solve())
    return head


class _Ridge:
    """W of least |W a - y|^2 + n RIDGE |W|^2."""

    def __init__(self) -> None:
        self._aa: Tensor | float = 0.0
        self._ya: Tensor | float = 0.0
        self._n = 0

    def add(self, a: Tensor, y: Tensor) -> None:
        a, y = a.flatten(0, -2).double(), y.flatten(0, -2).double()
        self._aa = self._aa + a.T @ a
        self._ya = self._ya + y.T @ a
        self._n += len(a)

    def solve(self) -> Tensor:
        eye = torch.eye(self._aa.shape[0], dtype=torch.float64)
        return torch.linalg.solve(self._aa + RIDGE * self._n * eye, self._ya.T).T.float()


def steps_loss(
    head: Head, target: Target, matrix: Tensor, batch: Batch, n_steps: int, share: float, seed: int
) -> tuple[Tensor, list[tuple[float, float, int]]]:
    """The weighted loss a place, and of each step its summed loss, hits and number of places.

    Step 1 starts everywhere; a further one goes on from a random ``share`` of the places, fed with
    the head's own output and the true token, as after a draft that was right so far.
    """
    n_batch, n_places = batch.tokens.shape
    places = torch.arange(1, n_places + 1).expand(n_batch, -1)
    e = target.embeddings[batch.tokens]
    u = head.inputs_first(e, batch.hidden, batch.features) @ head.eh_proj_first.T
    q, k, v = head.qkv(u, places)
    seen = torch.ones(n_places, n_places, dtype=torch.bool).tril().expand(n_batch, -1, -1)
    n = head.finish(u, head.attend(q, k, v, seen, []))
    loss, told = _place_loss(n, batch, matrix, batch.learn, torch.arange(n_places))
    total, records = loss, [told]
    generator = torch.Generator().manual_seed(seed)
    n_starts = max(1, int(share * (n_places - n_steps)))
    starts = torch.randperm(n_places - n_steps, generator=generator)[:n_starts].sort().values
    state, chain = n[:, starts], []
    good = batch.learn[:, starts]
    for step in range(1, n_steps):
        here = starts + step
        u = head.inputs_next(e[:, here], state) @ head.eh_proj.T
        q, own_k, own_v = head.qkv(u, places[:, here])
        chain.append((own_k, own_v))
        attended = head.attend(q, k, v, seen[:, starts], chain)
        state = head.finish(u, attended)
        good = good & batch.learn[:, here]
        loss, told = _place_loss(state, batch, matrix, good, here)
        total = total + STEP_WEIGHT**step * loss
        records.append(told)
    return total, records


def _place_loss(
    n: Tensor, batch: Batch, matrix: Tensor, good: Tensor, here: Tensor
) -> tuple[Tensor, tuple[float, float, int]]:
    count = int(good.sum())
    if not count:
        return n.sum() * 0.0, (0.0, 0.0, 0)
    loss, hits = SoftCrossEntropy.apply(n[good], batch.wanted[:, here][good], matrix)
    return loss / count, (float(loss.detach()), float(hits), count)


def learning_rate(step: int, n_steps: int, most: float, warm_up: int, decay: float) -> float:
    """Constant but for its ends: training can go on from before the decay, with more data."""
    if step < warm_up:
        return most * (step + 1) / warm_up
    left = (n_steps - step) / max(1.0, decay * n_steps)
    return most * min(1.0, left)


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal (Jordan et al. 2024), for matrices; scaled as in Liu et al. 2025."""

    def __init__(
        self,
        parameters: Iterator[Tensor],
        lr: float,
        momentum: float = 0.95,
        products: torch.dtype = torch.float32,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": 0.02, "products": products}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["average"] = torch.zeros_like(parameter)
                average = state["average"]
                average.lerp_(parameter.grad, 1 - group["momentum"])
                turned = parameter.grad.lerp(average, group["momentum"])
                update = orthogonal(turned.to(group["products"])).float()
                update *= 0.2 * math.sqrt(max(parameter.shape))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"])


def orthogonal(x: Tensor) -> Tensor:
    """The nearest matrix with singular values of about 1, by five Newton-Schulz steps."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x
