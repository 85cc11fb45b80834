"""Minimization of pairwise costs, exact or by messages, held against trying every assignment."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.planner.partition.dominance import kept_states
from loadmaster.planner.partition.elimination import Elimination, TooWideError
from loadmaster.planner.partition.pairwise import minimize
from loadmaster.planner.partition.ranking import ranked
from loadmaster.solvers.program import FloatArray


def cost(unary: list[FloatArray], pairs: dict[tuple[int, int], FloatArray], x: tuple[int, ...]) -> float:
    found = sum(float(a[n]) for a, n in zip(unary, x, strict=True))
    return found + sum(float(b[x[u], x[v]]) for (u, v), b in pairs.items())


def random_costs(seed: int) -> tuple[list[FloatArray], dict[tuple[int, int], FloatArray]]:
    """Up to six variables of up to three states, some of which cannot be beside each other."""
    rng = np.random.default_rng(seed)
    states = rng.integers(1, 4, rng.integers(1, 7))
    unary = [rng.integers(0, 9, n).astype(float) for n in states]
    pairs = {}
    for u, v in itertools.combinations(range(len(states)), 2):
        if rng.random() < 0.6:
            key = (u, v) if rng.random() < 0.5 else (v, u)
            pairs[key] = rng.integers(0, 9, (states[key[0]], states[key[1]])).astype(float)
            pairs[key][rng.random(pairs[key].shape) < 0.2] = np.inf
    return unary, pairs


def in_order(unary: list[FloatArray], pairs: dict[tuple[int, int], FloatArray]) -> list[float]:
    """The costs of all assignments."""
    return sorted(cost(unary, pairs, x) for x in itertools.product(*(range(len(a)) for a in unary)))


@given(st.integers(0, 10**6))
def test_the_least_of_all_assignments(seed: int) -> None:
    unary, pairs = random_costs(seed)
    chosen, optimum = minimize(unary, pairs)
    assert optimum == in_order(unary, pairs)[0] == cost(unary, pairs, tuple(chosen))


@given(st.integers(0, 10**6))
def test_messages_bound_all_assignments(seed: int) -> None:
    """Tables of one number are too small for anything: messages alone."""
    unary, pairs = random_costs(seed)
    chosen, bound = minimize(unary, pairs, largest_table=1)
    least = in_order(unary, pairs)[0]
    assert bound <= least <= cost(unary, pairs, tuple(chosen))
    if np.isinf(bound):
        assert np.isinf(least)


def test_messages_are_exact_on_trees_and_nearly_so_elsewhere() -> None:
    rng = np.random.default_rng(7)
    unary = [rng.random(5) for _ in range(40)]
    tree = {(int(rng.integers(0, v)), v): rng.random((5, 5)) for v in range(1, 40)}
    exact = minimize(unary, tree)[1]
    chosen, bound = minimize(unary, tree, largest_table=1)
    assert bound == pytest.approx(exact, rel=1e-9) and cost(unary, tree, tuple(chosen)) == pytest.approx(exact)
    gaps = []
    for seed in range(200):
        unary, pairs = random_costs(seed)
        least = in_order(unary, pairs)[0]
        if np.isfinite(least):
            chosen, _ = minimize(unary, pairs, largest_table=1)
            gaps.append(cost(unary, pairs, tuple(chosen)) - least)
    assert np.mean(np.array(gaps) == 0) > 0.95


def test_what_messages_leave_is_closed_by_elimination() -> None:
    """Cycles on which the relaxation is not integral: the tables that are left are small enough."""
    frustrated = np.array([[1.0, 0.0], [0.0, 1.0]])
    pairs = {pair: frustrated for pair in itertools.combinations(range(3), 2)}
    unary = [np.zeros(2)] * 3
    assert minimize(unary, pairs, largest_table=7)[1] < 1.0
    big = {(u + 3 * n, v + 3 * n): costs for n in range(3) for (u, v), costs in pairs.items()}
    # Of sixteen states each, all but two are far too dear.
    dear = [np.array([0.0, 0.0, *[100.0] * 14])] * 9
    wide = {key: np.pad(costs, (0, 14)) for key, costs in big.items()}
    assert minimize(dear, wide, largest_table=1000) == (pytest.approx([0, 0, 1] * 3, abs=1), 3.0)


@given(st.integers(0, 10**6))
def test_assignments_come_in_order(seed: int) -> None:
    unary, pairs = random_costs(seed)
    found = [(of, tuple(x)) for of, x in ranked(Elimination(unary, pairs))]
    assert [of for of, _ in found] == [of for of in in_order(unary, pairs) if np.isfinite(of)]
    assert all(cost(unary, pairs, x) == of for of, x in found) and len({x for _, x in found}) == len(found)


def test_tables_that_would_be_too_large() -> None:
    rng = np.random.default_rng(0)
    clique = {(u, v): rng.random((10, 10)) for u, v in itertools.combinations(range(5), 2)}
    with pytest.raises(TooWideError):
        Elimination([np.ones(10)] * 5, clique, largest_table=1000)


@given(st.integers(0, 10**6))
def test_what_is_dominated_is_not_needed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    unary = [rng.integers(0, 9, 3).astype(float) for _ in range(4)]
    pairs = {(u, u + 1): rng.integers(0, 5, (3, 3)).astype(float) for u in range(3)}
    kept = kept_states(unary, pairs)
    assert all(len(k) for k in kept)
    every = itertools.product(range(3), repeat=4)
    assert min(cost(unary, pairs, x) for x in every) == min(cost(unary, pairs, x) for x in itertools.product(*kept))


def test_a_chain_of_thousands_is_quick() -> None:
    pairs = {(n, n + 1): np.array([[0.0, 1.0], [1.0, 0.0]]) for n in range(5000)}
    unary = [np.zeros(2) for _ in range(5001)]
    unary[0], unary[-1] = np.array([0.0, 5.0]), np.array([5.0, 0.0])
    assert minimize(unary, pairs)[1] == 1.0
