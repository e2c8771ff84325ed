"""The branch of a conversation that was current last, where an export keeps all of them.

Who edits a message or has an answer generated again makes a branch; each node names its parent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Node = Mapping[str, Any]


class PathLost(Exception):
    """Nodes that are no tree; the message is the reason, a fixed text."""


def path_to_current(
    nodes: Mapping[str, Node], current: object, time: str, *, parent: str = "parent"
) -> list[Node]:
    """The nodes from the root to the current one.

    Parameters
    ----------
    nodes : by id.
    current : an id; where there is no such node, the latest one is meant, the last of equals.
    time : the nodes' field that says when: a number, or a text that sorts as its time does.
    parent : the nodes' field that holds the id of the node before, if there is one.

    Raises
    ------
    PathLost : a node is its own ancestor
    """
    if not nodes:
        return []
    node = nodes.get(current) if isinstance(current, str) else None
    if node is None:
        node = max(list(nodes.values())[::-1], key=lambda one: _when(one.get(time)))
    path, seen = [], set()
    while node is not None:
        if id(node) in seen:
            raise PathLost("messages that follow one another in a circle")
        seen.add(id(node))
        path.append(node)
        before = node.get(parent)
        node = nodes.get(before) if isinstance(before, str) else None
    return path[::-1]


def roots_of(parents: Mapping[str, str | None]) -> dict[str, str | None]:
    """The root of each node, by ids; None for those that follow one another in a circle.

    Parameters
    ----------
    parents : of each node the one before; one that is no node itself is the parent of a root.
    """
    roots: dict[str, str | None] = {}
    for start in parents:
        path: list[str] = []
        seen: set[str] = set()
        node: str | None = start
        while node is not None and node in parents and node not in roots and node not in seen:
            path.append(node)
            seen.add(node)
            node = parents[node]
        if node is not None and node in roots:
            root = roots[node]
        else:
            root = None if node is not None and node in seen else path[-1]
        roots |= dict.fromkeys(path, root)
    return roots


def _when(value: object) -> tuple[int | float, str]:
    if isinstance(value, str):
        return 0, value
    return (value if isinstance(value, int | float) else -1), ""
