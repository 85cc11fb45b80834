"""Sampled blocks hold edges of the graph, as many as asked for, each set of them as likely as any other."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster.executor.graph.messages.functions as fn
from loadmaster.errors import InputError
from loadmaster.executor.graph.structure.blocks import Block
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.graph.structure.sampling import NeighbourSampler

TYPES = ("a", "b")


@st.composite
def typed_graphs(draw: st.DrawFn) -> Graph:
    """Two types of node and up to three relations, some without edges."""
    counts = {name: draw(st.integers(1, 5)) for name in TYPES}
    edges = {}
    for i in range(draw(st.integers(1, 3))):
        first, last = draw(st.sampled_from(TYPES)), draw(st.sampled_from(TYPES))
        pair = st.tuples(st.integers(0, counts[first] - 1), st.integers(0, counts[last] - 1))
        ends = draw(st.lists(pair, max_size=12))
        edges[first, f"r{i}", last] = ([p[0] for p in ends], [p[1] for p in ends])
    return Graph.from_relations(edges, counts)


def expect_sample_of(graph: Graph, block: Block, fanout: int, replace: bool) -> None:
    """Every edge is one of the graph's between the same nodes, and each destination has as many as it should."""
    for r, triple in enumerate(graph.relations):
        first, last = graph.schema.ends(r)
        part = slice(block.relation_ptr[r], block.relation_ptr[r + 1])
        ids = block.edge_ids[part].long()
        source, destination = block.edges(triple)
        adjacency = graph.relation_adjacency(r)
        within = ids - graph.relation_ptr[r]
        assert destination.tolist() == sorted(destination.tolist())
        assert adjacency.source[within].tolist() == block.source_ids[first][source.long()].tolist()
        assert adjacency.destination[within].tolist() == block.destination_ids[last][destination.long()].tolist()
        if not replace:
            assert len(set(ids.tolist())) == ids.numel()
        have = graph.in_degrees(relation=triple)[block.destination_ids[last].long()]
        if fanout == -1:
            want = have
        elif replace:
            want = torch.where(have > 0, fanout, 0)
        else:
            want = have.clamp(max=fanout)
        assert block.in_degrees(relation=triple).tolist() == want.tolist()
    for own, first in zip(block.source_ids, block.destination_ids, strict=True):
        assert own[: first.numel()].tolist() == first.tolist()
        assert len(set(own.tolist())) == own.numel()


@settings(max_examples=40)
@given(typed_graphs(), st.sampled_from((-1, 0, 1, 2, 3)), st.booleans(), st.data())
def test_blocks_are_samples_whose_destinations_are_their_first_sources(graph, fanout, replace, data) -> None:
    seeds = {}
    for name, count in zip(graph.node_types, graph.schema.source_counts, strict=True):
        if data.draw(st.booleans()):
            seeds[name] = torch.tensor(data.draw(st.lists(st.integers(0, count - 1), unique=True)), dtype=torch.int64)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    blocks, inputs = NeighbourSampler(graph, [fanout, 2], replace=replace, generator=generator)(seeds)
    expect_sample_of(graph, blocks[1], 2, replace)
    expect_sample_of(graph, blocks[0], fanout, replace)
    for i, name in enumerate(graph.node_types):
        assert blocks[1].destination_ids[i].tolist() == (seeds[name].tolist() if name in seeds else [])
        assert blocks[0].destination_ids[i].tolist() == blocks[1].source_ids[i].tolist()
        assert inputs[name].tolist() == blocks[0].source_ids[i].tolist()


