"""Random layers: products, sums and softmaxes over edges in one to four steps, of vectors of four numbers."""

from __future__ import annotations

import random
from typing import Any

from loadmaster.models.graph.program import Program
from loadmaster.models.graph.tracing import (
    Edges,
    Nodes,
    Traced,
    concat,
    dot,
    leaky_relu,
    per_node_type,
    per_relation,
    relu,
    shared,
    traced,
)

WIDTH = 4
WEIGHTS = {
    "A": shared(WIDTH, WIDTH),
    "N": per_node_type(WIDTH, WIDTH),
    "W": per_relation(WIDTH, WIDTH),
    "c": per_relation(2 * WIDTH),
    "C": per_relation(2 * WIDTH, WIDTH),
}


def random_program(seed: int) -> Program:
    """The same for the same seed."""
    draw = random.Random(seed)

    def function(nodes: Nodes, edges: Edges, weights: Any) -> list[Traced]:
        known = [nodes.h]
        for _ in range(draw.randint(1, 3)):
            x = draw.choice(known)
            step = draw.choice(["shared", "typed", "relu", "edges", "edges"])
            if step == "edges":
                known.append(_over_edges(draw, known, edges, weights))
            else:
                known.append(
                    relu(x) if step == "relu" else x @ (weights.A if step == "shared" else weights.N[nodes.type])
                )
        last = edges.sum(edges.source(known[-1]) @ weights.W[edges.relation])
        return [last + known[-1]] if draw.random() < 0.5 else [last, relu(known[-1])]

    return traced(function, nodes={"h": WIDTH}, edges={"w": ()}, weights=WEIGHTS)


def _over_edges(draw: random.Random, known: list[Traced], edges: Edges, weights: Any) -> Traced:
    ends = []
    for _ in range(2):
        x = draw.choice([edges.source, edges.target])(draw.choice(known))
        weight = draw.choice([None, weights.W[edges.relation], weights.W[edges.relation], weights.A])
        ends.append(x if weight is None else x @ weight)
    a, b = ends
    mixed = draw.choice(["first", "sum", "product", "attention", "attention of both", "both"])
    score = dot(a, b) if mixed == "attention" else dot(concat(a, b), weights.c[edges.relation])
    y = {
        "first": a,
        "sum": a + b,
        "product": a * b,
        "both": concat(a, b) @ weights.C[edges.relation],
    }.get(mixed, edges.softmax(leaky_relu(score, 0.1)) * a)
    if draw.random() < 0.3:
        y = y * edges.w
    if draw.random() < 0.3:
        y = y / edges.in_degree(of_relation=draw.random() < 0.5)
    reduced: Traced = draw.choice([edges.sum, edges.sum, edges.mean, edges.max])(y)
    return reduced
