"""Random graphs and random layers for property tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.models.graph.inline import required
from loadmaster.models.graph.lowering import greedy_kept, legalized, lowered
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Schedule, is_free
from loadmaster.models.graph.schedule_rules import broken_rules
from loadmaster.models.graph.tracing import (
    Traced,
    concat,
    dot,
    elu,
    gelu,
    leaky_relu,
    per_node_type,
    per_relation,
    relu,
    shared,
    sigmoid,
    tanh,
    traced,
)
from tests.executor.graph.compiled.plain_layers import PlainGraph

D = 4
RELATIONS = 8  # two between any two of the node types a and b
TRIPLES = [(source, f"{n}{source}{target}", target) for n in (0, 1) for source in "ab" for target in "ab"]


@st.composite
def graphs(draw: Any, most_nodes: int = 7, most_edges: int = 14) -> PlainGraph:
    """Small graphs, no edge twice: isolated nodes, relations without edges, hubs, one node alone."""
    nodes = draw(st.integers(1, most_nodes))
    pairs = draw(st.lists(st.tuples(*[st.integers(0, nodes - 1)] * 2), max_size=most_edges, unique=True))
    second = draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    types = torch.tensor(sorted(draw(st.lists(st.integers(0, 1), min_size=nodes, max_size=nodes))))
    source, target = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(1)
    kinds = 4 * torch.tensor(second, dtype=torch.int64) + 2 * types[source] + types[target]
    return PlainGraph(source, target, kinds, types)


def graph_of(plain: PlainGraph) -> Graph:
    """The same graph as compiled layers take it."""
    counts = {"a": int((plain.node_type == 0).sum()), "b": int((plain.node_type == 1).sum())}
    return Graph(plain.source, plain.target, node_counts=counts, relation=plain.relation, relations=TRIPLES)


WEIGHTS = {
    "W": per_relation(D, D),
    "V": shared(D, D),
    "T": per_node_type(D, D),
    "H": per_relation(2, D // 2, D // 2),
    "s": per_relation(D),
    "v": shared(D),
    "b": per_relation(),
    "u": per_relation(2 * D),
    "C": per_relation(2 * D, D),
}


@st.composite
def layers(draw: Any) -> Program:
    """Layers of some random steps on vectors of edges and nodes."""

    def layer(nodes: Any, edges: Any, weights: Any) -> Traced:
        pool = [
            edges.source(nodes.h),
            edges.target(nodes.h),
            edges.e,
            edges.source(nodes.h) @ weights.W[edges.relation],
        ]

        def vector() -> Traced:
            found: Traced = draw(st.sampled_from(pool))
            return found

        def number() -> Traced:
            choice = draw(st.integers(0, 4))
            if choice == 0:
                return dot(vector(), weights.s[edges.relation])
            if choice == 1:
                return dot(vector(), vector())
            if choice == 2:
                return weights.b[edges.relation] + 0.5
            if choice == 3:
                return 1.0 / edges.in_degree(of_relation=draw(st.booleans()))
            return dot(concat(vector(), vector()), weights.u[edges.relation])

        def by_heads(x: Traced) -> Traced:
            through = x.heads(2) @ weights.H[edges.relation]
            score = dot(through, vector().heads(2))
            return (edges.softmax(tanh(score)) * through).joined()

        steps = [
            lambda: vector() @ weights.W[edges.relation],
            lambda: vector() @ weights.V,
            lambda: concat(vector(), vector()) @ weights.C[edges.relation],
            lambda: draw(st.sampled_from([relu, elu, gelu, sigmoid, tanh]))(vector()),
            lambda: vector() * number(),
            lambda: vector() + vector(),
            lambda: vector() - vector() * vector(),
            lambda: vector() * edges.softmax(leaky_relu(tanh(number()), 0.2)),
            lambda: by_heads(vector()),
            lambda: edges.source(edges.sum(vector()) @ weights.T[nodes.type]),
            lambda: edges.target(draw(st.sampled_from([edges.max, edges.min, edges.mean]))(vector())),
            lambda: vector() * weights.v,
        ]
        for _ in range(draw(st.integers(1, 6))):
            pool.append(tanh(draw(st.sampled_from(steps))()))
        out = draw(st.sampled_from([edges.sum, edges.mean, edges.max]))(pool[-1])
        return out + nodes.h @ weights.V if draw(st.booleans()) else out

    return traced(layer, nodes={"h": D}, edges={"e": D}, weights=WEIGHTS)


def schedules(program: Program) -> Iterator[Schedule]:
    """Some that hold, far apart: few values kept, the greedy choice, every value kept; fused and not."""
    every = frozenset(n for n in range(len(program.values)) if not is_free(program, n))
    for kept in (legalized(program, required(program)), greedy_kept(program), every):
        for fuse in (True, False):
            found = lowered(program, kept, fuse)
            if not broken_rules(program, found):
                yield found


def drawn(graph: PlainGraph, program: Program, seed: int) -> dict[str, Tensor]:
    """Features and parameters in float64, with gradients."""
    generator = torch.Generator().manual_seed(seed)
    rows = {"one": (), "relation": (RELATIONS,), "node_type": (2,), "node": (graph.node_count,)}
    rows["edge"] = (graph.source.numel(),)
    found = {}
    for op in ("feature", "parameter"):
        for name, n in program.given(op).items():
            typed = program.types[n]
            shape = (*rows[typed.space], *typed.shape)
            found[name] = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    return found
