"""What is counted of graphs, and the synthetic ones that have the sizes of well-known data sets."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.graph.datasets import DATA_SETS, data_set, generated
from loadmaster.models.graph.statistics import HOT_SHARES, GraphStatistics, expect_statistics, statistics_of

SOURCE, TARGET, RELATION = [0, 0, 0, 2, 3], [1, 1, 2, 1, 1], [0, 0, 1, 1, 1]


def counted() -> GraphStatistics:
    return statistics_of(SOURCE, TARGET, RELATION, [3, 2], 3)


def test_rows_of_every_space_are_counted() -> None:
    found = counted()
    assert (found.edges, found.source_pairs, found.target_pairs) == ((2, 3, 0), (1, 3, 0), (1, 2, 0))
    assert [found.rows(s) for s in ("one", "relation", "node_type", "node", "source_pair", "edge")] == [
        1,
        3,
        2,
        5,
        4,
        5,
    ]
    # Node 1 has four edges that end, node 2 has one; node 0 has three that leave, 2 and 3 have one.
    assert found.in_degrees == (3, 1, 0, 1)
    assert found.out_degrees == (2, 2, 1)
    # Target 1 has two relations, and so has source 0.
    assert found.longest == (4, 3, 2, 2, 2, 2)


def test_hot_rows_are_those_of_nodes_that_many_edges_leave() -> None:
    hits = dict(zip(HOT_SHARES, statistics_of([0] * 8 + [1], [1] * 9, [0] * 9, [16]).hits, strict=True))
    assert (hits[0.0], hits[1 / 16], hits[2 / 16], hits[1.0]) == (0.0, 8 / 9, 1.0, 1.0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 30), st.integers(1, 5))
def test_counts_are_those_of_sets(seed: int, nodes: int, edges: int, relations: int) -> None:
    rng = np.random.default_rng(seed)
    source, target, relation = (rng.integers(0, n, edges) for n in (nodes, nodes, relations))
    found = statistics_of(source, target, relation, [nodes], relations)
    expect_statistics(found)
    for r in range(relations):
        at = relation == r
        assert found.edges[r] == at.sum()
        assert found.source_pairs[r] == len(set(source[at].tolist()))
        assert found.target_pairs[r] == len(set(target[at].tolist()))
    ends = (target.tolist(), source.tolist())
    edges_of = [Counter(end) for end in ends] + [Counter(zip(end, relation.tolist(), strict=True)) for end in ends]
    relations_of = [Counter(node for node, _ in pairs) for pairs in edges_of[2:]]
    assert found.longest == tuple(max(counts.values()) for counts in (*edges_of, *relations_of))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aifb", "bgs", "biokg", "fb15k", "mutag"])
def test_a_generated_graph_has_the_sizes_of_its_data_set(name: str) -> None:
    of = data_set(name)
    found = statistics_of(*generated(name), of.node_type_counts, of.relations)
    assert (found.rows("node"), found.rows("edge"), found.rows("relation")) == (of.nodes, of.edges, of.relations)
    assert found.rows("source_pair") / of.edges == pytest.approx(of.compaction, rel=0.02)
    assert min(found.edges) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["am", "mag", "wikikg2"])
def test_a_large_generated_graph_has_the_sizes_of_its_data_set(name: str) -> None:
    test_a_generated_graph_has_the_sizes_of_its_data_set(name)


def test_the_same_seed_makes_the_same_graph() -> None:
    one, again, other = generated("aifb", 1), generated("aifb", 1), generated("aifb", 2)
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one[1], other[1])


def test_every_relation_of_a_generated_graph_has_one_type_at_either_end() -> None:
    of = data_set("aifb")
    node_type = np.repeat(np.arange(len(of.types)), of.node_type_counts)
    source, target, relation = generated("aifb")
    for ends in (source, target):
        assert len({(r, t) for r, t in zip(relation.tolist(), node_type[ends].tolist(), strict=True)}) == of.relations


def test_a_data_set_that_is_not_known_is_refused() -> None:
    with pytest.raises(InputError, match="is no data set that is known"):
        data_set("cora")
    assert set(DATA_SETS) == {"aifb", "am", "bgs", "biokg", "fb15k", "mag", "mutag", "wikikg2"}


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("source", ([], [], [], [1])),
        ("source", ([0.5], [0], [0], [1])),
        ("target", ([0, 0], [0], [0, 0], [1])),
        ("source", ([-1], [0], [0], [1])),
        ("target", ([0], [7], [0], [1])),
        ("relation", ([0], [0], [3], [1], 2)),
    ],
)
def test_arrays_that_are_no_graph_are_refused(field: str, arguments: tuple[object, ...]) -> None:
    with pytest.raises(InputError) as caught:
        statistics_of(*[np.array(a, dtype=None if a else int) for a in arguments[:3]], *arguments[3:])  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("statistics.nodes", {"nodes": (0,)}),
        ("statistics.edges", {"edges": (0, 0, 0)}),
        ("statistics.source_pairs", {"source_pairs": (1,)}),
        ("statistics.target_pairs[1]", {"target_pairs": (1, 9, 0)}),
        ("statistics.in_degrees", {"in_degrees": (9, 9)}),
        ("statistics.hits", {"hits": tuple(1 - x for x in HOT_SHARES)}),
    ],
)
def test_numbers_that_no_graph_has_are_refused(field: str, change: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        expect_statistics(replace(counted(), **change))  # type: ignore[arg-type]
    assert caught.value.field == field
