"""What fills the peak, by module: it adds up to the checker's peak, and is what a person adds up by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.hardware import HostLink
from loadmaster.models.memory import chen, gist, peak, plain
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.peak import folded, peak_by_module
from loadmaster.models.memory.problem import MemoryProblem
from tests.executor.memory.schedules import schedule, travelling
from tests.models.memory.instances import random_problem
from tests.models.memory.test_memory_checker import KEEP_ALL, three_operators

PLENTY = 10**12


def with_modules(problem: MemoryProblem, modules: int) -> MemoryProblem:
    """The same graph, its operators in the modules ``layers.0`` and so on, every fifth one in none."""

    def module(number: int) -> str | None:
        return None if number % 5 == 4 else f"layers.{number % modules}"

    forward = tuple(replace(f, module=module(f.id)) for f in problem.forward)
    backward = tuple(replace(b, module=module(b.id)) for b in problem.backward)
    return replace(problem, forward=forward, backward=backward)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), operators=st.integers(2, 9), segments=st.integers(1, 6))
def test_it_adds_up_to_the_peak_of_the_checker(seed: int, operators: int, segments: int) -> None:
    problem = with_modules(random_problem(seed, operators=operators, in_place=0.6, encodings=0.5), 3)
    for step in (plain.formulate(problem), gist.formulate(problem), chen.in_segments(problem, segments)):
        expected = check(problem, step, PLENTY).peak_bytes
        for parts in (found := peak_by_module(problem, step), folded(found), folded(found, most=2)):
            assert sum(size for _, size in parts) == expected
    assert peak_by_module(problem) == peak_by_module(problem, plain.formulate(problem))
    assert sum(size for _, size in peak_by_module(problem)) == plain.peak_bytes(problem)


def test_the_peak_of_three_operators_by_hand() -> None:
    """Keeping everything, the peak is backward 2: workspace 2, live 3, fixed 21, its gradient of 4, result 0 of 4."""
    small = three_operators()
    forward = tuple(replace(f, module=f"layers.{f.id}") for f in small.forward)
    problem = replace(
        small, forward=forward, backward=(small.backward[0], *(replace(b, module="head") for b in small.backward[1:]))
    )
    expected = [(peak.RESIDENT, 21), ("head", 2 + 4), ("layers.0", 4), (peak.GRADIENTS, 3)]
    assert peak_by_module(problem, KEEP_ALL) == expected
    assert peak_by_module(small, KEEP_ALL) == [(peak.RESIDENT, 21), (peak.NO_MODULE, 10), (peak.GRADIENTS, 3)]


@pytest.mark.parametrize("seed", range(12))
def test_offloaded_results_count_while_they_travel(seed: int) -> None:
    draw = np.random.default_rng(seed)
    link = HostLink(*draw.choice([1e-4, 1e-3, 1e-2], 2))
    problem = with_modules(random_problem(seed, operators=8, skips=0.4, encodings=0.3, host_link=link), 3)
    journeys = travelling(
        problem,
        schedule(problem, lambda i: bool(i % 3)),
        lambda i: problem.forward[i].encodes is None and bool(draw.random() < 0.7),
        lambda i: int(draw.integers(0, 4)),
        lambda i: int(draw.integers(1, 5)),
    )
    verdict = check(problem, journeys, PLENTY)
    assert verdict.peak is not None
    parts = dict(peak_by_module(problem, journeys))
    assert sum(parts.values()) == verdict.peak_bytes
    assert parts.get(peak.TRAVELLING, 0) == verdict.peak.travelling_bytes


def test_folded_joins_the_blocks_of_a_repeated_module_and_what_is_smallest() -> None:
    blocks = [
        (f"model.layers.{n}.{part}", size) for n in range(12) for part, size in (("attn.qkv", 30), ("mlp.up", 50))
    ]
    parts = [*blocks, ("model.layers.3", 24), ("lm_head", 400), (peak.RESIDENT, 100), ("model.norm", 1)]
    assert folded(parts, most=6) == [
        ("model.layers.*.mlp.up", 600),
        ("lm_head", 400),
        ("model.layers.*.attn.qkv", 360),
        (peak.RESIDENT, 100),
        ("model.layers.*", 24),
        ("model.norm", 1),
    ]
    assert folded(parts, most=5)[-1] == (peak.OTHER, 24 + 1)  # what is next to nothing gives way
    assert folded(parts, most=3) == [("model", 985), ("lm_head", 400), (peak.RESIDENT, 100)]
    assert folded(parts, most=2) == [("model", 985), (peak.OTHER, 500)]
    assert folded([("features.0", 3), ("features.1", 2)]) == [("features.0", 3), ("features.1", 2)]
