"""An MTP head in torch, as it is trained: the computation of mtp/head.py with gradients.

u = W [norm(e) ; norm(h)], one decoder block of architecture llama, a norm, the target's own output
matrix restricted to the draft vocabulary. Where the hidden states come from the trunk, u is made by
a matrix of its own, from two more layers' states: what EAGLE-3 (Li et al. 2025) showed to help.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """Of the target's blocks; ``features`` are layers whose input is given too."""

    n_embd: int
    n_head: int
    n_head_kv: int
    d_head: int
    n_ff: int
    eps: float
    rope_base: float
    features: tuple[int, ...]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


class Head(nn.Module):
    """The trained numbers, under the names of the GGUF tensors they become."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        s = self.sizes = sizes
        n, k = s.n_embd, len(s.features)

        def matrix(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(rows, columns))

        def ones(size: int) -> nn.Parameter:
            return nn.Parameter(torch.ones(size))

        self.enorm, self.hnorm, self.feature_norm = ones(n), ones(n), ones(k * n)
        self.eh_proj = matrix(n, 2 * n)
        self.eh_proj_first = matrix(n, (2 + k) * n)
        self.attn_norm, self.ffn_norm, self.shared_head_norm = ones(n), ones(n), ones(n)
        self.attn_q = matrix(s.n_head * s.d_head, n)
        self.attn_k = matrix(s.n_head_kv * s.d_head, n)
        self.attn_v = matrix(s.n_head_kv * s.d_head, n)
        self.attn_output = matrix(n, s.n_head * s.d_head)
        self.ffn_gate, self.ffn_up = matrix(s.n_ff, n), matrix(s.n_ff, n)
        self.ffn_down = matrix(n, s.n_ff)

    def inputs_first(self, e: Tensor, h: Tensor, features: Tensor) -> Tensor:
        """[..., (2 + k) n] of embeddings, hidden states [..., n] and features [..., k, n]."""
        eps = self.sizes.eps
        k = len(self.sizes.features)
        parts = [rms_norm(e, self.enorm, eps), rms_norm(h, self.hnorm, eps)]
        weights = self.feature_norm.view(k, -1) if k else ()
        parts += [rms_norm(features[..., i, :], weights[i], eps) for i in range(k)]
        return torch.cat(parts, -1)

    def inputs_next(self, e: Tensor, h: Tensor) -> Tensor:
        """[..., 2 n], of a step after another."""
        eps = self.sizes.eps
        return torch.cat((rms_norm(e, self.enorm, eps), rms_norm(h, self.hnorm, eps)), -1)

    def qkv(self, u: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, heads, S, d], keys and values [B, kv heads, S, d] of u [B, S, n]."""
        s = self.sizes
        x = rms_norm(u, self.attn_norm, s.eps)

        def heads(weight: Tensor, n_heads: int) -> Tensor:
            return (x @ weight.T).unflatten(-1, (n_heads, s.d_head)).transpose(1, 2)

        q, k = heads(self.attn_q, s.n_head), heads(self.attn_k, s.n_head_kv)
        return self._turn(q, places), self._turn(k, places), heads(self.attn_v, s.n_head_kv)

    def _turn(self, x: Tensor, places: Tensor) -> Tensor:
        """RoPE of neighbouring pairs; places [B, S]."""
        d = self.sizes.d_head
        speeds = self.sizes.rope_base ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
        angles = places[:, None, :, None].float() * speeds
        cos, sin = angles.cos(), angles.sin()
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

    def finish(self, u: Tensor, attended: Tensor) -> Tensor:
        """The normed output [B, S, n] of the block, given attention's result [B, heads, S, d]."""
        s = self.sizes
        y = u + attended.transpose(1, 2).flatten(-2) @ self.attn_output.T
        x = rms_norm(y, self.ffn_norm, s.eps)
        x = torch.nn.functional.silu(x @ self.ffn_gate.T) * (x @ self.ffn_up.T)
        return rms_norm(y + x @ self.ffn_down.T, self.shared_head_norm, s.eps)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, chain: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """Attention [B, heads, S, d] to the text's keys where ``seen`` [B, S, T], and to a chain.

        ``chain``: keys and values [B, kv heads, S, d] of a query's own earlier steps.
        """
        s = self.sizes
        group = s.n_head // s.n_head_kv
        batch, _, n, d = q.shape
        rows = q.view(batch, s.n_head_kv, group * n, d) / math.sqrt(d)
        scores = (rows @ k.transpose(-1, -2)).view(batch, s.n_head_kv, group, n, -1)
        scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
        rows = rows.view(batch, s.n_head_kv, group, n, d)
        own = [(rows * key[:, :, None]).sum(-1, keepdim=True) for key, _ in chain]
        weights = torch.cat((scores, *own), -1).softmax(-1)
        n_text = k.shape[2]
        out = weights[..., :n_text].reshape(batch, s.n_head_kv, group * n, n_text) @ v
        out = out.view(batch, s.n_head_kv, group, n, d)
        for i, (_, value) in enumerate(chain):
            out = out + weights[..., n_text + i, None] * value[:, :, None]
        return out.reshape(batch, s.n_head, n, d)


class SoftCrossEntropy(torch.autograd.Function):
    """Sum over rows of the cross-entropy to the target's own distribution, in the draft vocabulary.

    The gradient is made on the way forward, so that no [rows, vocabulary] array has to be kept.
    """

    @staticmethod
    def forward(ctx, n: Tensor, wanted: Tensor, matrix: Tensor, chunk: int = 512):
        """n, wanted [rows, n_embd]: the head's normed outputs, and the target's."""
        gradient = torch.empty_like(n)
        loss, hits = 0.0, 0
        for start in range(0, n.shape[0], chunk):
            rows = slice(start, start + chunk)
            # products may be bfloat16 (autocast); sums of 8192 exponentials may not
            logits = (n[rows] @ matrix.T).float()
            target = (wanted[rows] @ matrix.T).float()
            hits += (logits.argmax(-1) == target.argmax(-1)).sum().item()
            p = target.softmax(-1)
            total = logits.logsumexp(-1, keepdim=True)
            loss += (total.squeeze(-1) - (p * logits).sum(-1)).sum().item()
            gradient[rows] = ((logits - total).exp_() - p) @ matrix
        ctx.save_for_backward(gradient)
        return torch.tensor(loss), torch.tensor(hits)

    @staticmethod
    def backward(ctx, grad, _):
        (gradient,) = ctx.saved_tensors
        return grad * gradient, None, None, None
