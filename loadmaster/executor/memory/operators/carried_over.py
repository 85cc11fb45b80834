"""The operators of a step on another graph of the same nodes: that of a smaller batch.

The grouping of nodes depends on bytes, so that a smaller batch may be grouped otherwise: where a weight is cast, its
copy is a small part of what the backward pass reads of 128 images, and a large one of 10. A plan that is for the one
is for the other in the same groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import fx

from loadmaster.executor.memory.implementations.registry import Recompute, Site, recompute_node
from loadmaster.executor.memory.operators.groups import BackwardGroup, Choice, Encoding, ForwardGroup, Operators
from loadmaster.executor.steps.step_graph import StepGraph

Moved = Callable[[fx.Node], fx.Node]


def carried_over(operators: Operators, step_graph: StepGraph) -> Operators:
    """Carry operators over to the nodes in the same places of another graph.

    Args:
        step_graph: has as many nodes, each the same operator on the same nodes.
    """
    places = operators.step_graph.position

    def moved(node: fx.Node) -> fx.Node:
        return step_graph.nodes[places[node]]

    recomputes = {
        moved(node): tuple(_recompute(moved(one.node)) for one in held) for node, held in operators.recomputes.items()
    }
    return Operators(
        step_graph,
        tuple(_forward(group, moved) for group in operators.forward),
        tuple(_backward(group, moved) for group in operators.backward),
        {moved(root): owner for root, owner in operators.owner.items()},
        tuple(map(moved, operators.pinned)),
        recomputes,
    )


def _recompute(node: fx.Node) -> Recompute:
    found = recompute_node(node)
    assert found is not None, "there is one of the same operator on the other graph"
    return found


def _forward(group: ForwardGroup, moved: Moved) -> ForwardGroup:
    encoding = group.encoding
    return replace(
        group,
        nodes=tuple(map(moved, group.nodes)),
        results=tuple(map(moved, group.results)),
        side=tuple(map(moved, group.side)),
        encoding=None if encoding is None else Encoding(encoding.alternative, _site(encoding.site, moved)),
    )


def _backward(group: BackwardGroup, moved: Moved) -> BackwardGroup:
    choices = tuple(_choice(choice, moved) for choice in group.choices)
    return replace(group, nodes=tuple(map(moved, group.nodes)), choices=choices)


def _choice(choice: Choice, moved: Moved) -> Choice:
    return choice if choice.site is None else replace(choice, site=_site(choice.site, moved))


def _site(site: Site, moved: Moved) -> Site:
    parent = None if site.parent is None else moved(site.parent)
    return Site(moved(site.backward), tuple(map(moved, site.sources)), parent)
