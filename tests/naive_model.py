"""The slow, obvious forward pass of the four architectures, in float64 NumPy.

A GGUF path and token ids in, logits out. Weights come from gguf's own reader and dequantisation,
and nothing from the engine: a mistake would have to be made twice, in two ways.
tests/test_engine_model_peer.py holds it against llama.cpp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize
from numpy.typing import ArrayLike, NDArray

Reals = NDArray[np.float64]

# What an engine does to the numbers that it multiplies with a matrix, by the matrix's type: rounds
# them to int8 in blocks of so many with a float16 ("32") or float32 ("256") scale, or to a float
# type. "none" is no engine's.
ROUNDINGS: dict[str, dict[str, str]] = {
    "none": {},
    "engine": dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"), "32"),
    "llama.cpp": {
        **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"), "32"),
        **dict.fromkeys(("Q4_K", "Q5_K", "Q6_K"), "256"),
        "F16": "F16",
        "BF16": "BF16",
    },
}
# Types whose least value of a block is multiplied with the block's own sum of activations, and
# how that sum is rounded.
SUMS: dict[str, dict[str, str]] = {
    "none": {},
    "engine": {"Q4_0": "F16", "Q4_1": "F16", "Q4_K": "F16", "Q5_1": "F32", "Q5_K": "F32"},
    "llama.cpp": {"Q4_1": "F16", "Q5_1": "F16"},
}
# Where the quants lie in a block of such a type.
_QUANTS = {"Q4_0": (2, 18), "Q4_1": (4, 20), "Q5_1": (4, 24), "Q4_K": (16, 144), "Q5_K": (16, 176)}


@dataclass
class Trace:
    """What the layers of one pass computed.

    Attributes
    ----------
    entered : float64 [n, n_embd] a layer, what the layer got
    queries, keys : float64 [n, heads, d_head] a layer, after the norm of heads, before RoPE
    turned_queries, turned_keys : the same after RoPE
    hidden, normed : float64 [n, n_embd], before and after the last norm
    logits : float64 [n, n_vocab]
    """

    entered: list[Reals] = field(default_factory=list)
    queries: list[Reals] = field(default_factory=list)
    keys: list[Reals] = field(default_factory=list)
    turned_queries: list[Reals] = field(default_factory=list)
    turned_keys: list[Reals] = field(default_factory=list)
    hidden: Reals = field(default_factory=lambda: np.empty((0, 0)))
    normed: Reals = field(default_factory=lambda: np.empty((0, 0)))
    logits: Reals = field(default_factory=lambda: np.empty((0, 0)))


def forward(path: Path, tokens: ArrayLike, **options: Any) -> Reals:
    """Return the logits float64 [n, n_vocab] of the tokens of one text, at positions 0, 1, ..."""
    return NaiveModel(path).trace(tokens, **options).logits


def log_softmax(logits: ArrayLike) -> Reals:
    """Log-probabilities of each row, float64."""
    x = np.asarray(logits, np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


class NaiveModel:
    """All weights of a GGUF (of one part) as float64."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self.metadata: dict[str, Any] = {
            name: value.contents() for name, value in reader.fields.items()
        }
        self.architecture = self.metadata["general.architecture"]
        self.weights: dict[str, Reals] = {}
        self.leasts: dict[str, Reals] = {}  # of each block of 32, what its quant 0 stands for
        self.types: dict[str, str] = {}
        for tensor in reader.tensors:
            is_weights = tensor.tensor_type.name != "I32"
            values = np.array(tensor.data)
            values = dequantize(values, tensor.tensor_type) if is_weights else values
            self.weights[tensor.name] = values.astype(np.float64)
            self.types[tensor.name] = kind = tensor.tensor_type.name
            if kind in _QUANTS:
                blocks = np.array(tensor.data).reshape(-1, GGML_QUANT_SIZES[tensor.tensor_type][1])
                blocks[:, slice(*_QUANTS[kind])] = 0
                least = dequantize(blocks, tensor.tensor_type).reshape(values.shape)
                self.leasts[tensor.name] = least[:, ::32].astype(np.float64)
        self.n_layers = self.key("block_count") - self.key("nextn_predict_layers", 0)
        self.n_embd = self.key("embedding_length")
        self.n_head = self.key("attention.head_count")
        self.n_head_kv = self.key("attention.head_count_kv", self.n_head)
        self.d_head = self.key("attention.key_length", self.n_embd // self.n_head)
        self.eps = self.key("attention.layer_norm_rms_epsilon")
        self.gemma = self.architecture == "gemma3"

    def key(self, name: str, default: Any = None) -> Any:
        """The value of a key of the architecture."""
        return self.metadata.get(f"{self.architecture}.{name}", default)

    def trace(self, tokens: ArrayLike, *, half_cache: bool = True, rounding: str = "none") -> Trace:
        """Run the pass and keep what it computes.

        Parameters
        ----------
        half_cache : keep keys and values as float16, as both engines do
        rounding : "engine" or "llama.cpp" round what is multiplied with a matrix as that does, so
            that only the order of float additions is left to differ
        """
        self.half_cache, self.rounding = half_cache, rounding
        found = Trace()
        x = self.weights["token_embd.weight"][np.asarray(tokens, np.int64)]
        if self.gemma:
            x = x * math.sqrt(self.n_embd)
        for il in range(self.n_layers):
            found.entered.append(x)
            x = self.layer(il, x, found)
        found.hidden = x
        found.normed = self.norm(x, "output_norm")
        head = "output" if "output.weight" in self.weights else "token_embd"
        found.logits = self.bare_product(found.normed, head) + self.weights.get("output.bias", 0.0)
        cap = self.key("final_logit_softcapping", 0.0)
        if cap:
            found.logits = cap * np.tanh(found.logits / cap)
        return found

    def layer(self, il: int, x: Reals, found: Trace) -> Reals:
        """What a block makes of x, float64 [n, n_embd]."""
        branch = self.attention(il, self.norm(x, f"blk.{il}.attn_norm"), found)
        x = x + self.optional_norm(branch, f"blk.{il}.post_attention_norm")
        branch = self.feed_forward(il, self.norm(x, f"blk.{il}.ffn_norm"))
        return x + self.optional_norm(branch, f"blk.{il}.post_ffw_norm")

    def product(self, x: Reals, name: str) -> Reals:
        """x times a matrix, with its bias and its factor if there are such.

        As llama.cpp does: the feed-forward's factors take the bias in, and are those of llama and
        qwen3 only; the others do not.
        """
        bias, scale = self.weights.get(f"{name}.bias", 0.0), self.weights.get(f"{name}.scale", 1.0)
        if ".ffn_" not in name:
            return self.bare_product(x, name) * scale + bias
        has_scales = self.architecture in ("llama", "qwen3")
        return (self.bare_product(x, name) + bias) * (scale if has_scales else 1.0)

    def bare_product(self, x: Reals, name: str) -> Reals:
        """x times a matrix."""
        weights, kind = self.weights[f"{name}.weight"], self.types[f"{name}.weight"]
        how = ROUNDINGS[self.rounding].get(kind)
        if how is None:
            y = x @ weights.T
        elif how in ("F16", "BF16"):
            y = as_float(x, how) @ weights.T
        else:
            whole, scale = as_int8(x, int(how))
            single = scale if how == "256" else as_float(scale, "F16")
            y = (whole * single).reshape(x.shape) @ weights.T
            if kind in SUMS[self.rounding]:
                sums = whole.sum(axis=-1, keepdims=True)
                change = as_float(sums * scale, SUMS[self.rounding][kind]) - sums * single
                y += change[..., 0] @ self.leasts[f"{name}.weight"].T
        return y

    def norm(self, x: Reals, name: str) -> Reals:
        """RMSNorm over the last axis."""
        mean = (x * x).mean(axis=-1, keepdims=True)
        return x / np.sqrt(mean + self.eps) * self.weights[f"{name}.weight"]

    def optional_norm(self, x: Reals, name: str) -> Reals:
        return self.norm(x, name) if f"{name}.weight" in self.weights else x

    def queries_keys_values(self, il: int, x: Reals) -> list[Reals]:
        """float64 [n, heads, d_head] each."""
        counts = (self.n_head, self.n_head_kv, self.n_head_kv)
        if f"blk.{il}.attn_qkv.weight" in self.weights:
            fused = self.product(x, f"blk.{il}.attn_qkv")
            apart = [self.weights.get(f"blk.{il}.attn_{letter}.bias") for letter in "qkv"]
            if all(bias is not None for bias in apart):
                fused = fused + np.concatenate(apart)  # type: ignore[arg-type]
            ends = np.cumsum(np.array(counts) * self.d_head)[:-1]
            parts = np.split(fused, ends, axis=1)
        else:
            parts = [self.product(x, f"blk.{il}.attn_{letter}") for letter in "qkv"]
        return [part.reshape(len(x), -1, self.d_head) for part in parts]

    def attention(self, il: int, x: Reals, found: Trace) -> Reals:
        q, k, v = self.queries_keys_values(il, x)
        q = self.optional_norm(q, f"blk.{il}.attn_q_norm")
        k = self.optional_norm(k, f"blk.{il}.attn_k_norm")
        found.queries.append(q)
        found.keys.append(k)
        cos, sin = self.turns(il, len(x))
        q, k = self.rotated(q, cos, sin), self.rotated(k, cos, sin)
        found.turned_queries.append(q)
        found.turned_keys.append(k)
        if self.half_cache:
            k, v = (part.astype(np.float16).astype(np.float64) for part in (k, v))
        out = np.empty_like(q)
        for head in range(self.n_head):
            kv_head = head // (self.n_head // self.n_head_kv)
            scores = q[:, head] @ k[:, kv_head].T * self.attention_scale
            seen = self.seen_by(il, head, q[:, head], k[:, kv_head])
            scores = np.where(seen, scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, head] = weights / weights.sum(axis=1, keepdims=True) @ v[:, kv_head]
        return self.product(out.reshape(len(x), -1), f"blk.{il}.attn_output")

    @property
    def attention_scale(self) -> float:
        # Gemma 3 of 27B, which llama.cpp knows by its 62 layers, scales by another width.
        if self.gemma and self.n_layers == 62:
            return 1 / math.sqrt(self.n_embd // self.n_head)
        return 1 / math.sqrt(self.d_head)

    def is_local(self, il: int) -> bool:
        """Whether a layer has a sliding window."""
        if not self.gemma or not self.key("attention.sliding_window", 0) or il >= self.n_layers:
            return False  # as blocks of multi-token prediction have none
        pattern = self.key("attention.sliding_window_pattern", 6)
        if isinstance(pattern, list):
            return bool(pattern[il])
        return pattern == 0 or il % pattern < pattern - 1

    def seen_by(self, il: int, head: int, q: Reals, k: Reals) -> NDArray[np.bool_]:
        """bool [query, key] of one head; q and k float64 [n, d_head], as it multiplies them."""
        return self.seen(il, len(q))

    def seen(self, il: int, n: int) -> NDArray[np.bool_]:
        """bool [query, key]."""
        back = np.arange(n)[:, None] - np.arange(n)[None, :]
        seen = back >= 0
        if self.is_local(il):
            seen &= back < self.key("attention.sliding_window")
        return seen

    def turns(self, il: int, n: int) -> tuple[Reals, Reals]:
        """Cosines and sines float64 [n, n_rot / 2], times YaRN's magnitude."""
        n_rot = self.key("rope.dimension_count", self.d_head)
        base = self.key("rope.freq_base", 10000.0)
        kind = self.key("rope.scaling.type", "linear")
        factor = self.key("rope.scaling.factor", self.key("rope.scale_linear", 0.0)) or 1.0
        if kind == "none":
            factor = 1.0
        local = self.is_local(il)
        if local:
            base = self.key("rope.freq_base_swa", 10000.0)
        pair = np.arange(n_rot // 2)
        angles = np.arange(n)[:, None] * base ** (-2.0 * pair / n_rot)[None, :]
        angles = angles / self.weights.get("rope_freqs.weight", 1.0)
        magnitude = self.key("rope.scaling.attn_factor", 1.0)
        if local:
            return np.cos(angles) * magnitude, np.sin(angles) * magnitude
        slow = angles / factor
        if kind == "yarn":
            n_ctx = self.key("context_length")
            mix = yarn_mix(n_rot, base, self.key("rope.scaling.original_context_length", n_ctx))
            slow = slow * (1 - mix) + angles * mix
            magnitude *= 1 + 0.1 * math.log(max(factor, 1.0))
        return np.cos(slow) * magnitude, np.sin(slow) * magnitude

    def rotated(self, x: Reals, cos: Reals, sin: Reals) -> Reals:
        """Turn each pair of x [n, heads, d_head]: neighbours for llama, else of the two halves."""
        n_pairs = cos.shape[1]
        pairs = np.arange(n_pairs)
        if self.architecture == "llama":
            first, second = 2 * pairs, 2 * pairs + 1
        else:
            first, second = pairs, pairs + n_pairs
        cos, sin = cos[:, None, :], sin[:, None, :]
        out = x.copy()
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., first] * sin + x[..., second] * cos
        return out

    def feed_forward(self, il: int, x: Reals) -> Reals:
        gate = self.product(x, f"blk.{il}.ffn_gate")
        up = self.product(x, f"blk.{il}.ffn_up")
        if self.gemma and self.rounding == "llama.cpp":  # it looks GELU up in a table
            inside = as_float(gelu(as_float(gate, "F16")), "F16")
            active = np.where(np.abs(gate) < 10, inside, np.maximum(gate, 0))
        elif self.gemma:
            active = gelu(gate)
        else:
            active = gate / (1 + np.exp(-gate))
        return self.product(active * up, f"blk.{il}.ffn_down")


def gelu(x: Reals) -> Reals:
    """GELU in the form with tanh."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def yarn_mix(n_rot: int, base: float, n_ctx_original: int) -> Reals:
    """How much of each pair's own angle YaRN keeps, float64 [n_rot / 2] (Peng et al. 2023)."""

    def pair_of(n_turns: float) -> float:
        return n_rot * math.log(n_ctx_original / (n_turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(0, math.floor(pair_of(32)))
    high = min(n_rot - 1, math.ceil(pair_of(1)))
    return 1 - np.clip((np.arange(n_rot // 2) - low) / max(0.001, high - low), 0, 1)


def as_int8(x: Reals, block: int) -> tuple[Reals, Reals]:
    """x [n, m] as integers [n, m / block, block] of -127 to 127, and their scales [.., 1]."""
    blocks = x.reshape(len(x), -1, block)
    top = np.abs(blocks).max(axis=-1, keepdims=True)
    scale = top / 127
    return np.rint(blocks / np.where(top > 0, scale, 1.0)), scale


def as_float(x: Reals, kind: str) -> Reals:
    """x rounded to float32, float16 or bfloat16."""
    if kind != "BF16":
        return x.astype({"F32": np.float32, "F16": np.float16}[kind]).astype(np.float64)
    bits = x.astype(np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)
