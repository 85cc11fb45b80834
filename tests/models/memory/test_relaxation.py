"""The boundary relaxation: its arrays say what its docstring says, and no schedule beats its optimum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from loadmaster.models.hardware import HostLink
from loadmaster.models.memory import monet, relaxation, relaxation_links
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.memory.groups import groups_of
from loadmaster.models.memory.presets import example, example_names, reference
from loadmaster.models.memory.problem import MemoryProblem, Objective
from loadmaster.models.memory.unconstrained import unconstrained_cost
from loadmaster.solvers.process import solve
from loadmaster.solvers.program import Program
from loadmaster.solvers.solution import Solution, SolveOptions, SolverStatus
from tests.models.cbc import optimum
from tests.models.memory.brute_force import best_objective
from tests.models.memory.grouped_twins import relaxation_twin
from tests.models.memory.instances import UNIT, budgets, random_problem, seeds, tight_cases

# PuLP announces another way to make variables; the one used here works in all of 3.x.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

OBJECTIVES: tuple[Objective, ...] = ("time", "energy")
# A link that carries one MiB in about two of the microseconds that operators take.
LINK = HostLink(to_host_gbps=UNIT / 2e3, from_host_gbps=UNIT / 3e3, capacity_bytes=12 * UNIT)
# Its cuts cost about half an operator.
CUTTING = replace(LINK, cut_us=1.5, cut_gbps=UNIT / 1e3)


def bound(problem: MemoryProblem, budget: int, starts: Sequence[int]) -> float:
    """The optimum; infinite if the relaxation has no point."""
    solution = solved(relaxation.build(problem, budget, starts).program)
    if solution.status is SolverStatus.INFEASIBLE:
        return math.inf
    assert solution.objective is not None
    return solution.objective


def solved(program: Program) -> Solution:
    return solve(program, SolveOptions(gap=0.0), solver="highs")


def groupings(problem: MemoryProblem) -> list[list[int]]:
    """One group, two, and every stage its own."""
    last = len(problem.backward)
    return [[1], [1, last // 2 + 1], list(range(1, last + 1))]


@pytest.mark.parametrize("seed", range(9))
def test_array_and_pulp_twin_have_the_same_optimum(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaxation, "NOTICEABLE", 0.0)
    if seed // 3 == 1:  # sums become columns of their own early
        monkeypatch.setattr(relaxation, "LONG", 2)
    whole = seed % 2 == 0
    if not whole:
        monkeypatch.setattr(relaxation_links, "WHOLE_CELLS", 0)
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
    budget = budgets(problem, (0.35,))[0]
    for starts in groupings(problem):
        twin = optimum(relaxation_twin(problem, budget, groups_of(starts, problem.stage_count), whole=whole))
        assert bound(problem, budget, starts) == pytest.approx(math.inf if twin is None else twin)


@pytest.mark.parametrize("seed", seeds(range(8), range(8, 100)))
def test_no_schedule_beats_it(seed: int) -> None:
    """With any grouping, of all the schedules there are. No point of it: no schedule at all."""
    problem, cases = tight_cases(seed)
    for budget, best in cases:
        for starts in groupings(problem):
            assert bound(problem, budget, starts) <= best * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(50, 56))
def test_no_schedule_of_larger_graphs_beats_it(seed: int) -> None:
    """The exact formulation stands in for all schedules."""
    problem = random_problem(seed, operators=7, skips=0.5, choices=3, objective=OBJECTIVES[seed % 2], unit_bytes=UNIT)
    budget = budgets(problem, (0.3,))[0]
    exact = solve(monet.formulate(problem, budget).program, SolveOptions(gap=0.0), solver="highs")
    best = math.inf if exact.objective is None else exact.objective
    for starts in groupings(problem):
        assert bound(problem, budget, starts) <= best * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_least_budget_is_below_every_budget_that_has_a_schedule(seed: int) -> None:
    problem = random_problem(seed, operators=3, in_place=0.5, encodings=0.5, unit_bytes=UNIT)
    minimized = relaxation.build(problem, None, [1])
    solution = solved(minimized.program)
    assert solution.objective is not None
    least = minimized.least_budget_bytes(solution.objective)
    assert math.isinf(best_objective(problem, least - UNIT))
    assert solved(relaxation.build(problem, least + 1, [1]).program).status is SolverStatus.OPTIMAL


@pytest.mark.parametrize("seed", range(3))
def test_with_memory_to_spare_it_is_the_unconstrained_step(seed: int) -> None:
    """Less than it is never needed; more only where running in place takes what backward wants."""
    problem = random_problem(seed, operators=6, encodings=0.0, unit_bytes=UNIT)
    assert bound(problem, 1 << 40, [1, 3]) >= unconstrained_cost(problem) - 1e-6
    chain = random_problem(seed, operators=6, encodings=0.0, in_place=0.0, unit_bytes=UNIT)
    assert bound(chain, 1 << 40, [1, 3]) == pytest.approx(unconstrained_cost(chain))


@pytest.mark.parametrize("seed", range(70, 75))
def test_dividing_groups_never_lowers_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a point of the finer one follows a point of the coarser one, as long as groups have two stages or more.

    In a group of one stage, (R12) looks at other moments than (R11) and promises nothing.
    """
    monkeypatch.setattr(relaxation, "NOTICEABLE", 0.0)
    problem = random_problem(seed, operators=8, skips=0.5, unit_bytes=UNIT)
    budget = budgets(problem, (0.3,))[0]
    chain = [bound(problem, budget, starts) for starts in ([1], [1, 5], [1, 3, 5], [1, 3, 5, 7])]
    assert all(coarse <= fine * (1 + 1e-6) for coarse, fine in itertools.pairwise(chain))


def bound_within(problem: MemoryProblem, budget: int, seconds: float) -> float:
    """What the relaxation with one boundary proves in that time."""
    options = SolveOptions(gap=5e-4, time_limit_s=seconds)
    solution = solve(relaxation.build(problem, budget, [1]).program, options, solver="highs")
    assert solution.bound is not None
    return solution.bound


@pytest.mark.parametrize("name", ["mobilenet_v2-b272-recompute", "unet-b11-recompute"])
def test_published_schedules_do_not_beat_it(name: str) -> None:
    """Found by a commercial solver in a day: feasible, so no bound may lie above them."""
    document = example(name)
    problem = read_problem(document)
    published = reference(document["name"])
    tightest = min(published)
    assert bound_within(problem, tightest, 10.0) <= published[tightest]["best_objective_us"] * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in example_names() if n.endswith(("-full", "-recompute"))])
def test_no_published_schedule_beats_it(name: str) -> None:
    document = example(name)
    problem = read_problem(document)
    for budget, published in reference(document["name"]).items():
        assert bound_within(problem, budget, 20.0) <= published["best_objective_us"] * (1 + 1e-6)
