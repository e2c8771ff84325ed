"""The drafters of ``mtp-run``: the MTP head, n-grams, or n-grams first and else the head."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ...engine.errors import UsageError
from .session import BAR_AFTER_S, Session, Target

if TYPE_CHECKING:
    from pathlib import Path

    from ...engine.decode.acceptance import RejectSamples
    from ...engine.decode.drafting import Drafting
    from ...engine.decode.pacer import Pacer
    from ...engine.decode.protocols import Drafter
    from ...engine.transformer.hparams import ModelParams
    from ...mtp.combined import CombinedDrafter
    from ...mtp.draft_counts import DraftCounts
    from ...mtp.head import MtpHead
    from ...mtp.head_file import HeadFile
    from ...mtp.limited import LimitedMtpDrafter
    from ...ngram.cache.ngram_cache import NgramCache
    from ...ngram.lookup.drafter import NgramDrafter
    from ..output import Output

# Defaults: longest drafts of a head and of n-grams, and the size from which on n-grams go first.
DRAFT_MAX, NGRAM_DRAFT_MAX, NGRAM_MIN = 3, 8, 2
# Tokens that an n-gram drafter has room for from the start; it grows beyond.
NGRAM_ROOM = 1 << 15


class DrafterKind(StrEnum):
    """What drafts."""

    MTP = "mtp"
    NGRAM = "ngram"
    BOTH = "mtp+ngram"
    NONE = "none"

    @property
    def has_mtp(self) -> bool:
        """Whether a head is needed."""
        return self in (DrafterKind.MTP, DrafterKind.BOTH)

    @property
    def has_ngram(self) -> bool:
        """Whether n-grams are needed."""
        return self in (DrafterKind.NGRAM, DrafterKind.BOTH)


class Verify(StrEnum):
    """How much of a draft stands."""

    MATCH = "match"
    REJECTION = "rejection"


@dataclass(frozen=True)
class DraftRequest:
    """The options that say how to draft.

    Attributes
    ----------
    head : file of the MTP head; None: the model's own layers, or the one that comes along
    static, dynamic : n-gram caches; None: none
    ngram_max : longest draft from n-grams where there is a head, too
    ngram_min : least size of n-grams that go before the head
    p_min : the head stops before a token that it gives a lower probability
    fixed : draft as much as there is room for, whether it pays or not
    """

    kind: DrafterKind
    head: str | None
    static: str | None
    dynamic: str | None
    ngram_max: int
    ngram_min: int
    p_min: float
    fixed: bool
    verify: Verify


@dataclass(frozen=True)
class Material:
    """What drafters draft from, found before the weights are read.

    Attributes
    ----------
    head : file of the MTP head; None: the model's own, or none is needed
    """

    head: Path | None = None
    static: NgramCache | None = None
    dynamic: NgramCache | None = None


def find_material(request: DraftRequest, target: Target, out: Output) -> Material:
    """Open the caches, and look into the head's file.

    Raises
    ------
    CacheNotACache, CacheOtherVocabulary, ... : a cache that will not do
    UsageError : no head, or one for another model
    InputUnreadable, ModelNotGguf, ModelDamaged, ... : the head's file
    """
    from pathlib import Path

    from ...engine.transformer.hparams import read_params
    from ...mtp.head_file import open_head_file
    from ..inputs import open_cache_for

    tokenizer = target.tokenizer
    static, dynamic = (
        open_cache_for(tokenizer, path) for path in (request.static, request.dynamic)
    )
    head = None
    if request.kind.has_mtp:
        params = read_params(target.metadata, tokenizer.n_vocab)
        head = _known_head(target, params) if request.head is None else Path(request.head)
        file = open_head_file(head, target.metadata, params, tokenizer.fingerprint.hex())
        if request.head is not None:
            _tell_kinship(file, target, out)
    return Material(head, static, dynamic)


def _known_head(target: Target, params: ModelParams) -> Path | None:
    """Return the file of the head that comes along; None: the model's own is to be looked for.

    Raises
    ------
    UsageError : there is one, but it was made for other weights
    """
    from ...engine.gguf.identity import Kinship
    from ...mtp.shipped import shipped_head

    metadata = target.metadata
    if params.n_nextn:
        return None
    found = shipped_head(metadata, params, target.tokenizer.fingerprint.hex())
    if found is None or found.kinship is Kinship.SAME:
        return None if found is None else found.path
    what = "another quantisation of it, or a fine-tune"
    if found.kinship is Kinship.OTHER:
        what = "a model of the same size with other weights"
    raise UsageError(
        f"{metadata.path} has no MTP layers: the head that comes along is for {found.model}, and "
        f"this is {what}",
        remedy=f"draft with it nevertheless, by --mtp-head {found.path}, or name another, or draft "
        "with --drafter ngram",
    )


def _tell_kinship(file: HeadFile, target: Target, out: Output) -> None:
    """Say so where a named head was made for other weights: it drafts, but less well."""
    from ...engine.gguf.identity import Identity, Kinship

    kinship = Identity.of(target.metadata).kinship(file.made_for)
    if kinship in (Kinship.OTHER, Kinship.KIN):
        out.note(
            f"{file.path} was not made for {target.metadata.path.name} itself ({kinship.value}): "
            "its drafts may be right less often; what is generated stays the same"
        )


class Drafters:
    """Drafters for texts one after another, and what became of their drafts.

    Parameters
    ----------
    head : None where none is needed
    n_ctx : most tokens of prompt and text together
    draft_most : longest draft that will be asked for
    """

    def __init__(
        self,
        request: DraftRequest,
        target: Target,
        material: Material,
        head: MtpHead | None,
        n_ctx: int,
        draft_most: int,
    ) -> None:
        self._request = request
        self._sampling = target.sampling
        self._head = head
        self._draws = (
            head is not None
            and request.verify is Verify.REJECTION
            and not target.sampling.is_greedy
        )
        self._mtp = None if head is None else self._make_mtp(head, n_ctx)
        self._ngram = None
        if request.kind.has_ngram:
            self._ngram = self._make_ngram(target, material, n_ctx, draft_most)
        self._both = self._combine()
        self._rule = self._make_rule()
        self._pacers: dict[int, Pacer] = {}
        self._counts: DraftCounts | None = None

    def _make_mtp(self, head: MtpHead, n_ctx: int) -> LimitedMtpDrafter:
        from ...mtp.limited import LimitedMtpDrafter

        return LimitedMtpDrafter(
            head,
            n_ctx,
            p_min=self._request.p_min,
            temperature=self._sampling.temperature if self._draws else 0.0,
            seed=self._sampling.seed,
        )

    def _make_ngram(
        self, target: Target, material: Material, n_ctx: int, draft_most: int
    ) -> NgramDrafter:
        from ...ngram.lookup.drafter import NgramDrafter

        return NgramDrafter(
            target.tokenizer.n_vocab,
            draft_max=self._request.ngram_max if self._mtp is not None else draft_most,
            static=material.static,
            dynamic=material.dynamic,
            n_tokens=min(n_ctx + 1, NGRAM_ROOM),
        )

    def _combine(self) -> CombinedDrafter | None:
        if self._mtp is None or self._ngram is None:
            return None
        from ...mtp.combined import CombinedDrafter

        return CombinedDrafter(self._ngram, self._mtp, n_gram_min=self._request.ngram_min)

    def _make_rule(self) -> RejectSamples | None:
        if self._request.verify is Verify.MATCH:
            return None
        from ...engine.decode.acceptance import RejectSamples

        source = self._mtp if self._both is None else self._both
        return RejectSamples(source, self._sampling.seed)

    @property
    def drafter(self) -> Drafter:
        """What drafts, however long."""
        (first, *_) = (part for part in (self._both, *self.parts) if part is not None)
        return first

    @property
    def parts(self) -> list[Drafter]:
        """Its parts, each of which drafts by itself."""
        return [part for part in (self._mtp, self._ngram) if part is not None]

    @property
    def head_bytes(self) -> int:
        """Memory of the head's weights."""
        return 0 if self._head is None else self._head.n_bytes

    def begin(self, draft_max: int, *, afresh: bool = False) -> Drafting:
        """Return a drafter that knows of no text, with its rule and its pacer.

        Parameters
        ----------
        draft_max : longest draft: the head's, or that of n-grams where there is no head
        afresh : the pacer knows nothing; else it knows what it learnt in earlier texts
        """
        from ...engine.decode.acceptance import match_samples
        from ...engine.decode.drafting import Drafting
        from ...mtp.draft_counts import DraftCounts

        self.forget()
        if self._mtp is not None:
            self._mtp.draft_max = draft_max
        longest = draft_max if self._both is None else max(draft_max, self._request.ngram_max)
        pacer = self._pacer(draft_max, longest, afresh=afresh)
        self._counts = DraftCounts(self._origin)
        return Drafting(
            self.drafter,
            longest if pacer is None else pacer.draft_max,
            pacer,
            match_samples if self._rule is None else self._rule,
            self._counts,
        )

    def _pacer(self, draft_max: int, longest: int, *, afresh: bool) -> Pacer | None:
        """The pacer of texts with such drafts, which are up to ``longest`` tokens; None: none."""
        from ...engine.decode.pacer import Pacer

        if self._request.fixed:
            return None
        if afresh or draft_max not in self._pacers:
            self._pacers[draft_max] = Pacer(longest, drawn=self._draws)
        return self._pacers[draft_max]

    def forget(self) -> None:
        """Go on to another text, with the same random numbers."""
        self.drafter.reset()
        if self._rule is not None:
            self._rule.reset()

    def origins(self) -> dict[str, tuple[list[int], list[int]]]:
        """Drafted and accepted tokens by origin and position, since the last ``begin``."""
        return {} if self._counts is None else self._counts.positions

    def _origin(self) -> str:
        if self._both is not None:
            return self._both.last_origin
        return "mtp" if self._mtp is not None else "ngram"


def open_drafters(
    request: DraftRequest, session: Session, material: Material, draft_most: int, out: Output
) -> Drafters:
    """Read the head, and make drafters with room for the session's texts.

    Raises
    ------
    ModelDamaged, ... : what is wrong with the head's weights
    UsageError : no memory for it
    """
    from ...engine.decode.ready import WARM_ROOM
    from ...mtp.head import open_head

    plan, head = session.plan, None
    if request.kind.has_mtp:
        with out.progress("unpacking the head", unit="bytes", after_s=BAR_AFTER_S) as bar:
            head = open_head(
                material.head,
                plan.metadata,
                session.model,
                plan.tokenizer.fingerprint.hex(),
                on_progress=bar.update,
            )
    n_ctx = max(session.cache.n_ctx, WARM_ROOM)
    return Drafters(request, plan, material, head, n_ctx, draft_most)


def warm_up(drafters: Drafters, session: Session) -> None:
    """Let each part draft once, so that kernels are compiled before anything is timed."""
    from ...engine.decode.ready import warm_up

    warm_up(session.model, drafters.parts)
    drafters.forget()
