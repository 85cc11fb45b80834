"""Random graphs and features, and messages reduced edge by edge in plain Python: what built-in functions must equal."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from loadmaster.executor.graph.structure.graph import Graph

JOINS = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}
# Shapes of rows that broadcast, those that leave three alternating groups of dimensions among them.
SHAPES = (
    ((), ()),
    ((3,), (3,)),
    ((3,), (1,)),
    ((2, 3), (2, 1)),
    ((2, 3), (3,)),
    ((2, 1), (2, 3)),
    ((2, 1, 2), (1, 3, 1)),
    ((1, 2), (3, 1)),
    ((2, 2), (2, 2)),
)
DOT_SHAPES = (((3,), (3,)), ((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1, 3), (1, 2, 3)), ((2, 1, 3), (3,)))


@st.composite
def graphs(draw: st.DrawFn, edges_at_most: int = 12) -> Graph:
    """Small graphs with nodes without edges, edges that are there twice, and edges from a node to itself."""
    nodes = draw(st.integers(1, 5))
    node = st.integers(0, nodes - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=edges_at_most))
    ids = draw(st.sampled_from((torch.int32, torch.int64)))
    source, destination = (list(part) for part in zip(*pairs, strict=True)) if pairs else ([], [])
    return Graph(source, destination, node_count=nodes, id_dtype=ids)


def rows(graph: Graph, where: str) -> int:
    return graph.num_edges() if where == "e" else graph.num_nodes()


def feature(graph: Graph, where: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Away from zero, distinct, of both signs: float64 that wants a gradient."""
    generator = torch.Generator().manual_seed(seed)
    size = (rows(graph, where), *shape)
    value = torch.rand(size, generator=generator, dtype=torch.float64) + 0.5
    signs = torch.randint(0, 2, size, generator=generator) * 2 - 1
    return (value * signs).requires_grad_()


def gathered(graph: Graph, where: str, value: Tensor) -> Tensor:
    ends = {"u": graph.source, "v": graph.destination}
    return value if where == "e" else value[ends[where].long()]


def naive_messages(graph: Graph, operator: str, left: Any, right: Any) -> Tensor:
    """A row for each edge."""
    first = gathered(graph, *left)
    if right is None:
        return first
    second = gathered(graph, *right)
    rank = max(first.dim(), second.dim())
    first, second = (t.reshape(t.shape[0], *(1,) * (rank - t.dim()), *t.shape[1:]) for t in (first, second))
    if operator == "dot":
        return (first * second).sum(-1, keepdim=True)
    return JOINS[operator](first, second)


def naive_reduction(graph: Graph, messages: Tensor, reduce: str) -> Tensor:
    """A row for each node, edge by edge; zeros where there are none."""
    found = []
    for node in range(graph.num_nodes()):
        own = [messages[e] for e in range(graph.num_edges()) if int(graph.destination[e]) == node]
        if not own:
            found.append(torch.zeros(messages.shape[1:], dtype=messages.dtype))
        elif reduce in ("sum", "mean"):
            found.append(sum(own) / (len(own) if reduce == "mean" else 1))
        else:
            whole = own[0]
            for each in own[1:]:
                # Of equal ones the first: where its gradient goes.
                better = {"max": each > whole, "min": each < whole}.get(reduce)
                whole = whole * each if better is None else torch.where(better, each, whole)
            found.append(whole)
    return torch.stack(found) if found else messages.new_zeros((0, *messages.shape[1:]))


def same_values_and_gradients(got: Tensor, want: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    weights = torch.arange(1, 1 + math.prod(want.shape), dtype=torch.float64).view(want.shape).sin()
    given, wanted = (
        torch.autograd.grad((made * weights).sum(), inputs, allow_unused=True, materialize_grads=True)
        if made.requires_grad
        else [torch.zeros_like(each) for each in inputs]
        for made in (got, want)
    )
    for one, other in itertools.zip_longest(given, wanted):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
