"""The request of ``prefill-run``: a document and a question, or a conversation, to tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...engine.errors import ChatTemplateUnusable, UsageError
from ..chat_options import ChatOptions
from ..generate.prompt import PromptRequest, plain_text, read_prompt

if TYPE_CHECKING:
    import numpy as np

    from ...engine.chat.prompt import PromptTemplate
    from ...engine.chat.template import ChatTemplate
    from ...engine.tokens.tokenizer import Tokenizer
    from ...prefill.prompt.parts import PromptParts
    from ..generate.session import Target
    from ..output import Output

MOST_BYTES = 1 << 24


@dataclass(frozen=True)
class AskRequest:
    """What the options say about the request.

    Attributes
    ----------
    file, question : a document and what is asked of it; None with a conversation
    chat_file : a conversation; None without one
    system : what the system says before; None: nothing
    raw : no chat template
    escape : process llama.cpp's escapes in document, question and system
    named : words of the conversation that are the question; None: they are to be found
    template : what the options say about the chat template
    """

    file: str | None
    question: str | None
    chat_file: str | None
    system: str | None
    raw: bool
    escape: bool
    named: str | None = None
    template: ChatOptions = field(default_factory=ChatOptions)

    @property
    def template_options(self) -> ChatOptions | None:
        """Of the chat template; None: there is none."""
        return None if self.raw else self.template

    def check(self) -> None:
        """Refuse what does not go together.

        Raises
        ------
        UsageError
        """
        if self.chat_file is None:
            if self.file is None or self.question is None:
                missing = "document" if self.file is None else "question"
                raise UsageError(
                    f"no {missing}", remedy="give -f FILE -p QUESTION, or --chat-file FILE.json"
                )
        elif self.file is not None or self.question is not None:
            raise UsageError(
                "--chat-file brings its own document and question", remedy="leave out -f and -p"
            )
        if self.named is not None and self.chat_file is None:
            raise UsageError(
                "--question is for --chat-file",
                remedy="give the question with -p, without --question",
            )
        if self.named is not None and not self.named.strip():
            raise UsageError("--question is empty", remedy="give some words of the prompt")
        if self.raw and (self.chat_file is not None or self.system is not None):
            raise UsageError(
                "a conversation and what the system says need a chat template",
                remedy="leave out --raw",
            )
        if self.chat_file is not None and self.system is not None:
            raise UsageError(
                "--chat-file brings what the system says", remedy="put it into the file"
            )


@dataclass(frozen=True)
class Ask:
    """A request whose texts are read.

    Attributes
    ----------
    messages : a conversation; empty: a document and a question
    template : with the variables that a conversation sets; None: raw
    answer_begin : what the answer is to begin with
    named : words of the conversation that are the question; None: they are to be found
    stop : texts that end the answer, by the conversation's file
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    document: str = ""
    question: str = ""
    system: str | None = None
    messages: tuple[Mapping[str, Any], ...] = ()
    answer_begin: str = ""
    named: str | None = None
    stop: tuple[str, ...] = ()

    def begin(self) -> np.ndarray:
        """What the answer is to begin with, int32 [n]."""
        return self.tokenizer.encode(self.answer_begin, add_special=False)

    def parts(self) -> PromptParts:
        """The prompt, and which of its tokens are what."""
        from ...prefill.prompt.parts import PromptParts

        if self.messages:
            assert self.template is not None
            return PromptParts.of_messages(
                self.messages, self.tokenizer, self.template, question=self.named
            )
        return PromptParts.of_document(
            self.document, self.question, self.tokenizer, self.template, system=self.system
        )

    def ids(self) -> np.ndarray:
        """The prompt alone, int32 [n], as a prefill in full needs it."""
        from ...prefill.prompt.document import ids_of_document

        if self.messages:
            assert self.template is not None
            return self.template.encode(self.template.render(self.messages), self.tokenizer)
        return ids_of_document(
            self.document, self.question, self.tokenizer, self.template, system=self.system
        )


def read_ask(request: AskRequest, target: Target, out: Output) -> Ask:
    """Read the texts of a request.

    Raises
    ------
    InputUnreadable, InputMalformed, InputEmpty, ... : what is wrong with a file
    ChatTemplateUnusable : the model has no template
    """
    tokenizer = target.tokenizer
    template = find_template(target, request.template_options, out)
    if request.chat_file is not None:
        from ..generate.chat_input import read_chat

        assert template is not None
        asked_chat = read_chat(request.chat_file, template, out)
        return Ask(
            tokenizer,
            asked_chat.template,
            messages=tuple(asked_chat.messages),
            named=request.named,
            stop=asked_chat.stop,
        )
    asked = PromptRequest(None, request.file, False, None, request.escape)
    return Ask(
        tokenizer,
        template,
        read_prompt(asked, MOST_BYTES, "what is scored at once", out),
        plain_text(request.question or "", request.escape),
        None if request.system is None else plain_text(request.system, request.escape),
    )


def find_template(
    target: Target, options: ChatOptions | None, out: Output
) -> PromptTemplate | None:
    """The model's chat template, or the one that the options name; None without options.

    Raises
    ------
    ChatTemplateUnusable : it has none
    """
    if options is None:
        return None
    try:
        return options.prompt_template(target.metadata, target.tokenizer.vocabulary, out)
    except ChatTemplateUnusable as error:
        raise ChatTemplateUnusable(
            error.message,
            remedy="name a template with --chat-template-file, or give --raw, for a prompt "
            "without one",
        ) from error
