"""What is known of the prefixes of conversations, by hashes alone: no text is held twice.

Two messages are alike if they say the same: thoughts, blanks, the ids of tool calls and the way
in which their arguments are written do not count, for clients send an answer back with small
changes. They are the same if nothing differs at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Generic, NamedTuple, TypeVar

from ...engine.chat.abilities import text_of
from ...engine.chat.messages import Message, parsed

Owner = TypeVar("Owner")

# Of a prefix, in bytes of its hash.
_HASH_BYTES = 12
# Prefixes that are remembered, those of the last requests: some 150 MB.
_MOST_PREFIXES = 1 << 19
# Conversations that have the same prefix: of more, the last are remembered.
_MOST_ALIKE = 16
# Shorter exchanges, such as greetings, are alike by chance.
_CHANCE_CHARACTERS = 64
_THOUGHT = "</think>"
# Of an answer, to see whether a message is it with changes.
_SKETCH_CHARACTERS = 48


def chain(hashes: Sequence[bytes]) -> list[bytes]:
    """Hashes of the prefixes of 0, 1, ... messages, of the hashes of each."""
    found = [b""]
    for one in hashes:
        found.append(blake2b(found[-1] + one, digest_size=_HASH_BYTES).digest())
    return found


def same(message: Message) -> bytes:
    """The hash of a message; of all that it is."""
    return _hash(json.dumps(message, sort_keys=True))


def alike(message: Message) -> bytes:
    """The hash of what a message says."""
    role = "system" if message["role"] == "developer" else message["role"]
    calls = [
        (call["function"]["name"], _arguments(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    ]
    try:
        return _hash(json.dumps([role, words(message), calls], sort_keys=True))
    except RecursionError:
        return same(message)


def words(message: Message) -> str:
    """What a message says, without thoughts, and with single blanks."""
    text = text_of(message["content"])
    if message["role"] == "assistant":
        text = text.rpartition(_THOUGHT)[2]
    return " ".join(text.split())


def _arguments(arguments: object) -> object:
    found = parsed(arguments) if isinstance(arguments, str) else arguments
    return arguments if found is None else found


def _hash(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=_HASH_BYTES).digest()


class Sketch(NamedTuple):
    """An answer's begin and end, with single blanks."""

    begin: str
    end: str

    @classmethod
    def of(cls, message: Message) -> Sketch:
        said = words(message)
        return cls(said[:_SKETCH_CHARACTERS], said[-_SKETCH_CHARACTERS:])

    def is_of(self, message: Message) -> bool:
        """Whether a message may be this answer with changes: it begins or ends as that does."""
        other = Sketch.of(message)
        shorter = min(len(self.begin), len(other.begin))
        if not shorter:
            return False
        begins = self.begin[:shorter] == other.begin[:shorter]
        return begins or self.end[-shorter:] == other.end[-shorter:]


@dataclass(eq=False)
class Mark(Generic[Owner]):
    """A prefix of messages that a line ended with, or that an answer ends.

    Attributes
    ----------
    owner : whose it is.
    is_answer : an answer of the model ends it; if not, a request.
    is_deep : an answer of the model is in it.
    is_whole : a line ends here that was no request: a conversation as a whole.
    answer : what a request was answered with; None: its answer is not known yet.
    """

    owner: Owner
    is_answer: bool = False
    is_deep: bool = False
    is_whole: bool = False
    answer: Sketch | None = None


@dataclass
class MessageMarks(Generic[Owner]):
    """Marks by the hash of their prefix, and where single exchanges were seen."""

    _of: dict[bytes, list[Mark[Owner]]] = field(default_factory=dict)
    _exchanges: dict[bytes, Owner] = field(default_factory=dict)

    def put(self, key: bytes, mark: Mark[Owner]) -> None:
        """Remember a prefix; an owner has one mark of each."""
        there = [one for one in self._of.pop(key, ()) if one.owner is not mark.owner]
        self._of[key] = [*there[1 - _MOST_ALIKE :], mark]
        _forget(self._of)

    def find(self, key: bytes, is_best: Callable[[Owner], bool]) -> Mark[Owner] | None:
        """The mark of a prefix: of the first owner that is best, or else the last one."""
        there = self._of.get(key)
        if not there:
            return None
        return next((one for one in there if is_best(one.owner)), there[-1])

    def put_exchange(self, key: bytes, owner: Owner) -> None:
        """Remember what was answered to what, wherever in a conversation it stands."""
        self._exchanges.pop(key, None)
        self._exchanges[key] = owner
        _forget(self._exchanges)

    def exchange(self, key: bytes) -> Owner | None:
        return self._exchanges.get(key)


def is_by_chance(messages: Sequence[Message]) -> bool:
    """Whether messages are so short that others say the same."""
    return sum(len(words(message)) for message in messages) < _CHANCE_CHARACTERS


def _forget(held: dict[bytes, Any]) -> None:
    while len(held) > _MOST_PREFIXES:
        del held[next(iter(held))]


def size_of(messages: Sequence[Mapping[str, Any]]) -> int:
    """Characters that messages take, nearly."""
    return sum(
        100 + len(text_of(one["content"])) + len(one.get("reasoning_content", ""))
        + sum(200 + len(str(call)) for call in one.get("tool_calls", ()))
        for one in messages
    )  # fmt: skip
