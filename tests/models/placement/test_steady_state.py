"""The steady state that the clock finds, against thousands of steps one after the other."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from loadmaster.models.placement.checker import check
from loadmaster.models.placement.plan import Absence, Moves, Store
from loadmaster.models.placement.problem import PlacementProblem, Tier
from tests.models.placement.instances import all_moves, random_problem
from tests.models.placement.steady import mean_step_us
from tests.models.placement.tiny import HOST, trace

# A and B take 52 us to store. Each is stored after its use and gone eight operators later: nothing waits at first. The
# link carries 104 us of a step of 100, so that it falls behind, step by step.
BEHIND = trace(
    [("A", "A"), ("", ""), ("", ""), ("", ""), ("", ""), ("B", "B"), ("", ""), ("", ""), ("", ""), ("", "")],
    [52, 52],
    tier=Tier("host", 1.0, 1000.0),
)
IN_TURN = Moves((Store(0, 0, 1), Store(1, 0, 6)), (Absence(1, 0, 4, 5), Absence(0, 0, 9, 10)))


def steady_us(problem: PlacementProblem, moves: Moves) -> float:
    found = check(problem, moves, 1 << 60)
    assert found.ok, found.violations
    return found.objective


def test_a_link_that_falls_behind_sets_the_step() -> None:
    assert steady_us(BEHIND, IN_TURN) == pytest.approx(104)
    assert mean_step_us(BEHIND, IN_TURN) == pytest.approx(104)


@pytest.mark.parametrize("behind_us", [1e-2, 1e-3])
def test_a_link_that_falls_behind_slowly_sets_the_step(behind_us: float) -> None:
    # It takes thousands of steps until an operator waits.
    slower = replace(BEHIND, tiers=(Tier("host", 52 / (50 + behind_us / 2), 1e6),))
    assert steady_us(slower, IN_TURN) == pytest.approx(100 + behind_us, rel=1e-12)


def test_a_copy_that_nobody_waits_for_takes_the_time_of_its_link() -> None:
    # Its link could not carry it in every step otherwise.
    problem = trace([("A", "A"), ("", "")], [50])
    assert steady_us(problem, Moves((Store(0, 0, 1),))) == 50
    assert steady_us(replace(problem, tiers=(replace(HOST, to_gbps=10.0),)), Moves((Store(0, 0, 1),))) == 20


def random_moves(seed: int) -> tuple[PlacementProblem, list[Moves]]:
    rng = random.Random(seed)
    problem = random_problem(seed, operators=rng.randint(3, 5), blocks=3)
    times = [rng.choice([o.time_us, 0.0, rng.uniform(0, 10), 10 ** rng.uniform(-3, 6)]) for o in problem.operators]
    link = Tier("host", rng.choice([0.01, 0.1, 1, 3.7]), rng.choice([0.03, 0.5, 1, 100]), rng.choice([0, 0.25]))
    other = replace(
        problem,
        operators=tuple(replace(o, time_us=t) for o, t in zip(problem.operators, times, strict=True)),
        tiers=(link,),
    )
    chosen = problem if seed % 3 == 0 else other
    some = list(itertools.islice(all_moves(chosen), rng.randrange(400), 400))
    return chosen, rng.sample(some, min(2, len(some)))


@pytest.mark.parametrize("seed", [pytest.param(s, marks=pytest.mark.slow) if s >= 4 else s for s in range(40)])
def test_the_step_is_the_mean_of_thousands(seed: int) -> None:
    problem, some = random_moves(seed)
    for moves in some:
        assert steady_us(problem, moves) == pytest.approx(mean_step_us(problem, moves), rel=1e-6)


@pytest.mark.parametrize("seed", range(60))
def test_the_step_that_is_shown_repeats(seed: int) -> None:
    problem, some = random_moves(seed)
    times = [o.time_us for o in problem.operators]
    for moves in some:
        timeline = check(problem, moves, 1 << 60).timeline
        assert timeline is not None
        ends = [start + took for start, took in zip(timeline.starts_us, times, strict=True)]
        near = 1e-6 * timeline.step_us
        assert ends[-1] == pytest.approx(timeline.step_us, rel=1e-6)
        assert all(end <= start + near for end, start in zip([0.0, *ends], timeline.starts_us, strict=False))
        for what in ("store", "load"):
            copies = sorted((c.start_us, c.end_us) for c in timeline.copies if c.what == what)
            around = [*copies, *((start + timeline.step_us, 0.0) for start, _ in copies[:1])]
            assert all(end <= start + near for (_, end), (start, _) in itertools.pairwise(around))
