"""Tables that generated kernels read: every row once, in order, never of two types at a time."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.executor.graph.compiled.triton.tables import chunks, grouped_map, groups, tiles
from tests.executor.graph.compiled.triton_runs import random_indices


def of_targets(targets: list[int], nodes: int) -> Indices:
    edges = torch.tensor(targets, dtype=torch.int64)
    return Indices.from_edges(edges, edges, torch.zeros_like(edges), nodes, 1, [0, nodes])


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(1, 5), st.integers(0, 6), st.booleans())
def test_chunks_hold_the_rows_of_long_rows_once_and_in_order(targets, size, bound, by_length):
    indices = of_targets(targets, 5)
    table, count, cut = chunks(indices, "edge", "target", size, bound, by_length)
    found = groups(indices, "edge", "target", by_length)
    rows = [*range(5)] if found.rows is None else found.rows.tolist()
    ptr = {row: (a, b) for row, (a, b) in zip(rows, pairwise(found.ptr.tolist()), strict=True)}
    long = [r for r in rows if ptr[r][1] - ptr[r][0] > bound or not bound]
    assert table["cut_row"].tolist() == long and cut == len(long)
    assert table["cut_length"].tolist() == [targets.count(r) for r in long]
    assert len(table["chunk_row"]) == count
    for row, begin, end in zip(*(table[f"cut_{w}"].tolist() for w in ("row", "begin", "end")), strict=True):
        assert set(table["chunk_row"][begin:end].tolist()) <= {row}
        first, last = (table[f"chunk_{w}"][begin:end].tolist() for w in ("first", "last"))
        assert [e for a, b in zip(first, last, strict=True) for e in range(a, b)] == [*range(*ptr[row])]
        assert all(0 < b - a <= size for a, b in zip(first, last, strict=True))


@given(st.lists(st.integers(0, 4), max_size=40), st.booleans())
def test_groups_hold_the_edges_of_every_target_the_longest_first(targets, by_length):
    indices = of_targets(targets, 5)
    found = groups(indices, "edge", "target", by_length)
    rows = [*range(5)] if found.rows is None else found.rows.tolist()
    of_edge = indices.map("edge", "target").tolist()
    order = [*range(len(targets))] if found.order is None else found.order.tolist()
    for row, (a, b) in zip(rows, pairwise(found.ptr.tolist()), strict=True):
        assert order[a:b] == [e for e, target in enumerate(of_edge) if target == row]
    if by_length:
        assert rows == sorted(range(5), key=lambda r: -targets.count(r))


@given(st.integers(0, 50), st.integers(1, 9), st.integers(0, 5))
def test_tiles_hold_every_row_once_and_rows_of_one_relation(edges, size, seed):
    indices = random_indices(6, edges, 4, seed)
    table, count = tiles(indices, "edge", "relation", size)
    relation = indices.map("edge", "relation").tolist()
    found = []
    for first, last, of in zip(*(table[f"tile_{w}"].tolist() for w in ("first", "last", "type")), strict=True):
        assert 0 < last - first <= size
        assert {relation[e] for e in range(first, last)} == {of}
        found += range(first, last)
    assert found == [*range(edges)] and count == len(table["tile_type"])


@pytest.mark.parametrize("to", ["source", "target", "source_pair", "target_pair", "relation"])
@pytest.mark.parametrize("of", ["source", "target", "source_pair", "relation"])
@pytest.mark.parametrize("by_length", [False, True])
def test_a_grouped_map_names_the_rows_in_the_order_of_the_groups(to, of, by_length):
    indices = random_indices(6, 30, 4)
    order = groups(indices, "edge", to, by_length).order
    plain = indices.map("edge", of).tolist()
    found = grouped_map(indices, "edge", to, of, by_length).tolist()
    edges = range(30) if order is None else order.tolist()
    assert found == [plain[e] for e in edges]


def test_tables_are_made_once_for_a_graph():
    indices = random_indices(6, 30, 4)
    assert tiles(indices, "edge", "relation", 8) is tiles(indices, "edge", "relation", 8)
    first, second = (grouped_map(indices, "edge", "target", "source", True) for _ in range(2))
    assert first is second
