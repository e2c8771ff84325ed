"""The branch of a conversation that was current last, where an export keeps all of them.

Who edits a message or has an answer generated again makes a branch; each node names its parent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Node = Mapping[str, Any]


class PathLost(Exception):
    """Nodes that are no tree; the message is the reason, a fixed text."""


def path_to_current(nodes: Mapping[str, Node], current: object, time: str) -> list[Node]:
    """The nodes from the root to the current one.

    Parameters
    ----------
    nodes : by id, with ``parent``: an id, or None.
    current : an id; where there is no such node, the latest one is meant, the last of equals.
    time : the nodes' field that says when, a number.

    Raises
    ------
    PathLost : a node is its own ancestor
    """
    if not nodes:
        return []
    node = nodes.get(current) if isinstance(current, str) else None
    if node is None:
        node = max(list(nodes.values())[::-1], key=lambda one: _number(one.get(time)))
    path, seen = [], set()
    while node is not None:
        if id(node) in seen:
            raise PathLost("messages that follow one another in a circle")
        seen.add(id(node))
        path.append(node)
        parent = node.get("parent")
        node = nodes.get(parent) if isinstance(parent, str) else None
    return path[::-1]


def _number(value: object) -> int | float:
    return value if isinstance(value, int | float) else -1
