"""Options of all commands that put messages into a chat template, under llama.cpp's names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..engine.errors import UsageError
from .options import is_typed

if TYPE_CHECKING:
    from ..engine.chat.prompt import PromptTemplate
    from ..engine.chat.template import ChatTemplate
    from ..engine.gguf.file import GgufMetadata
    from ..engine.tokens.vocabulary import Vocabulary
    from .output import Output

# llama.cpp's words for each.
_ON = ("on", "enabled", "true", "1")
_OFF = ("off", "disabled", "false", "0")
_AUTO = ("auto", "-1")
_THINKING = "enable_thinking"

TemplateFile = Annotated[
    str | None,
    typer.Option(
        "--chat-template-file",
        metavar="FILE",
        envvar="LLAMA_ARG_CHAT_TEMPLATE_FILE",
        help="A chat template (Jinja) in place of the model's own.",
    ),
]
TemplateKwargs = Annotated[
    str | None,
    typer.Option(
        "--chat-template-kwargs",
        metavar="JSON",
        envvar="LLAMA_ARG_CHAT_TEMPLATE_KWARGS",
        help="Variables of the chat template, a JSON object; those of a conversation's own "
        "chat_template_kwargs come before them.",
    ),
]
Reasoning = Annotated[
    str | None,
    typer.Option(
        "-rea",
        "--reasoning",
        metavar="on|off|auto",
        envvar="LLAMA_ARG_REASONING",
        help="Whether the chat template lets the model think: sets its enable_thinking; auto, the "
        "default: on, where the template knows it.",
    ),
]
ChatFile = Annotated[
    str | None,
    typer.Option(
        "--chat-file",
        metavar="FILE.json",
        help='A conversation as the prompt: a list of messages, or an object with "messages", '
        '"tools", "chat_template_kwargs" and what else the chat template takes; - for stdin.',
    ),
]
# The options by the names of their parameters.
FLAGS = {
    "chat_template_file": "--chat-template-file",
    "chat_template_kwargs": "--chat-template-kwargs",
    "reasoning": "--reasoning",
}


@dataclass(frozen=True)
class ChatOptions:
    """What the options say about the chat template; not checked before it is used.

    Attributes
    ----------
    file : holds a template; None: the model's own
    kwargs : variables, a JSON object
    reasoning : one of llama.cpp's words for on, off and auto
    """

    file: str | None = None
    kwargs: str | None = None
    reasoning: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        """The variables that are set.

        Raises
        ------
        UsageError : no JSON object, one with a name that cannot be set, or no such word
        """
        values = _object(self.kwargs) if self.kwargs is not None else {}
        word = (self.reasoning or "auto").strip().lower()
        if word in (*_ON, *_OFF):
            values[_THINKING] = word in _ON
        elif word not in _AUTO:
            raise UsageError(
                f"--reasoning {self.reasoning!r} is neither on, off nor auto",
                remedy="give one of the three",
            )
        return values

    @property
    def record(self) -> dict[str, Any]:
        """The options, as a record has them."""
        return {
            "chat_template_file": self.file,
            "chat_template_kwargs": self.kwargs,
            "reasoning": self.reasoning,
        }

    def template(self, metadata: GgufMetadata, vocabulary: Vocabulary) -> ChatTemplate:
        """The template, as it is.

        Raises
        ------
        ChatTemplateUnusable, InputUnreadable, InputMalformed : see ``ChatTemplate.of``
        """
        from ..engine.chat.template import ChatTemplate

        return ChatTemplate.of(metadata, vocabulary, file=self.file)

    def prompt_template(
        self, metadata: GgufMetadata, vocabulary: Vocabulary, out: Output
    ) -> PromptTemplate:
        """The template with its variables, for messages of any form.

        Raises
        ------
        ChatTemplateUnusable, InputUnreadable, InputMalformed, UsageError : see ``values``
        """
        from ..engine.chat.prompt import PromptTemplate

        values = self.values
        template = PromptTemplate.adapting(self.template(metadata, vocabulary), values)
        note_unknown(template.abilities.asks_for, values, out)
        return template

    def unused(self, context: typer.Context, remedy: str) -> ChatOptions:
        """The options where there is no chat: none of them; those of the environment are ignored.

        Raises
        ------
        UsageError : one was typed
        """
        for name, flag in FLAGS.items():
            if is_typed(context, name):
                raise UsageError(f"{flag} is for a chat template", remedy=remedy)
        return ChatOptions()


@dataclass(frozen=True)
class TemplateOptions:
    """The options of the chat template, for a command's signature."""

    chat_template_file: TemplateFile = None
    chat_template_kwargs: TemplateKwargs = None
    reasoning: Reasoning = None

    @property
    def chosen(self) -> ChatOptions:
        """What they say, not checked."""
        return ChatOptions(self.chat_template_file, self.chat_template_kwargs, self.reasoning)


def note_unknown(asks_for: Any, values: Mapping[str, Any], out: Output) -> None:
    """Say which variables change nothing, as the template does not ask for them."""
    unknown = [name for name in values if not asks_for(name)]
    if unknown:
        out.note(f"the chat template does not ask for {shown_names(unknown)}: no difference")


def shown_names(names: list[str], most: int = 10) -> str:
    """Some names out of a file, for one line of a terminal."""
    shown = [
        "".join(c if c.isprintable() else "?" for c in name[:40]) + ("..." if name[40:] else "")
        for name in names[:most]
    ]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")


def _object(text: str) -> dict[str, Any]:
    """The variables that --chat-template-kwargs holds."""
    from ..engine.chat.messages import TAKEN, NotAChat, shallow

    def wrong(what: str) -> UsageError:
        return UsageError(
            f"--chat-template-kwargs {what}",
            remedy="""give a JSON object, as '{"enable_thinking": false}'""",
        )

    try:
        found = shallow(json.loads(text))
    except (ValueError, RecursionError, NotAChat) as error:
        raise wrong(f"is no JSON ({error})") from error
    if not isinstance(found, dict):
        raise wrong("is no JSON object")
    if taken := sorted(TAKEN & found.keys()):
        raise wrong(f"sets {taken[0]}, which cannot be set")
    return found
