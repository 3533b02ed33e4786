"""Which edges of a graph lie on a circle: those inside of a strongly connected component. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def edges_on_circles(edges: Iterable[tuple[Node, Node]]) -> list[tuple[Node, Node]]:
    """The edges whose two ends can reach each other (Kosaraju's algorithm, without recursion)."""
    edges = list(edges)
    forward: dict[Node, list[Node]] = {}
    backward: dict[Node, list[Node]] = {}
    for child, parent in edges:
        forward.setdefault(child, []).append(parent)
        backward.setdefault(parent, []).append(child)
    component: dict[Node, Node] = {}
    for root in reversed(_finished(forward)):
        todo = [root]
        while todo:
            node = todo.pop()
            if node not in component:
                component[node] = root
                todo += backward.get(node, [])
    return [(child, parent) for child, parent in edges if component.get(child) == component.get(parent)]


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
