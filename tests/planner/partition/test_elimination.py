"""Exact minimization, held against trying every assignment."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.planner.partition.dominance import kept_states
from loadmaster.planner.partition.elimination import TooWideError, minimize
from loadmaster.solvers.program import FloatArray


def cost(unary: list[FloatArray], pairs: dict[tuple[int, int], FloatArray], x: tuple[int, ...]) -> float:
    found = sum(float(a[n]) for a, n in zip(unary, x, strict=True))
    return found + sum(float(b[x[u], x[v]]) for (u, v), b in pairs.items())


@given(st.integers(0, 10**6))
def test_the_least_of_all_assignments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    states = rng.integers(1, 4, rng.integers(1, 7))
    unary = [rng.integers(0, 9, n).astype(float) for n in states]
    pairs = {}
    for u, v in itertools.combinations(range(len(states)), 2):
        if rng.random() < 0.6:
            key = (u, v) if rng.random() < 0.5 else (v, u)
            pairs[key] = rng.integers(0, 9, (states[key[0]], states[key[1]])).astype(float)
            pairs[key][rng.random(pairs[key].shape) < 0.2] = np.inf
    chosen, optimum = minimize(unary, pairs)
    assert optimum == min(cost(unary, pairs, x) for x in itertools.product(*map(range, states)))
    assert optimum == cost(unary, pairs, tuple(chosen))


def test_tables_that_would_be_too_large() -> None:
    rng = np.random.default_rng(0)
    clique = {(u, v): rng.random((10, 10)) for u, v in itertools.combinations(range(5), 2)}
    with pytest.raises(TooWideError):
        minimize([np.ones(10)] * 5, clique, largest_table=1000)


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
