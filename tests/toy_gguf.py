"""Write small GGUF files with a real vocabulary, through gguf's own writer; no downloads.

Everything is seeded: the same arguments give the same bytes. The vocabularies are as awkward as
the rules allow: bytes without a token, merges whose result is none, tokens that only
ignore_merges reaches, special tokens that overlap, equal scores.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

BPE_KINDS = ("gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "default")
KINDS = (*BPE_KINDS, "spm", "spm-strip")

SAMPLE = """The quick brown fox jumps over the lazy dog, and the dog doesn't mind it at all.
static int parse_number(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
    }
    return 12345 + 67890;
}
They've said that we'll see what they're doing; I'm sure you'd like it, isn't it?
int main(void) {\n\tprintf("Hello, world!\\n");\n\treturn 0;\n}
Straße über naïve café, Привет мир, 你好世界, 日本語の文章, 한국어, हिन्दी, العربية.
====== ------ ...... ((((())))) <|a <|b|> 1000 2000 30000 3.14159 2.71828 100%
"""

# Special tokens of every kind: "<|ab" and "b|><" overlap, the longest is not always leftmost,
# "<|im_end|>" has a type that llama.cpp corrects.
SPECIALS: tuple[tuple[str, int], ...] = (
    ("<|bos|>", CONTROL),
    ("<|eos|>", CONTROL),
    ("<|im_start|>", CONTROL),
    ("<|im_end|>", NORMAL),
    ("<|ab", CONTROL),
    ("b|><|c", CONTROL),
    ("<|user|>", USER_DEFINED),
    ("\t\t\t", USER_DEFINED),
    ("<|fim_prefix|>", USER_DEFINED),
    ("<unk>", UNKNOWN),
    ("\u2581\u2581\u2581", USER_DEFINED),
)

# Bytes that the toy vocabularies lack, as SmolLM2's lacks 21 of them.
MISSING_BYTES = (0x00, 0x01, 0x7F, 0x85, 0xC0, 0xF5, ord("~"))


def write_toy(path: Path, kind: str, *, weights: bool = False, **changes: object) -> Path:
    """Write a toy model of ``kind`` (one of KINDS) to ``path`` and return the path.

    Parameters
    ----------
    weights : add the tensors of a llama model of one block, so that llama.cpp can run it.
    changes : values that replace those of the vocabulary: tokens, types, scores, merges, pre,
        model, name, add_bos, add_eos, add_space_prefix, bos_id, eos_id; None leaves the key out.
    """
    values = vocabulary_values(kind)
    values.update(changes)
    writer = gguf.GGUFWriter(path, "llama")
    add_vocabulary(writer, values)
    if weights:
        _add_weights(writer, len(values["tokens"]))  # type: ignore[arg-type]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def vocabulary_values(kind: str) -> dict[str, object]:
    """What ``write_toy`` writes of a vocabulary, by the names of its ``changes``."""
    return _spm_values(kind) if kind.startswith("spm") else _bpe_values(kind)


def add_vocabulary(writer: gguf.GGUFWriter, values: dict[str, object]) -> None:
    """Add the keys of a vocabulary; None leaves one out."""
    add: dict[str, Callable[..., None]] = {
        "name": writer.add_name,
        "model": writer.add_tokenizer_model,
        "pre": writer.add_tokenizer_pre,
        "tokens": writer.add_token_list,
        "types": writer.add_token_types,
        "scores": writer.add_token_scores,
        "merges": writer.add_token_merges,
        "bos_id": writer.add_bos_token_id,
        "eos_id": writer.add_eos_token_id,
        "add_bos": writer.add_add_bos_token,
        "add_eos": writer.add_add_eos_token,
        "add_space_prefix": writer.add_add_space_prefix,
    }
    for name, function in add.items():
        if values.get(name) is not None:
            function(values[name])


def _words() -> list[str]:
    return re.findall(r" ?\w+| ?[^\w\s]+|\s+", SAMPLE)


def byte_alphabet() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary."""
    hidden = iter(range(0x100, 0x144))
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    return [chr(byte if byte in shown else next(hidden)) for byte in range(256)]


