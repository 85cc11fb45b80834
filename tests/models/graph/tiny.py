"""Small random graphs, and numbers for what programs are given."""

from __future__ import annotations

import numpy as np

from loadmaster.models.graph.program import Program
from tests.models.graph.interpreter import Array, TinyGraph


def graph(seed: int, nodes: int = 6, edges: int = 14, relations: int = 3, types: int = 2) -> TinyGraph:
    """One with isolated nodes and a relation without edges, by chance; nodes are sorted by type."""
    rng = np.random.default_rng(seed)
    source, target = rng.integers(0, nodes, edges), rng.integers(0, max(1, nodes - 1), edges)
    relation = np.minimum(rng.geometric(0.5, edges) - 1, relations - 1)
    return TinyGraph(source, target, relation, np.sort(rng.integers(0, types, nodes)), relations, types)


def given(program: Program, of: TinyGraph, seed: int) -> dict[str, Array]:
    """Random numbers for features, parameters and gradients."""
    rng = np.random.default_rng(seed)
    return {
        value.name: rng.normal(size=(of.rows(program.types[n].space), *program.types[n].shape))
        for n, value in enumerate(program.values)
        if value.op in ("feature", "parameter", "gradient")
    }
