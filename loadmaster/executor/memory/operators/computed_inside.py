"""Elementwise forward results that fused backward operators compute again inside, always: no plan would keep them.

An activation written out as a formula, ``0.5 * x * (1 + tanh(0.8 * (x + 0.04 * x**3)))``, makes five results that its
derivative reads, each as large as x or twice as large. A compiler computes all of them from x, in the kernel that reads
them, for next to nothing. So x alone is kept, and the formula is one operator in the forward pass.

A fused run of the backward pass may compute elementwise forward results inside from what they read. What it is best
given is a minimum cut, by bytes, between the rest of the forward pass and what it reads; results beyond the cut need
not be kept for it. Where that holds in each run that reads a result, each of these runs gets a copy of the nodes that
compute it. Source: the cut is that of torch.compile's own partition, there one for the whole step; here one for each
run, which leaves to plans whatever they may decide about.

Example: with x of 2 bytes an element and the others of 2 or 4, the cut is x (2), and not ``0.5 * x``,
``x + 0.04 * x**3`` and its tanh (2 + 4 + 4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import networkx as nx
from torch import fx

from loadmaster.executor.memory.implementations.passes import DRAWN_FIRST
from loadmaster.executor.memory.operators.fusion import is_elementwise, is_fusible, is_gather, is_softmax_of_rows
from loadmaster.executor.steps.step_graph import StepGraph, is_mutating, is_random
from loadmaster.executor.torch_private.tracing import codegen_of

Run = Sequence[fx.Node]


def with_computed_inside(step_graph: StepGraph, runs: Sequence[Run], kept: Collection[fx.Node]) -> StepGraph:
    """Copy of a step in which fused ``runs`` of the backward pass compute inside what no plan would keep for them.
    ``kept`` are roots that something else reads: alternatives, recomputations, the caller."""
    inside = _computed_inside(step_graph, runs, kept)
    copy = _Copy(step_graph)
    for run in runs:
        if any(r in inside for r in step_graph.reads(run)):
            copy.compute_inside(run, inside)
    return copy.step_graph()


def _computed_inside(step_graph: StepGraph, runs: Sequence[Run], kept: Collection[fx.Node]) -> set[fx.Node]:
    forward = [n for n in step_graph.results if n in step_graph.forward]
    candidates = {n for n in forward if n not in kept and _is_candidate(step_graph, n)}
    fused = [run for run in runs if all(map(is_fusible, run))]
    candidates.difference_update(step_graph.reads([n for run in runs for n in run if not is_fusible(n)]))
    written = set(step_graph.reads([n for n in forward if not is_fusible(n)]))
    while kept_by_some := {r for run in fused for r in _cut(step_graph, run, candidates, written)} & candidates:
        candidates -= kept_by_some
    return candidates


def _is_candidate(step_graph: StepGraph, node: fx.Node) -> bool:
    if not (is_elementwise(node) or is_gather(node) or is_softmax_of_rows(node)) or step_graph.results[node] != (node,):
        return False
    if is_random(node) or is_mutating(node) or DRAWN_FIRST in node.meta:
        return False
    return not any(r in step_graph.mutated for r in step_graph.reads([node]))


def _cut(
    step_graph: StepGraph, run: Run, candidates: Collection[fx.Node], written: Collection[fx.Node]
) -> set[fx.Node]:
    """Roots of a minimum cut before the run; of equal cuts, one through what is in memory anyway, nearest to the run.
    ``written`` are the candidates that kernels of the forward pass read from memory."""
    stack = [r for r in step_graph.reads(run) if r in step_graph.forward]
    if not any(root in candidates for root in stack):
        return set()
    network = nx.DiGraph()
    network.add_edges_from(((root, "read"), "run") for root in stack)
    seen = set(stack)
    while stack:
        root = stack.pop()
        size = 0 if step_graph.is_resident(root) else step_graph.bytes_of(root)
        size -= size > 0 and (root in written or root not in candidates)
        network.add_edge((root, "made"), (root, "read"), capacity=size)
        sources = step_graph.reads([root]) if root in candidates else ()
        network.add_edges_from(((source, "read"), (root, "made")) for source in sources)
        if not sources:
            network.add_edge("rest", (root, "made"))
        stack.extend(source for source in sources if source not in seen)
        seen.update(sources)
    # Of equal cuts networkx finds the one nearest to the target.
    _, (_, near) = nx.minimum_cut(network, "rest", "run")
    return {root for root in seen if (root, "read") in near and (root, "made") not in near}


class _Copy:
    """A copy of a joint graph, in which runs of the backward pass get nodes of their own."""

    def __init__(self, step_graph: StepGraph) -> None:
        self.original = step_graph
        graph = fx.Graph()
        self.copied: dict[fx.Node, fx.Node] = {}
        outputs = graph.graph_copy(step_graph.module.graph, self.copied)
        graph.output(outputs).meta = dict(step_graph.module.graph.output_node().meta)
        graph.set_codegen(codegen_of(step_graph.module.graph))
        self.graph = graph

    def compute_inside(self, run: Run, inside: Collection[fx.Node]) -> None:
        """Let the run read copies of its own of these forward nodes."""
        original, own = self.original, dict[fx.Node, fx.Node]()

        def value(node: fx.Node) -> fx.Node:
            if original.roots[node] not in inside:
                return self.copied[node]
            if node not in own:
                own[node] = self.graph.node_copy(node, value)
            return own[node]

        readers = sorted(run, key=original.position.__getitem__)
        first = next(n for n in readers if any(r in inside for r in original.reads([n])))
        with self.graph.inserting_before(self.copied[first]):
            for node in readers:
                self.copied[node].args = fx.map_arg(node.args, value)
                self.copied[node].kwargs = fx.map_arg(node.kwargs, value)

    def step_graph(self) -> StepGraph:
        """The copy as a step graph, with inputs and outputs in the same places."""

        def mapped(nodes: Iterable[Any]) -> tuple[Any, ...]:
            return tuple(self.copied[n] if isinstance(n, fx.Node) else n for n in nodes)

        original = self.original
        self.graph.lint()
        return StepGraph(
            fx.GraphModule(original.module, self.graph),
            mapped(original.forward_outputs),
            mapped(original.backward_outputs),
            frozenset(mapped(original.mutated)),
            mapped(original.written),
        )