@cache
def train_merges(n_merges: int) -> list[tuple[str, str]]:
    """The commonest pair of neighbours, again and again; the lesser pair among equals."""
    alphabet = byte_alphabet()
    counts = Counter(_words())
    words = [([alphabet[byte] for byte in word.encode()], n) for word, n in counts.items()]
    merges = []
    for _ in range(n_merges):
        pairs: Counter[tuple[str, str]] = Counter()
        for symbols, n in words:
            for pair in pairwise(symbols):
                pairs[pair] += n
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for symbols, _ in words:
            for i in range(len(symbols) - 2, -1, -1):
                if (symbols[i], symbols[i + 1]) == best:
                    symbols[i : i + 2] = ["".join(best)]
    return merges


def _bpe_values(kind: str) -> dict[str, object]:
    alphabet = byte_alphabet()
    merges = train_merges(230)
    merged = ["".join(pair) for pair in merges]
    absent = set(merged[40::23])  # merges happen by rank, whether or not their result is a token
    tokens = [alphabet[byte] for byte in range(256) if byte not in MISSING_BYTES]
    tokens += [text for text in merged if text not in absent and text not in tokens]
    tokens += ["\u0120never\u0120merged", "qzx", "\u010a\u010a\u010a"]  # by ignore_merges only
    tokens = list(dict.fromkeys(tokens))
    types = [NORMAL] * len(tokens)
    bos_id = len(tokens)
    for text, token_type in SPECIALS:
        tokens.append(text)
        types.append(token_type)
    return {
        "name": "toy",
        "model": "gpt2",
        "pre": None if kind == "default" else kind,
        "tokens": tokens,
        "types": types,
        "merges": [" ".join(pair) for pair in merges],
        "bos_id": bos_id,
        "eos_id": bos_id + 1,
        # Left to the pre-tokenizer for llama-bpe: its default is true.
        "add_bos": None if kind == "llama-bpe" else kind == "qwen2",
        "add_eos": kind == "gpt-2",
    }


def _spm_values(kind: str) -> dict[str, object]:
    """An SPM vocabulary of characters and of substrings of the sample, with few scores."""
    rng = random.Random(11)
    text = "\u2581" + SAMPLE.replace(" ", "\u2581")
    characters = sorted(set(text) - set("\n\t~%*"))
    substrings = set()
    while len(substrings) < 500:
        start = int(rng.random() * (len(text) - 8))
        substring = text[start : start + 2 + int(rng.random() * 5)]
        # Some tokens hold a space inside, so that a text cannot be cut at every space.
        if "\n" not in substring and "\t" not in substring and "<" not in substring:
            substrings.add(substring)
    normal = [*characters, *sorted(substrings)]
    specials = [item for item in SPECIALS if item[0] != "<unk>" and item[0] not in normal]
    # llama.cpp refuses a model named Phi-3 without these four.
    tokens = ["<unk>", "<s>", "</s>", "<|endoftext|>"]
    types = [UNKNOWN, CONTROL, CONTROL, CONTROL]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    types += [BYTE] * 256
    tokens += normal
    types += [NORMAL] * len(normal)
    tokens += [text for text, _ in specials]
    types += [token_type for _, token_type in specials]
    scores = [0.0] * len(tokens)
    for token in range(260, 260 + len(normal)):
        scores[token] = -float(int(rng.random() * 12))
    return {
        "name": "Phi-3 toy" if kind == "spm-strip" else "toy",
        "model": "llama",
        "tokens": tokens,
        "types": types,
        "scores": scores,
        "bos_id": 1,
        "eos_id": 2,
        "add_eos": kind == "spm-strip",
        "add_space_prefix": None if kind == "spm" else False,
    }


def _add_weights(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    """Tensors and hyper-parameters of a llama model of one block, seeded."""
    n_embd, n_head, n_head_kv, n_ff = 32, 4, 2, 64
    writer.add_context_length(512)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(1)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_head_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(n_embd // n_head)
    writer.add_vocab_size(n_vocab)
    n_kv = n_embd // n_head * n_head_kv
    shapes = {
        "token_embd": (n_vocab, n_embd),
        "output_norm": (n_embd,),
        "blk.0.attn_norm": (n_embd,),
        "blk.0.attn_q": (n_embd, n_embd),
        "blk.0.attn_k": (n_kv, n_embd),
        "blk.0.attn_v": (n_kv, n_embd),
        "blk.0.attn_output": (n_embd, n_embd),
        "blk.0.ffn_norm": (n_embd,),
        "blk.0.ffn_gate": (n_ff, n_embd),
        "blk.0.ffn_up": (n_ff, n_embd),
        "blk.0.ffn_down": (n_embd, n_ff),
    }
    rng = np.random.default_rng(7)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(0, 0.2, shape).astype(np.float32))
