"""The banded restriction: its arrays say what its docstring says, and every point of it is a plan at its price."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from loadmaster.models.memory import banded, monet
from loadmaster.models.memory.banded import Banded
from loadmaster.models.memory.bands import BoolArray, band, everything
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.completion import complete
from loadmaster.models.memory.plan import Schedule
from loadmaster.models.memory.problem import HostLink, MemoryProblem, Objective
from loadmaster.models.memory.reach import groups_of
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import Solution, SolveOptions
from tests.models.memory.grouped_twins import banded_twin
from tests.models.memory.instances import budgets, random_problem
from tests.models.memory.twins import optimum

# PuLP announces another way to make variables; the one used here works in all of 3.x.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

UNIT = 1 << 20
OBJECTIVES: tuple[Objective, ...] = ("time", "energy")
# A link that carries one MiB in about two of the microseconds that operators take.
LINK = HostLink(to_host_gbps=UNIT / 2e3, from_host_gbps=UNIT / 3e3, capacity_bytes=12 * UNIT)


@pytest.fixture
def every_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every implementation has a column, every tensor may travel, no byte is held back."""
    for name in ("NOTICEABLE", "WORTH_SENDING", "MARGIN_MIB"):
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
    link = LINK if seed % 3 == 2 else None
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
        found = solved(Banded(problem, budget, starts, allowed, offload=True)).objective
        assert found == (None if twin is None else pytest.approx(twin))


@pytest.mark.usefixtures("every_choice")
@pytest.mark.parametrize("seed", range(20, 30))
def test_points_are_plans_at_their_price(seed: int) -> None:
    """Completed, they hold the budget and cost no more than the program said; nothing better than the optimum."""
    problem = random_problem(
        seed, operators=6, in_place=0.5, encodings=0.3, objective=OBJECTIVES[seed % 2], unit_bytes=UNIT
    )
    budget = budgets(problem, (0.35,))[0]
    exact = solve(monet.formulate(problem, budget).program, SolveOptions(gap=0.0), solver="highs").objective
    for starts in (slot_starts(problem, seed), list(range(1, problem.stage_count))):
        restriction = Banded(problem, budget, starts, all_recomputations(problem, starts), offload=False)
        solution = solved(restriction)
        if solution.values is None:
            continue
        schedule = complete(problem, budget, restriction.decisions(solution.values))
        verdict = check(problem, schedule, budget)
        assert verdict.violations == ()
        assert exact is not None and solution.objective is not None
        assert exact - 1e-6 <= verdict.objective <= solution.objective + 1e-6
