"""Well-known layers of graph networks, as functions that :mod:`.tracing` captures, and their programs by name.

rgcn        [Schlichtkrull18]: a weight for each relation, messages averaged by relation, a weight of its own
rgat        [Busbridge19]: additive attention with a weight and two vectors for each relation
hgt         [Hu20]: keys, queries and messages by node type, attention and messages by relation
gat         [Velickovic18]: additive attention, one weight
simple_hgn  [Lv21]: additive attention with a term for each relation
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from loadmaster.errors import InputError
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.tracing import (
    Edges,
    Nodes,
    Traced,
    dot,
    leaky_relu,
    per_node_type,
    per_relation,
    shared,
    traced,
)


def rgcn(width: int, out: int, heads: int) -> Program:
    """R-GCN: h W0 + the sum over relations of the mean of h W_r. It has no attention, so one head only."""
    if heads != 1:
        raise InputError("heads", heads, "are none that this layer has: it has no attention", "Leave them at 1.")

    def layer(nodes: Nodes, edges: Edges, weights: Any) -> Traced:
        message = edges.source(nodes.h) @ weights.W[edges.relation]
        found: Traced = edges.sum(message / edges.in_degree(of_relation=True)) + nodes.h @ weights.W0
        return found

    return traced(layer, nodes={"h": width}, weights={"W": per_relation(width, out), "W0": shared(width, out)})


def rgat(width: int, out: int, heads: int) -> Program:
    """RGAT: messages h W_r; scores of source and target through W_r; softmax over all edges of a node."""

    def layer(nodes: Nodes, edges: Edges, weights: Any) -> Traced:
        weight = weights.W[edges.relation]
        source, target = edges.source(nodes.h) @ weight, edges.target(nodes.h) @ weight
        score = dot(source, weights.s[edges.relation]) + dot(target, weights.t[edges.relation])
        attention = edges.softmax(leaky_relu(score, 0.2))
        return _joined(edges.sum(attention * source))

    size = (width, out) if heads == 1 else (heads, width, out // heads)
    vector = size[:-2] + size[-1:]
    return traced(
        layer,
        nodes={"h": width},
        weights={"W": per_relation(*size), "s": per_relation(*vector), "t": per_relation(*vector)},
    )


def hgt(width: int, out: int, heads: int) -> Program:
    """HGT: scaled dot products of queries and keys through a weight for each relation; messages likewise."""
    size = out // heads

    def layer(nodes: Nodes, edges: Edges, weights: Any) -> Traced:
        key, query, value = (_split(nodes.h @ w[nodes.type], heads) for w in (weights.K, weights.Q, weights.V))
        through = edges.source(key) @ weights.A[edges.relation]
        score = dot(edges.target(query), through) * weights.p[edges.relation] * (1 / math.sqrt(size))
        message = edges.source(value) @ weights.M[edges.relation]
        found: Traced = _joined(edges.sum(edges.softmax(score) * message)) @ weights.O[nodes.type]
        return found

    matrix = (size, size) if heads == 1 else (heads, size, size)
    of_nodes = {name: per_node_type(width, out) for name in ("K", "Q", "V")}
    of_edges = {"A": per_relation(*matrix), "M": per_relation(*matrix), "p": per_relation(*matrix[:-2])}
    return traced(layer, nodes={"h": width}, weights={**of_nodes, **of_edges, "O": per_node_type(out, out)})


def gat(width: int, out: int, heads: int) -> Program:
    """GAT: one weight; scores of source and target; softmax over all edges of a node."""

    def layer(nodes: Nodes, edges: Edges, weights: Any) -> Traced:
        z = _split(nodes.h @ weights.W, heads)
        score = edges.source(dot(z, weights.s)) + edges.target(dot(z, weights.t))
        return _joined(edges.sum(edges.softmax(leaky_relu(score, 0.2)) * edges.source(z)))

    vector = shared(out) if heads == 1 else shared(heads, out // heads)
    return traced(layer, nodes={"h": width}, weights={"W": shared(width, out), "s": vector, "t": vector})


def simple_hgn(width: int, out: int, heads: int) -> Program:
    """Simple-HGN: ``gat`` with a score of each relation, and the node's own features through another weight."""

    def layer(nodes: Nodes, edges: Edges, weights: Any) -> Traced:
        z = _split(nodes.h @ weights.W, heads)
        score = edges.source(dot(z, weights.s)) + edges.target(dot(z, weights.t)) + weights.r[edges.relation]
        mixed = edges.sum(edges.softmax(leaky_relu(score, 0.2)) * edges.source(z))
        found: Traced = _joined(mixed) + nodes.h @ weights.R
        return found

    vector = shared(out) if heads == 1 else shared(heads, out // heads)
    relation = per_relation() if heads == 1 else per_relation(heads)
    weights = {"W": shared(width, out), "s": vector, "t": vector, "r": relation, "R": shared(width, out)}
    return traced(layer, nodes={"h": width}, weights=weights)


LAYERS: dict[str, Callable[[int, int, int], Program]] = {
    "rgcn": rgcn,
    "rgat": rgat,
    "hgt": hgt,
    "gat": gat,
    "simple-hgn": simple_hgn,
}


def layer(name: str, width: int, out: int, heads: int = 1) -> Program:
    """Make the program of a layer by its name, from vectors of ``width`` to vectors of ``out``, all heads together.

    Raises:
        InputError: no such layer, a vector without numbers, heads that cannot share it, or a layer without heads.
    """
    if name not in LAYERS:
        raise InputError("model", name, "is no layer that is known", f"Choose one of: {', '.join(LAYERS)}.")
    for field, numbers in (("width", width), ("out", out)):
        if numbers < 1:
            raise InputError(field, numbers, "is no number of numbers in a vector", "Give a whole number >= 1.")
    if heads < 1 or out % heads:
        raise InputError("heads", heads, f"cannot share vectors of {out}", "Choose a divisor of it.")
    return LAYERS[name](width, out, heads)


def _split(x: Traced, heads: int) -> Traced:
    return x if heads == 1 else x.heads(heads)


def _joined(x: Traced) -> Traced:
    return x if len(x.typed.shape) == 1 else x.joined()
