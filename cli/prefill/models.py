"""The models of ``prefill-run``: what scores prompts, what answers, and when each is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...engine.errors import UsageError
from ..generate.mtp_drafting import Drafters, DraftRequest, Material, open_drafters, warm_up
from ..generate.session import BAR_AFTER_S, Session, Target
from ..options import LIST_MOST, too_many

if TYPE_CHECKING:
    from ...engine.gguf.file import GgufMetadata
    from ...engine.gguf.identity import Identity
    from ...engine.tokens.tokenizer import Tokenizer
    from ...engine.transformer.hparams import ModelParams
    from ...engine.transformer.model import Model
    from ...prefill.memory import Need
    from ...prefill.scorers.attention import AttentionRule, Head
    from ...prefill.scorers.calibration_file import Calibration
    from ...prefill.scorers.one_pass import Begun, OnePassScorer
    from ...prefill.scorers.projection import Projection
    from ...prefill.scorers.scores import Scorer
    from ..inputs import Stages
    from ..output import Output

_HEAD = re.compile(r"(\d{1,4})\.(\d{1,4})((?::(?:nope|max|mean))*)")
_WARM_DOCUMENT, _WARM_QUESTION = "The cat sat on the mat. " * 8, "Where did the cat sit?"


class ScorerKind(StrEnum):
    """What scores the tokens of a prompt."""

    AUTO = "auto"  # trained, where one was trained for the model, or else fused
    LEXICAL = "lexical"
    ATTENTION = "attention"
    BLOCKSPARSE = "blocksparse"
    FUSED = "fused"
    EMBEDDED = "embedded"
    TRAINED = "trained"
    PFLASH = "pflash"
    LUCEBOX = "lucebox"
    GEMFILTER = "gemfilter"
    SPECPREFILL = "specprefill"

    @property
    def needs_heads(self) -> bool:
        """Whether heads have to be known."""
        return self in (ScorerKind.ATTENTION, ScorerKind.BLOCKSPARSE, ScorerKind.FUSED)

    @property
    def is_trained(self) -> bool:
        """Whether a trained projection has to be known."""
        return self in (ScorerKind.EMBEDDED, ScorerKind.TRAINED)


@dataclass(frozen=True)
class ScoreRequest:
    """The options that say how to score.

    Attributes
    ----------
    model : one that scores; None: the target's own first layers
    calibration : a file; None: what is found for the model
    heads : a list of them; None: those of the calibration
    window : tokens that a token of the document sees; None: as the calibration says
    one_pass : kept tokens go on from the layer where they were scored
    """

    kind: ScorerKind
    model: str | None = None
    calibration: str | None = None
    heads: str | None = None
    window: int | None = None
    one_pass: bool = False

    def settled(self) -> ScoreRequest:
        """The same, with "auto" settled as far as the other options say what is meant."""
        if self.kind is not ScorerKind.AUTO:
            return self
        if self.calibration is not None and self.calibration.endswith(".gguf"):
            return replace(self, kind=ScorerKind.TRAINED)
        says_how = (self.heads, self.calibration, self.window)
        if self.one_pass or any(value is not None for value in says_how):
            return replace(self, kind=ScorerKind.FUSED)
        return self

    def check(self) -> None:
        """Refuse what does not go together; "auto" is settled.

        Raises
        ------
        UsageError
        """
        if not self.kind.needs_heads and self.kind is not ScorerKind.AUTO:
            for flag, value in (
                ("--heads", self.heads),
                ("--calibration", None if self.kind.is_trained else self.calibration),
                ("--window", self.window),
            ):
                if value is not None:
                    raise UsageError(
                        f"{flag} is not for --scorer {self.kind}", remedy="leave one of them out"
                    )
        if self.kind is ScorerKind.LEXICAL and self.model is not None:
            raise UsageError(
                "--scorer lexical asks no model",
                remedy="leave out --scorer-model, or name a scorer",
            )
        if self.one_pass and (not self.kind.needs_heads or self.model is not None):
            raise UsageError(
                "--one-pass goes on from the model's own first layers",
                remedy="leave out --scorer-model, and give --scorer fused, attention or "
                "blocksparse",
            )
        if self.heads is not None and self.calibration is not None:
            raise UsageError("--heads and --calibration both name heads", remedy="give one of them")
        if self.heads is not None:
            parse_heads(self.heads)  # before any file is read
        if self.window is not None and self.kind is ScorerKind.BLOCKSPARSE:
            raise UsageError(
                "--window is not for --scorer blocksparse, which sees blocks",
                remedy="leave it out",
            )


def parse_heads(text: str) -> tuple[Head, ...]:
    """Heads from "15.6,18.6:nope:mean": layer, head, and what differs from RoPE and maximum.

    Raises
    ------
    UsageError : something else, or more than LIST_MOST
    """
    from ...prefill.scorers.attention import Head

    heads = []
    words = text.split(",")
    if len(words) > LIST_MOST:
        raise too_many("--heads", len(words), LIST_MOST)
    for word in words:
        found = _HEAD.fullmatch(word.strip())
        if found is None:
            raise UsageError(
                f"--heads {text}: {word.strip()!r} is no head",
                remedy="give LAYER.HEAD, such as 15.6 or 18.6:nope:mean, with commas between them",
            )
        marks = found[3].split(":")
        heads.append(
            Head(int(found[1]), int(found[2]), "nope" not in marks, _reduce("mean" in marks))
        )
    return tuple(heads)


def _reduce(is_mean: bool) -> Any:
    return "mean" if is_mean else "max"


@dataclass(frozen=True)
class Reader:
    """The model that scores; its weights are not read yet.

    Attributes
    ----------
    is_target : it is the target itself
    same_ids : the target's tokenizer is its own
    """

    metadata: GgufMetadata
    tokenizer: Tokenizer
    params: ModelParams
    is_target: bool
    same_ids: bool

    @cached_property
    def identity(self) -> Identity:
        """Of its weights."""
        from ...engine.gguf.identity import Identity

        return Identity.of(self.metadata)

    @property
    def fingerprint(self) -> str:
        """Of its vocabulary, hexadecimal."""
        return self.tokenizer.fingerprint.hex()


@dataclass(frozen=True)
class ScorePlan:
    """What scores, as far as that is known before weights are read.

    Attributes
    ----------
    reader : None: no model scores
    rule : how to look; None: no model scores, or as a published or trained scorer does
    projection : of a trained scorer
    fell_back : there is no calibration for the model
    one_pass : what was computed goes on to the target
    """

    kind: ScorerKind
    reader: Reader | None
    rule: AttentionRule | None
    fell_back: bool = False
    one_pass: bool = False
    projection: Projection | None = None

    @property
    def window(self) -> int | None:
        """Tokens that a token of the document sees while it is scored; None: that is not asked."""
        if self.projection is not None:
            return None if self.projection.is_embedded else self.projection.window
        return None if self.rule is None or self.rule.blocks is not None else self.rule.window


def plan_scoring(request: ScoreRequest, target: Target, out: Output) -> ScorePlan:
    """Find the model that scores, and its heads.

    Raises
    ------
    UsageError : heads that the model has not, or none for it
    InputUnreadable, InputMalformed : the calibration
    ModelUnknown, ModelNotGguf, ... : the scorer model
    """
    if request.kind is ScorerKind.LEXICAL:
        return ScorePlan(request.kind, None, None)
    reader = _find_reader(request, target)
    if request.kind is ScorerKind.AUTO:
        projection = _known_projection(reader, embedded=False)
        if projection is not None:  # it finds more than heads do, and takes less time
            _tell_kinship(projection, reader, out)
            return ScorePlan(ScorerKind.TRAINED, reader, None, projection=projection)
        if (other := _for_other_weights(reader, embedded=False)) is not None:
            out.note(f"{other}; name it with --calibration to score with it nevertheless")
        request = replace(request, kind=ScorerKind.FUSED)
    if request.kind.is_trained:
        projection = _find_projection(request, reader)
        _tell_kinship(projection, reader, out)
        return ScorePlan(request.kind, reader, None, projection=projection)
    if not request.kind.needs_heads:
        return ScorePlan(request.kind, reader, None)
    rule = _find_rule(request, reader, out)
    if rule is not None:
        return ScorePlan(request.kind, reader, rule, one_pass=request.one_pass)
    what = f"no calibration says which heads of {reader.metadata.path.name} retrieve"
    if request.kind is not ScorerKind.FUSED:
        raise UsageError(
            what, remedy="find them with --calibrate, name them with --heads, or leave out --scorer"
        )
    out.note(f"{what}: words alone score, as with --scorer lexical; --calibrate finds the heads")
    return ScorePlan(ScorerKind.LEXICAL, None, None, fell_back=True)


def _find_reader(request: ScoreRequest, target: Target) -> Reader:
    from ...engine.gguf.file import read_metadata
    from ...engine.gguf.kinds import check_has_weights
    from ...engine.models import resolve_model
    from ...engine.tokens.tokenizer import load_tokenizer
    from ...engine.transformer.hparams import read_params

    tokenizer, metadata = target.tokenizer, target.metadata
    if request.model is None:
        params = read_params(metadata, tokenizer.n_vocab)
        return Reader(metadata, tokenizer, params, is_target=True, same_ids=True)
    path = resolve_model(request.model)
    own = read_metadata(path)
    own_tokenizer = load_tokenizer(path, own)
    check_has_weights(own)
    params = read_params(own, own_tokenizer.n_vocab)
    same_ids = own_tokenizer.fingerprint == tokenizer.fingerprint
    is_target = path.samefile(metadata.path)
    return Reader(own, own_tokenizer, params, is_target=is_target, same_ids=same_ids)


def _find_rule(request: ScoreRequest, reader: Reader, out: Output) -> AttentionRule | None:
    """How to look at the reader's heads; None: it is not known at which."""
    from ...prefill.scorers.attention import AttentionRule, check_heads
    from ...prefill.scorers.blocksparse import BlockRule
    from ...prefill.scorers.calibration_file import find_calibration, read_calibration

    blocks = BlockRule() if request.kind is ScorerKind.BLOCKSPARSE else None
    if request.heads is not None:
        rule = AttentionRule(parse_heads(request.heads), blocks=blocks)
    else:
        found: Calibration | None
        if request.calibration is None:
            found = find_calibration(reader.fingerprint, reader.params, identity=reader.identity)
        else:
            found = read_calibration(request.calibration)
            if not found.fits(reader.fingerprint, reader.params):
                raise _other_model(request, reader, found)
        if found is None:
            return None
        _tell_kinship(found, reader, out)
        rule = found.rule(blocks)
    if request.window is not None:
        rule = replace(rule, window=request.window)
    check_heads(rule.heads, reader.params)
    return rule


