"""A document and a question as one prompt: its messages, its ids, and how many those will be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...engine.chat.template import ChatTemplate
from ...engine.tokens.tokenizer import Tokenizer
from .turns import Message

SEPARATOR = "\n\n"


def document_messages(content: str, system: str | None) -> list[Message]:
    """A user's turn, after what the system says."""
    said: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return [*said, {"role": "user", "content": content}]


def ids_of_document(
    document: str,
    question: str,
    tokenizer: Tokenizer,
    template: ChatTemplate | None = None,
    *,
    system: str | None = None,
) -> NDArray[np.int32]:
    """The ids of ``PromptParts.of_document`` alone, as a prefill in full needs them, int32 [n].

    Raises
    ------
    InputMalformed, ChatTemplateUnusable : see ``Tokenizer.encode``, ``ChatTemplate.render``.
    """
    content = f"{document}{SEPARATOR}{question}"
    if template is None:
        return tokenizer.encode(content)
    return template.encode(template.render(document_messages(content, system)), tokenizer)


def prompt_counter(
    tokenizer: Tokenizer, template: ChatTemplate | None = None
) -> Callable[[str, str, str], int]:
    """What counts the tokens of a prompt of (document, question, beginning of the answer).

    It adds up the pieces' own tokens: of pieces together there may be some more or fewer.
    """
    around = int(ids_of_document("x", "x", tokenizer, template).size)

    def count(*pieces: str) -> int:
        return around + sum(tokenizer.encode(piece).size for piece in pieces)

    return count
