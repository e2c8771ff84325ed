"""What drafts in ``lookup-run``: llama-lookup's way of drafting, or what ``--drafter`` names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...engine.errors import UsageError
from ..drafter_request import check_caches, check_draft_max

if TYPE_CHECKING:
    from ...engine.decode.drafting import Drafting
    from ...ngram.cache.ngram_cache import NgramCache
    from ...ngram.drafters.counts import OriginCounts
    from ...ngram.drafters.drafter import SpecDrafter
    from ...ngram.drafters.settings import DrafterSpec
    from ...ngram.lookup.drafter import NgramDrafter
    from ..output import Output
    from .session import Plan

# Tokens that the drafter has room for from the start; it grows beyond.
ROOM_MOST = 1 << 15


@dataclass(frozen=True)
class NgramDrafting:
    """How a text is drafted from n-grams.

    Attributes
    ----------
    spec : of --drafter; None: as llama-lookup does
    static, dynamic : names of cache files
    draft_max : longest draft; 0: no drafting
    fixed : always that long, whether it pays or not
    """

    spec: DrafterSpec | None
    static: str | None
    dynamic: str | None
    draft_max: int
    fixed: bool

    @classmethod
    def from_options(
        cls,
        drafters: Sequence[str] | None,
        *,
        upstream_exact: bool,
        static: str | None,
        dynamic: str | None,
        draft_max: int,
        has_draft_max: bool,
        fixed: bool,
    ) -> NgramDrafting:
        """Return what the options say.

        Parameters
        ----------
        has_draft_max : whether the command line says ``draft_max``

        Raises
        ------
        UsageError : no drafter, or more than one; options that do not fit to it
        """
        if drafters is None:
            if upstream_exact:
                raise UsageError(
                    "--upstream-exact is for --drafter",
                    remedy="name a drafter, as --drafter ngram-mod, or leave it out",
                )
            return cls(None, static, dynamic, draft_max, fixed)
        spec = _single_spec(drafters, upstream_exact=upstream_exact)
        check_draft_max(is_given=has_draft_max)
        check_caches([spec], static, dynamic)
        return cls(spec, static, dynamic, spec.draft_max, fixed)

    def open(self, plan: Plan, out: Output, *, learns: bool) -> NgramDrafter | SpecDrafter:
        """Open the caches and return a drafter that has run, so that its kernels are compiled.

        Parameters
        ----------
        learns : the dynamic cache is written in the end, and need not exist

        Raises
        ------
        CacheNotACache, CacheOtherVocabulary, ... : a cache that will not do
        OutputNoFolder, OutputNotWritable, DiskFull : the dynamic cache could not be written
        """
        from ...ngram.cache.shared import open_shared
        from ..inputs import open_cache_for

        tokenizer = plan.tokenizer
        static = open_cache_for(tokenizer, self.static)
        if self.dynamic is not None and learns:
            n_vocab, fingerprint = tokenizer.n_vocab, tokenizer.fingerprint
            dynamic = open_shared(self.dynamic, n_vocab=n_vocab, fingerprint=fingerprint)
            if dynamic is None:
                out.note(f"{self.dynamic} does not exist yet: it is made at the end")
        else:
            dynamic = open_cache_for(tokenizer, self.dynamic)
        drafter = self._made(plan, static, dynamic)
        drafter.accept(plan.prompt[:1])
        drafter.draft(1)
        drafter.reset()
        return drafter

    def _made(
        self, plan: Plan, static: NgramCache | None, dynamic: NgramCache | None
    ) -> NgramDrafter | SpecDrafter:
        from ...ngram.drafters.drafter import SpecDrafter
        from ...ngram.lookup.drafter import NgramDrafter

        n_vocab, n_tokens = plan.tokenizer.n_vocab, min(plan.n_tokens + 1, ROOM_MOST)
        if self.spec is None:
            return NgramDrafter(
                n_vocab,
                draft_max=self.draft_max,
                static=static,
                dynamic=dynamic,
                n_tokens=n_tokens,
            )
        return SpecDrafter(
            n_vocab,
            self.spec,
            static=static,
            dynamic=dynamic,
            ends=sorted(plan.stop),
            n_tokens=n_tokens,
        )

    def drafting(self, drafter: NgramDrafter | SpecDrafter) -> tuple[Drafting, OriginCounts]:
        """How a text is drafted that begins now, and what will be counted of it."""
        from ...engine.decode.drafting import Drafting
        from ...engine.decode.pacer import Pacer
        from ...ngram.drafters.counts import OriginCounts

        counts = OriginCounts(drafter)
        pacer = None if self.fixed else Pacer(drafter.draft_max)
        return Drafting(drafter, self.draft_max, pacer, on_round=counts), counts

    @property
    def options(self) -> dict[str, Any]:
        """Of the record."""
        return {
            "drafter": None if self.spec is None else str(self.spec),
            "upstream_exact": self.spec is not None and self.spec.upstream_exact,
            "static": self.static,
            "dynamic": self.dynamic,
            "draft_max": self.draft_max,
            "draft_fixed": self.fixed,
        }


def _single_spec(drafters: Sequence[str], *, upstream_exact: bool) -> DrafterSpec:
    """Return the one setting that is named; a text can't be drafted in two ways."""
    from ...ngram.drafters.settings import parse_specs

    if len(drafters) > 1:
        raise UsageError(
            f"{len(drafters)} times --drafter, and a text has one",
            remedy=f"give one, or combine them: {'+'.join(drafters)}",
        )
    specs = parse_specs(drafters[0], upstream_exact=upstream_exact)
    if len(specs) > 1:
        raise UsageError(
            f"--drafter {drafters[0]} stands for {len(specs)} settings, and a text has one",
            remedy="give one value for each key",
        )
    spec = specs[0]
    if not spec.draft_max:
        raise UsageError(
            f"--drafter {spec} drafts nothing",
            remedy=f"give {spec.names[0].kind.draft_key}=1 or more",
        )
    if upstream_exact and not spec.upstream_exact:
        raise UsageError(
            f"--upstream-exact with --drafter {spec}, which llama.cpp does not have",
            remedy="leave it out, or name a drafter of llama.cpp's, as ngram-mod",
        )
    return spec


def tally_keys(counted: OriginCounts | None) -> dict[str, Any]:
    """Return the keys of drafted and accepted tokens by where they came from."""
    keys = {}
    for name, counts in {} if counted is None else counted.tallies.items():
        for i, what in enumerate(("drafted", "accepted")):
            keys[f"{what}_by_{name}"] = {str(key): pair[i] for key, pair in counts.items()}
    return keys
