"""What kernels know of a graph, held against Python's own sets and lists."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.models.graph.spaces import SPACES, Space, is_coarser
from tests.executor.graph.compiled.plain_layers import PlainGraph
from tests.executor.graph.compiled.random_layers import RELATIONS, graph_of, graphs


def keys(plain: PlainGraph, order: Tensor) -> dict[Space, list[Any]]:
    """For each space, what each edge's row is known by, in the order of the rows of edges."""
    s, t, r = (x[order].tolist() for x in (plain.source, plain.target, plain.relation))
    return {
        "one": [0] * len(s),
        "relation": r,
        "source": s,
        "target": t,
        "source_pair": list(zip(r, s, strict=True)),
        "target_pair": list(zip(r, t, strict=True)),
        "edge": list(range(len(s))),
    }


@given(graphs())
def test_rows_maps_and_groups_are_those_of_the_edges(plain: PlainGraph) -> None:
    indices = Indices.of(graph_of(plain))
    order = indices.edge_order.long()
    assert sorted(order.tolist()) == list(range(plain.source.numel()))
    of = keys(plain, order)
    assert of["relation"] == sorted(of["relation"])
    for space in ("source_pair", "target_pair"):
        assert indices.rows(space) == len(set(of[space]))
    for space, known in of.items():
        row = indices.map("edge", space)
        if row is None:
            continue
        assert row.numel() == len(known) and (not known or int(row.max()) < indices.rows(space))
        if "pair" in space:
            pairs = sorted(set(known))  # by relation, then by node
            assert [pairs[i] for i in row.tolist()] == known
        else:
            assert row.tolist() == known


@given(graphs())
def test_groups_hold_every_row_once_in_ascending_order(plain: PlainGraph) -> None:
    indices = Indices.of(graph_of(plain))
    for over in SPACES:
        for to in SPACES:
            if not is_coarser(to, over):
                continue
            owner = indices.map(over, to)
            expected: list[list[int]] = [[] for _ in range(indices.rows(to))]
            for row in range(indices.rows(over)):
                expected[row if owner is None else int(owner[row])].append(row)
            ptr, order = indices.groups(over, to)
            rows = list(range(indices.rows(over))) if order is None else order.tolist()
            assert [rows[a:b] for a, b in pairwise(ptr.tolist())] == expected
            assert indices.longest(over, to) == max(map(len, expected), default=0)


@given(graphs())
def test_degrees_count_edges_and_are_never_zero(plain: PlainGraph) -> None:
    indices = Indices.of(graph_of(plain))
    degree = indices.degree("target", torch.float64).tolist()
    assert degree == [max(1, int((plain.target == n).sum())) for n in range(plain.node_count)]


def test_rows_of_one_type_lie_side_by_side() -> None:
    ids = torch.tensor([2, 0, 1, 0])
    indices = Indices.from_edges(ids, ids.flip(0), torch.tensor([1, 0, 3, 1]), 3, 4, torch.tensor([0, 1, 3]))
    assert indices.segments("edge", "relation").tolist() == [0, 1, 3, 3, 4]
    assert indices.segment_list("source_pair", "relation") == [0, 1, 3, 3, 4]
    assert indices.segments("node", "node_type").tolist() == [0, 1, 3]
    assert indices.map("node", "node_type").tolist() == [0, 1, 1]  # type: ignore[union-attr]
    assert indices.segments("edge", "relation").dtype == torch.int32
    with pytest.raises(InputError, match="is not what rows of edge are sorted by"):
        indices.segments("edge", "source")
    with pytest.raises(InputError, match="has no row for each row of source_pair"):
        indices.map("source_pair", "target")


def test_a_graph_has_its_indices_once() -> None:
    none = torch.empty(0, dtype=torch.int64)
    graph = graph_of(PlainGraph(none, none, none, torch.tensor([0])))
    assert Indices.of(graph) is Indices.of(graph)
    assert Indices.of(graph).rows("relation") == RELATIONS
