"""Which rows are read most, against brute force on small graphs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.executor.graph import (
    hottest,
    out_degrees,
    predicted_hit_rate,
    reverse_pagerank,
    rows_within,
    sampled_frequency,
)

NODES = 6
EDGES = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)), max_size=15)


def columns(edges):
    return torch.tensor([list(edge) for edge in edges], dtype=torch.int64).reshape(-1, 2).unbind(1)


@given(EDGES)
def test_out_degrees_count_the_edges_that_leave(edges):
    expected = [sum(source == node for source, _ in edges) for node in range(NODES)]
    assert out_degrees(columns(edges)[0], NODES).tolist() == expected


@settings(max_examples=50, deadline=None)
@given(EDGES, st.sampled_from([0.0, 0.5, 0.85]), st.lists(st.integers(0, NODES - 1), min_size=1, max_size=4))
def test_reverse_pagerank_is_the_stationary_walk(edges, damping, seeds):
    """The rank solves a linear system: walk back along a random edge, begin anew where none comes in."""
    source, destination = columns(edges)
    found = reverse_pagerank(source, destination, NODES, seeds=torch.tensor(seeds), damping=damping, tolerance=1e-12)
    start = np.bincount(seeds, minlength=NODES) / len(seeds)
    step = np.zeros((NODES, NODES))
    for s, d in edges:
        step[s, d] += 1
    coming_in = step.sum(0)
    step = np.where(coming_in > 0, step / np.maximum(coming_in, 1), start[:, None])
    expected = np.linalg.solve(np.eye(NODES) - damping * step, (1 - damping) * start)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-9)


def test_without_seeds_walks_begin_anywhere():
    source, destination = torch.tensor([0, 0, 1]), torch.tensor([1, 2, 2])
    everywhere = reverse_pagerank(source, destination, 3, seeds=torch.arange(3))
    torch.testing.assert_close(reverse_pagerank(source, destination, 3), everywhere)
    assert hottest(everywhere, 1).tolist() == [0]


def test_frequency_counts_what_samples_read():
    reads = {0: [0, 1, 2], 1: [1, 1], 2: [5]}

    def sample(seeds):
        return None, torch.tensor([n for s in seeds.tolist() for n in reads[s]])

    found = sampled_frequency(sample, torch.tensor([0, 1, 2]).split(2), NODES)
    assert found.tolist() == [1, 3, 1, 0, 0, 1]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(0, 10))
def test_the_hottest_rows_hit_most(scores, rows):
    """No other choice of as many rows has a higher hit rate; of equal ones the earlier are taken."""
    frequency = torch.tensor(scores)
    hot = hottest(frequency, rows)
    best = sorted(range(len(scores)), key=lambda n: (-scores[n], n))[:rows]
    assert hot.tolist() == best
    expected = sum(scores[n] for n in best) / sum(scores) if sum(scores) else 0.0
    assert predicted_hit_rate(frequency, hot) == pytest.approx(expected)


def test_a_budget_pays_for_the_map_too():
    table = torch.zeros(10, 4)
    assert [rows_within(budget, table) for budget in (0, 40, 55, 56, 10_000)] == [0, 0, 0, 1, 10]


@pytest.mark.parametrize(
    "ask",
    [
        lambda bad: out_degrees(bad, NODES),
        lambda bad: reverse_pagerank(bad, torch.tensor([0]), NODES),
        lambda bad: reverse_pagerank(torch.tensor([0]), bad, NODES),
        lambda bad: reverse_pagerank(torch.tensor([0]), torch.tensor([0]), NODES, seeds=bad),
        lambda bad: sampled_frequency(lambda seeds: (None, bad), [torch.tensor([0])], NODES),
    ],
)
@pytest.mark.parametrize("bad", [torch.tensor([NODES]), torch.tensor([-1]), torch.tensor([0.5])])
def test_nodes_that_the_graph_does_not_have_are_refused(ask, bad):
    with pytest.raises(InputError):
        ask(bad)


def test_numbers_out_of_range_are_refused():
    one = torch.tensor([0])
    for damping in (1.0, -0.1):
        with pytest.raises(InputError, match="damping"):
            reverse_pagerank(one, one, NODES, damping=damping)
    for tolerance in (0.0, 1e-20, float("nan")):
        with pytest.raises(InputError, match="tolerance"):
            reverse_pagerank(one, one, NODES, tolerance=tolerance)
    with pytest.raises(InputError, match="seeds"):
        reverse_pagerank(one, one, NODES, seeds=one[:0])
    with pytest.raises(InputError, match="hot"):
        predicted_hit_rate(torch.ones(3), torch.tensor([3]))
    with pytest.raises(InputError, match="destination"):
        reverse_pagerank(one, torch.tensor([0, 0]), NODES)
    with pytest.raises(InputError, match="rows"):
        hottest(torch.ones(3), -1)
