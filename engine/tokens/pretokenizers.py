"""The pre-tokenizers of byte-level BPE that are known: what ``tokenizer.ggml.pre`` may say.

Names that llama.cpp (build 11434) gives the same splitter share one here, with the flags that it
sets by the name. Its other splitters are refused by name rather than approximated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .split_kernels import group_digits, last_class_change, split_gpt2, split_llama3
from .unicode_classes import ISOLATED, NUMBER, class_table

# Fragments of a text: start, stop and the id of a special token or -1, int64 [n_fragments] each.
Fragments = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


class Splitter(Protocol):
    """Cuts text into pieces that are encoded one by one."""

    def split(
        self,
        text: NDArray[np.uint8],
        fragments: Fragments,
        piece_start: NDArray[np.int64],
        piece_stop: NDArray[np.int64],
    ) -> int:
        """Write the pieces of the fragments, as split_kernels describes them; return how many."""

    def last_cut(self, text: NDArray[np.uint8], low: int, high: int) -> int:
        """Last offset in low..high-1 where a piece ends whatever stands around it, or -1."""


@dataclass(frozen=True)
class Gpt2Splitter:
    """GPT-2's pattern, after one class of characters (0 for none) is isolated.

    ``groups_digits`` isolates numbers and groups of three digits after the pattern.
    """

    classes: NDArray[np.uint8] = field(repr=False)
    isolated: int = 0
    longest_isolated: int = 0
    groups_digits: bool = False

    def split(
        self,
        text: NDArray[np.uint8],
        fragments: Fragments,
        piece_start: NDArray[np.int64],
        piece_stop: NDArray[np.int64],
    ) -> int:
        start, stop, token = fragments
        n_pieces = split_gpt2(
            text,
            start,
            stop,
            token,
            self.classes,
            self.isolated,
            self.longest_isolated,
            piece_start,
            piece_stop,
        )
        if self.groups_digits:
            start, stop = piece_start[:n_pieces].copy(), piece_stop[:n_pieces].copy()
            n_pieces = group_digits(text, start, stop, self.classes, piece_start, piece_stop)
        return int(n_pieces)

    def last_cut(self, text: NDArray[np.uint8], low: int, high: int) -> int:
        return int(last_class_change(text, low, high, self.classes))


@dataclass(frozen=True)
class Llama3Splitter:
    """Llama 3's pattern, with numbers of at most ``longest_number`` characters."""

    classes: NDArray[np.uint8] = field(repr=False)
    longest_number: int

    def split(
        self,
        text: NDArray[np.uint8],
        fragments: Fragments,
        piece_start: NDArray[np.int64],
        piece_stop: NDArray[np.int64],
    ) -> int:
        start, stop, token = fragments
        n_pieces = split_llama3(
            text, start, stop, token, self.classes, self.longest_number, piece_start, piece_stop
        )
        return int(n_pieces)

    def last_cut(self, text: NDArray[np.uint8], low: int, high: int) -> int:
        return int(last_class_change(text, low, high, self.classes))


def _gpt2() -> Splitter:
    return Gpt2Splitter(class_table())


def _smollm() -> Splitter:
    return Gpt2Splitter(class_table(), NUMBER, 1)


def _default() -> Splitter:
    return Gpt2Splitter(class_table(isolate_punctuation=True), ISOLATED, 1 << 62, True)


def _llama3() -> Splitter:
    return Llama3Splitter(class_table(), 3)


def _qwen2() -> Splitter:
    return Llama3Splitter(class_table(), 1)


def _qwen35() -> Splitter:
    return Llama3Splitter(class_table(marks_are_letters=True), 1)


_MAKERS = {
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "default": _default,
    "llama3": _llama3,
    "qwen2": _qwen2,
    "qwen35": _qwen35,
}


@dataclass(frozen=True)
class PreTokenizer:
    """What the name of a pre-tokenizer stands for.

    Attributes
    ----------
    splitter : name of the splitter.
    ignore_merges : a piece that is a token is taken whole.
    add_bos : whether BOS comes first, unless the file says otherwise.
    default_bos : whether a file without a BOS id has one by default.
    """

    splitter: str
    ignore_merges: bool = False
    add_bos: bool = False
    default_bos: bool = True

    def make_splitter(self) -> Splitter:
        return _MAKERS[self.splitter]()


_CHATGLM = PreTokenizer("llama3", default_bos=False)

# What names stand for the same.
_NAMES: tuple[tuple[PreTokenizer, str], ...] = (
    (PreTokenizer("default"), "default"),
    (
        PreTokenizer("gpt-2"),
        """gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert
        jina-v1-en jina-v2-code roberta-bpe mpt olmo jais trillion granite-docling exaone4""",
    ),
    (
        PreTokenizer("smollm"),
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    ),
    (
        PreTokenizer("llama3", ignore_merges=True, add_bos=True),
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    ),
    (PreTokenizer("llama3"), "dbrx smaug-bpe"),
    (_CHATGLM, "chatglm-bpe"),
    (replace(_CHATGLM, ignore_merges=True), "glm4 glm5"),
    (
        PreTokenizer("qwen2"),
        "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan solar-open megrez grok-2",
    ),
    (PreTokenizer("qwen35"), "qwen35"),
)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    name: pre for pre, names in _NAMES for name in names.split()
}
