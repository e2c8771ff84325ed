"""The vocabulary of a GGUF file: tokens, their attributes, special ids and flags.

Checks what the file says, then makes the same corrections that llama.cpp (build 11434) makes
while it loads a vocabulary: they decide which tokens are cut out of a text before all else.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

from ..errors import (
    REMEDY_CONVERT,
    ModelDamaged,
    ModelHasNoTokenizer,
    ModelUnsupported,
)
from ..gguf.file import GgufMetadata, GgufStrings
from ..gguf.kinds import check_is_model
from .pretokenizers import PRE_TOKENIZERS, PreTokenizer

KNOWN_MODELS = ("gpt2", "llama")
ESCAPED_SPACE = "\u2581".encode()  # what SPM vocabularies write for a space
# Real ones have a few: each costs some thirty times its bytes in the file, for it gets a name.
MAX_EMPTY_TOKENS = 1 << 16


class Attribute(IntFlag):
    """What a token is; several may hold after the corrections."""

    UNKNOWN = 1
    UNUSED = 2
    NORMAL = 4
    CONTROL = 8
    USER_DEFINED = 16
    BYTE = 32
    STRIP_LEFT = 64
    STRIP_RIGHT = 128


# Those that are no part of a text unless it is asked for.
HIDDEN = Attribute.UNKNOWN | Attribute.CONTROL
SPECIAL = HIDDEN | Attribute.USER_DEFINED

# Attribute by token type of the file; any other type has none.
_ATTRIBUTE_OF_TYPE = np.zeros(7, np.uint8)
_ATTRIBUTE_OF_TYPE[1:] = (
    Attribute.NORMAL,
    Attribute.UNKNOWN,
    Attribute.CONTROL,
    Attribute.USER_DEFINED,
    Attribute.UNUSED,
    Attribute.BYTE,
)

# Tokens that end generation, by their text: always control tokens.
END_TEXTS = """
<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|>
</s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|>
<|tool_response> <\uff5cend\u2581of\u2581sentence\uff5c> [e~[
"""
# Fill-in-the-middle tokens: where the file names no id under the keys, one token with such a text
# becomes a control token.
FILL_IN_TEXTS = {
    ("fim_pre_token_id", "prefix_token_id"): """
        <|fim_prefix|> <fim-prefix> <fim_prefix> <\uff5cfim\u2581begin\uff5c> <PRE> \u2581<PRE>
        <|code_prefix|> <|prefix|>""",
    ("fim_suf_token_id", "suffix_token_id"): """
        <|fim_suffix|> <fim-suffix> <fim_suffix> <\uff5cfim\u2581hole\uff5c> <SUF> \u2581<SUF>
        <|code_suffix|> <|suffix|>""",
    ("fim_mid_token_id", "middle_token_id"): """
        <|fim_middle|> <fim-middle> <fim_middle> <\uff5cfim\u2581end\uff5c> <MID> \u2581<MID>
        <|code_middle|> <|middle|>""",
    ("fim_pad_token_id",): "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]",
    ("fim_rep_token_id",): "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    ("fim_sep_token_id",): "<|file_sep|>",
}
_ALWAYS_SHOWN_TEXTS = (b"<|channel|>", b"<|message|>", b"<|start|>", b"<|constrain|>")
_STRIPPED_MASK_PRES = ("jina-v2-de", "jina-v2-es", "jina-v2-code")


@dataclass(frozen=True)
class Vocabulary:
    """A checked and corrected vocabulary.

    Attributes
    ----------
    model : "gpt2" (byte-level BPE) or "llama" (SPM).
    pre_name, pre : pre-tokenizer of BPE, "" and None for SPM.
    tokens : texts as the file spells them, none empty, none twice.
    attributes : uint8 [n_vocab], ``Attribute`` flags.
    scores : float32 [n_vocab].
    merges : "left right" each, BPE only.
    """

    model: str
    pre_name: str
    pre: PreTokenizer | None
    tokens: GgufStrings
    attributes: NDArray[np.uint8]
    scores: NDArray[np.float32]
    merges: GgufStrings | None
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool

    def special_ids(self, *, parse_special: bool) -> list[int]:
        """Tokens to cut out of a text, longest text first, then lowest id."""
        is_special = (self.attributes & SPECIAL) != 0
        if not parse_special:
            is_special &= (self.attributes & (Attribute.CONTROL | Attribute.UNKNOWN)) == 0
        ids = np.flatnonzero(is_special)
        sizes = self.tokens.sizes[ids]
        return [int(token) for token in ids[np.argsort(-sizes, kind="stable")]]

    def fingerprint(self) -> bytes:
        """SHA-256 over all that decides the ids of a text."""
        pre = self.pre
        flags = (
            self.bos_id if self.bos_id is not None else -1,
            self.eos_id if self.eos_id is not None else -1,
            self.add_bos,
            self.add_eos,
            self.add_space_prefix,
            pre is not None and pre.ignore_merges,
        )
        digest = hashlib.sha256(f"{self.model}/{pre.splitter if pre else ''}".encode())
        digest.update(struct.pack("<6q", *flags))
        for strings in (self.tokens, self.merges):
            if strings is not None:
                digest.update(struct.pack("<q", len(strings)))
                digest.update(strings.data)
        digest.update(self.attributes.tobytes())
        digest.update(self.scores.astype("<f4").tobytes())
        return digest.digest()


def read_vocabulary(metadata: GgufMetadata) -> Vocabulary:
    """Check and correct the vocabulary of a GGUF file.

    Raises
    ------
    ModelHasNoTokenizer : the file holds no vocabulary, or is something else than a model.
    ModelUnsupported : a tokenizer or pre-tokenizer that is not known.
    ModelDamaged : a vocabulary that contradicts itself.
    """
    check_is_model(metadata)
    model, pre_name = _read_kind(metadata)
    tokens = metadata.strings("tokenizer.ggml.tokens")
    if tokens is None or len(tokens) == 0:
        raise ModelHasNoTokenizer(
            f"{metadata.path} has no 'tokenizer.ggml.tokens'",
            remedy="name a model with a vocabulary",
        )
    tokens = _named_tokens(metadata, tokens)
    pre = PRE_TOKENIZERS[pre_name] if model == "gpt2" else None
    merges = metadata.strings("tokenizer.ggml.merges") if pre else None
    if pre and merges is None:
        raise _damaged(metadata, "a byte-level vocabulary without 'tokenizer.ggml.merges'")
    default_ids = (1, 2) if pre is None else (11 if pre.default_bos else None, 11)
    bos_id = special_id(metadata, "bos_token_id", default_ids[0], len(tokens))
    eos_id = special_id(metadata, "eos_token_id", default_ids[1], len(tokens))
    add_bos = _flag(metadata, "add_bos_token", pre is None or pre.add_bos)
    add_eos = _flag(metadata, "add_eos_token", False)
    for name, add, token in (("BOS", add_bos, bos_id), ("EOS", add_eos, eos_id)):
        if add and token is None:
            raise _damaged(metadata, f"a vocabulary that adds {name} but has none")
    return Vocabulary(
        model=model,
        pre_name=pre_name,
        pre=pre,
        tokens=tokens,
        attributes=_read_attributes(metadata, tokens, eos_id),
        scores=_read_scores(metadata, len(tokens)),
        merges=merges,
        bos_id=bos_id,
        eos_id=eos_id,
        add_bos=add_bos,
        add_eos=add_eos,
        add_space_prefix=_flag(metadata, "add_space_prefix", True) and pre is None,
    )


def _damaged(metadata: GgufMetadata, what: str) -> ModelDamaged:
    return ModelDamaged(f"{metadata.path}: {what}", remedy=REMEDY_CONVERT)


def _read_kind(metadata: GgufMetadata) -> tuple[str, str]:
    """Names of the tokenizer model and, for BPE, of the pre-tokenizer."""
    model = metadata.text("tokenizer.ggml.model")
    if model is None or model in ("none", "no_vocab"):
        raise ModelHasNoTokenizer(
            f"{metadata.path} holds no tokenizer ('tokenizer.ggml.model' is {model or 'missing'})",
            remedy="name a text model, or the first part of a split one",
        )
    if model not in KNOWN_MODELS:
        raise ModelUnsupported(
            f"{metadata.path}: tokenizer '{model}' is not known",
            remedy=f"use a model with one of: {', '.join(KNOWN_MODELS)}",
        )
    if model != "gpt2":
        return model, ""
    # Without a name llama.cpp takes the default, which few models were made for, and warns.
    pre_name = metadata.text("tokenizer.ggml.pre") or "default"
    if pre_name not in PRE_TOKENIZERS:
        raise ModelUnsupported(
            f"{metadata.path}: pre-tokenizer '{pre_name}' is not known",
            remedy=f"use a model with one of: {', '.join(sorted(PRE_TOKENIZERS))}",
        )
    return model, pre_name


def _named_tokens(metadata: GgufMetadata, tokens: GgufStrings) -> GgufStrings:
    """The tokens, with a name for each empty one, as llama.cpp gives it."""
    empty = np.flatnonzero(tokens.sizes == 0)
    if len(empty) == 0:
        return tokens
    if len(empty) > MAX_EMPTY_TOKENS:
        raise _damaged(
            metadata, f"{len(empty)} tokens without a text, at most {MAX_EMPTY_TOKENS} expected"
        )
    texts = list(tokens)
    for token in empty.tolist():
        texts[token] = b"[EMPTY_%d]" % token
    return GgufStrings.of(texts)


def special_id(metadata: GgufMetadata, name: str, default: int | None, n_vocab: int) -> int | None:
    """Id under a key; the default, as in llama.cpp, if the key is missing or out of range."""
    token = metadata.integer(f"tokenizer.ggml.{name}")
    if token is not None and 0 <= token < n_vocab:
        return token
    return default if default is not None and default < n_vocab else None


def _flag(metadata: GgufMetadata, name: str, default: bool) -> bool:
    value = metadata.flag(f"tokenizer.ggml.{name}")
    return default if value is None else value


def _read_scores(metadata: GgufMetadata, n_vocab: int) -> NDArray[np.float32]:
    scores = metadata.numbers("tokenizer.ggml.scores")
    if scores is None:
        return np.zeros(n_vocab, np.float32)
    if scores.dtype not in (np.float32, np.int32) or len(scores) < n_vocab:
        raise _damaged(
            metadata, f"{len(scores)} scores of type {scores.dtype} for {n_vocab} tokens"
        )
    scores = scores[:n_vocab].astype(np.float32)
    if np.isnan(scores).any():
        raise _damaged(metadata, "a token score that is not a number")
    return scores


def _read_attributes(
    metadata: GgufMetadata, tokens: GgufStrings, eos_id: int | None
) -> NDArray[np.uint8]:
    """Attributes by token type, corrected as llama.cpp corrects them."""
    types = metadata.numbers("tokenizer.ggml.token_type")
    if types is None:
        attributes = np.full(len(tokens), Attribute.NORMAL, np.uint8)
    elif types.dtype != np.int32 or len(types) < len(tokens):
        raise _damaged(
            metadata, f"{len(types)} token types of type {types.dtype} for {len(tokens)} tokens"
        )
    else:
        types = types[: len(tokens)]
        known = np.where((types > 0) & (types < len(_ATTRIBUTE_OF_TYPE)), types, 0)
        attributes = _ATTRIBUTE_OF_TYPE[known]
    ids = ids_of_marked_texts(tokens)
    _mark_control_tokens(metadata, ids, attributes)
    _mark_shown_tokens(metadata, ids, attributes, eos_id)
    _mark_stripping_tokens(metadata, ids, attributes)
    return attributes


def ids_of_marked_texts(tokens: GgufStrings) -> dict[bytes, int]:
    """Ids of the tokens that look like one of the texts above, by text.

    All those begin with one of a few bytes and are short: the rest of the vocabulary need not
    be looked at.
    """
    first = tokens.data[tokens.start]
    sizes = tokens.sizes
    may_match = np.isin(first, list(b"<[_\xe2")) & (sizes > 2) & (sizes < 32)
    return {tokens[token]: token for token in np.flatnonzero(may_match).tolist()}


def _mark_control_tokens(
    metadata: GgufMetadata, ids: dict[bytes, int], attributes: NDArray[np.uint8]
) -> None:
    """Make control tokens of those that look like one."""
    for text in END_TEXTS.encode().split():
        if text in ids:
            attributes[ids[text]] |= Attribute.CONTROL
    for keys, texts in FILL_IN_TEXTS.items():
        if any(special_id(metadata, key, None, len(attributes)) is not None for key in keys):
            continue
        # Of several llama.cpp takes the first by the order of its hash map; here, the lowest.
        found = [ids[text] for text in texts.encode().split() if text in ids]
        if found:
            attributes[min(found)] |= Attribute.CONTROL


def _mark_shown_tokens(
    metadata: GgufMetadata,
    ids: dict[bytes, int],
    attributes: NDArray[np.uint8],
    eos_id: int | None,
) -> None:
    """Take back control from tokens that some families of models print, or write as text."""
    for text in _ALWAYS_SHOWN_TEXTS:
        if text in ids:
            attributes[ids[text]] = Attribute.USER_DEFINED
    has_call = b"<|call|>" in ids or b"<|calls|>" in ids
    if has_call and b"<|end|>" in ids and (b"<|return|>" in ids or b"<|flush|>" in ids):
        attributes[ids[b"<|end|>"]] = Attribute.USER_DEFINED
    n_vocab = len(attributes)
    end_ids = [special_id(metadata, f"{name}_token_id", None, n_vocab) for name in ("eot", "eom")]
    ends_as_plamo = ids.get(b"<|plamo:eos|>", -1) in [eos_id, *end_ids]
    if b"</s>" in ids and (b"<|tool_response>" in ids or ends_as_plamo):
        attributes[ids[b"</s>"]] = Attribute.NORMAL


def _mark_stripping_tokens(
    metadata: GgufMetadata, ids: dict[bytes, int], attributes: NDArray[np.uint8]
) -> None:
    """Mark tokens that take the whitespace beside them along; known by names only."""
    pre_name = metadata.text("tokenizer.ggml.pre") or ""
    model_name = (metadata.text("general.name") or "").lower()
    architecture = metadata.text("general.architecture") or ""
    mask = None
    if any(name in pre_name for name in _STRIPPED_MASK_PRES) or any(
        name in architecture for name in ("nomic-bert-moe", "jina-bert-v3")
    ):
        mask = b"<mask>"
    elif "phi-3" in model_name or "phi3" in model_name:
        attributes[(attributes & SPECIAL) != 0] |= np.uint8(Attribute.STRIP_RIGHT)
        if b"</s>" in ids:
            attributes[ids[b"</s>"]] |= Attribute.STRIP_RIGHT
        for text in (b"<unk>", b"<s>", b"<|endoftext|>"):
            if text in ids:
                attributes[ids[text]] &= 0xFF ^ Attribute.STRIP_RIGHT
    elif "modern-bert" in model_name:
        mask = b"[MASK]"
    if mask in ids:
        attributes[ids[mask]] |= Attribute.STRIP_LEFT
