"""The program of a training step: beside its twin, below every schedule, and on steps that are known by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from loadmaster.models.training.checker import TrainingCheck, check
from loadmaster.models.training.formulation import formulate
from loadmaster.models.training.limits import plain_us
from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import Schedule
from loadmaster.models.training.problem import Group, LayerClass, Point, TrainingProblem
from loadmaster.models.training.runs import runs
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import SolveOptions, SolverStatus
from tests.models.training.averages import Averages
from tests.models.training.steps import HOST, KB, group, problems, schedules, step_of
from tests.models.training.training_twin import Twin

NO_LIMIT = 10**9
CUTS = (1, 2, None)


def value(problem: TrainingProblem, budget_bytes: int, most: int | None, *, integer: bool = False) -> float | None:
    """The optimum in microseconds; None where nothing fits."""
    formulated = formulate(problem, budget_bytes, runs(problem, most))
    solution = solve(formulated.program if integer else formulated.relaxed(), SolveOptions(gap=1e-9), solver="highs")
    if solution.status is SolverStatus.INFEASIBLE:
        return None
    assert solution.objective is not None
    return solution.objective * formulated.unit_us


@st.composite
def like_problems(draw: st.DrawFn) -> TrainingProblem:
    """Layers with the groups of the first one, two at most, and perhaps one that they share."""
    problem = draw(problems())
    layers = draw(st.integers(2, 5))
    kinds: list[Group] = list(problem.groups[: draw(st.integers(1, 2))])
    kinds += kinds[:1] * draw(st.sampled_from([0, 0, 1]))
    own = [replace(kind, name=f"g{n}", layers=(n,)) for n in range(layers) for kind in kinds]
    if draw(st.booleans()):
        users = draw(st.sets(st.integers(0, layers - 1), min_size=2, max_size=3))
        own.append(replace(problem.groups[-1], name="shared", layers=tuple(sorted(users))))
    of = problem.layers[0]
    return replace(problem, layers=tuple(replace(of, name=f"l{n}") for n in range(layers)), groups=tuple(own))


@st.composite
def accepted(draw: st.DrawFn) -> tuple[TrainingProblem, Schedule, TrainingCheck]:
    """A step, a schedule that the checker accepts, at the byte, and its verdict."""
    problem = draw(like_problems())
    schedule = draw(schedules(problem))
    verdict = check(problem, schedule, NO_LIMIT)
    assume(verdict.ok and verdict.step_us > 0)
    capacity = draw(st.sampled_from([None, verdict.host_bytes]))
    problem = replace(problem, host=replace(problem.host, capacity_bytes=capacity))
    if problem.disk is not None:
        problem = replace(problem, disk=replace(problem.disk, capacity_bytes=verdict.disk_bytes))
    verdict = check(problem, schedule, verdict.peak_bytes)
    assert verdict.ok
    return problem, schedule, verdict


@settings(deadline=None)
@given(accepted())
def test_a_schedule_gives_a_point_of_the_program(found: tuple[TrainingProblem, Schedule, TrainingCheck]) -> None:
    problem, schedule, verdict = found
    assert verdict.timeline is not None
    for most in CUTS:
        averages = Averages(problem, schedule, verdict.timeline, runs(problem, most))
        assume(averages.is_steady)
        formulated = formulate(problem, verdict.peak_bytes, averages.runs)
        point = averages.point(formulated)
        assert formulated.program.violation(point) <= 1e-6
        assert formulated.program.objective(point) * formulated.unit_us == pytest.approx(verdict.step_us)


@settings(deadline=None, max_examples=50)
@given(accepted())
def test_the_relaxation_is_below_every_schedule(found: tuple[TrainingProblem, Schedule, TrainingCheck]) -> None:
    problem, _, verdict = found
    bounds = [value(problem, verdict.peak_bytes, most) for most in CUTS]
    bounds += [value(problem, verdict.peak_bytes, 1, integer=True)]
    for bound in bounds:
        assert bound is not None
        assert bound <= verdict.step_us * (1 + 1e-7) + 1e-6


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(problem=like_problems(), share=st.floats(0.3, 1.0))
def test_fewer_runs_and_more_room_are_no_dearer(problem: TrainingProblem, share: float) -> None:
    schedule = Schedule((0,) * len(problem.layers), ())
    most_bytes = int(share * _resident_bytes(problem, schedule))
    close = 1e-5 * plain_us(problem) + 1e-6
    by_cut = [value(problem, most_bytes, most) for most in CUTS]
    for coarse, fine in pairwise(by_cut):
        assert fine is None or (coarse is not None and coarse <= fine + close)
    for most, less_room in zip(CUTS, by_cut, strict=True):
        more_room = value(problem, most_bytes + KB, most)
        assert less_room is None or (more_room is not None and more_room <= less_room + close)


def _resident_bytes(problem: TrainingProblem, schedule: Schedule) -> int:
    kept = sum(problem.points(n)[p].kept_bytes for n, p in enumerate(schedule.points))
    return kept + sum(g.weight_bytes + g.gradient_bytes + g.state_bytes for g in problem.groups)


@pytest.mark.parametrize("integer", [False, True])
@settings(deadline=None, max_examples=12)
@given(problem=like_problems(), share=st.floats(0.4, 1.0), most=st.sampled_from(CUTS), capacity=st.booleans())
def test_arrays_and_twin_have_one_optimum(
    integer: bool, problem: TrainingProblem, share: float, most: int | None, capacity: bool
) -> None:
    # CBC takes minutes for whole counts of many groups with so many ways.
    assume(not integer or problem.disk is None or len(problem.groups) <= 3)
    resident = _resident_bytes(problem, Schedule((0,) * len(problem.layers), ()))
    if capacity:
        problem = replace(problem, host=replace(problem.host, capacity_bytes=resident // 2))
        if problem.disk is not None:
            problem = replace(problem, disk=replace(problem.disk, capacity_bytes=resident // 3))
    budget = int(share * resident)
    expected = Twin(problem, budget, runs(problem, most), integer=integer).value()
    found = value(problem, budget, most, integer=integer)
    assert found == (None if expected is None else pytest.approx(expected, rel=1e-5, abs=1e-4))


def llama_like(layers: int = 4, **fields: object) -> TrainingProblem:
    """Layers of 10 us each way that keep 3 kB, with a group of 4 kB of weights, 8 kB of state."""
    return step_of(layers, *(group(f"g{n}", n) for n in range(layers)), **fields)


@pytest.mark.parametrize("most", CUTS)
@pytest.mark.parametrize("fields", [{}, {"micro_batches": 2}, {"clip_grad_norm": True}])
def test_where_all_fits_the_step_takes_its_phases_and_no_updates_that_the_host_can_run(
    most: int | None, fields: dict[str, object]
) -> None:
    problem = llama_like(**fields)
    alone = replace(problem, groups=tuple(replace(g, host_update_us=None) for g in problem.groups))
    assert value(alone, NO_LIMIT, most) == pytest.approx(plain_us(alone))
    found = value(problem, NO_LIMIT, most)
    assert found is not None and found <= plain_us(problem)


@pytest.mark.parametrize("most", CUTS)
def test_less_than_what_always_is_there_is_infeasible(most: int | None) -> None:
    problem = llama_like(fixed_bytes=5 * KB)
    # One layer keeps 3 kB in its forward phase, whatever moves.
    assert value(problem, 7 * KB, most) is None


@pytest.mark.parametrize("most", CUTS)
def test_the_link_is_the_limit_where_copies_are_streamed(most: int | None) -> None:
    """Four frozen layers of 40 kB, room for one and a bit: each copy comes twice in a step, but for the last layer's,
    which stays from its forward to its backward pass, and the first one's, which stays for the next step."""
    point = Point("keep", 1.0, 1.0, 0)
    problem = step_of(
        4, *(group(f"g{n}", n, trained=False, weight_bytes=40, copy_bytes=40) for n in range(4)), points=(point,)
    )
    assert value(problem, 160 * KB, most) == pytest.approx(8.0)
    # With fluid copies, three layers' worth leaves and comes back for each turn at either end.
    found = value(problem, 40 * KB, None)
    assert found is not None and found >= 6 * 40.0 - 1e-6


