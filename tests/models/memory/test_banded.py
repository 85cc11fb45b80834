"""The banded restriction: its arrays say what its docstring says, and every point of it is a plan at its price."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from loadmaster.models.hardware import HostLink
from loadmaster.models.memory import banded, monet
from loadmaster.models.memory.banded_points import Banded
from loadmaster.models.memory.bands import BoolArray, band, everything, slots_of_stages, with_pairs
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.completion import complete
from loadmaster.models.memory.groups import groups_of
from loadmaster.models.memory.plan import Schedule
from loadmaster.models.memory.problem import (
    BackwardImplementation,
    BackwardOperator,
    ForwardOperator,
    Implementation,
    MemoryProblem,
    Objective,
)
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import Solution, SolveOptions
from tests.models.cbc import optimum
from tests.models.memory.decisions import decisions_of
from tests.models.memory.grouped_twins import banded_twin
from tests.models.memory.instances import UNIT, budgets, random_problem, tight_cases

# PuLP announces another way to make variables; the one used here works in all of 3.x.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

OBJECTIVES: tuple[Objective, ...] = ("time", "energy")
# A link that carries one MiB in about two of the microseconds that operators take.
LINK = HostLink(to_host_gbps=UNIT / 2e3, from_host_gbps=UNIT / 3e3, capacity_bytes=12 * UNIT)
# Its cuts cost about half an operator.
CUTTING = replace(LINK, cut_us=1.5, cut_gbps=UNIT / 1e3)


@pytest.fixture
def every_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every implementation has a column, every tensor may travel, no byte is held back."""
    for name in ("NOTICEABLE", "WORTH_SENDING"):
        monkeypatch.setattr(banded, name, 0.0)


def solved(restriction: Banded, start: Schedule | None = None) -> Solution:
    options = SolveOptions(gap=0.0)
    if start is not None:
        columns, values = restriction.start(start)
        options = SolveOptions(gap=0.0, start_columns=columns, start_values=values)
    return solve(restriction.program, options, solver="highs")


def all_recomputations(problem: MemoryProblem, starts: Sequence[int]) -> BoolArray:
    return everything(problem, groups_of(starts, problem.stage_count))


def slot_starts(problem: MemoryProblem, seed: int) -> list[int]:
    """Stage 1 and some random ones."""
    chosen = np.random.default_rng(seed).random(problem.stage_count) < 0.5
    return sorted({1, *map(int, np.flatnonzero(chosen[1:]) + 1)})


@pytest.mark.usefixtures("every_choice")
@pytest.mark.parametrize("seed", range(8))
def test_array_and_pulp_twin_have_the_same_optimum(seed: int) -> None:
    link = (LINK if seed == 2 else CUTTING) if seed % 3 == 2 else None
    problem = random_problem(
        seed,
        operators=5,
        in_place=0.6,
        encodings=0.4,
        once_only=0.1,
        objective=OBJECTIVES[seed % 2] if link is None else "time",
        host_link=link,
        unit_bytes=UNIT,
    )
    starts = slot_starts(problem, seed)
    slots = groups_of(starts, problem.stage_count)
    for budget, allowed in zip(
        budgets(problem, (0.4, 0.6)), (all_recomputations(problem, starts), band(problem, slots, 1, 1)), strict=True
    ):
        twin = optimum(banded_twin(problem, budget, slots, allowed, offload=link is not None))
        found = solved(banded.build(problem, budget, starts, allowed, offload=True)).objective
        assert found == (None if twin is None else pytest.approx(twin))


def planned(restriction: Banded, budget: int) -> tuple[float, Schedule] | None:
    """The optimum of a restriction and its schedule, which the checker accepts at that price or less."""
    solution = solved(restriction)
    if solution.values is None:
        return None
    schedule = complete(restriction.problem, budget, restriction.decisions(solution.values))
    verdict = check(restriction.problem, schedule, budget)
    assert verdict.violations == ()
    assert solution.objective is not None
    assert verdict.objective <= solution.objective + 1e-6
    return solution.objective, schedule


