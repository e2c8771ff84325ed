"""Sessions of coding agents: files of one event a line, most of them messages.

Each line names the line before it, and what was tried and taken back stays in the file: the branch
that was current last is read. What follows another beginning (a compaction, a first message that
was changed) is a conversation of its own. Lines that are no messages, those of other branches and
those of agents that were called in (unless the file has no others) are left out by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...engine.chat.blocks import kind_of, merged_blocks
from ...engine.chat.dropped import Dropped
from ...engine.chat.messages import Chat, Json, NotAChat, add_messages, role_of
from .trees import PathLost, path_to_current, roots_of

# Fields that name a line and the one before it.
_LINKS = (("uuid", "parentUuid"), ("id", "parentId"))
_OF_SESSIONS = ("uuid", "sessionId", "session_id")
_SPEAKERS = ("user", "assistant", "system", "tool", "toolResult", "developer")
_BY_TYPE = ("user", "assistant")


class Line(NamedTuple):
    """A line of a file: where it stands, and its value."""

    place: str
    value: Json


def is_agent_line(value: object) -> bool:
    """Whether a value is a line of an agent's session, with a message in it."""
    if not isinstance(value, Mapping) or not isinstance(value.get("message"), Mapping):
        return False
    is_linked = any(own in value and before in value for own, before in _LINKS)
    return "role" in value["message"] and (is_linked or value.get("type") in _BY_TYPE)


def is_record(value: object) -> bool:
    """Whether a value may be a line of a session that holds no message, such as its title."""
    if not isinstance(value, Mapping):
        return False
    return isinstance(value.get("type"), str) or any(name in value for name in _OF_SESSIONS)


def chats_of_agent(lines: Iterable[Line]) -> Iterator[tuple[str, Chat | str]]:
    """Yield (place, conversation or the reason why it is none) of each beginning in a session."""
    left_out = Dropped()
    nodes = _main_nodes(list(_nodes(lines, left_out)), left_out)
    roots = roots_of({name: node.before for name, node in nodes.items()})
    trees: dict[str | None, _Tree] = {}
    for name, node in nodes.items():
        trees.setdefault(roots[name], _Tree()).add(node)
    for tree in trees.values():
        if tree.place:
            chat = tree.chat()
            if isinstance(chat, Chat):
                chat.dropped.take(left_out)
            yield tree.place, chat


@dataclass(frozen=True)
class _Node:
    """A line that others may come after.

    Attributes
    ----------
    name, before : of the line, and of the one before it.
    message : None if it has none that a model was shown.
    is_aside : another agent's that was called in.
    """

    place: str
    name: str
    before: str | None
    message: Json | None
    is_aside: bool


def _nodes(lines: Iterable[Line], left_out: Dropped) -> Iterator[_Node]:
    """Yield the lines that others may come after; those without names come one after the other."""
    last: dict[bool, str | None] = {True: None, False: None}
    for number, (place, value) in enumerate(lines):
        message = _message(value)
        if message is None:
            _leave_out(value, place, left_out)
        is_aside = bool(value.get("isSidechain") or value.get("parent_tool_use_id"))
        links = next((it for it in _LINKS if isinstance(value.get(it[0]), str)), None)
        if links is not None and links[1] in value:
            before = value[links[1]]
            name = value[links[0]]
            yield _Node(place, name, before if isinstance(before, str) else None, message, is_aside)
        elif message is not None:
            name = f"#{number}"
            yield _Node(place, name, last[is_aside], message, is_aside)
            last[is_aside] = name


def _message(value: Json) -> Json | None:
    """The message of a line that a model was shown, or said."""
    message = value.get("message")
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(message, Mapping) or not isinstance(role, str):
        return None
    if role_of(role) not in _SPEAKERS:
        return None
    is_error = value.get("isApiErrorMessage") or message.get("model") == "<synthetic>"
    return None if is_error else message


def _leave_out(value: Json, place: str, left_out: Dropped) -> None:
    """Name a line that holds no message for a model."""
    if isinstance(value.get("message"), Mapping):
        left_out.add("message that no model said", place=place)
    else:
        left_out.add("line", value.get("type"), place=place)


def _main_nodes(nodes: Sequence[_Node], left_out: Dropped) -> dict[str, _Node]:
    """By name, those that are not aside, or all if all are; of one name the first."""
    has_main = any(node.message is not None and not node.is_aside for node in nodes)
    found: dict[str, _Node] = {}
    for node in nodes:
        if has_main and node.is_aside:
            left_out.add("line of a sidechain", place=node.place)
        else:
            found.setdefault(node.name, node)
    return found


