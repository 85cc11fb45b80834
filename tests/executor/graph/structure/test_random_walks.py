"""Random walks follow edges, end where there are none, and take every edge as often."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.graph.structure.sampling import NeighbourSampler, random_walk

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
ENDS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20)


@given(ENDS, st.lists(st.integers(0, 5), max_size=6), st.integers(0, 4), st.booleans(), st.integers(0, 99))
def test_every_step_is_an_edge_and_a_walk_ends_where_none_begins(
    ends: list[tuple[int, int]], seeds: list[int], length: int, several: bool, state: int
) -> None:
    kinds = [i % 3 for i in range(len(ends))] if several else None
    graph = Graph(
        [a for a, _ in ends], [b for _, b in ends], node_count=6, relation=kinds, relations=3 if several else 1
    )
    generator = torch.Generator().manual_seed(state)
    nodes, edges = random_walk(graph, torch.tensor(seeds, dtype=torch.int64), length, generator=generator)
    assert nodes.shape == (len(seeds), length + 1) and edges.shape == (len(seeds), length)
    assert nodes[:, 0].tolist() == seeds
    sources, destinations = graph.source.tolist(), graph.destination.tolist()
    for walk, along in zip(nodes.tolist(), edges.tolist(), strict=True):
        for here, edge, there in zip(walk, along, walk[1:], strict=False):
            if here == -1 or here not in sources:
                assert edge == there == -1
            else:
                assert (sources[edge], destinations[edge]) == (here, there)


def test_a_walk_follows_a_metapath_with_ids_within_types() -> None:
    graph = Graph.from_relations({WRITES: ([0, 1, 1], [2, 0, 2]), CITES: ([2, 0], [0, 1])}, {"author": 3, "paper": 3})
    nodes, edges = random_walk(graph, [0, 2], metapath=["writes", "cites", CITES])
    assert nodes.tolist() == [[0, 2, 0, 1], [2, -1, -1, -1]]
    assert edges.tolist() == [[0, 0, 1], [-1, -1, -1]]


def test_every_edge_is_as_likely_and_walks_end_as_often_as_asked() -> None:
    graph = Graph([0, 0, 0, 0], [1, 2, 3, 3])
    count = 6_000
    generator = torch.Generator().manual_seed(0)
    edges = random_walk(graph, [0] * count, 1, restart_prob=0.2, generator=generator).edges.flatten()
    seen, wanted = Counter(edges.tolist()), {-1: 0.2, **dict.fromkeys(range(4), 0.2)}
    assert seen.keys() == wanted.keys()
    # The 0.1 % point of chi-square, 4 degrees of freedom; the generator's seed is fixed.
    assert sum((seen[edge] - share * count) ** 2 / (share * count) for edge, share in wanted.items()) < 18.5


def test_the_same_state_of_a_generator_gives_the_same_walks_and_a_sure_end_none() -> None:
    graph = Graph(torch.arange(60) % 20, torch.arange(60) // 3)
    first, second = (
        random_walk(graph, torch.arange(20), 6, generator=torch.Generator().manual_seed(3)) for _ in range(2)
    )
    assert torch.equal(first.nodes, second.nodes) and int(first.nodes.min()) >= 0
    assert (random_walk(graph, torch.arange(20), 6, restart_prob=1.0).nodes[:, 1:] == -1).all()


TYPED = Graph.from_relations({WRITES: ([0], [0]), CITES: ([0], [0])})
PLAIN = Graph([0, 1], [1, 0])


@pytest.mark.parametrize(
    ("graph", "options", "message"),
    [
        (PLAIN, {}, "length: or metapath: one of both"),
        (PLAIN, {"length": 1, "metapath": [0]}, "length: or metapath: one of both"),
        (PLAIN, {"length": -1}, "length: is no number of steps"),
        (PLAIN, {"metapath": []}, "metapath: has no step"),
        (PLAIN, {"length": 1, "restart_prob": 1.5}, "restart_prob: is no probability"),
        (TYPED, {"length": 1}, "length: does not say along which relations"),
        (TYPED, {"metapath": ["cites", "writes"]}, "metapath: lead to paper and go on from author"),
        (TYPED, {"metapath": ["likes"]}, "relation: is no relation of this graph"),
        (NeighbourSampler(PLAIN, [1])(torch.tensor([0])).blocks[0], {"length": 1}, "graph: is a block"),
    ],
)
def test_what_is_no_walk_is_refused(graph: Graph, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        random_walk(graph, [0], **options)


def test_a_seed_that_is_no_node_is_refused() -> None:
    with pytest.raises(InputError, match="seeds: names no node"):
        random_walk(PLAIN, [2], 1)
