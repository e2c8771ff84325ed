"""What scores a prompt, as far as files say: by which model, which heads, which projection.

From a script, with a model's file and its tokenizer::

    target = TargetFile(metadata, tokenizer)
    plan = plan_scoring(ScoreRequest(ScorerKind.AUTO), target, tell=print)
    scorer = make_scorer(plan, tokenizer, model)
    scores = scorer.score(PromptParts.of_document(document, question, tokenizer))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from ..engine.errors import UsageError
from ..engine.gguf.file import GgufMetadata
from ..engine.gguf.identity import Identity, Kinship
from ..engine.gguf.kinds import check_has_weights
from ..engine.models import resolve_model
from ..engine.tokens.tokenizer import Tokenizer, open_tokenizer
from ..engine.transformer.hparams import ModelParams, read_params
from .score_request import ScoreRequest, ScorerKind
from .scorers.attention import AttentionRule, check_heads
from .scorers.blocksparse import BlockRule
from .scorers.calibration_file import Calibration, find_calibration, read_calibration
from .scorers.head_names import parse_heads
from .scorers.projection import Projection, find_projection, read_projection

Tell = Callable[[str], None]


def tell_nobody(_: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class TargetFile:
    """The model that answers, as far as its file says; no weights are read."""

    metadata: GgufMetadata
    tokenizer: Tokenizer


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


def plan_scoring(request: ScoreRequest, target: TargetFile, tell: Tell = tell_nobody) -> ScorePlan:
    """Find the model that scores, and its heads.

    Parameters
    ----------
    tell : told, in a sentence, what the user may not expect

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
            _tell_kinship(projection, reader, tell)
            return ScorePlan(ScorerKind.TRAINED, reader, None, projection=projection)
        if (other := _for_other_weights(reader, embedded=False)) is not None:
            tell(f"{other}; name it with --calibration to score with it nevertheless")
        request = replace(request, kind=ScorerKind.FUSED)
    if request.kind.is_trained:
        projection = _find_projection(request, reader)
        _tell_kinship(projection, reader, tell)
        return ScorePlan(request.kind, reader, None, projection=projection)
    if not request.kind.needs_heads:
        return ScorePlan(request.kind, reader, None)
    rule = _find_rule(request, reader, tell)
    if rule is not None:
        return ScorePlan(request.kind, reader, rule, one_pass=request.one_pass)
    what = f"no calibration says which heads of {reader.metadata.path.name} retrieve"
    if request.kind is not ScorerKind.FUSED:
        raise UsageError(
            what, remedy="find them with --calibrate, name them with --heads, or leave out --scorer"
        )
    tell(f"{what}: words alone score, as with --scorer lexical; --calibrate finds the heads")
    return ScorePlan(ScorerKind.LEXICAL, None, None, fell_back=True)


def _find_reader(request: ScoreRequest, target: TargetFile) -> Reader:
    tokenizer, metadata = target.tokenizer, target.metadata
    if request.model is None:
        params = read_params(metadata, tokenizer.n_vocab)
        return Reader(metadata, tokenizer, params, is_target=True, same_ids=True)
    path = resolve_model(request.model)
    own, own_tokenizer = open_tokenizer(path)
    check_has_weights(own)
    params = read_params(own, own_tokenizer.n_vocab)
    same_ids = own_tokenizer.fingerprint == tokenizer.fingerprint
    is_target = path.samefile(metadata.path)
    return Reader(own, own_tokenizer, params, is_target=is_target, same_ids=same_ids)


def _find_rule(request: ScoreRequest, reader: Reader, tell: Tell) -> AttentionRule | None:
    """How to look at the reader's heads; None: it is not known at which."""
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
        _tell_kinship(found, reader, tell)
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
    return find_projection(
        reader.fingerprint, reader.params, embedded=embedded, identity=reader.identity
    )


def _for_other_weights(reader: Reader, *, embedded: bool) -> str | None:
    """What was trained for a model of the reader's size, but not for it; None: nothing."""
    found = find_projection(reader.fingerprint, reader.params, embedded=embedded)
    if found is None:
        return None
    return (
        f"{found.path} was trained for {found.model}, of which {reader.metadata.path.name} has "
        "vocabulary and size, but not the weights"
    )


def _tell_kinship(found: Calibration | Projection, reader: Reader, tell: Tell) -> None:
    """Say so where what scores was not made for the very weights of the reader."""
    kinship = reader.identity.kinship(found.made_for)
    if kinship in (Kinship.OTHER, Kinship.KIN):
        tell(f"{found.path} was not made for {reader.metadata.path.name} itself ({kinship.value})")


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
