"""The order in which the backward pass runs: that of the joint graph, but for what another place suits better.

Gradients of parameters come as early as they can. Where a compiler fuses, an elementwise node that makes no less than
what it reads (a cast to a wider type, a function of a forward result) comes right before its first reader: it fuses
with that one, and what it makes never reaches memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from loadmaster.executor.memory.operators.fusion import is_elementwise, is_fusible
from loadmaster.executor.steps.step_graph import StepGraph, is_mutating, is_random


def backward_order(step_graph: StepGraph, nodes: Sequence[fx.Node], *, fused: bool) -> list[fx.Node]:
    """The backward pass's compute nodes, given in graph order, in the order in which they run; ``fused`` for a backend
    that fuses operators."""
    readers = _readers(step_graph, nodes)
    order = _parameter_gradients_first(step_graph, nodes, readers)
    return _before_their_readers(step_graph, order, readers) if fused else order


def _readers(step_graph: StepGraph, nodes: Sequence[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    readers: dict[fx.Node, list[fx.Node]] = {n: [] for n in nodes}
    for node in nodes:
        for source in dict.fromkeys(map(step_graph.producer, step_graph.reads([node]))):
            if source in readers:
                readers[source].append(node)
    return readers


def _parameter_gradients_first(
    step_graph: StepGraph, nodes: Sequence[fx.Node], readers: dict[fx.Node, list[fx.Node]]
) -> list[fx.Node]:
    """Backward nodes with those that only lead to a returned gradient moved up to where they can first run. A layer's
    parameter gradient reads a forward result, its input gradient often none: in this order the result is free before
    the input gradient is allocated. Source: [Shah23], section 4.4."""
    inside = set(nodes)
    sources = {n: {s for r in step_graph.reads([n]) if (s := step_graph.producer(r)) in inside} for n in nodes}
    # A parameter gradient, or what is only cast or reduced to one.
    last = {n for n in nodes if not readers[n]}
    waiting = [n for n in nodes if n in last or (len(readers[n]) == 1 and readers[n][0] in last)]
    order: dict[fx.Node, None] = {}
    for node in nodes:
        for early in [n for n in waiting if n not in order]:
            if sources[early] <= order.keys():
                order[early] = None
        order.setdefault(node)
    return list(order)


def _before_their_readers(
    step_graph: StepGraph, order: Sequence[fx.Node], readers: dict[fx.Node, list[fx.Node]]
) -> list[fx.Node]:
    place = {node: i for i, node in enumerate(order)}
    anchor = dict(place)
    for node in reversed(order):
        first = min(readers[node], key=lambda n: (anchor[n], place[n]), default=None)
        if first is not None and is_fusible(first) and _can_wait(step_graph, node):
            anchor[node] = anchor[first]
    return sorted(order, key=lambda n: (anchor[n], place[n]))


def _can_wait(step_graph: StepGraph, node: fx.Node) -> bool:
    """Return whether the node holds no more of the backward pass's memory the later it runs."""
    if not is_elementwise(node) or is_random(node) or is_mutating(node):
        return False
    made_bytes = sum(step_graph.bytes_of(r) for r in step_graph.results[node])
    held = [r for r in step_graph.reads([node]) if not step_graph.is_resident(r)]
    made_before = [r for r in held if step_graph.producer(r) not in step_graph.forward]
    return sum(map(step_graph.bytes_of, made_before)) <= made_bytes
