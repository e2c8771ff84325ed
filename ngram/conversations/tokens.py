"""Rendered conversations to tokens: which of them the assistant generated, after which prompt.

Each turn of the assistant was a request of its own. Its prompt is the text of all before it, with
the begin of the answer that the template writes; what it generated is what the template writes
after that for the answer, up to the first token that ends a generation. As long as a prompt goes
on as the last one and its answer do, token for token, both are one stream; where a template
rewrites what was said, such as by dropping thoughts, the prompt begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...engine.chat.template import ChatTemplate
from ...engine.tokens.growing_text import GrowingText
from ...engine.tokens.tokenizer import Tokenizer
from .conversation import Conversation

# Prompts of a conversation whose template rewrites each of them: 128 MB.
MOST_TOKENS = 1 << 25

_THINK, _THOUGHT = "<think>", "</think>"
_LONGEST_OVERLAP = 64

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class ShownAnswer:
    """What the assistant said in one turn, as it was logged.

    Attributes
    ----------
    text : without blanks around it.
    reasoning : the same, of what it thought before; "" if it is not known.
    calls_tools : more is shown than the text.
    prefill : what the request had of the answer already; the text goes on from there.
    is_cut : a limit ended it, and no token.
    is_raw : the text is all that was generated, blanks around it too.
    """

    text: str
    reasoning: str = ""
    calls_tools: bool = False
    prefill: str = ""
    is_cut: bool = False
    is_raw: bool = False

    @classmethod
    def of(cls, content: str, reasoning: str = "", *, calls_tools: bool = False) -> ShownAnswer:
        """Thoughts may stand in the content, too, before </think>."""
        thought, mark, text = content.rpartition(_THOUGHT)
        if mark and not reasoning:
            reasoning = thought.strip().removeprefix(_THINK)
            content = text
        return cls(content.strip(), reasoning.strip(), calls_tools)


@dataclass
class TurnStats:
    """What became of the turns of the assistant.

    Attributes
    ----------
    n_turns : turns that can be replayed.
    n_empty : turns that the template shows no text of; they are context of those after them.
    n_not_found : turns whose text the template does not show as it is, and that it rewrites.
    n_left_out : turns after too many others that the template rewrote.
    n_rewritten : turns whose prompt is not the last one and its answer, and more.
    n_cut : conversations so long that some turns have a shortened history.
    """

    n_turns: int = 0
    n_empty: int = 0
    n_not_found: int = 0
    n_left_out: int = 0
    n_rewritten: int = 0
    n_cut: int = 0


class TurnTokens:
    """Makes tokens of the texts that a template makes of conversations.

    Parameters
    ----------
    ends : ids of the tokens that end a generation.

    Attributes
    ----------
    stats : counters over all conversations.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, ends: frozenset[int]) -> None:
        self.stats = TurnStats()
        self._tokenizer = tokenizer
        self._bos_text = template.bos_token
        self._is_end = np.zeros(tokenizer.n_vocab, np.bool_)
        self._is_end[list(ends)] = True
        self._stream = _Stream()

    def add(self, texts: Sequence[tuple[int, str]], answers: Sequence[ShownAnswer]) -> None:
        """Add turns to the conversation.

        Parameters
        ----------
        texts : for each answer the text of its prompt, and that of the conversation up to it;
            each as the number of characters that it begins with as the one before does, and the
            rest. Of the last answers there may be none.

        Raises
        ------
        WordTooLong : a text without a place to cut
        """
        growing = GrowingText(self._tokenizer, self._bos_text)
        self.stats.n_left_out += len(answers) - len(texts) // 2
        for prompt, whole, answer in zip(texts[::2], texts[1::2], answers, strict=False):
            growing.change(*prompt)
            whole = _begun(growing, whole, answer.prefill)
            asked, asked_text = self._prompt(growing.ids), growing.text
            growing.change(*whole)
            said = self._said(growing, asked_text, asked, min(whole[0], len(asked_text)), answer)
            if answer.is_cut and said is not None and self._is_end[said[-1:]].any():
                said = said[:-1]
            if said is None:
                self.stats.n_not_found += 1
            elif said.size - int(self._is_end[said[-1:]].sum()) == 0:
                self.stats.n_empty += 1
            elif self._stream.goes_on(asked) or self._stream.begins_anew(asked.size + said.size):
                self.stats.n_turns += 1
                self.stats.n_rewritten += self._stream.add(asked, said)
            else:
                self.stats.n_left_out += 1

    def take(self) -> Conversation | None:
        """The conversation, and begin a new one; None if it has no turn."""
        stream, self._stream = self._stream, _Stream()
        return stream.conversation()

    def _prompt(self, ids: Ids) -> Ids:
        """The ids of a prompt, as they are when the text changes."""
        eos_id = self._tokenizer.eos_id
        if self._tokenizer.add_eos and eos_id is not None and (not ids.size or ids[-1] != eos_id):
            return np.append(ids, np.int32(eos_id))
        return ids.copy()

    def _said(
        self, growing: GrowingText, asked_text: str, asked: Ids, n_shared: int, answer: ShownAnswer
    ) -> Ids | None:
        """What was generated; None if it is not to be found.

        Parameters
        ----------
        growing : the conversation up to the answer.
        n_shared : characters that it and the prompt begin with.
        """
        if answer.is_raw:
            return self._encode(answer.text, parse_special=False)
        if n_shared < len(asked_text):
            return self._begun_otherwise(growing.text, asked_text, n_shared, answer)
        shown = growing.text[n_shared:]
        at = shown.find(answer.text)
        behind = at + len(answer.text)
        if at >= 0 and self._tokenizer.holds_control(answer.text):
            return self._spoken(
                shown[:at], answer.text, shown[behind:], calls_tools=answer.calls_tools
            )
        ids = growing.ids
        if np.array_equal(ids[: asked.size], asked):
            said = self._up_to_end(ids[asked.size :])
        else:  # a token spans the border, which a prompt cannot end within
            said = self._up_to_end(self._encode(shown))
        if said is not None:
            return said.copy()
        is_all = at < 0 or answer.calls_tools
        return self._encode((shown if is_all else shown[:behind]).rstrip())

    def _begun_otherwise(
        self, whole: str, asked_text: str, n_shared: int, answer: ShownAnswer
    ) -> Ids | None:
        """What was generated, where the prompt begins the answer in another way than the template
        shows it later; None if it is not to be found."""
        thinks = asked_text.rstrip().endswith(_THINK)
        begin = min(n_shared, asked_text.rfind(_THINK)) if thinks else n_shared
        at = whole.find(answer.text, begin)
        if at < 0:  # the answer itself may begin as the prompt goes on
            overlaps = range(1, min(begin, len(answer.text), _LONGEST_OVERLAP) + 1)
            starts = (begin - n for n in overlaps if whole.startswith(answer.text, begin - n))
            at = next(starts, -1)
        if at < 0:
            return None
        text = answer.text
        if thinks and answer.reasoning:
            text = f"{answer.reasoning}\n{_THOUGHT}\n\n{text}"
        behind = whole[at + len(answer.text) :]
        return self._spoken("", text, behind, calls_tools=answer.calls_tools)

    def _spoken(self, before: str, text: str, behind: str, *, calls_tools: bool) -> Ids:
        """Ids where the text is all words, though control tokens be written out in it."""
        rest = self._up_to_end(self._encode(behind))
        if rest is None:
            rest = self._encode(behind.rstrip() if calls_tools else "")
        words = self._encode(text, parse_special=False)
        return np.concatenate([self._encode(before), words, rest])

    def _encode(self, text: str, *, parse_special: bool = True) -> Ids:
        return self._tokenizer.encode_part(
            text.encode(), begins_text=False, parse_special=parse_special
        )

    def _up_to_end(self, ids: Ids) -> Ids | None:
        """The ids up to the first that ends a generation, that one too; None if there is none."""
        ends = self._is_end[ids]
        end = int(ends.argmax()) if ends.size else 0
        return ids[: end + 1] if ends.size and ends[end] else None


