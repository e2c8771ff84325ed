"""What the texts of the training data begin with: ids that a stream is forced to take.

Three kinds of beginnings, drawn at random with a seed:
- open: the chat template up to where the user speaks; the model writes the user's words too, as
  Magpie does (Xu et al. 2024), and is then forced into its own turn;
- asked: a request made of a task and a subject, or about a piece of the given files;
- raw: a piece of the given files, to be continued, or to be taken whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
SHARES = {"open": 0.28, "asked": 0.52, "raw": 0.10, "whole": 0.10}

# What requests are made of: lists of words and of forms that they are put into.
WORDS: dict[str, list[str]] = json.loads(
    Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Beginning:
    """Ids that a text begins with.

    Attributes
    ----------
    ids : what the stream has to take
    then : what it has to take when the model first ends its turn; empty: the text ends there
    kept : whether the ids themselves are to be learnt from
    """

    ids: tuple[int, ...]
    then: tuple[int, ...] = ()
    kept: bool = False


class Prompts:
    """An endless, seeded source of beginnings.

    Parameters
    ----------
    encode : text -> ids, special tokens recognised
    texts : files whose pieces are asked about or continued
    """

    def __init__(self, encode, texts: Sequence[Path], seed: int, whole_most: int = 256) -> None:
        self._encode = encode
        self._rng = np.random.default_rng(seed)
        self._texts = [path.read_text(encoding="utf-8", errors="ignore") for path in texts]
        self._whole_most = whole_most

    def draw(self) -> Beginning:
        rng = self._rng
        kind = rng.choice(list(SHARES), p=list(SHARES.values()))
        if kind == "open":
            head = self._system() + "<|im_start|>user\n"
            return Beginning(self._ids(head), self._ids("\n<|im_start|>assistant\n"))
        if kind == "asked":
            turn = f"<|im_start|>user\n{self._request()}<|im_end|>\n"
            return Beginning(self._ids(f"{self._system()}{turn}<|im_start|>assistant\n"))
        most = self._whole_most if kind == "whole" else int(rng.integers(24, 72))
        ids = self._ids(self._piece(6 * most))[:most]
        return Beginning(ids or self._ids("The"), kept=kind == "whole")

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(int(token) for token in self._encode(text))

    def _system(self) -> str:
        return f"<|im_start|>system\n{SYSTEM}<|im_end|>\n" if self._rng.random() < 0.8 else ""

    def _piece(self, n_characters: int) -> str:
        """Some lines of a file; languages and code are as likely as English prose."""
        text = self._texts[self._rng.integers(len(self._texts))]
        start = int(self._rng.integers(max(1, len(text) - n_characters)))
        start = text.find("\n", start) + 1
        return text[start : start + n_characters].strip()

    def _request(self) -> str:
        rng = self._rng
        kind = rng.choice(["task", "code", "sum", "record", "piece"], p=[0.38, 0.2, 0.12, 0.1, 0.2])
        if kind == "code":
            return str(rng.choice(WORDS["code_forms"])).format(
                rng.choice(WORDS["languages"]), rng.choice(WORDS["code_tasks"])
            )
        if kind == "sum":
            numbers = rng.integers(3, 90), rng.integers(2, 20)
            return str(rng.choice(WORDS["sums"])).format(*numbers, rng.choice(WORDS["things"]))
        if kind == "record":
            return str(rng.choice(WORDS["record_forms"])).format(
                rng.choice(WORDS["names"]), rng.integers(18, 80), rng.choice(WORDS["cities"]),
                rng.choice(WORDS["names"]), rng.choice(WORDS["cities"]), rng.integers(18, 80),
                rng.integers(2, 12), rng.integers(2, 12), rng.choice(WORDS["things"])
            )  # fmt: skip
        if kind == "piece":
            piece = self._piece(int(rng.integers(200, 1400)))
            return str(rng.choice(WORDS["piece_forms"])).format(piece)
        subjects = rng.choice(WORDS["subjects"], 2, replace=False)
        return str(rng.choice(WORDS["tasks"])).format(*subjects)
