"""From questions about hidden sentences to the calibration of a model, and where it is kept.

asked = questions(haystack, count, n_documents=12, context=2048, seed=0)
heads = candidates(n_layers, n_head)
seen = look_at_all(asked, model, AttentionRule(heads), tokenizer, template)
found = Trials(seen, heads).find()
calibration = calibration_of(found.chosen.heads, rule, metadata, tokenizer)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...engine.chat.template import ChatTemplate
from ...engine.errors import OutputNotWritable
from ...engine.gguf.file import GgufMetadata
from ...engine.gguf.identity import Identity
from ...engine.tokens.tokenizer import Tokenizer
from ...engine.transformer.hparams import read_params
from ...engine.transformer.model import Model
from ..prompt.parts import PromptParts
from ..scorers.attention import AttentionRule, AttentionScorer, Head
from ..scorers.calibration_file import Calibration, own_folder
from ..scorers.lexical import LexicalScorer
from .calibrate import KEEPS, Findings, Question, Recall, Seen, look


def look_at_all(
    asked: Sequence[Question],
    model: Model,
    rule: AttentionRule,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Seen]:
    """Score all prompts by all heads.

    Parameters
    ----------
    rule : with all heads that may be chosen
    template : None: raw prompts
    on_progress : told (tokens done, about how many there are)
    """
    words = LexicalScorer(tokenizer)
    found: list[Seen] = []
    done = 0
    for i, question in enumerate(asked):
        parts = PromptParts.of_document(question.document, question.question, tokenizer, template)

        def show(n: int, of: int, before: int = done, here: int = parts.n, i: int = i) -> None:
            if on_progress is not None:
                on_progress(before + here * n // of, (before + here) * len(asked) // (i + 1))

        scorer = AttentionScorer(model, rule, on_progress=show)
        found.append(look(question, parts, scorer, words))
        done += parts.n
    return found


def calibration_of(
    heads: tuple[Head, ...], rule: AttentionRule, metadata: GgufMetadata, tokenizer: Tokenizer
) -> Calibration:
    """The calibration of a model whose heads were found."""
    params = read_params(metadata, tokenizer.n_vocab)
    return Calibration(
        model=metadata.path.stem,
        vocabulary=tokenizer.fingerprint.hex(),
        n_layers=params.n_layers,
        n_embd=params.n_embd,
        heads=heads,
        window=rule.window,
        n_sink=rule.n_sink,
        made_for=Identity.of(metadata).marks,
    )


def own_path(metadata: GgufMetadata, tokenizer: Tokenizer) -> Path:
    """Where the calibration of a model is found by later calls; the folder is made.

    A model's own file has always the same name, so that a second calibration replaces the first.

    Raises
    ------
    OutputNotWritable : the folder can't be made
    """
    params = read_params(metadata, tokenizer.n_vocab)
    fingerprint = tokenizer.fingerprint.hex()
    folder = own_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputNotWritable(
            f"the folder {folder} can't be made ({error.strerror})",
            remedy="name a file with --output",
        ) from error
    norms = Identity.of(metadata).norms
    size = f"{params.n_layers}x{params.n_embd}"
    return folder / f"{size}-{fingerprint[:16]}-{norms[:16]}.json"


def record_of(found: Findings, rule: AttentionRule) -> dict[str, Any]:
    """Return the keys of what was found."""
    chosen = found.chosen
    return {
        "heads": [] if chosen is None else [str(head) for head in chosen.heads],
        "n_layers_scored": None if chosen is None else chosen.n_layers,
        "window": rule.window,
        "n_heads": len(rule.heads),
        "n_prompts": dict(found.n_prompts),
        "keeps": list(KEEPS),
        "words": _shares(found.words),
        "by_layers": [
            {
                "n_layers": depth.n_layers,
                "heads": [str(head) for head in depth.heads],
                "in_sample": _shares(depth.in_sample),
                "held_out": _shares(depth.held_out),
                "chosen": depth is chosen,
            }
            for depth in found.depths
        ],
        "heads_alone": [
            {"head": str(head), "in_sample": _shares(recall)} for head, recall in found.alone
        ],
    }


def _shares(recall: Recall) -> dict[str, list[float]]:
    return {kind: list(shares) for kind, shares in recall.items()}
