"""Small graph problems: graphs of random arrays, programs of few values, devices whose constants lie close together."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.models.graph.device import GraphHardware
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.problem import FeatureStore, GraphProblem
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.statistics import GraphStatistics, statistics_of
from loadmaster.models.graph.tracing import Edges, Nodes, Traced, dot, per_relation, traced


def statistics(seed: int, nodes: int = 400, edges: int = 3_000, relations: int = 5) -> GraphStatistics:
    """Of a random graph."""
    rng = np.random.default_rng(seed)
    source, target = rng.integers(0, nodes, edges), (np.square(rng.random(edges)) * nodes).astype(int)
    return statistics_of(source, target, rng.integers(0, relations, edges), [nodes // 2, nodes - nodes // 2], relations)


def hardware(seed: int) -> GraphHardware:
    """One on which any resource may be what a kernel waits for."""
    rng = np.random.default_rng(seed)

    def about(x: float) -> float:
        return float(x * np.exp(rng.uniform(-1.5, 1.5)))

    return GraphHardware(
        name="small",
        memory_bytes=1 << 30,
        dram_gbps=about(20.0),
        l2_gbps=about(40.0),
        l2_bytes=int(about(1 << 17)),
        matrix_tflops=(about(0.4), about(0.2)),
        made_per_us=about(2_000.0),
        step_us=about(0.5),
        launch_us=about(2.0),
    )


def scored(width: int = 4) -> Program:
    """Rows weighed by a softmax of scores of source and relation: few values, several orders."""

    def function(nodes: Nodes, edges: Edges, weights: Any) -> Traced:
        score = dot(edges.source(nodes.h) @ weights.W[edges.relation], weights.v[edges.relation])
        return edges.sum(edges.softmax(score) * edges.source(nodes.h))

    declared = {"W": per_relation(width, width), "v": per_relation(width)}
    return traced(function, nodes={"h": width}, weights=declared)


def problem(program: Program, seed: int, **more: Any) -> GraphProblem:
    """On a random graph and device."""
    given = {"training": False, **more}
    return GraphProblem("small", program, statistics(seed), hardware(seed), **given)


def rgcn(seed: int, **more: Any) -> GraphProblem:
    """One layer, of 4 numbers."""
    return problem(layer("rgcn", 4, 4), seed, **more)


def with_store(seed: int) -> GraphProblem:
    """One whose features lie on the host."""
    return rgcn(seed, store=FeatureStore(rows=400, row_bytes=256, reads=1_000, link_gbps=1.0))
