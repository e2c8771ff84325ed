"""Options of the commands of speculative prefill, in groups."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import typer

from ...engine.errors import UsageError
from ...prefill.defaults import KEEP, MIN_TOKENS
from ...prefill.score_request import ScoreRequest, ScorerKind
from ..chat_options import TemplateOptions
from ..generate.mtp_drafting import (
    DRAFT_MAX,
    NGRAM_DRAFT_MAX,
    NGRAM_MIN,
    DrafterKind,
    DraftRequest,
    Verify,
)
from ..generate.options import DraftFixed, DynamicCacheRead, StaticCache, System
from ..options import (
    DRAFT_MAX_VARIABLES,
    LIST_MOST,
    WHOLE_MOST,
    Escape,
    too_many,
)
from .niah import CONTEXTS, DEPTHS, KINDS, NiahRequest
from .prompt import AskRequest


class PositionKind(Enum):
    """Positions of kept tokens."""

    REPACKED = "repacked"
    ORIGINAL = "original"


def parse_shares(text: str) -> list[float]:
    """Shares from "0.1,0.2", each once, in order.

    Raises
    ------
    UsageError : something else, one that is not above 0 and at most 1, or too many
    """
    shares = []
    words = text.split(",")
    if len(words) > LIST_MOST:
        raise too_many("--keep", len(words), LIST_MOST)
    for word in words:
        try:
            share = float(word)
        except ValueError:
            share = math.nan
        if not 0 < share <= 1:
            raise UsageError(
                f"--keep {text}: {word.strip()!r} is no share",
                remedy="give a number above 0, and at most 1, such as 0.1",
            )
        shares.append(share)
    return list(dict.fromkeys(shares))


Raw = Annotated[
    bool, typer.Option("--raw", help="No chat template: document, blank line, question.")
]
Haystack = Annotated[
    str | None,
    typer.Option("--haystack", metavar="FILE", help="A text in place of the bundled one."),
]


@dataclass(frozen=True)
class AskOptions:
    """A long text and what is asked of it."""

    file: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="The document, - for stdin. One final newline is dropped.",
        ),
    ] = None
    question: Annotated[
        str | None,
        typer.Option("-p", "--prompt", metavar="QUESTION", help="What is asked of it."),
    ] = None
    chat_file: Annotated[
        str | None,
        typer.Option(
            "--chat-file",
            metavar="FILE.json",
            help="A conversation in place of both: a list of messages, or an object with "
            '"messages", "tools" and the like. The last user turn holds the question.',
        ),
    ] = None
    named: Annotated[
        str | None,
        typer.Option(
            "--question",
            metavar="TEXT",
            help="Of --chat-file: words of the user that are the question. Without it the question "
            "is found by what asks in the last turn of the user.",
        ),
    ] = None
    system: System = None
    raw: Raw = False
    escape: Escape = False

    def request(self, template: TemplateOptions, context: typer.Context) -> AskRequest:
        """The request that they make, not checked.

        Raises
        ------
        UsageError : options of a chat template, and --raw
        """
        chosen = template.chosen
        if self.raw:
            chosen = chosen.unused(context, "leave it out, or --raw")
        return AskRequest(
            self.file,
            self.question,
            self.chat_file,
            self.system,
            self.raw,
            self.escape,
            self.named,
            chosen,
        )


@dataclass(frozen=True)
class ScoreOptions:
    """What says which tokens matter."""

    scorer: Annotated[
        ScorerKind,
        typer.Option(
            "--scorer",
            help="What says which tokens matter: words that the question shares (lexical), "
            "attention of the first layers in a window or in chosen blocks, words and attention "
            "(fused), a trained projection of embeddings (embedded) or of the first layers "
            "(trained), or as four published projects do. auto: trained where that is known for "
            "the model, or else fused.",
        ),
    ] = ScorerKind.AUTO
    scorer_model: Annotated[
        str | None,
        typer.Option(
            "--scorer-model",
            "--drafter",
            metavar="MODEL",
            help="Another model that scores; by default the first layers of the model itself.",
        ),
    ] = None
    calibration: Annotated[
        str | None,
        typer.Option(
            "--calibration",
            metavar="FILE",
            help="Which heads retrieve (.json), or a trained projection (.gguf); by default what "
            "is known of the model.",
        ),
    ] = None
    heads: Annotated[
        str | None,
        typer.Option(
            "--heads",
            metavar="LAYER.HEAD,...",
            help="Heads to look at, such as 15.6 or, before RoPE and with the mean over the "
            "question, 18.6:nope:mean.",
        ),
    ] = None
    window: Annotated[
        int | None,
        typer.Option(
            "--window",
            min=0,
            max=WHOLE_MOST,
            metavar="N",
            help="Tokens that a token of the document sees while scoring; 0: all before it.",
        ),
    ] = None
    one_pass: Annotated[
        bool,
        typer.Option(
            "--one-pass",
            help="Kept tokens go on from the layer where they were scored, at original positions, "
            "and are not computed again from the start.",
        ),
    ] = False

    @property
    def request(self) -> ScoreRequest:
        """How to score, with "auto" settled as far as options say."""
        return ScoreRequest(
            self.scorer,
            self.scorer_model,
            self.calibration,
            self.heads,
            self.window,
            self.one_pass,
        ).settled()


@dataclass(frozen=True)
class KeepOptions:
    """How much is kept, and where it stands then."""

    keep: Annotated[
        str,
        typer.Option(
            "--keep",
            metavar="SHARE",
            help="Share of the prompt's tokens that is read; prefill-niah takes several, with "
            "commas between them.",
        ),
    ] = f"{KEEP:g}"
    positions: Annotated[
        PositionKind,
        typer.Option(
            "--positions", help="Of kept tokens: one after the other, or as in the whole prompt."
        ),
    ] = PositionKind.REPACKED
    min_tokens: Annotated[
        int,
        typer.Option(
            "--min-tokens",
            min=0,
            max=WHOLE_MOST,
            metavar="N",
            help="Shorter prompts are read in full.",
        ),
    ] = MIN_TOKENS
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit",
            metavar="SIZE",
            help="Most memory, such as 800M or 2G: where needed, the weights of scorer model and "
            "model are held in turns.",
        ),
    ] = None


@dataclass(frozen=True)
class DecodeOptions:
    """What the answer is drafted from."""

    decode_drafter: Annotated[
        DrafterKind,
        typer.Option("--decode-drafter", help="What drafts the answer, as in mtp-run."),
    ] = DrafterKind.NONE
    mtp_head: Annotated[
        str | None,
        typer.Option("--mtp-head", metavar="FILE", help="The MTP head, as in mtp-run."),
    ] = None
    static: StaticCache = None
    dynamic: DynamicCacheRead = None
    draft_max: Annotated[
        str | None,
        typer.Option(
            "--draft-max",
            "--spec-draft-n-max",
            metavar="K",
            envvar=DRAFT_MAX_VARIABLES,
            help=f"Longest draft; by default {DRAFT_MAX} of the head, {NGRAM_DRAFT_MAX} of "
            "n-grams.",
        ),
    ] = None
    draft_fixed: DraftFixed = False

    @property
    def request(self) -> DraftRequest:
        """How to draft."""
        return DraftRequest(
            kind=self.decode_drafter,
            head=self.mtp_head,
            static=self.static,
            dynamic=self.dynamic,
            ngram_max=NGRAM_DRAFT_MAX,
            ngram_min=NGRAM_MIN,
            p_min=0.0,
            fixed=self.draft_fixed,
            verify=Verify.MATCH,
        )


@dataclass(frozen=True)
class NeedleOptions:
    """Which prompts with needles to ask."""

    contexts: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="N,...",
            help=f"Tokens of prompt and answer; {CONTEXTS} by default.",
        ),
    ] = None
    depths: Annotated[
        str | None,
        typer.Option(
            "--depths",
            metavar="PERCENT,...",
            help=f"Where the needle is; {DEPTHS} by default.",
        ),
    ] = None
    kinds: Annotated[
        str | None,
        typer.Option(
            "--kinds",
            metavar="KIND,...",
            help=f"Kinds of questions; {KINDS} by default.",
        ),
    ] = None
    haystack: Haystack = None
    no_full: Annotated[
        bool, typer.Option("--no-full", help="Do not read the prompts in full, too.")
    ] = False
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="FIGURE",
            help="Draw maps by depth and context into a .png or .svg file (needs "
            "draftsmith[plot]).",
        ),
    ] = None

    def request(self, repeat: int, what: str) -> NiahRequest:
        """The prompts that they ask for; ``what`` asks, for an error.

        Raises
        ------
        UsageError : see ``NiahRequest.from_options``
        """
        return NiahRequest.from_options(
            contexts=CONTEXTS if self.contexts is None else self.contexts,
            depths=DEPTHS if self.depths is None else self.depths,
            kinds=KINDS if self.kinds is None else self.kinds,
            haystack=self.haystack,
            repeat=repeat,
            full=not self.no_full,
            plot=self.plot,
            what=what,
        )


@dataclass(frozen=True)
class CalibrateOptions:
    """What is calibrated, and where that is written."""

    n_layers: Annotated[
        int | None,
        typer.Option(
            "--layers",
            min=1,
            max=WHOLE_MOST,
            metavar="N",
            help="Look at the first N layers; two thirds by default.",
        ),
    ] = None
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="FILE.json",
            help="The file to write; by default one that later calls find.",
        ),
    ] = None
