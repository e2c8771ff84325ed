"""A model made ready to generate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from draftsmith.engine.decode.generate import generate
from draftsmith.engine.decode.ready import read_model_file, warm_up
from draftsmith.engine.decode.sampling import Sampler, SamplingParams
from draftsmith.engine.errors import DraftsmithError
from draftsmith.engine.transformer.model import load_model
from draftsmith.ngram import NgramDrafter


def test_from_a_file_to_a_text(smollm2: Path) -> None:
    """The example of the module: a step of it that is missing, or that leaves something behind."""
    file = read_model_file(smollm2)
    assert file.params.n_ctx_train == 8192
    assert b"<|im_end|>" in [file.tokenizer.vocabulary.tokens[end] for end in file.ends]
    model = load_model(file.metadata.path, file.metadata, n_threads=1)
    drafter = NgramDrafter(file.tokenizer.n_vocab, draft_max=3)
    warm_up(model, [drafter])
    assert len(drafter) == 0
    ids = file.tokenizer.encode("The cat sat on the mat. The cat sat on the")
    run = generate(
        model,
        model.new_cache(64),
        ids,
        sampler=Sampler(SamplingParams(temperature=0.0)),
        n_predict=2,
        stop=file.ends,
        drafter=drafter,
        draft_max=3,
    )
    assert file.tokenizer.decode(np.array(run.tokens, np.int32)).startswith(" mat")
    model.close()


def test_a_file_without_weights_is_refused(tmp_path: Path) -> None:
    """A file that is read to its end before it is looked at."""
    path = tmp_path / "no.gguf"
    path.write_bytes(b"<html></html>")
    with pytest.raises(DraftsmithError, match="web page"):
        read_model_file(path)