@pytest.mark.usefixtures("every_choice")
@pytest.mark.parametrize("seed", [*range(20, 26), 29, 131])
def test_points_are_plans_at_their_price(seed: int) -> None:
    problem = random_problem(
        seed,
        operators=5 + seed % 3,
        in_place=0.5,
        encodings=0.4,
        objective=OBJECTIVES[seed % 2],
        unit_bytes=UNIT,
    )
    budget = budgets(problem, (0.4,))[0]
    exact = solve(monet.formulate(problem, budget).program, SolveOptions(gap=0.0), solver="highs").objective
    for starts in (slot_starts(problem, seed), list(range(1, problem.stage_count))):
        found = planned(
            banded.build(problem, budget, starts, all_recomputations(problem, starts), offload=False), budget
        )
        if found is not None:
            assert exact is not None
            assert exact <= check(problem, found[1], budget).objective + 1e-6


def missed(seed: int) -> list[bool]:
    """For each budget of a graph's frontier, whether a slot for every stage misses the best.

    With any slots, points are plans, and none of them is better than the best of all schedules.
    """
    problem, cases = tight_cases(seed)
    every_stage = list(range(1, problem.stage_count))
    found: list[bool] = []
    for budget, best in cases:
        for starts in (every_stage, slot_starts(problem, seed), [1]):
            allowed = all_recomputations(problem, starts)
            plan = planned(banded.build(problem, budget, starts, allowed, offload=False, to_the_byte=True), budget)
            objective = math.inf if plan is None else plan[0]
            assert objective >= best - 1e-6
            if starts == every_stage:
                found.append(objective != pytest.approx(best))
    return found


@pytest.mark.usefixtures("every_choice")
def test_with_a_slot_for_every_stage_it_hardly_ever_misses_the_best() -> None:
    """It can: in place it overwrites nothing that backward reads, though it were computed there once more."""
    all_missed = [miss for seed in range(8) for miss in missed(seed)]
    assert len(all_missed) >= 20
    assert sum(all_missed) <= 0.1 * len(all_missed)


@pytest.mark.slow
@pytest.mark.usefixtures("every_choice")
@pytest.mark.parametrize("seed", range(8, 100))
def test_points_are_plans_and_never_better_than_the_best(seed: int) -> None:
    missed(seed)


@pytest.mark.parametrize("seed", range(4))
def test_with_few_choices_in_columns_points_are_still_plans(seed: int) -> None:
    """As used: workspaces that hardly move the budget have no columns, so the price may be missed by their times."""
    problem = random_problem(seed, operators=7, choices=4, unit_bytes=UNIT)
    problem = replace(
        problem,
        forward=tuple(
            replace(f, implementations=_alike(f.implementations), recompute_implementations=f.implementations[:1])
            for f in problem.forward
        ),
    )
    budget = budgets(problem, (0.5,))[0]
    starts = slot_starts(problem, seed)
    restriction = banded.build(problem, budget, starts, all_recomputations(problem, starts), offload=False)
    solution = solved(restriction)
    assert solution.values is not None
    verdict = check(problem, complete(problem, budget, restriction.decisions(solution.values)), budget)
    assert verdict.violations == ()


def _alike(implementations: tuple[Implementation, ...]) -> tuple[Implementation, ...]:
    """Workspaces that differ by a few bytes."""
    return tuple(replace(c, workspace_bytes=n) for n, c in enumerate(implementations))


@pytest.mark.usefixtures("every_choice")
@pytest.mark.parametrize("seed", range(30, 34))
def test_schedules_of_a_band_are_points_of_it(seed: int) -> None:
    """Fixed to a schedule's decisions, the program has a point, no dearer than the schedule."""
    problem = random_problem(seed, operators=7, encodings=0.2, unit_bytes=UNIT)
    budget = budgets(problem, (0.5,))[0]
    full = monet.formulate(problem, budget)
    values = solve(full.program, SolveOptions(gap=0.0), solver="highs").values
    if values is None:
        pytest.skip("no schedule under this budget")
    schedule = complete(problem, budget, decisions_of(full.schedule(values)))
    starts = [1, *(t for t, stage in enumerate(schedule.stages) if t > 1 and stage.computes)]
    groups = groups_of(starts, problem.stage_count)
    slot = slots_of_stages(groups)
    used = [(slot[t], c.forward) for t, stage in enumerate(schedule.stages) if t > 0 for c in stage.computes]
    allowed = with_pairs(np.zeros((len(groups), len(problem.forward)), dtype=bool), used)
    restriction = banded.build(problem, budget, starts, allowed, offload=False)
    columns, decided = restriction.start(schedule)
    lower, upper = restriction.program.lower.copy(), restriction.program.upper.copy()
    lower[columns] = upper[columns] = decided
    point = solve(replace(restriction.program, lower=lower, upper=upper), SolveOptions(gap=0.0), solver="highs")
    assert point.objective is not None
    assert point.objective <= check(problem, schedule, budget).objective + 1e-6
    assert solved(restriction, start=schedule).objective == pytest.approx(point.objective)


