"""A model made ready to generate: its file read, its weights loaded, its kernels compiled.

file = read_model_file(resolve_model("smollm2"))
model = load_model(file.metadata.path, file.metadata)
warm_up(model)
ids = file.tokenizer.encode("Hello")
run = generate(model, model.new_cache(64), ids, sampler=sampler, n_predict=32, stop=file.ends)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..gguf.file import GgufMetadata
from ..gguf.kinds import check_has_weights
from ..tokens.stop_tokens import eog_ids
from ..tokens.tokenizer import Tokenizer, open_tokenizer
from ..transformer.hparams import ModelParams, read_params
from ..transformer.model import Model
from .generate import generate
from .generation import whole
from .protocols import Drafter
from .sampling import Sampler, SamplingParams

_WARM_PROMPT, _WARM_TOKENS, _WARM_DRAFT = 2, 6, 2
WARM_ROOM = _WARM_PROMPT + _WARM_TOKENS  # tokens of a text that a drafter is warmed up with


@dataclass(frozen=True)
class ModelFile:
    """What a model's file says; no weights are read.

    Attributes
    ----------
    ends : tokens that end a generation
    """

    metadata: GgufMetadata
    tokenizer: Tokenizer
    params: ModelParams
    ends: frozenset[int]


def read_model_file(path: Path) -> ModelFile:
    """Read what has to be known before weights are read, and check that there are some.

    Raises
    ------
    ModelNotGguf, ModelDamaged, ModelUnsupported, ... : the file
    """
    metadata, tokenizer = open_tokenizer(path)
    check_has_weights(metadata)
    params = read_params(metadata, tokenizer.n_vocab)
    return ModelFile(
        metadata, tokenizer, params, frozenset(eog_ids(metadata, tokenizer.vocabulary))
    )


def warm_up(model: Model, drafters: Sequence[Drafter] = ()) -> None:
    """Compile kernels, and have weights in memory, before anything is timed.

    Parameters
    ----------
    drafters : each drafts once and forgets that again; with room for WARM_ROOM tokens

    Raises
    ------
    KeyboardInterrupt : Ctrl-C
    """
    model.forward(np.zeros(1, np.int32), model.new_cache(2))
    prompt = np.zeros(_WARM_PROMPT, np.int32)
    for drafter in drafters:
        run = generate(
            model,
            model.new_cache(WARM_ROOM),
            prompt,
            sampler=Sampler(SamplingParams(temperature=0.0)),
            n_predict=_WARM_TOKENS,
            drafter=drafter,
            draft_max=_WARM_DRAFT,
        )
        whole(run)
        drafter.reset()
