"""What a call with ``--drafter`` asks for, checked as far as options go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..engine.errors import UsageError
from .drafter_options import Carry

if TYPE_CHECKING:
    import typer

    from ..ngram.drafters.settings import DrafterSpec
    from .chat_options import ChatOptions

_DRAFTER_REMEDY = "name a drafter, as --drafter ngram-mod, or leave it out"


@dataclass(frozen=True)
class DrafterOptions:
    """The options that only calls with --drafter have."""

    drafters: list[str] | None
    upstream_exact: bool
    carry: Carry | None
    server_like: bool
    chat: bool
    template: ChatOptions
    context: typer.Context
    advise: bool
    cost: str | None
    show_examples: bool


@dataclass(frozen=True)
class DrafterRequest:
    """The options of one call.

    Attributes
    ----------
    n_ctx : tokens a chunk of plain text, or of a slot that answers conversations; see
        ``replay.inputs.ReadRequest``
    chat : the files hold conversations, whatever their names
    template : what the options say about the chat template
    curve : of --cost; None: nothing is predicted
    n_threads : None: as many as there are for reading, and rows one after another
    """

    model: str
    files: list[str]
    drafters: list[str]
    upstream_exact: bool
    carry: Carry
    chat: bool
    template: ChatOptions
    static: str | None
    dynamic: str | None
    n_ctx: int
    repeat: int
    verify: bool
    field: str | None
    escape: bool
    is_text: bool
    strict: bool
    n_threads: int | None
    curve: str | None
    show_examples: bool
    plot: str | None

    @classmethod
    def from_options(
        cls,
        given: DrafterOptions,
        *,
        model: str,
        files: list[str],
        statics: Sequence[str],
        dynamic: str | None,
        n_ctxs: Sequence[int],
        has_draft_max: bool,
        repeat: int,
        verify: bool,
        field: str | None,
        escape: bool,
        is_text: bool,
        strict: bool,
        n_threads: int | None,
        plot: str | None,
        csv: bool,
    ) -> DrafterRequest | None:
        """Return the request; None: there is no --drafter.

        Raises
        ------
        UsageError : options that do not fit together
        """
        if given.drafters is None:
            _check_alone(given)
            given.template.unused(given.context, _DRAFTER_REMEDY)
            return None
        _check_single(statics, n_ctxs)
        check_draft_max(is_given=has_draft_max)
        if csv and given.show_examples:
            raise UsageError(
                "--show-examples is not for --csv, which has no place for them",
                remedy="give --json, or neither",
            )
        return cls(
            model=model,
            files=files,
            drafters=given.drafters,
            upstream_exact=given.upstream_exact,
            carry=_carry(given),
            chat=given.chat,
            template=given.template,
            static=statics[0] if statics else None,
            dynamic=dynamic,
            n_ctx=n_ctxs[0],
            repeat=repeat,
            verify=verify,
            field=field,
            escape=escape,
            is_text=is_text,
            strict=strict,
            n_threads=n_threads,
            curve=_curve(given),
            show_examples=given.show_examples,
            plot=plot,
        )


def _check_alone(given: DrafterOptions) -> None:
    """Refuse what says nothing without --drafter."""
    for flag, is_given in (
        ("--upstream-exact", given.upstream_exact),
        ("--carry", given.carry is not None),
        ("--server-like", given.server_like),
        ("--chat", given.chat),
        ("--advise", given.advise),
        ("--cost", given.cost is not None),
        ("--show-examples", given.show_examples),
    ):
        if is_given:
            raise UsageError(
                f"{flag} is for --drafter",
                remedy=_DRAFTER_REMEDY,
            )


def _check_single(statics: Sequence[str], n_ctxs: Sequence[int]) -> None:
    """Refuse rows of another kind than drafters."""
    if len(statics) > 1:
        raise UsageError("--drafter with several -lcs", remedy="give one, and a call for each")
    if len(n_ctxs) > 1:
        raise UsageError("--drafter with several -c", remedy="give one, and a call for each")


def check_draft_max(*, is_given: bool) -> None:
    """Refuse --draft-max beside --drafter."""
    if is_given:
        raise UsageError(
            "--drafter with --draft-max: drafters have keys of their own for that",
            remedy="give them, as --drafter ngram-cache:draft-max=3",
        )


def check_caches(specs: Sequence[DrafterSpec], static: str | None, dynamic: str | None) -> None:
    """Refuse caches that no drafter reads."""
    if static is None and dynamic is None:
        return
    if not any(setting.name == "ngram-cache" for spec in specs for setting in spec.names):
        raise UsageError(
            "-lcs and -lcd are for ngram-cache, and no --drafter names it",
            remedy="name it too, or leave the caches out",
        )


def _carry(given: DrafterOptions) -> Carry:
    """Return what is carried from request to request."""
    if not given.server_like:
        return given.carry or Carry.CONVERSATION
    if given.carry not in (None, Carry.ALL):
        raise UsageError(
            f"--server-like and --carry {given.carry} exclude each other", remedy="give one of them"
        )
    return Carry.ALL


def _curve(given: DrafterOptions) -> str | None:
    """Return the curve to predict with."""
    if given.advise and given.cost is None:
        raise UsageError(
            "--advise needs to know what a pass over several tokens costs",
            remedy="give --cost FILE of llama-bench -p 1,2,4,8,16,32,64 -n 0 -o json or of "
            "lookup-run --compare --json, or --cost 1:1.0,2:1.1,4:1.3",
        )
    return given.cost