def with_an_encoded_result(backwards: tuple[BackwardOperator, ...]) -> MemoryProblem:
    """A result of four units, its encoded one of one unit, and the loss."""
    one = (Implementation(1.0, 0),)
    forwards = (
        ForwardOperator(0, "f", (), 4 * UNIT, (), 0, 0, one, one),
        ForwardOperator(1, "encoded", (0,), UNIT, (0,), 4 * UNIT, 0, one, one, encodes=0),
        ForwardOperator(2, "loss", (), 0, (), 0, 0, one, one),
    )
    return MemoryProblem("halves", forwards, backwards)


@pytest.mark.usefixtures("every_choice")
def test_a_result_is_kept_whole_or_not_at_all() -> None:
    """Kept by half, what backward 2 reads would leave room for its encoded result, and then for backward 3."""
    reads: tuple[tuple[tuple[int, ...], ...], ...] = (((),), ((0,),), ((1,), (0, 1)), ((1,), (0, 1)))
    results = (8, 0, 5, 5)
    backwards = tuple(
        BackwardOperator(k, "b", size * UNIT, 0, 0, tuple(BackwardImplementation(1.0, 0, needs) for needs in choices))
        for k, (choices, size) in enumerate(zip(reads, results, strict=True), start=1)
    )
    problem = with_an_encoded_result(backwards)
    allowed = np.array([[False, False, False], [True, True, False]])
    for budget, fits in ((8, False), (9, True)):
        restriction = banded.build(problem, budget * UNIT, [1, 2], allowed, offload=False)
        assert (planned(restriction, budget * UNIT) is not None) == fits


@pytest.mark.usefixtures("every_choice")
def test_what_is_kept_into_the_next_slot_is_kept_whole() -> None:
    """The same across slots: half of what backward 2 reads would fit beside the gradients of backward 3."""
    backwards = tuple(
        BackwardOperator(k, "b", size * UNIT, live * UNIT, 0, (BackwardImplementation(1.0, 0, needs),))
        for k, (needs, size, live) in enumerate((((), 8, 0), ((0,), 0, 0), ((1,), 0, 5)), start=1)
    )
    problem = with_an_encoded_result(backwards)
    allowed = np.array([[False, False, False], [True, True, False], [False, False, False]])
    for budget, fits in ((8, False), (9, True)):
        restriction = banded.build(problem, budget * UNIT, [1, 2, 3], allowed, offload=False)
        assert (planned(restriction, budget * UNIT) is not None) == fits


@pytest.mark.usefixtures("every_choice")
@pytest.mark.parametrize("seed", range(40, 44))
def test_the_least_budget_is_the_least_that_has_a_plan(seed: int) -> None:
    problem = random_problem(seed, operators=6, in_place=0.5, encodings=0.3, unit_bytes=UNIT)
    starts = slot_starts(problem, seed)
    allowed = all_recomputations(problem, starts)
    minimized = banded.build(problem, None, starts, allowed, offload=False)
    solution = solved(minimized)
    assert solution.values is not None and solution.objective is not None
    least = round(solution.objective * minimized.unit_bytes)
    schedule = complete(problem, least, minimized.decisions(solution.values))
    assert check(problem, schedule, least).violations == ()
    assert planned(banded.build(problem, least, starts, allowed, offload=False), least) is not None
    assert solved(banded.build(problem, least - UNIT // 4, starts, allowed, offload=False)).values is None