def _find_projection(request: ScoreRequest, reader: Reader) -> Projection:
    """The trained projection of the reader.

    Raises
    ------
    UsageError : there is none, or the named one is for another model
    InputUnreadable, ModelNotGguf, ModelDamaged, ModelUnsupported : the file
    """
    from ...prefill.scorers.projection import read_projection

    if request.calibration is not None:
        named = read_projection(request.calibration)
        if not named.fits(reader.fingerprint, reader.params):
            raise _other_model(request, reader, named)
        return named
    embedded = request.kind is ScorerKind.EMBEDDED
    found = _known_projection(reader, embedded=embedded)
    if found is None:
        other = _for_other_weights(reader, embedded=embedded)
        what = f"no scorer of this kind was trained for {reader.metadata.path.name}"
        raise UsageError(
            what if other is None else f"{what}: {other}",
            remedy="train one with scripts/train_scorer.py and name it with --calibration, or "
            "leave out --scorer",
        )
    return found


def _known_projection(reader: Reader, *, embedded: bool) -> Projection | None:
    """What was trained for the reader; None: nothing."""
    from ...prefill.scorers.projection import find_projection

    return find_projection(
        reader.fingerprint, reader.params, embedded=embedded, identity=reader.identity
    )


def _for_other_weights(reader: Reader, *, embedded: bool) -> str | None:
    """What was trained for a model of the reader's size, but not for it; None: nothing."""
    from ...prefill.scorers.projection import find_projection

    found = find_projection(reader.fingerprint, reader.params, embedded=embedded)
    if found is None:
        return None
    return (
        f"{found.path} was trained for {found.model}, of which {reader.metadata.path.name} has "
        "vocabulary and size, but not the weights"
    )


