"""The prompt of a command that generates: options in, token ids out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..engine.errors import InputEmpty, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .output import Output

REMEDY = "give -p PROMPT or -f FILE"


@dataclass(frozen=True)
class PromptRequest:
    """What the options say about the prompt.

    Attributes
    ----------
    text, file : exactly one of them is not None; the file may be "-".
    chat : put it into the model's chat template.
    system : what the system says in the chat; None: nothing.
    escape : process llama.cpp's escapes in text, file and system.
    """

    text: str | None
    file: str | None
    chat: bool
    system: str | None
    escape: bool

    @classmethod
    def from_options(
        cls, prompt: str | None, file: str | None, *, chat: bool, system: str | None, escape: bool
    ) -> PromptRequest:
        """Build the request that the options make.

        Raises
        ------
        UsageError : no prompt, or two
        InputEmpty : a prompt without a character
        """
        if prompt is None and file is None:
            raise UsageError("no prompt", remedy=REMEDY)
        if prompt is not None and file is not None:
            raise UsageError("-p and -f both give a prompt", remedy="give one of them")
        if prompt == "":
            raise InputEmpty("the prompt is empty", remedy="give -p some text")
        return cls(prompt, file, chat or system is not None, system, escape)


def read_prompt(request: PromptRequest, most_bytes: int, room: str, out: Output) -> str:
    """Return the text of the prompt, before any template.

    Parameters
    ----------
    most_bytes : so long that it cannot fit; nothing more is read then.
    room : what it cannot fit into.

    Raises
    ------
    InputUnreadable, InputMalformed, ... : what is wrong with the file
    InputEmpty : there is no text in it
    UsageError : the file is several, or too long
    """
    from .inputs import warn_of_repairs

    if request.text is not None:
        return plain_text(request.text, request.escape)
    from ..ngram.corpus import open_corpus

    file = request.file or ""
    corpus = open_corpus([file], escape=request.escape, is_text=True)
    if len(corpus.sources) > 1:
        raise UsageError(
            f"-f {file} names {len(corpus.sources)} files, and a prompt is one",
            remedy="name one file",
        )
    data = bytearray()
    for document in corpus.documents():
        if document.blocks is None:
            raise UsageError(f"-f {file} holds token ids", remedy="name a file that holds text")
        for block in document.blocks:
            data += block
            if len(data) > most_bytes:
                raise UsageError(
                    f"-f {file} holds more than {most_bytes} bytes, longer than any prompt that "
                    f"fits into {room}",
                    remedy="give a shorter prompt or a larger -c",
                )
    warn_of_repairs(corpus, out)
    if not data:
        name = "standard input" if file == "-" else file
        raise InputEmpty(f"{name} holds no text", remedy="give a prompt")
    return data.decode()


def plain_text(text: str, escape: bool) -> str:
    """Return what an option says as valid Unicode, its escapes processed if wanted."""
    from ..ngram.corpus_decode import process_escapes, repair_utf8

    def blocks() -> Iterator[bytes]:
        yield text.encode("utf-8", "surrogateescape")

    raw = process_escapes(blocks()) if escape else blocks()
    return b"".join(repair_utf8(raw, lambda n_replaced: None)).decode()
