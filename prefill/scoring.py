"""Scorers made by a plan, and the memory that scoring and answering will take."""

from __future__ import annotations

from contextlib import nullcontext

from ..engine.tokens.tokenizer import Tokenizer
from ..engine.transformer.hparams import read_params
from ..engine.transformer.model import Model
from .memory import (
    Need,
    comparing_bytes,
    scoring_bytes,
    target_bytes,
    weights_bytes,
)
from .meter import Meter
from .pipeline import Settings, choose
from .planning import ScorePlan, TargetFile
from .prompt.parts import PromptParts
from .score_request import ScorerKind
from .scorers.attention import AttentionRule, AttentionScorer, Head
from .scorers.fused import FusedScorer
from .scorers.lexical import LexicalScorer
from .scorers.one_pass import OnePassScorer
from .scorers.other_projects import PUBLISHED, published_scorer
from .scorers.other_tokenizer import OtherTokenizerScorer
from .scorers.scores import Scorer
from .scorers.trained import TrainedScorer
from .scorers.windows import Windows

_WARM_DOCUMENT, _WARM_QUESTION = "The cat sat on the mat. " * 8, "Where did the cat sit?"


def estimate(
    plan: ScorePlan, target: TargetFile, n_prompt: int, n_target: int, n_threads: int
) -> Need:
    """What scoring a prompt and answering it will take.

    Parameters
    ----------
    n_prompt : tokens of the prompt
    n_target : most tokens that the target's cache holds, the answer's included
    n_threads : that compute
    """

    params = read_params(target.metadata, target.tokenizer.n_vocab)
    weights, scoring = 0, 0
    reader = plan.reader
    if reader is not None:
        windows = Windows.of_model(reader.params.n_ctx_train)
        n_text = n_prompt if n_prompt <= windows.longest else windows.size
        rule = plan.rule or AttentionRule((Head(0, 0),))
        n_held = rule.n_layers + 1 if plan.one_pass else 1
        n_looked = 1
        if plan.kind is ScorerKind.SPECPREFILL:
            n_held = n_looked = reader.params.n_layers
        scoring = scoring_bytes(
            reader.params, n_text, n_threads, rule, n_held=n_held, n_looked=n_looked
        )
        if plan.projection is not None:
            scoring += comparing_bytes(plan.projection, n_text)
        if not reader.is_target:
            weights, mapped = weights_bytes(reader.metadata, reader.params)
            scoring = max(scoring, mapped)
    target_weights, mapped = weights_bytes(target.metadata, params)
    return Need(
        scoring_weights=weights,
        scoring=scoring,
        target_weights=target_weights,
        target=max(target_bytes(params, n_target, n_threads), mapped),
    )


def make_scorer(plan: ScorePlan, tokenizer: Tokenizer, model: Model | None) -> Scorer:
    """The scorer of a plan.

    Parameters
    ----------
    tokenizer : the target's, whose tokens get the scores
    model : of the plan's reader, loaded; None: no model scores
    """
    reader = plan.reader
    if reader is None or model is None:
        return LexicalScorer(tokenizer)
    scorer: Scorer
    if str(plan.kind) in PUBLISHED:
        scorer = published_scorer(str(plan.kind), model)
    elif plan.projection is not None:
        scorer = TrainedScorer(model, plan.projection)
    else:
        assert plan.rule is not None
        scorer = (OnePassScorer if plan.one_pass else AttentionScorer)(model, plan.rule)
    if not reader.same_ids:
        scorer = OtherTokenizerScorer(scorer, reader.tokenizer)
    if plan.kind is ScorerKind.FUSED:
        return FusedScorer([LexicalScorer(tokenizer), scorer])
    return scorer


def warm_up(scorer: Scorer, tokenizer: Tokenizer) -> None:
    """Score a little prompt, so that kernels are compiled before anything is timed."""
    parts = PromptParts.of_document(_WARM_DOCUMENT, _WARM_QUESTION, tokenizer)
    settings = Settings(keep=0.9, min_tokens=1)
    choose(parts, lambda: nullcontext(scorer), settings, parts.n, Meter())


def one_pass_of(scorer: Scorer) -> OnePassScorer | None:
    """The part of a scorer whose states the target may go on from; None: there is none."""
    parts = scorer.scorers if isinstance(scorer, FusedScorer) else [scorer]
    return next((part for part in parts if isinstance(part, OnePassScorer)), None)