def _tell_kinship(found: Calibration | Projection, reader: Reader, out: Output) -> None:
    """Say so where what scores was not made for the very weights of the reader."""
    from ...engine.gguf.identity import Kinship

    kinship = reader.identity.kinship(found.made_for)
    if kinship in (Kinship.OTHER, Kinship.KIN):
        out.note(
            f"{found.path} was not made for {reader.metadata.path.name} itself ({kinship.value})"
        )


def _other_model(
    request: ScoreRequest, reader: Reader, found: Calibration | Projection
) -> UsageError:
    p = reader.params
    return UsageError(
        f"calibration {request.calibration} is for {found.model}, of {found.n_layers} layers and "
        f"{found.n_embd} columns, and not for {reader.metadata.path.name}, of {p.n_layers} and "
        f"{p.n_embd}, or the vocabulary is another",
        remedy="name one that is, or leave it out",
    )


def estimate(plan: ScorePlan, target: Target, n_prompt: int, n_target: int) -> Need:
    """What scoring a prompt and answering it will take.

    Parameters
    ----------
    n_prompt : tokens of the prompt
    n_target : most tokens that the target's cache holds, the answer's included
    """
    from ...engine.transformer.hparams import read_params
    from ...prefill.memory import (
        Need,
        comparing_bytes,
        scoring_bytes,
        target_bytes,
        weights_bytes,
    )
    from ...prefill.scorers.attention import AttentionRule, Head
    from ...prefill.scorers.windows import Windows

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
            reader.params, n_text, target.n_threads, rule, n_held=n_held, n_looked=n_looked
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
        target=max(target_bytes(params, n_target, target.n_threads), mapped),
    )


