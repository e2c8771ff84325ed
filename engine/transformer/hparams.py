"""The sizes and constants of a model, from a GGUF file's metadata, all of them checked.

Architectures llama, qwen2, qwen3 and gemma3, as llama.cpp reads them (load_hparams in its
llama-model.cpp, and its models/): which keys count, what a missing one means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import REMEDY_DAMAGED, ModelDamaged, ModelUnsupported
from ..gguf.file import GgufMetadata

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
SCALINGS = ("none", "linear", "yarn")

# Far above any real model, far below what would overflow.
MAX_LAYERS = 512
MAX_HEADS = 1024
MAX_HEAD = 512
MAX_EMBEDDING = 1 << 16
MAX_FEED_FORWARD = 1 << 20
MAX_VOCABULARY = 1 << 24
# By how much a layer may widen a hidden state, inside attention or feed-forward network. A pass has
# room for 512 such rows: without a bound a small file could ask for gigabytes.
MAX_WIDENING = 64
MAX_CONTEXT = (1 << 31) - 1
MAX_BASE = 1e15

# What a file may say of a model, and what becomes of it. llama.cpp's loader is the measure
# (load_hparams in its llama-model.cpp, load_arch_hparams in its models/):
# - What it reads and computes with is read below, key by key, or refused where it is not the one
#   value that the engine computes with. These are the counts of ``_NO_EXPERTS``, whose one value is
#   0, and attention.causal; sizes that have to be equal are compared where they are read.
# - What it reads and makes no logits of is not read here: embedding_length_out, pooling_type and
#   classifier.* (of embeddings and scores), expert_group_used_count (of experts),
#   rope.scaling.finetuned (shown only), rope.scaling.alpha (of another architecture's graph).
# - What it does not read of these architectures, whatever others do with it, is not read here
#   either: a file's logits are then those of llama.cpp. Its own files hold such keys with values
#   that are not neutral (llama.final_logit_softcapping 30.0). Among them are
#   attention.clamp_kqv, attention.max_alibi_bias, attention.scale, attention.temperature_*,
#   attn_logit_softcapping, logit_scale, residual_scale, embedding_scale, use_parallel_residual,
#   swiglu_clamp_*, rope.dimension_sections, rope.scaling.yarn_*; and of all but gemma3
#   attention.sliding_window*, rope.freq_base_swa and final_logit_softcapping; *_swa of sizes
#   is read of all, and used with windows only.
_NO_EXPERTS = {
    "expert_count": "a mixture of {} experts",
    "expert_used_count": "{} experts used for a token",
    "expert_group_count": "{} groups of experts",
}

_REMEDY_UNSUPPORTED = f"use a dense model of architecture {', '.join(ARCHITECTURES)}"


@dataclass(frozen=True)
class RopeParams:
    """Rotary position embedding: which numbers turn together, and how fast.

    Attributes
    ----------
    adjacent : pairs are (2i, 2i + 1), as the file's rows are laid out for; else (i, i + n_rot / 2)
    n_rot : numbers of a head that turn, from the first; even
    base : of the angles' frequencies, on global layers
    base_local : the same on sliding-window layers; ``base`` where there are none
    scaling : "none", "linear" or "yarn"; of global layers only
    factor : by which the context was stretched; 1.0 without scaling
    n_ctx_original : tokens of the context before it was stretched
    attn_factor : by which cosine and sine grow on all layers, on top of yarn's own
    ext_factor, beta_fast, beta_slow : yarn's mix, and the turns within ``n_ctx_original`` between
        which it goes from frequencies left alone to frequencies divided by ``factor``
    """

    adjacent: bool
    n_rot: int
    base: float
    base_local: float
    scaling: str = "none"
    factor: float = 1.0
    n_ctx_original: int = 0
    attn_factor: float = 1.0
    ext_factor: float = 0.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class ModelParams:
    """Sizes and constants of a model.

    Attributes
    ----------
    architecture : one of ARCHITECTURES
    n_vocab : tokens of the vocabulary
    n_ctx_train : tokens of the longest text it was trained on
    n_embd : numbers of a hidden state; a multiple of 8
    n_layers : blocks of the trunk, without those of multi-token prediction
    n_nextn : blocks of multi-token prediction, which follow the trunk's in the file
    n_head, n_head_kv : heads of queries, and of keys and values; the first a multiple of the second
    d_head : numbers of a head, of queries, keys and values alike; a multiple of 8
    n_ff : numbers inside the feed-forward network
    eps : what the RMS norms add
    attn_scale : by which queries are multiplied
    embd_scale : by which token embeddings are multiplied
    gelu : the feed-forward gate is GELU (tanh form); else SiLU
    softcap : logits become softcap * tanh(logits / softcap); 0.0 for none
    local : [n_layers], True for a sliding-window layer
    window : tokens that a local layer sees, the present one included; 0 without local layers
    rope : position embedding
    """

    architecture: str
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layers: int
    n_nextn: int
    n_head: int
    n_head_kv: int
    d_head: int
    n_ff: int
    eps: float
    attn_scale: float
    embd_scale: float
    gelu: bool
    softcap: float
    local: tuple[bool, ...]
    window: int
    rope: RopeParams


def read_params(metadata: GgufMetadata, n_vocab: int) -> ModelParams:
    """Read what the engine needs to know of a model with ``n_vocab`` tokens.

    Raises
    ------
    ModelDamaged : a key is missing, of another type, or holds what cannot be.
    ModelUnsupported : an architecture, or a feature of one, that the engine does not know.
    """
    keys = _Keys(metadata, _architecture(metadata))
    _refuse_features(keys)
    keys.check("the vocabulary's size", n_vocab, 1, MAX_VOCABULARY)
    _check_tokens(keys, n_vocab)
    n_blocks = keys.size("block_count", MAX_LAYERS)
    n_nextn = keys.size("nextn_predict_layers", n_blocks - 1, default=0, least=0)
    n_layers = n_blocks - n_nextn
    n_embd = keys.size("embedding_length", MAX_EMBEDDING)
    if n_embd % 8:
        raise keys.unsupported(f"hidden states of {n_embd} numbers, expected a multiple of 8")
    n_head = keys.size("attention.head_count", MAX_HEADS, n_blocks=n_blocks)
    n_head_kv = keys.size("attention.head_count_kv", MAX_HEADS, default=n_head, n_blocks=n_blocks)
    if n_head % n_head_kv:
        raise keys.damaged(
            f"{n_head} heads cannot share {n_head_kv} heads of keys and values evenly"
        )
    d_head = _head_size(keys, n_embd // n_head)
    n_ff = keys.size("feed_forward_length", MAX_FEED_FORWARD, n_blocks=n_blocks)
    for key, width in (("feed_forward_length", n_ff), ("attention.head_count", n_head * d_head)):
        _check_widening(keys, key, width, n_embd)
    local, window = _windows(keys, n_layers, n_blocks)
    n_ctx_train = keys.size("context_length", MAX_CONTEXT)
    is_gemma = keys.architecture == "gemma3"
    # Gemma 3 27B, told by its layers as llama.cpp does, scales as if its heads filled n_embd.
    scaled_size = n_embd // n_head if is_gemma and n_layers == 62 else d_head
    return ModelParams(
        architecture=keys.architecture,
        n_vocab=n_vocab,
        n_ctx_train=n_ctx_train,
        n_embd=n_embd,
        n_layers=n_layers,
        n_nextn=n_nextn,
        n_head=n_head,
        n_head_kv=n_head_kv,
        d_head=d_head,
        n_ff=n_ff,
        eps=keys.real("attention.layer_norm_rms_epsilon", 1e-12, 1.0),
        attn_scale=float(np.float32(1) / np.sqrt(np.float32(scaled_size))),
        embd_scale=float(np.sqrt(np.float32(n_embd))) if is_gemma else 1.0,
        gelu=is_gemma,
        softcap=_softcap(keys) if is_gemma else 0.0,
        local=local,
        window=window,
        rope=_rope(keys, d_head, n_ctx_train, any(local)),
    )


class _Keys:
    """The metadata of one architecture, read by key without its name before it."""

    def __init__(self, metadata: GgufMetadata, architecture: str) -> None:
        self.metadata, self.architecture = metadata, architecture

    def damaged(self, what: str) -> ModelDamaged:
        return ModelDamaged(f"{self.metadata.path}: {what}", remedy=REMEDY_DAMAGED)

    def unsupported(self, what: str) -> ModelUnsupported:
        return ModelUnsupported(f"{self.metadata.path}: {what}", remedy=_REMEDY_UNSUPPORTED)

    def name(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def size(
        self,
        key: str,
        most: int,
        *,
        least: int = 1,
        default: int | None = None,
        n_blocks: int | None = None,
    ) -> int:
        """A whole number from ``least`` to ``most``; required if it has no default.

        With ``n_blocks`` an array with a number for each block may stand for it, if all of them
        are equal.
        """
        name = self.name(key)
        if n_blocks is not None and isinstance(self.metadata.values.get(name), np.ndarray):
            value: int | None = self._same_for_all(name, n_blocks)
        else:
            value = self.metadata.integer(name)
        value = default if value is None else value
        if value is None:
            raise self.damaged(f"'{name}' is missing")
        self.check(f"'{name}'", value, least, most)
        return value

    def largest(self, key: str) -> int:
        """A whole number, or the largest of an array of them; 0 without the key."""
        name = self.name(key)
        if not isinstance(self.metadata.values.get(name), np.ndarray):
            return self.metadata.integer(name) or 0
        values = self.metadata.numbers(name)
        assert values is not None
        if values.dtype.kind not in "iu":
            raise self.damaged(
                f"'{name}' holds numbers of type {values.dtype}, expected whole ones"
            )
        return int(values.max(initial=0))

    def _same_for_all(self, name: str, n_blocks: int) -> int:
        values = self.metadata.numbers(name)
        assert values is not None
        if values.dtype.kind not in "iu" or values.size != n_blocks:
            raise self.damaged(
                f"'{name}' is an array of {values.size} numbers of type {values.dtype}, expected "
                f"{n_blocks} whole numbers"
            )
        if (values != values[0]).any():
            raise self.unsupported(f"'{name}' differs between layers")
        return int(values[0])

    def real(self, key: str, least: float, most: float, default: float | None = None) -> float:
        """A number from ``least`` to ``most``; required if it has no default."""
        name = self.name(key)
        value = self.metadata.real(name)
        if value is None:
            if default is None:
                raise self.damaged(f"'{name}' is missing")
            return default
        if not least <= value <= most:  # as NaN is not
            raise self.damaged(f"'{name}' is {value}, expected {least} to {most}")
        return value

    def check(self, what: str, value: int, least: int, most: int) -> None:
        if not least <= value <= most:
            raise self.damaged(f"{what} is {value}, expected {least} to {most}")


def _architecture(metadata: GgufMetadata) -> str:
    architecture = metadata.text("general.architecture")
    if architecture is None:
        raise ModelDamaged(
            f"{metadata.path}: 'general.architecture' is missing", remedy=REMEDY_DAMAGED
        )
    if architecture not in ARCHITECTURES:
        raise ModelUnsupported(
            f"{metadata.path} is of architecture {architecture[:64]!r}, which the engine does not "
            "know",
            remedy=_REMEDY_UNSUPPORTED,
        )
    return architecture


def _refuse_features(keys: _Keys) -> None:
    """Refuse what would be computed wrongly, not what llama.cpp ignores as well."""
    for key, what in _NO_EXPERTS.items():
        found = keys.largest(key)
        if found:
            raise keys.unsupported(f"{what.format(found)} ('{keys.name(key)}')")
    if keys.metadata.flag(keys.name("attention.causal")) is False:
        raise keys.unsupported("attention that is not causal, as in models of embeddings")


def _check_tokens(keys: _Keys, n_vocab: int) -> None:
    """A model without a text for a token it may choose, or the other way round."""
    tokens = keys.metadata.strings("tokenizer.ggml.tokens")
    if tokens is not None and len(tokens) != n_vocab:
        raise keys.damaged(
            f"the vocabulary has {len(tokens)} tokens, but the model computes with {n_vocab}"
        )


def _check_widening(keys: _Keys, key: str, width: int, n_embd: int) -> None:
    if width > MAX_WIDENING * n_embd:
        raise keys.unsupported(
            f"'{keys.name(key)}' makes {width} numbers of the {n_embd} of a hidden state, expected "
            f"at most {MAX_WIDENING} times as many"
        )


def _head_size(keys: _Keys, evenly: int) -> int:
    """Numbers of a head; ``evenly`` is what they are without keys that say so."""
    d_head = keys.size("attention.key_length", MAX_EMBEDDING, default=evenly)
    others = {"attention.value_length": evenly}
    if keys.architecture == "gemma3":  # the others have no layers with a window
        others |= {"attention.key_length_swa": d_head, "attention.value_length_swa": d_head}
    for key, default in others.items():
        found = keys.size(key, MAX_EMBEDDING, default=default)
        if found != d_head:
            raise keys.unsupported(
                f"'{keys.name(key)}' is {found}, but keys have {d_head} numbers a head"
            )
    if d_head > MAX_HEAD or d_head % 8:
        raise keys.unsupported(
            f"heads of {d_head} numbers, expected a multiple of 8, at most {MAX_HEAD}"
        )
    return d_head


def _windows(keys: _Keys, n_layers: int, n_blocks: int) -> tuple[tuple[bool, ...], int]:
    """Which layers see a window only, and how long it is."""
    everywhere = (False,) * n_layers, 0
    if keys.architecture != "gemma3":  # llama.cpp reads it for no other of these
        return everywhere
    window = keys.size("attention.sliding_window", MAX_CONTEXT, default=0, least=0)
    if window == 0:
        return everywhere
    name = keys.name("attention.sliding_window_pattern")
    pattern = keys.metadata.values.get(name)
    if isinstance(pattern, np.ndarray):
        if pattern.dtype.kind not in "biu" or pattern.size not in (n_layers, n_blocks):
            raise keys.damaged(
                f"'{name}' is an array of {pattern.size} values of type {pattern.dtype}, expected "
                f"{n_blocks} truth values or whole numbers"
            )
        local = tuple((pattern[:n_layers] != 0).tolist())
    else:
        # Every so many layers, the last one is global; 0 for none.
        every = keys.size("attention.sliding_window_pattern", MAX_CONTEXT, default=6, least=0)
        local = tuple(every == 0 or layer % every < every - 1 for layer in range(n_layers))
    return (local, window) if any(local) else everywhere


def _softcap(keys: _Keys) -> float:
    # Zero stands for none.
    return keys.real("final_logit_softcapping", 0.0, 1e6, default=0.0)


def _rope(keys: _Keys, d_head: int, n_ctx_train: int, has_local: bool) -> RopeParams:
    scaling, factor = _rope_scaling(keys)
    base = keys.real("rope.freq_base", 2.0, MAX_BASE, default=10000.0)
    base_local = base
    if has_local:
        base_local = keys.real("rope.freq_base_swa", 2.0, MAX_BASE, default=10000.0)
    n_ctx_original = keys.size(
        "rope.scaling.original_context_length", MAX_CONTEXT, default=n_ctx_train, least=0
    )
    return RopeParams(
        adjacent=keys.architecture == "llama",
        n_rot=_turning(keys, d_head),
        base=base,
        base_local=base_local,
        scaling=scaling,
        factor=factor,
        n_ctx_original=n_ctx_original or n_ctx_train,
        attn_factor=keys.real("rope.scaling.attn_factor", 1e-3, 1e3, default=1.0),
        # llama.cpp reads no yarn_* key for these architectures: the mix is the full one, the
        # betas are those of RopeParams.
        ext_factor=1.0 if scaling == "yarn" else 0.0,
    )


def _rope_scaling(keys: _Keys) -> tuple[str, float]:
    """Kind and factor; the factor is 1.0 where nothing is scaled."""
    name = keys.name("rope.scaling.type")
    scaling = keys.metadata.text(name)
    scaling = "linear" if scaling is None else scaling
    if scaling not in SCALINGS:
        raise keys.unsupported(
            f"'{name}' is {scaling[:64]!r}, and of rope scalings {', '.join(SCALINGS)} are known"
        )
    # The second is the older name of the first. Zero stands for no scaling.
    found = "rope.scaling.factor", "rope.scale_linear"
    key = next((key for key in found if keys.name(key) in keys.metadata.values), found[0])
    factor = keys.real(key, 0.0, 1e6, default=0.0) or 1.0
    if scaling == "yarn" and factor < 1:
        raise keys.damaged(f"'{keys.name(key)}' is {factor}, expected 1 or more for yarn")
    if scaling == "none" or (scaling == "linear" and factor == 1):
        return "none", 1.0
    return scaling, factor


def _turning(keys: _Keys, d_head: int) -> int:
    """Numbers of a head that turn with the position."""
    n_rot = keys.size("rope.dimension_count", d_head, default=d_head)
    if n_rot % 2:
        raise keys.damaged(f"'{keys.name('rope.dimension_count')}' is {n_rot}, an odd number")
    if keys.architecture == "llama" and n_rot != d_head:
        raise keys.unsupported(
            f"'{keys.name('rope.dimension_count')}' is {n_rot}, expected the {d_head} of a head"
        )
    n_rot_local = keys.size("rope.dimension_count_swa", MAX_EMBEDDING, default=n_rot)
    if n_rot_local != n_rot and keys.architecture == "gemma3":
        raise keys.unsupported(
            f"'{keys.name('rope.dimension_count_swa')}' is {n_rot_local}, and {n_rot} on other "
            "layers"
        )
    return n_rot
