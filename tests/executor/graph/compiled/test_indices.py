"""What kernels know of a graph, held against Python's own sets and lists."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.executor.graph.structure.blocks import Block
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.graph.structure.sampling import NeighbourSampler
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
    indices = Indices.from_edges(ids, ids.flip(0), torch.tensor([1, 0, 3, 1]), 3, 4, [0, 1, 3])
    assert indices.segments("edge", "relation") == [0, 1, 3, 3, 4]
    assert indices.segments("source_pair", "relation") == [0, 1, 3, 3, 4]
    assert indices.segments("node", "node_type") == [0, 1, 3]
    assert indices.map("node", "node_type").tolist() == [0, 1, 1]  # type: ignore[union-attr]
    assert indices.groups("edge", "relation")[0].dtype == torch.int32
    with pytest.raises(InputError, match="is not what rows of edge are sorted by"):
        indices.segments("edge", "source")
    with pytest.raises(InputError, match="has no row for each row of source_pair"):
        indices.map("source_pair", "target")


def test_a_graph_has_its_indices_once() -> None:
    none = torch.empty(0, dtype=torch.int64)
    graph = graph_of(PlainGraph(none, none, none, torch.tensor([0])))
    assert Indices.of(graph) is Indices.of(graph)
    assert Indices.of(graph).rows("relation") == RELATIONS


TYPED: tuple[tuple[Space, Space], ...] = (
    ("edge", "relation"),
    ("source_pair", "relation"),
    ("target_pair", "relation"),
    ("node", "node_type"),
)


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """Of two types of node, or of one with one relation or several."""
    counts = dict.fromkeys(("a", "b")[: draw(st.integers(1, 2))], 6)
    name = st.sampled_from(tuple(counts))
    edges = {}
    for r in range(draw(st.integers(1, 3))):
        ends = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=15))
        edges[draw(name), f"r{r}", draw(name)] = [p[0] for p in ends], [p[1] for p in ends]
    sampler = NeighbourSampler(
        Graph.from_relations(edges, counts), [draw(st.sampled_from((-1, 2)))], replace=draw(st.booleans())
    )
    seeds = {each: torch.tensor(draw(st.lists(st.integers(0, 5), unique=True)), dtype=torch.int64) for each in counts}
    return sampler(seeds).blocks[0]


@given(blocks())
def test_a_block_has_the_indices_of_its_edges(block: Block) -> None:
    schema, offsets = block.schema, block.schema.source_offsets
    ends = [[], []]  # type: ignore[var-annotated]
    for r, triple in enumerate(block.relations):
        for at, (local, node_type) in enumerate(zip(block.edges(triple), schema.ends(r), strict=True)):
            ends[at].append(local.long() + offsets[node_type])
    source, target = map(torch.cat, ends)
    found = Indices.of(block)
    plain = Indices.from_edges(
        source, target, block.relation, schema.source_count, len(schema.relations), [*offsets], None
    )
    assert found.edge_order.tolist() == plain.edge_order.tolist() == [*range(source.numel())]
    for over in SPACES:
        assert found.rows(over) == plain.rows(over)
        for to in SPACES:
            if not is_coarser(to, over):
                continue
            for one, other in zip(found.groups(over, to), plain.groups(over, to), strict=True):
                assert (one is None) == (other is None)
                assert one is None or (one.dtype == torch.int32 and torch.equal(one, other))
            a, b = found.map(over, to), plain.map(over, to)
            assert (a is None) == (b is None) and (a is None or torch.equal(a, b))
    for space, types in TYPED:
        assert found.segments(space, types) == plain.segments(space, types)
    rows = [*range(schema.source_count)] if found.result_rows is None else found.result_rows.tolist()
    firsts = zip(offsets, schema.destination_counts, strict=False)
    assert rows == [row for first, count in firsts for row in range(first, first + count)]


@given(graphs())
def test_what_is_learned_together_is_what_is_learned_one_by_one(plain: PlainGraph) -> None:
    first, second = (Indices.of(graph_of(plain)) for _ in range(2))
    first.learn(("source_pair", "target_pair"), [("edge", "target"), ("source_pair", "source")])
    assert all(first.rows(space) == second.rows(space) for space in ("target_pair", "source_pair"))
    assert all(first.longest(*key) == second.longest(*key) for key in (("source_pair", "source"), ("edge", "target")))


def test_learning_waits_once_for_pairs_and_once_for_the_longest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    indices = Indices.of(Graph([0, 1, 1, 2], [1, 2, 0, 0], relation=[1, 0, 1, 0]))
    asked: list[int] = []
    tolist = Tensor.tolist
    for name in ("__int__", "__bool__", "item", "cpu", "nonzero"):
        monkeypatch.setattr(Tensor, name, None)
    monkeypatch.setattr(Tensor, "tolist", lambda x: asked.append(x.numel()) or tolist(x))  # type: ignore[func-returns-value]
    pairs: tuple[Space, ...] = ("source_pair", "target_pair")
    for _ in range(2):
        indices.learn(pairs, [("edge", "target"), ("edge", "source_pair"), ("source_pair", "source")])
    assert [indices.segments(space, "relation") for space in ("edge", *pairs)] == [[0, 2, 4]] * 3
    assert indices.longest("edge", "target") == 2 and len(asked) == 2