class Models:
    """The target with its drafters, and the scorer, loaded when they are wanted first.

    Parameters
    ----------
    session_of : makes the target's session
    draft : how the answer is drafted; None: not at all
    take_turns : hold the weights of one model at a time

    Attributes
    ----------
    load_s : time that loading has taken
    """

    def __init__(
        self,
        plan: ScorePlan,
        target: Target,
        n_tokens: int,
        draft: DraftRequest | None,
        material: Material,
        draft_max: int,
        stages: Stages,
        out: Output,
        *,
        take_turns: bool = False,
    ) -> None:
        self.plan = plan
        self.load_s = 0.0
        self.weights_bytes = self.reader_bytes = self._kv_bytes = 0
        self._target = target
        self._n_tokens = n_tokens
        self._draft, self._material, self._draft_max = draft, material, draft_max
        self._stages, self._out = stages, out
        self._take_turns = take_turns and plan.reader is not None and not plan.reader.is_target
        self._session: Session | None = None
        self._drafters: Drafters | None = None
        self._model: Model | None = None
        self._scorer: Scorer | None = None
        self._one_pass: OnePassScorer | None = None
        self._is_warm = False

    def __enter__(self) -> Models:
        """Load what may be loaded before anything is asked."""
        from ...prefill import target  # noqa: F401 (its modules are in no time that is measured)

        if self._take_turns:
            with self.scoring():
                pass
        else:
            self.session()
            with self.scoring():
                pass
        return self

    def __exit__(self, *_: object) -> None:
        self._drop_session()
        self._drop_reader()

    def session(self) -> Session:
        """The target, with an empty cache."""
        if self._session is None:
            if self._take_turns:
                self._drop_reader()
            with self._loading():
                self._session = self._open_session()
                if self._draft is not None:
                    self._drafters = open_drafters(
                        self._draft, self._session, self._material, self._draft_max, self._out
                    )
                    warm_up(self._drafters, self._session)
        self._session.cache.truncate(0)
        return self._session

    @property
    def drafters(self) -> Drafters | None:
        """Of the session; None: nothing drafts."""
        return self._drafters

    def kv_bytes(self, n_tokens: int) -> int:
        """Memory of the keys and values of so many tokens."""
        return self._kv_bytes * n_tokens

    @contextmanager
    def scoring(self) -> Iterator[Scorer]:
        """The scorer."""
        if self._scorer is None:
            if self._take_turns:
                self._drop_session()
            elif self.plan.reader is not None and self.plan.reader.is_target:
                self.session()
            with self._loading():
                self._scorer = self._make_scorer()
                if not self._is_warm:
                    _warm(self._scorer, self._target.tokenizer)
                    self._is_warm = True
        yield self._scorer

    def begun(self) -> Begun | None:
        """What scoring has computed of the last prompt, for one pass; None: nothing that helps."""
        return None if self._one_pass is None else self._one_pass.take()

    def _make_scorer(self) -> Scorer:
        from ...prefill.scorers.attention import AttentionScorer
        from ...prefill.scorers.fused import FusedScorer
        from ...prefill.scorers.lexical import LexicalScorer
        from ...prefill.scorers.one_pass import OnePassScorer
        from ...prefill.scorers.other_projects import PUBLISHED, published_scorer
        from ...prefill.scorers.other_tokenizer import OtherTokenizerScorer
        from ...prefill.scorers.trained import TrainedScorer

        plan, reader = self.plan, self.plan.reader
        if reader is None:
            return LexicalScorer(self._target.tokenizer)
        model = self._reading_model(reader)
        scorer: Scorer
        if str(plan.kind) in PUBLISHED:
            scorer = published_scorer(str(plan.kind), model)
        elif plan.projection is not None:
            scorer = TrainedScorer(model, plan.projection)
        else:
            assert plan.rule is not None
            if plan.one_pass:
                scorer = self._one_pass = OnePassScorer(model, plan.rule)
            else:
                scorer = AttentionScorer(model, plan.rule)
        if not reader.same_ids:
            scorer = OtherTokenizerScorer(scorer, reader.tokenizer)
        if plan.kind is ScorerKind.FUSED:
            return FusedScorer([LexicalScorer(self._target.tokenizer), scorer])
        return scorer

    def _reading_model(self, reader: Reader) -> Model:
        if reader.is_target:
            return self.session().model
        if self._model is None:
            self._model = self._load(reader.metadata, "unpacking the scorer model's weights")
            self.reader_bytes = self._model.n_bytes
        return self._model

    def _open_session(self) -> Session:
        import numpy as np

        target = self._target
        model = self._load(target.metadata, "unpacking weights")
        self.weights_bytes = model.n_bytes
        model.forward(np.zeros(1, np.int32), model.new_cache(2))  # compiles
        plan = target.plan(np.zeros(self._n_tokens, np.int32), 1)
        session = Session(plan, model)
        self._kv_bytes = session.cache.n_bytes // session.cache.n_ctx
        return session

    def _load(self, metadata: GgufMetadata, label: str) -> Model:
        from ...engine.transformer.model import load_model

        with self._out.progress(label, unit="bytes", after_s=BAR_AFTER_S) as bar:
            return load_model(
                metadata.path, metadata, n_threads=self._target.n_threads, on_progress=bar.update
            )

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """Count the block as loading; compilation too, which comes with it."""
        import time

        start = time.perf_counter()
        nested = self.load_s
        with self._stages.stage("load"), self._out.busy("compiling kernels"):
            yield
        self.load_s = nested + time.perf_counter() - start

    def _drop_session(self) -> None:
        if self._session is not None:
            self._session.model.close()
        self._session = self._drafters = None
        if self.plan.reader is not None and self.plan.reader.is_target:
            self._scorer = None

    def _drop_reader(self) -> None:
        if self._model is not None:
            self._model.close()
            self._model = None
            self._scorer = None


def _warm(scorer: Scorer, tokenizer: Tokenizer) -> None:
    """Score a little prompt, so that kernels are compiled before anything is timed."""
    from contextlib import nullcontext

    from ...prefill.meter import Meter
    from ...prefill.pipeline import Settings, choose
    from ...prefill.prompt.parts import PromptParts

    parts = PromptParts.of_document(_WARM_DOCUMENT, _WARM_QUESTION, tokenizer)
    settings = Settings(keep=0.9, min_tokens=1)
    choose(parts, lambda: nullcontext(scorer), settings, parts.n, Meter())
