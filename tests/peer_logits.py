"""Ask llama.cpp, inside the wheel ``xllamacpp`` (extra ``peer``), what it makes of token histories.

It runs in a process of its own (``peer_logits_server.py``), because llama.cpp ends the process that
it lives in when it does not like a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftsmith.engine.gguf.file import read_metadata
from numpy.typing import NDArray
from peer_process import run_peer
from toy_gguf import byte_alphabet

SERVER = Path(__file__).with_name("peer_logits_server.py")
LIMIT_S = 400  # for a busy machine; what is asked takes seconds


@dataclass(frozen=True)
class Continuation:
    """What llama.cpp said after one prompt, greedily.

    Attributes
    ----------
    prompt : int32 [n_prompt]
    tokens : int32 [n], the tokens it chose, of those that are whole characters and no end of text
    logprobs : float64 [n], of those
    top_ids : int32 [n, n_top], the likeliest tokens at each of their places, likeliest first
    top_logprobs : float64 [n, n_top], of those, over the whole vocabulary
    """

    prompt: NDArray[np.int32]
    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float64]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float64]

    @property
    def history(self) -> NDArray[np.int32]:
        """What was read when the last token was chosen: the prompt, and all tokens but that."""
        return np.concatenate((self.prompt, self.tokens[:-1]))

    @property
    def places(self) -> NDArray[np.int64]:
        """The positions in ``history`` whose logits gave ``tokens``."""
        return np.arange(self.prompt.size - 1, self.history.size)


def continuations(
    model: Path,
    prompts: Sequence[Sequence[int] | NDArray[np.int32]],
    n_predict: int,
    n_top: int,
    **settings: Any,
) -> list[Continuation]:
    """Let llama.cpp continue each prompt by ``n_predict`` tokens, greedily.

    Parameters
    ----------
    settings : attributes of xllamacpp's CommonParams that are not its defaults
    """
    job = {
        "model": str(model),
        "prompts": [np.asarray(prompt).tolist() for prompt in prompts],
        "n_predict": n_predict,
        "n_top": n_top,
        "banned": broken_tokens(model),
        "settings": settings,
    }
    answers, log = run_peer(SERVER, job, LIMIT_S)
    if len(answers) != len(prompts):
        pytest.fail(f"{len(answers)} answers to {len(prompts)} prompts:\n{log[-3000:]}")
    assert all(len(answer["tokens"]) == n_predict for answer in answers)
    return [
        Continuation(
            np.array(prompt, np.int32),
            np.array(answer["tokens"], np.int32),
            np.array(answer["logprobs"]),
            np.array(answer["top_ids"], np.int32),
            np.array(answer["top_logprobs"]),
        )
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


def broken_tokens(model: Path) -> list[int]:
    """Ids of the tokens that are no whole characters.

    The server leaves the probabilities of a token out when the text ends inside a character.
    """
    metadata = read_metadata(model)
    texts = [text.decode() for text in metadata.values["tokenizer.ggml.tokens"]]
    if metadata.text("tokenizer.ggml.model") == "llama":
        return [i for i, text in enumerate(texts) if text.startswith("<0x") and text >= "<0x80"]
    bytes_of = {character: byte for byte, character in enumerate(byte_alphabet())}

    def is_broken(text: str) -> bool:
        try:
            bytes(bytes_of[character] for character in text).decode()
        except (KeyError, UnicodeDecodeError):  # KeyError: a special token's own text
            return True
        return False

    return [i for i, text in enumerate(texts) if is_broken(text)]