class _Tree:
    """The lines that come after one beginning.

    Attributes
    ----------
    place : of the first message; "" if there is none.
    """

    def __init__(self) -> None:
        self.place = ""
        self._nodes: dict[str, dict[str, Any]] = {}
        self._answers: dict[str, list[_Node]] = {}
        self._results: dict[str, tuple[Json, _Node]] = {}

    def add(self, node: _Node) -> None:
        """Add a line, and note which answer it is a part of and which results are in it."""
        when = len(self._nodes) if node.message is not None else -1
        self._nodes[node.name] = {"before": node.before, "when": when, "node": node}
        if node.message is None:
            return
        self.place = self.place or node.place
        self._answers.setdefault(_answer_of(node), []).append(node)
        for block in _blocks(node.message.get("content")):
            if answered := _answered_by(block):
                self._results.setdefault(answered, (block, node))

    def chat(self) -> Chat | str:
        """The branch that was current last, or the reason why it is no conversation."""
        chat, used = Chat(), set[str]()
        try:
            path = path_to_current(self._nodes, None, "when", parent="before")
            self._fill(chat, [one["node"] for one in path], used)
        except (PathLost, NotAChat) as error:
            return str(error)
        except RecursionError:
            return "values nested too deeply"
        if path[0]["before"] is not None:
            chat.dropped.add("messages before the first, not in the file", place=self.place)
        for one in self._nodes.values():
            if one["when"] >= 0 and one["node"].name not in used:
                chat.dropped.add("line of another branch", place=one["node"].place)
        return chat

    def _fill(self, chat: Chat, path: Sequence[_Node], used: set[str]) -> None:
        """Add the messages of a path; ``used`` gets the names of the lines that are in them.

        An answer may stand on several lines, not all of them on the path, and so may the results
        of tools that it called at once.
        """
        said: set[str] = set()
        shown: set[str] = set()
        for node in path:
            used.add(node.name)
            if node.message is None or node.name in said:
                continue
            parts = self._answers[_answer_of(node)]
            said |= {part.name for part in parts}
            used |= {part.name for part in parts}
            content = _content(parts, shown)
            if content == [] and any(
                _blocks((part.message or {}).get("content")) for part in parts
            ):
                continue  # all of it was shown before
            chat.dropped.here = node.place
            add_messages(chat, [_plain(node.message, content)])
            for call in map(_call_of, _blocks(content)):
                if call in self._results and call not in shown:
                    block, result = self._results[call]
                    chat.dropped.here = result.place
                    add_messages(chat, [{"role": "user", "content": [block]}])
                    shown.add(call)
                    if len(_blocks((result.message or {}).get("content"))) == 1:
                        used.add(result.name)


def _plain(message: Json, content: object) -> dict[str, Any]:
    """A message with another content, in names that are known."""
    role = message["role"]
    made = {**message, "content": content, "role": "tool" if role == "toolResult" else role}
    if isinstance(message.get("toolCallId"), str):
        made["tool_call_id"] = message["toolCallId"]
    return made


def _content(parts: Sequence[_Node], shown: set[str]) -> Any:
    """The content of a message that stands on these lines, without results that were shown."""
    contents = [(part.message or {}).get("content") for part in parts]
    if len(contents) == 1 and not isinstance(contents[0], list):
        return contents[0]
    blocks = merged_blocks(contents)
    if len(contents) > 1:
        blocks = list(_once(blocks))
    return [block for block in blocks if _answered_by(block) not in shown]


def _once(blocks: Iterable[Any]) -> Iterator[Any]:
    """Yield each block once: a line may repeat those of the line before."""
    seen = set()
    for block in blocks:
        key = json.dumps(block, sort_keys=True)
        if key not in seen:
            seen.add(key)
            yield block


def _answer_of(node: _Node) -> str:
    """What names the answer that a line is a part of; other messages are on one line each."""
    message = node.message or {}
    answer = message.get("id") if message.get("role") == "assistant" else None
    return f"answer {answer}" if isinstance(answer, str) else f"line {node.name}"


def _blocks(content: object) -> list[Any]:
    return content if isinstance(content, list) else []


def _call_of(block: Any) -> str:
    """The id of the call that a block is; "" if it is none."""
    call = block.get("id") if kind_of(block) in ("tool_use", "toolCall") else None
    return call if isinstance(call, str) else ""


def _answered_by(block: Any) -> str:
    """The id of the call whose result a block is; "" if it is none."""
    call = block.get("tool_use_id") if kind_of(block) == "tool_result" else None
    return call if isinstance(call, str) else ""
