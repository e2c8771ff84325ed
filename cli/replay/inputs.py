"""From the files of a call to texts that can be replayed, and what is to be said of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ...engine.errors import InputTooShort, UsageError
from ..formats import number
from ..output import Output, Table

if TYPE_CHECKING:
    import numpy as np

    from ...engine.gguf.file import GgufMetadata
    from ...engine.stages import Stages
    from ...engine.tokens.tokenizer import Tokenizer
    from ...ngram.conversations.conversation import ReplayTexts
    from ...ngram.conversations.files import ChatFiles, ReadStats
    from ...ngram.conversations.search import FoundChats
    from ...ngram.corpus.documents import Corpus
    from ..chat_options import ChatOptions


# Places of bad conversations that a warning names; the record has more of them.
PLACES_SHOWN = 5
# Kinds of parts that were left out, which a warning names.
KINDS_SHOWN = 10
# Keys of conversations, and of plain texts: a record has both, so that rows of CSV fit together.
CHAT_KEYS = (
    *(
        "n_read",
        "n_bad",
        "n_media",
        "n_inexact",
        "n_empty_turns",
        "n_turns_not_found",
        "n_turns_left_out",
    ),
    *("n_rewritten_turns", "n_cut", "n_turns_refused", "n_turns_stopped"),
)
TEXT_KEYS = ("n_documents", "n_bytes", "n_null", "n_left_out", "n_skipped", "skipped")


@dataclass(frozen=True)
class ReadRequest:
    """What is to be read.

    Attributes
    ----------
    n_ctx : tokens a chunk of plain text, 0: as many as the model was trained on; of a slot that
        answers conversations, 0: as many as they need
    chat : the files hold conversations, whatever their names
    template : what the options say about the chat template
    is_text : the files hold plain text, whatever their names
    strict : what is wrong with a file in a folder ends the run
    """

    files: list[str]
    n_ctx: int
    chat: bool
    template: ChatOptions
    field: str | None
    escape: bool
    is_text: bool
    strict: bool
    n_threads: int


@dataclass(frozen=True)
class ReplayInputs:
    """Texts, and what records and tables say of them.

    Attributes
    ----------
    keys : of each record
    inputs : the record's entry of each file
    bad : places of what is no conversation, and why
    dropped : what was left out of conversations, and where
    tables : shown after the others
    """

    texts: ReplayTexts
    keys: dict[str, Any]
    inputs: list[dict[str, Any]]
    bad: list[dict[str, str]] = field(default_factory=list)
    dropped: list[dict[str, Any]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


def read_texts(
    request: ReadRequest,
    metadata: GgufMetadata,
    tokenizer: Tokenizer,
    stages: Stages,
    out: Output,
) -> ReplayInputs:
    """Read conversations, or plain texts.

    Raises
    ------
    UsageError : files of both kinds
    InputEmpty, InputTooShort, InputMalformed : nothing in them can be replayed
    InputUnreadable, InputHasNoText : files
    """
    if is_chat(request, out):
        return _read_chats(request, metadata, tokenizer, stages, out)
    if any(request.template.record.values()):
        out.note("the files hold plain text: no chat template, and no option of it, is used")
    return _read_plain(request, metadata, tokenizer, stages, out)


def is_chat(request: ReadRequest, out: Output) -> bool:
    """Whether the files hold conversations.

    By --chat, --text or --field, or else by what is in the files; by their names where that
    leaves it open.

    Raises
    ------
    UsageError : files of both kinds, or options of both
    """
    from ...ngram.conversations.search import search
    from ..inputs import refuse_text_and_field

    refuse_text_and_field(request.field, is_text=request.is_text)
    for flag, is_given, what in (
        ("--text", request.is_text, "plain text"),
        ("--field", request.field is not None, "a text in each line"),
    ):
        if request.chat and is_given:
            raise UsageError(
                f"--chat and {flag} exclude each other",
                remedy=f"give --chat for conversations, or {flag} for {what}",
            )
        if is_given:
            return False
    is_it = request.chat or _are_chats(search(request.files), out)
    if is_it and request.escape:
        raise UsageError("--escape is for plain text, not for conversations", remedy="leave it out")
    return is_it


def _are_chats(found: FoundChats, out: Output) -> bool:
    """Whether files hold conversations, all of them; raises UsageError if only some do."""
    from ...ngram.conversations.search import is_chat_path

    has_chats = bool(found.paths("chats"))
    chats: list[str] = []
    others: list[str] = []
    for source, held in found.held:
        # By a name that says so, where what is in the file does not: its lines are told then.
        is_open = held in ("json", "text", "unknown") and is_chat_path(source.path)
        by_name = is_open and (not source.is_found or (has_chats and held == "json"))
        (chats if held == "chats" or by_name else others).append(source.path)
    if chats and others:
        more = f" ({len(chats)} files and {len(others)})" if len(found.held) > 2 else ""
        raise UsageError(
            f"{chats[0]} holds conversations, and {others[0]} plain text{more}",
            remedy="give a call for each, or --chat, --field or --text for all",
        )
    json = found.paths("json")
    if not chats and json:
        shown = ", ".join(json[:PLACES_SHOWN]) + (", ..." if len(json) > PLACES_SHOWN else "")
        out.warn(f"JSON of no known form is replayed as the text that it is: {shown}")
    return bool(chats)


def _read_chats(
    request: ReadRequest,
    metadata: GgufMetadata,
    tokenizer: Tokenizer,
    stages: Stages,
    out: Output,
) -> ReplayInputs:
    """Read conversations, as a slot of -c tokens answers them."""
    from ...ngram.conversations.files import open_chats
    from ..inputs import describe_corpus

    files = open_chats(request.files, strict=request.strict)
    texts, keys = read_chats(files, request.template, metadata, tokenizer, stages, out)
    texts, left = _within_context(texts, request.n_ctx, metadata, out)
    keys |= left
    bad = [{"place": bad.place, "reason": bad.reason} for bad in files.stats.bad]
    tables = [_chat_table(texts, keys), *_dropped_table(files.stats)]
    dropped = _dropped_records(files.stats)
    return ReplayInputs(texts, keys, describe_corpus(files), bad, dropped, tables)


def read_chats(
    files: ChatFiles,
    options: ChatOptions,
    metadata: GgufMetadata,
    tokenizer: Tokenizer,
    stages: Stages,
    out: Output,
) -> tuple[ReplayTexts, dict[str, Any]]:
    """Read conversations through a chat template, and warn of what was left out.

    Parameters
    ----------
    options : say which template, and what it is told

    Returns them, and the record's keys.

    Raises
    ------
    InputEmpty, InputMalformed : nothing in them can be used
    InputUnreadable, InputHasNoText : files
    ChatTemplateUnusable, UsageError : the template, or its options
    """
    from ...engine.tokens.stop_tokens import eog_ids
    from ...ngram.conversations.reader import read_conversations
    from ..inputs import show_read

    template = options.prompt_template(metadata, tokenizer.vocabulary, out)
    ends = eog_ids(metadata, tokenizer.vocabulary)
    with out.progress("reading", unit="bytes") as bar, stages.stage("tokenize"):
        texts, turns = read_conversations(
            files,
            tokenizer,
            template,
            ends,
            values=template.values,
            on_read=lambda: show_read(bar, files),
        )
    stats = files.stats
    _warn_of_bad(files, out)
    keys: dict[str, Any] = {
        **dict.fromkeys(TEXT_KEYS),
        "n_left_out": len(files.left_out),
        "n_invalid_utf8": stats.n_invalid_utf8,
        "n_read": stats.n_read,
        "n_bad": stats.n_bad,
        "n_media": stats.n_media,
        "n_inexact": stats.n_inexact,
        "n_empty_turns": turns.n_empty,
        "n_turns_not_found": turns.n_not_found,
        "n_turns_left_out": turns.n_left_out,
        "n_rewritten_turns": turns.n_rewritten,
        "n_cut": turns.n_cut,
    }
    return texts, keys


def _within_context(
    texts: ReplayTexts, n_ctx: int, metadata: GgufMetadata, out: Output
) -> tuple[ReplayTexts, dict[str, int]]:
    """Keep what a slot of -c tokens has room for; without -c all, and warn of what has none.

    Returns the texts, and the record's keys of what they lack.

    Raises
    ------
    UsageError : nothing fits
    """
    from ...ngram.conversations.context_limit import beyond, within

    trained = _trained_ctx(metadata)
    if n_ctx and trained and n_ctx > trained:
        out.warn(f"-c {n_ctx} is more than the {trained} tokens that the model was trained on")
    room = rounded_up(n_ctx, out) if n_ctx else trained
    found = beyond(texts, room) if room else None
    if not found:
        return texts, {"n_turns_refused": 0, "n_turns_stopped": 0}
    if not n_ctx:
        out.warn(
            f"the model was trained on {room} tokens, and a server with that context refuses "
            f"{found.n_refused} of {texts.n_turns} answers, for their prompts fill it, and stops "
            f"{found.n_stopped} early; all are replayed, with -c {room} what the server does"
        )
        return texts, {"n_turns_refused": 0, "n_turns_stopped": 0}
    if found.n_refused == texts.n_turns:
        raise UsageError(
            f"-c {room}: no answer has a prompt of fewer tokens than that",
            remedy=f"give -c {found.longest} for all of them, or leave it out",
        )
    out.warn(
        f"-c {room} has no room for the prompts of {found.n_refused} of {texts.n_turns} answers, "
        f"which a server refuses, and ends {found.n_stopped} early; -c {found.longest} has room "
        "for all"
    )
    keys = {"n_turns_refused": found.n_refused, "n_turns_stopped": found.n_stopped}
    return within(texts, room), keys


def _warn_of_bad(files: ChatFiles, out: Output) -> None:
    """Say how many conversations were left out, for each reason, and where the first ones are."""
    stats = files.stats
    if files.left_out:
        n, shown = len(files.left_out), ", ".join(files.left_out[:PLACES_SHOWN])
        more = ", ..." if n > PLACES_SHOWN else ""
        out.warn(f"{n} files that hold no conversations left out ({shown}{more})")
    for reason, n in stats.reasons.most_common():
        places = [bad.place for bad in stats.bad if bad.reason == reason][:PLACES_SHOWN]
        more = ", ..." if n > len(places) else ""
        out.warn(f"{n} left out: {reason} ({', '.join(places)}{more})")
    if stats.n_invalid_utf8:
        out.warn(f"{stats.n_invalid_utf8} invalid UTF-8 sequences replaced by U+FFFD")
    _warn_of_dropped(stats, out)


def _warn_of_dropped(stats: ReadStats, out: Output) -> None:
    """Name what was left out of conversations; what an answer lacks first, and what that means."""
    kinds = sorted(stats.dropped, key=lambda kind: (not kind.of_answer, -stats.dropped[kind]))
    for kind in kinds[:KINDS_SHOWN]:
        places = stats.dropped_at[kind][:PLACES_SHOWN]
        n = stats.dropped[kind]
        more = ", ..." if n > len(places) else ""
        of = " of answers" if kind.of_answer else ""
        out.warn(f"{number(n)} left out{of}: {kind.what} ({', '.join(places)}{more})")
    if len(kinds) > KINDS_SHOWN:
        out.warn(f"{len(kinds) - KINDS_SHOWN} more kinds of parts left out; --json names them")
    if stats.n_inexact:
        parts = "part of an answer is" if stats.n_inexact == 1 else "parts of answers are"
        out.warn(
            f"{number(stats.n_inexact)} {parts} missing in the replay: the figures of such answers "
            "are not exact"
        )


def _dropped_records(stats: ReadStats) -> list[dict[str, Any]]:
    """What was left out of conversations, as the record has it."""
    return [
        {
            "what": kind.what,
            "of_answers": kind.of_answer,
            "n": n,
            "places": stats.dropped_at[kind],
        }
        for kind, n in stats.dropped.most_common()
    ]


def _chat_table(texts: ReplayTexts, keys: Mapping[str, Any]) -> Table:
    n_generated = texts.n_generated
    rows = [
        ("conversations", number(texts.n_conversations)),
        ("answers", number(texts.n_turns)),
        ("tokens of answers", number(n_generated)),
        ("tokens around them", number(texts.tokens.size - n_generated)),
        ("prompts begun anew", number(keys["n_rewritten_turns"])),
        ("left out: conversations", number(keys["n_bad"])),
        ("empty answers", number(keys["n_empty_turns"])),
        ("answers that the template changes", number(keys["n_turns_not_found"])),
        ("answers after too many changes", number(keys["n_turns_left_out"])),
        ("answers refused, their prompt fills -c", number(keys["n_turns_refused"])),
        ("answers stopped where -c is full", number(keys["n_turns_stopped"])),
        ("left out: parts of answers", number(keys["n_inexact"])),
        ("left out: other parts", number(keys["n_media"] - keys["n_inexact"])),
    ]
    shown = [row for row in rows if row[1] != "0"]
    return Table("what was replayed", (), shown)


def _dropped_table(stats: ReadStats) -> list[Table]:
    """What was left out of conversations; no table if nothing was."""
    rows = [
        (
            kind.what,
            "answers" if kind.of_answer else "prompts",
            number(n),
            stats.dropped_at[kind][0],
        )
        for kind, n in stats.dropped.most_common(KINDS_SHOWN)
    ]
    heads = ("left out", "of", "how many", "first in")
    return [Table("left out of conversations", heads, rows, expendable=(3,))] if rows else []


def _read_plain(
    request: ReadRequest,
    metadata: GgufMetadata,
    tokenizer: Tokenizer,
    stages: Stages,
    out: Output,
) -> ReplayInputs:
    """Read texts; each document is cut into chunks of ``n_ctx`` tokens, a conversation each."""
    from ...engine.tokens.prompt_ends import TextEnds
    from ...ngram.conversations.conversation import Joined, ReplayTexts
    from ...ngram.corpus.documents import open_corpus
    from ..inputs import (
        corpus_keys,
        describe_corpus,
        show_read,
        warn_of_ends,
        warn_of_repairs,
    )

    corpus = open_corpus(
        request.files,
        field=request.field,
        escape=request.escape,
        is_text=request.is_text,
        strict=request.strict,
    )
    n_ctx = chunk_tokens(request.n_ctx, metadata, out)
    joined = Joined()
    ends = TextEnds(tokenizer)
    with out.progress("tokenizing", unit="bytes") as bar, stages.stage("tokenize"):
        for document, tokens in enumerate(_documents(corpus, tokenizer, request.n_threads)):
            ends.add(document, tokens)
            if tokens.size > 1:
                for chunk in ReplayTexts.of_text(tokens, n_ctx):
                    joined.add(chunk)
            show_read(bar, corpus)
    texts = joined.texts()
    if not texts.n_conversations:
        raise InputTooShort(
            "no document has two tokens, which a replay needs", remedy="give longer texts"
        )
    warn_of_repairs(corpus, out)
    warn_of_ends(ends, out)
    keys = {**corpus_keys(corpus), **dict.fromkeys(CHAT_KEYS)}
    return ReplayInputs(texts, keys, describe_corpus(corpus))


def chunk_tokens(wanted: int, metadata: GgufMetadata, out: Output) -> int:
    """Return the chunk length: what is wanted or the model's own, rounded up as llama.cpp does.

    Raises
    ------
    UsageError : the model does not say what it was trained on
    """
    n_ctx = wanted or _trained_ctx(metadata)
    if n_ctx < 1:
        raise UsageError(
            f"{metadata.path} does not say what context it was trained on",
            remedy="give -c N",
        )
    return rounded_up(n_ctx, out)


def rounded_up(n_ctx: int, out: Output) -> int:
    """Return a context as long as llama.cpp makes it, and say so."""
    from ...ngram.lookup.replay import round_up_ctx

    rounded = round_up_ctx(n_ctx)
    if rounded != n_ctx:
        out.note(f"-c {n_ctx} is rounded up to {rounded}, a multiple of 256, as llama.cpp does")
    return rounded


def _trained_ctx(metadata: GgufMetadata) -> int:
    """Return the tokens that the model was trained on; 0: its file does not say."""
    values = metadata.values
    trained = values.get(f"{values.get('general.architecture')}.context_length")
    return trained if isinstance(trained, int) else 0


def _documents(corpus: Corpus, tokenizer: Tokenizer, n_threads: int) -> Iterator[np.ndarray]:
    """Yield the ids of each document: int32 [n]."""
    import numpy as np

    from ..inputs import token_pieces

    pieces = token_pieces(corpus, tokenizer, n_threads)
    for _, of_one in groupby(pieces, key=itemgetter(0)):
        yield np.concatenate([tokens for _, tokens in of_one])
