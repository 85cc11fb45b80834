"""Mixes made to fit: what comes out fits, and what is said to fit nowhere does not."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from loadmaster.models.training.checker import check
from loadmaster.models.training.limits import peak_bytes
from loadmaster.models.training.problem import Point, TrainingProblem
from loadmaster.models.training.ways import Way, ways
from loadmaster.planner.training.baselines import Mix
from loadmaster.planner.training.fitting import MixFitter
from loadmaster.planner.training.positions import positions
from loadmaster.planner.training.windows import Ground
from loadmaster.planner.training.work import Work
from tests.models.training.steps import KB, counted_host_bytes, group, problems, step_of


def fitting(problem: TrainingProblem, budget_bytes: int) -> MixFitter:
    ground = Ground(problem)
    listed = [ways(g) for g in problem.groups]
    return MixFitter(ground, Work(ground, listed), listed, budget_bytes)


def chosen(problem: TrainingProblem, mix: Mix) -> list[Way]:
    return [ways(g)[n] for g, n in zip(problem.groups, mix.ways, strict=True)]


@st.composite
def mixed(draw: st.DrawFn) -> tuple[TrainingProblem, Mix, int]:
    """A step, a mix of it, and a budget."""
    problem = draw(problems())
    if draw(st.booleans()):
        most = sum(g.weight_bytes + g.state_bytes for g in problem.groups)
        capacity = draw(st.integers(most // 3, most))
        problem = replace(problem, host=replace(problem.host, capacity_bytes=capacity))
    points = tuple(draw(st.integers(0, len(problem.points(n)) - 1)) for n in range(len(problem.layers)))
    numbers = tuple(draw(st.integers(0, len(ways(g)) - 1)) for g in problem.groups)
    return problem, Mix(points, numbers), int(draw(st.floats(0.4, 1.4)) * peak_bytes(problem))


@settings(max_examples=50, deadline=None)
@given(mixed())
def test_a_fitted_mix_has_a_schedule_that_the_checker_accepts(found: tuple[TrainingProblem, Mix, int]) -> None:
    problem, mix, budget = found
    fitted = fitting(problem, budget).fitted(mix)
    assume(fitted is not None)
    assert fitted is not None
    schedule = positions(problem, fitted.points, chosen(problem, fitted), budget)
    assert schedule is not None
    verdict = check(problem, schedule, budget)
    assert verdict.ok, verdict.violations
    capacity = problem.host.capacity_bytes
    assert capacity is None or counted_host_bytes(problem, schedule) <= capacity


@settings(max_examples=50, deadline=None)
@given(mixed(), st.floats(0.7, 1.2))
def test_no_schedule_is_accepted_where_a_mix_cannot_fit(found: tuple[TrainingProblem, Mix, int], share: float) -> None:
    """The budget is near what the mix takes where there is room for all."""
    problem, mix, _ = found
    roomy = 4 * peak_bytes(problem)
    loose = positions(problem, mix.points, chosen(problem, mix), roomy)
    assume(loose is not None)
    assert loose is not None
    budget = int(share * check(problem, loose, roomy).peak_bytes)
    for schedule in (loose, positions(problem, mix.points, chosen(problem, mix), budget)):
        if schedule is not None:
            assert fitting(problem, budget).may_fit(mix) or not check(problem, schedule, budget).ok


def test_a_mix_that_fits_stays_as_it_is() -> None:
    problem = step_of(4, *(group(f"g{n}", n) for n in range(4)))
    mix = Mix((0,) * 4, (0,) * 4)
    assert fitting(problem, peak_bytes(problem)).fitted(mix) == mix


def test_what_costs_the_least_for_its_bytes_is_changed() -> None:
    """Each layer can keep 4 kB less for 1 us; a state of 8 kB costs 8 us on each way. 8 kB are to be saved."""
    points = [Point("keep", 10.0, 10.0, 5 * KB), Point("less", 10.0, 11.0, KB)]
    problem = step_of(6, *(group(f"g{n}", n, host_update_us=None) for n in range(6)), points=points)
    fitted = fitting(problem, peak_bytes(problem) - 8 * KB).fitted(Mix((0,) * 6, (0,) * 6))
    assert fitted is not None
    assert sorted(fitted.points) == [0, 0, 0, 0, 1, 1]
    assert fitted.ways == (0,) * 6


def test_all_layers_and_groups_change_where_little_is_left() -> None:
    """Weights alone are 40 times 4 kB: a budget of an eighth of that is left where nearly everything is streamed."""
    points = [Point("keep", 10.0, 10.0, 3 * KB), Point("less", 10.0, 14.0, 0)]
    problem = step_of(40, *(group(f"g{n}", n) for n in range(40)), points=points)
    fitted = fitting(problem, 20 * KB).fitted(Mix((0,) * 40, (0,) * 40))
    assert fitted is not None
    assert positions(problem, fitted.points, chosen(problem, fitted), 20 * KB) is not None
