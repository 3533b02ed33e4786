"""Which nodes of a graph lie on circles: its strongly connected components of more than one node. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def circles(edges: Iterable[tuple[Node, Node]]) -> list[set[Node]]:
    """The sets of nodes that can reach each other (Kosaraju's algorithm, without recursion)."""
    forward: dict[Node, list[Node]] = {}
    backward: dict[Node, list[Node]] = {}
    for child, parent in edges:
        forward.setdefault(child, []).append(parent)
        backward.setdefault(parent, []).append(child)
    seen: set[Node] = set()
    found = []
    for root in reversed(_finished(forward)):
        component: set[Node] = set()
        todo = [root]
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                component.add(node)
                todo += backward.get(node, [])
        if len(component) > 1:
            found.append(component)
    return found


def _finished(forward: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """All nodes in the order in which a depth-first walk leaves them."""
    seen: set[Node] = set()
    order: list[Node] = []
    for start in list(forward):
        todo: list[tuple[Node, bool]] = [(start, False)]
        while todo:
            node, left = todo.pop()
            if left:
                order.append(node)
            elif node not in seen:
                seen.add(node)
                todo.append((node, True))
                todo += [(parent, False) for parent in forward.get(node, ()) if parent not in seen]
    return order
