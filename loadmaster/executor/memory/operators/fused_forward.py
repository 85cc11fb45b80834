"""Time that a compiler saves in the forward pass by fusing across operators.

A forward operator ends where a plan may keep a result, not where a kernel ends: a compiler writes that result and goes
on in the same kernel, so that the operator behind it need not read it again. Recomputed operators are compiled apart
from others, and save nothing.

Example: a softmax in float32, kept for the backward pass, and its cast to bfloat16 for the next product, of 192 and 96
MiB: 192 are read and 96 written after the softmax where operators run one by one; 96 are written where they are fused.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from loadmaster.executor.costs.model import CostModel
from loadmaster.executor.memory.operators.fusion import is_fusible, steps
from loadmaster.executor.memory.operators.groups import Operators
from loadmaster.executor.memory.operators.runs import fused_us

Part = tuple[int, list[fx.Node]]
"""Nodes of one forward operator that are fused, and which operator it is."""


def fused_savings_us(operators: Operators, costs: CostModel) -> dict[int, float]:
    """Time that each forward operator saves in a forward pass that is compiled as one, by operator."""
    step_graph = operators.step_graph
    readers: dict[fx.Node, list[fx.Node]] = {}
    for node in step_graph.results:
        for root in step_graph.reads([node]):
            readers.setdefault(root, []).append(node)
    kept = {*operators.owner, *operators.pinned}
    kept.update(step_graph.roots[n] for n in step_graph.forward_outputs if isinstance(n, fx.Node))

    def us(nodes: list[fx.Node]) -> float:
        inside = set(nodes)
        made = [r for n in nodes for r in step_graph.results[n]]
        written = [r for r in made if r in kept or not inside.issuperset(readers.get(r, ()))]
        return fused_us(step_graph, nodes, written, costs)

    savings: dict[int, float] = {}
    for parts in _fused(operators):
        apart_us = {f: us(nodes) for f, nodes in parts}
        saved_us = sum(apart_us.values()) - us([n for _, nodes in parts for n in nodes])
        if len(parts) > 1 and saved_us > 0.0:
            for f, part_us in apart_us.items():
                savings[f] = savings.get(f, 0.0) + saved_us * part_us / sum(apart_us.values())
    return savings


def _fused(operators: Operators) -> Iterator[list[Part]]:
    """Parts of operators that follow one another and fuse, each with something that those before it made."""
    step_graph = operators.step_graph
    open_parts: list[Part] = []
    for f in operators.forward:
        for nodes in steps([*f.nodes, *f.side], fused=True):
            made = {r for _, before in open_parts for n in before for r in step_graph.results[n]}
            joins = is_fusible(nodes[0]) and not made.isdisjoint(step_graph.reads(nodes))
            if not joins:
                yield open_parts
                open_parts = []
            if is_fusible(nodes[0]):
                open_parts.append((f.id, nodes))
    yield open_parts