def _begun(growing: GrowingText, whole: tuple[int, str], prefill: str) -> tuple[int, str]:
    """Let a prompt go on with the begin of its answer; the text up to the answer, from there on."""
    n_shared, rest = whole
    if not prefill:
        return whole
    n = len(growing.text)
    growing.change(n, prefill)
    if n_shared == n and rest.startswith(prefill):
        return n_shared + len(prefill), rest.removeprefix(prefill)
    return whole


class _Stream:
    """The turns of one conversation, as they come."""

    def __init__(self) -> None:
        self.size = 0
        self._ids = np.empty(1 << 10, np.int32)
        self._prompt = 0  # where that of the last turn begins
        self._turns: list[tuple[int, int]] = []
        self._prompts: list[int] = []

    def goes_on(self, asked: Ids) -> bool:
        """Whether a prompt is the last one and its answer, and more."""
        there = self._ids[self._prompt : self.size]
        return np.array_equal(asked[: there.size], there)

    def begins_anew(self, n: int) -> bool:
        """Let the next prompt begin anew, if there is room for it and its answer, ``n`` ids."""
        has_room = self.size + n <= MOST_TOKENS
        if has_room:
            self._prompt = self.size
        return has_room

    def add(self, asked: Ids, said: Ids) -> bool:
        """Add a turn; True if its prompt begins anew."""
        begin, n = self._prompt, self.size - self._prompt
        self._append(asked[n:])
        start = self.size
        self._append(said)
        # A turn needs something before it.
        self._turns.append((max(start, begin + 1), self.size))
        self._prompts.append(begin)
        return n == 0 < begin

    def conversation(self) -> Conversation | None:
        """What was added; None if nothing was."""
        turns = np.array(self._turns, np.int64).reshape(-1, 2)
        prompts = np.array(self._prompts, np.int64)
        kept = turns[:, 0] < turns[:, 1]
        if not kept.any():
            return None
        return Conversation(self._ids[: self.size].copy(), turns[kept], prompts[kept])

    def _append(self, ids: Ids) -> None:
        n = self.size + ids.size
        if n > self._ids.size:
            more = np.empty(max(n, 2 * self._ids.size) - self.size, np.int32)
            self._ids = np.concatenate((self._ids[: self.size], more))
        self._ids[self.size : n] = ids
        self.size = n