def test_updates_on_the_host_take_their_time() -> None:
    """One layer of 10 us each way whose gradient takes 2 us to the host, its update 50 us, and the copy 2 us back: all
    between its backward and its next forward phase, in which the link and the host have no other slot."""
    problem = step_of(1, group("g", 0, host_update_us=50.0))
    # Kept 3, copy 2, its gradient 2.
    assert value(problem, 7 * KB, None) == pytest.approx(10.0 + 50.0)
    slow = replace(problem, host=replace(HOST, to_gbps=0.02))
    assert value(slow, 7 * KB, None) == pytest.approx(10.0 + 100.0)
    on_device = step_of(1, group("g", 0, host_update_us=None))
    # Kept 3, weights 4, gradient 4, and its state comes and goes in the same phase.
    assert value(on_device, (3 + 4 + 4 + 8) * KB, None) == pytest.approx(23.0)
    assert value(on_device, (3 + 4 + 4 + 8) * KB - 1, None) is None


def test_state_streams_next_to_the_passes() -> None:
    """Room for all but one state of 8 kB: that one comes and goes in its own time, and nothing waits."""
    groups = [group(f"g{n}", n, host_update_us=None) for n in range(4)]
    problem = step_of(4, *groups)
    everything = 4 * (4 + 8) * KB + 12 * KB + 4 * KB
    for most in CUTS:
        assert value(problem, everything, most) == pytest.approx(plain_us(problem))
        assert value(problem, everything - 8 * KB, most) == pytest.approx(plain_us(problem))


def test_counts_are_read_by_run() -> None:
    problem = llama_like(4)
    problem = replace(
        problem, classes=(LayerClass("layer", (*problem.classes[0].points, Point("less", 10.0, 14.0, 1 * KB))),)
    )
    formulated = formulate(problem, 60 * KB, runs(problem, 2))
    solution = solve(formulated.program, SolveOptions(gap=1e-6), solver="highs")
    assert solution.values is not None
    assert [len(counts) for counts in formulated.points(solution.values)] == [2, 2]
    assert [counts.sum() for counts in formulated.points(solution.values)] == pytest.approx([2, 2])
    assert [counts.sum() for counts in formulated.ways(solution.values)] == pytest.approx([2, 2])
    assert formulated.program.integer.sum() == 2 * 2 + 2 * 6
    assert not formulated.relaxed().integer.any()
    assert len(Phases(problem)) == 8


@pytest.mark.parametrize("most", CUTS)
@pytest.mark.parametrize(("clips", "least_us"), [(False, 50.0 + 50.0 + 2 * 10.0), (True, 50.0 + 50.0 + 2 * 20.0)])
def test_the_host_is_idle_while_layers_that_it_updates_run_forward(
    most: int | None, clips: bool, least_us: float
) -> None:
    """Two layers of 10 us each way, updates of 50 us on the host: the last one to be done is that of the first layer,
    which runs forward after it. The first one comes after the backward pass of the second layer; clipped, of both."""
    groups = [group(f"g{n}", n, update_us=1e4, host_update_us=50.0) for n in range(2)]
    found = value(step_of(2, *groups, clip_grad_norm=clips), NO_LIMIT, most, integer=True)
    assert found is not None and least_us - 1e-6 <= found <= least_us + 10.0 + 1e-6
