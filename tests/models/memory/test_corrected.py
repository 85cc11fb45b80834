"""Measured bytes that the problem did not know: resident from then on, in every stage alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.memory import plain
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.variants import least_resident_bytes, with_resident
from tests.models.memory.instances import random_problem


@given(seed=st.integers(0, 10**6), extra_bytes=st.integers(0, 1 << 40))
def test_every_resident_figure_of_the_replay_rises_by_exactly_the_correction(seed: int, extra_bytes: int) -> None:
    problem = random_problem(seed)
    corrected = with_resident(problem, extra_bytes)
    schedule = plain.formulate(problem)
    before, after = (check(p, schedule, 1 << 60) for p in (problem, corrected))
    assert after.peak_bytes == before.peak_bytes + extra_bytes
    assert after.peak_at == before.peak_at
    assert [e.resident_bytes for e in after.events] == [e.resident_bytes + extra_bytes for e in before.events]
    assert after.time_us == before.time_us


def test_a_correction_is_another_problem_and_none_is_the_same() -> None:
    problem = random_problem(1).with_budget(100)
    assert with_resident(problem, 0) is problem
    corrected = with_resident(problem, 7)
    assert corrected.sha256 != problem.sha256
    assert corrected.budget_bytes == 100


def test_resident_bytes_that_never_came_are_taken_away_down_to_nothing() -> None:
    problem = with_resident(random_problem(1), 50)
    least = least_resident_bytes(problem)
    assert least >= 50
    assert with_resident(with_resident(problem, -50), 50).sha256 == problem.sha256
    assert least_resident_bytes(with_resident(problem, -least)) == 0
    with pytest.raises(InputError, match="more than is resident"):
        with_resident(problem, -least - 1)
