"""From the options of a command of speculative prefill to its request, checked without a file."""

from __future__ import annotations

from ...engine.errors import UsageError
from .. import options
from ..generate.mtp_drafting import DRAFT_MAX, NGRAM_DRAFT_MAX, DrafterKind, DraftRequest
from ..generate.session import RunRequest
from ..generate.stream import Color
from .niah import NiahRequest
from .options import (
    DecodeOptions,
    KeepOptions,
    PositionKind,
    ScoreOptions,
)
from .prompt import AskRequest
from .work import PrefillRequest


def request_of(
    run: RunRequest,
    ask: AskRequest,
    score: ScoreOptions,
    keep: KeepOptions,
    keeps: list[float],
    decode: DecodeOptions,
    *,
    niah: NiahRequest | None = None,
    command: str = "prefill-run",
    has_draft_max: bool = False,
    n_turns: int = 0,
    show_kept: bool = False,
    color: Color = Color.AUTO,
) -> PrefillRequest:
    """The request that the options make.

    Parameters
    ----------
    keeps : what --keep says
    has_draft_max : --draft-max was typed

    Raises
    ------
    UsageError : options that do not go together
    """
    from ...engine.sizes import parse_size

    draft = decode.request
    limit = keep.memory_limit
    request = PrefillRequest(
        run=run,
        ask=ask,
        niah=niah,
        score=score.request,
        draft=draft,
        draft_max=_draft_max(decode.draft_max, draft, is_typed=has_draft_max),
        keeps=keeps,
        positions=PositionKind.ORIGINAL if score.one_pass else keep.positions,
        min_tokens=keep.min_tokens,
        memory_limit=None if limit is None else parse_size("--memory-limit", limit),
        n_turns=n_turns,
        show_kept=show_kept,
        color=color,
        command=command,
    )
    request.score.check()
    _check_draft(draft)
    return request


def check_one_pass(request: PrefillRequest) -> None:
    """Refuse a head beside --one-pass.

    Raises
    ------
    UsageError
    """
    if request.score.one_pass and request.draft.kind.has_mtp:
        raise UsageError(
            "with --one-pass an MTP head does not see the prompt",
            remedy="give --decode-drafter ngram or none",
        )


def _draft_max(text: str | None, draft: DraftRequest, *, is_typed: bool) -> int:
    """Return the longest draft.

    Read here and not by Typer: what the environment says for other commands, such as 0 for no
    drafting, must not end a call that drafts nothing anyway.
    """
    drafts = draft.kind is not DrafterKind.NONE
    if text is None or not (drafts or is_typed):
        return DRAFT_MAX if draft.kind.has_mtp else NGRAM_DRAFT_MAX
    if not drafts:
        raise _no_drafter("--draft-max", draft)
    values = options.numbers("--draft-max", [text], options.DRAFT_MOST)
    if len(values) > 1 or not values[0]:
        raise UsageError(
            f"--draft-max {text} is not a number from 1 to {options.DRAFT_MOST}",
            remedy="give one, or leave --decode-drafter out for no drafting",
        )
    return values[0]


def _no_drafter(name: str, draft: DraftRequest) -> UsageError:
    return UsageError(
        f"{name} cannot be used with --decode-drafter {draft.kind}",
        remedy="leave one of them out",
    )


def _check_draft(draft: DraftRequest) -> None:
    """Refuse options of a drafter that is not there."""
    for name, given, wanted in (
        ("--mtp-head", draft.head is not None, draft.kind.has_mtp),
        ("-lcs and -lcd", bool(draft.static or draft.dynamic), draft.kind.has_ngram),
        ("--draft-fixed", draft.fixed, draft.kind is not DrafterKind.NONE),
    ):
        if given and not wanted:
            raise _no_drafter(name, draft)
