"""The prompt of a command that generates: options in, token ids out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...engine.errors import InputEmpty, UsageError
from ..chat_options import ChatOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    import typer

    from ..output import Output

REMEDY = "give -p PROMPT, -f FILE or --chat-file FILE.json"


@dataclass(frozen=True)
class PromptRequest:
    """What the options say about the prompt.

    Attributes
    ----------
    text, file, chat_file : exactly one of them is not None; the files may be "-".
    chat : put it into the model's chat template.
    system : what the system says in the chat; None: nothing.
    escape : process llama.cpp's escapes in text, file and system.
    template : what the options say about the template.
    """

    text: str | None
    file: str | None
    chat: bool
    system: str | None
    escape: bool
    chat_file: str | None = None
    template: ChatOptions = field(default_factory=ChatOptions)

    @classmethod
    def from_options(
        cls,
        prompt: str | None,
        file: str | None,
        chat_file: str | None,
        *,
        chat: bool,
        system: str | None,
        escape: bool,
        template: ChatOptions,
        context: typer.Context,
    ) -> PromptRequest:
        """Build the request that the options make.

        Raises
        ------
        UsageError : no prompt, or two; or options of a chat without one
        InputEmpty : a prompt without a character
        """
        given = {"-p": prompt, "-f": file, "--chat-file": chat_file}
        named = [name for name, value in given.items() if value is not None]
        if not named:
            raise UsageError("no prompt", remedy=REMEDY)
        if len(named) > 1:
            raise UsageError(f"{' and '.join(named)} both give a prompt", remedy="give one of them")
        if prompt == "":
            raise InputEmpty("the prompt is empty", remedy="give -p some text")
        if chat_file is not None and (system is not None or escape):
            raise UsageError(
                "--chat-file brings what the system says, and texts as they are",
                remedy="leave out -sys and -e",
            )
        chat = chat or system is not None or chat_file is not None
        if not chat:
            template = template.unused(context, "give --chat too, or leave it out")
        return cls(prompt, file, chat, system, escape, chat_file, template)


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
    from ..inputs import warn_of_repairs

    if request.text is not None:
        return plain_text(request.text, request.escape)
    from ...ngram.corpus.documents import open_corpus

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
    from ...ngram.corpus.decode import process_escapes, repair_utf8

    def blocks() -> Iterator[bytes]:
        yield text.encode("utf-8", "surrogateescape")

    raw = process_escapes(blocks()) if escape else blocks()
    return b"".join(repair_utf8(raw, lambda n_replaced: None)).decode()
