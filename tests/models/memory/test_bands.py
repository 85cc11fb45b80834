"""Bands and groups: what the restriction leaves out, and how stages are grouped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.memory.bands import band, everything, slots_of_stages, with_pairs
from loadmaster.models.memory.groups import groups_by_mass, groups_of, last_uses, worthwhile
from loadmaster.models.memory.problem import Implementation, MemoryProblem
from tests.models.memory.instances import random_problem

SEEDS = st.integers(0, 10**6)


def grouped(problem: MemoryProblem, seed: int) -> list[tuple[int, int]]:
    chosen = np.random.default_rng(seed).random(problem.stage_count) < 0.5
    return groups_of(sorted({1, *map(int, np.flatnonzero(chosen[1:]) + 1)}), problem.stage_count)


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, count=st.integers(1, 12))
def test_groups_partition_the_backward_stages(seed: int, count: int) -> None:
    problem = random_problem(seed, operators=9)
    starts = groups_by_mass(problem, count)
    groups = groups_of(starts, problem.stage_count)
    assert starts[0] == 1
    assert 1 <= len(starts) <= count
    assert [k for a, b in groups for k in range(a, b + 1)] == list(range(1, problem.stage_count))
    assert slots_of_stages(groups) == {k: h for h, (a, b) in enumerate(groups) for k in range(a, b + 1)}


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, width=st.integers(0, 3), reach=st.integers(0, 3))
def test_bands_widen_up_to_everything(seed: int, width: int, reach: int) -> None:
    problem = random_problem(seed, operators=8, once_only=0.2)
    groups = grouped(problem, seed)
    narrow, wide = band(problem, groups, width, reach), band(problem, groups, width + 1, reach + 1)
    whole = everything(problem, groups)
    assert not (narrow & ~wide).any()
    assert not (wide & ~whole).any()
    assert not whole[:, [not f.recomputable for f in problem.forward]].any()


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS)
def test_every_result_may_be_made_where_it_is_read(seed: int) -> None:
    problem = random_problem(seed, operators=8)
    groups = grouped(problem, seed)
    slot = slots_of_stages(groups)
    allowed = band(problem, groups, 0, 0)
    for b in problem.backward:
        for i in {i for c in b.implementations for i in c.needs}:
            assert allowed[slot[b.id], i]


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS)
def test_a_result_matters_as_long_as_something_made_from_it(seed: int) -> None:
    """By following every path from a result to the backward operators."""
    problem = random_problem(seed, operators=7, encodings=0.4)

    def last(i: int) -> int:
        stages = [b.id for b in problem.backward if any(i in c.needs for c in b.implementations)]
        further = [last(f.id) for f in problem.forward if i in f.inputs or f.encodes == i]
        return max([*stages, *further, 0])

    assert last_uses(problem).tolist() == [last(f.id) for f in problem.forward]


def test_reach_goes_to_the_nearest_ancestors() -> None:
    problem = random_problem(1, operators=8, skips=0.0, encodings=0.0, in_place=0.0)
    groups = groups_of(list(range(1, problem.stage_count)), problem.stage_count)
    read = {(b.id - 1, i) for b in problem.backward for c in b.implementations for i in c.needs}
    added = band(problem, groups, 0, 2) & ~band(problem, groups, 0, 0)
    for h, i in zip(*np.nonzero(added), strict=True):
        # The operators form a row: an ancestor at distance d is d before.
        assert {(h, i + 1), (h, i + 2)} & read


def test_pairs_are_added() -> None:
    problem = random_problem(2, operators=5)
    groups = grouped(problem, 2)
    none = np.zeros((len(groups), len(problem.forward)), dtype=bool)
    added = with_pairs(none, [(0, 1)])
    assert np.argwhere(added).tolist() == [[0, 1]]
    assert not none.any()


@settings(max_examples=60, deadline=None)
@given(
    choices=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=6),
    threshold=st.integers(0, 8),
)
def test_worthwhile_implementations_are_the_front(choices: list[tuple[int, int]], threshold: int) -> None:
    """Nothing that is left is beaten on both counts by anything, and everything left out is."""
    problem = random_problem(0)
    offered = [Implementation(float(time_us), workspace) for time_us, workspace in choices]
    front = worthwhile(problem, offered, 0)
    left = [c for _, c in front]
    for c in offered:
        assert any(o.time_us <= c.time_us and o.workspace_bytes <= c.workspace_bytes for o in left)
    for a in left:
        assert not any(b is not a and b.time_us <= a.time_us and b.workspace_bytes <= a.workspace_bytes for b in left)
    assert [offered[n] for n, _ in front] == left
    assert [c.time_us for c in left] == sorted(c.time_us for c in left)
    spread = left[0].workspace_bytes - left[-1].workspace_bytes
    assert worthwhile(problem, offered, threshold) == (front[:1] if spread < threshold else front)


@pytest.mark.parametrize("count", [2, 5])
def test_groups_have_about_equal_mass(count: int) -> None:
    problem = random_problem(11, operators=40, choices=1)
    starts = groups_by_mass(problem, count)
    sizes = problem.output_bytes
    mass = [
        sum(int(sizes[list(b.implementations[0].needs)].sum()) for b in problem.backward[a - 1 : e])
        for a, e in groups_of(starts, problem.stage_count)
    ]
    largest = max(int(sizes[list(b.implementations[0].needs)].sum()) for b in problem.backward)
    assert max(mass) - min(mass) <= 2 * largest