def test_the_same_state_of_a_generator_gives_the_same_blocks() -> None:
    graph = Graph(torch.arange(60) % 20, torch.arange(60) // 3)
    drawn = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(5)
        sampler = NeighbourSampler(graph, [2, 2], generator=generator)
        drawn.append([sampler(torch.tensor([3, 7, 11])) for _ in range(2)])
    for one, other in zip(*drawn, strict=True):
        assert [b.edge_ids.tolist() for b in one.blocks] == [b.edge_ids.tolist() for b in other.blocks]


DRAWS = 1000


@pytest.mark.parametrize("replace", [False, True])
def test_every_choice_is_equally_likely(replace: bool) -> None:
    graph = Graph(list(range(5)), [0] * 5)
    sampler = NeighbourSampler(graph, [2], replace=replace, generator=torch.Generator().manual_seed(0))
    seen = Counter(tuple(sorted(sampler(torch.tensor([0])).blocks[0].edge_ids.tolist())) for _ in range(DRAWS))
    if replace:
        ways = Counter(tuple(sorted(pair)) for pair in itertools.product(range(5), repeat=2))
    else:
        ways = Counter(itertools.combinations(range(5), 2))
    assert seen.keys() == ways.keys()
    expected = {choice: DRAWS * count / sum(ways.values()) for choice, count in ways.items()}
    # The 0.1 % point of chi-square, 14 and 9 degrees of freedom; the generator's seed is fixed.
    statistic = sum((seen[choice] - want) ** 2 / want for choice, want in expected.items())
    assert statistic < (36.1 if replace else 27.9)


def test_fanouts_can_differ_between_relations() -> None:
    cites, likes = ("p", "cites", "p"), ("u", "likes", "p")
    graph = Graph.from_relations({cites: ([0, 1, 2], [3, 3, 3]), likes: ([0, 1, 2], [3, 3, 3])}, {"p": 4, "u": 3})
    blocks, _ = NeighbourSampler(graph, [{"cites": -1, "likes": 1}])({"p": torch.tensor([3])})
    assert blocks[0].num_edges("cites") == 3 and blocks[0].num_edges("likes") == 1
    blocks, _ = NeighbourSampler(graph, [{"cites": 2}])({"p": torch.tensor([3])})
    assert blocks[0].num_edges("cites") == 2 and blocks[0].num_edges("likes") == 0


def test_whole_neighbourhoods_give_what_the_whole_graph_gives() -> None:
    torch.manual_seed(0)
    graph = Graph(torch.randint(0, 12, (40,)), torch.randint(0, 12, (40,)), node_count=12)
    h = torch.randn(12, 3, dtype=torch.float64)
    graph.ndata["h"] = h
    for name in ("h1", "h2"):
        graph.update_all(fn.copy_u("h" if name == "h1" else "h1", "m"), fn.mean("m", name))
    seeds = torch.tensor([7, 2, 9])
    blocks, inputs = NeighbourSampler(graph, [-1, -1])(seeds)
    value = h[inputs.long()]
    for block in blocks:
        block.srcdata["h"] = value
        block.update_all(fn.copy_u("h", "m"), fn.mean("m", "o"))
        value = block.dstdata["o"]
        assert "o" not in block.srcdata
    torch.testing.assert_close(value, graph.ndata["h2"][seeds])


def test_a_block_moves_with_its_ids_and_is_not_reversed() -> None:
    block = NeighbourSampler(Graph([0, 1], [1, 0]), [1])(torch.tensor([1])).blocks[0]
    assert block.to("meta").edge_ids.device.type == "meta"
    assert block.num_src_nodes() == 2 and block.num_dst_nodes("_N") == 1
    with pytest.raises(InputError, match="cannot be reversed"):
        block.reverse()


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (lambda g: NeighbourSampler(g, []), "of no layer"),
        (lambda g: NeighbourSampler(g, [-2]), "no number of neighbours"),
        (lambda g: NeighbourSampler(g, [{"x": 1}]), "no relation"),
        (lambda g: NeighbourSampler(g.to("meta"), [1], generator=torch.Generator()), "generator"),
        (lambda g: NeighbourSampler(g, [1])(torch.tensor([9])), "names no node"),
        (lambda g: NeighbourSampler(g, [1])(torch.tensor([0, 0])), "name a node twice"),
    ],
)
def test_what_cannot_be_sampled_is_refused(run: Any, found: str) -> None:
    with pytest.raises(InputError, match=found):
        run(Graph([0, 1], [1, 0]))
