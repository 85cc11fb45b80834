"""Plans made without a planner, for the tests of the command line and the reports."""

from __future__ import annotations

from loadmaster.models.documents import Document
from loadmaster.models.kinds import read_problem
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.plan import Compute, MemoryInfeasibility, MemoryPlan, Schedule, Stage
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.unconstrained import unconstrained_cost

MEGABYTE = 1_000_000


def recompute_everything(problem: MemoryProblem) -> Schedule:
    """For a chain: keep only the first result, and walk the chain up to each backward operator's needs again."""
    count = len(problem.forward)
    stages = [Stage(tuple(Compute(i) for i in range(count)), None, (0,))]
    for k in range(1, problem.stage_count):
        needs = problem.backward[k - 1].implementations[0].needs
        again = tuple(Compute(i) for i in range(1, max(needs, default=0) + 1))
        stages.append(Stage(again, 0, (0,) if k < problem.stage_count - 1 else ()))
    return Schedule(tuple(stages))


def plan_by_hand(document: Document, budget_bytes: int, **changes: object) -> MemoryPlan:
    """A plan for a chain of :func:`presets.chain`, its objective counted here."""
    problem = read_problem(document)
    schedule = recompute_everything(problem)
    objective = sum(problem.forward[c.forward].implementations[0].time_us for s in schedule.stages for c in s.computes)
    objective += sum(b.implementations[0].time_us for b in problem.backward)
    unconstrained, bound = unconstrained_cost(problem), 0.9 * objective
    fields: dict[str, object] = {
        "name": problem.name,
        "problem_sha256": problem.sha256,
        "budget_bytes": budget_bytes,
        "status": "feasible",
        "objective": objective,
        "bound": bound,
        "gap": 0.1,
        "overhead_gap": min(1.0, (objective - bound) / (objective - unconstrained)),
        "unconstrained": unconstrained,
        "unit": "us",
        "method": "by hand",
        "stopped_by": "time",
        "seconds": {"build": 0.0, "solve": 1.0, "check": 0.0},
        "solver": {"name": "none", "version": "0"},
        "check": check(problem, schedule, budget_bytes).summary(),
        "schedule": schedule,
    }
    return MemoryPlan(**(fields | changes))  # type: ignore[arg-type]


def no_plan(document: Document, budget_bytes: int, infeasibility: MemoryInfeasibility) -> MemoryPlan:
    """The answer for a budget that is too small."""
    nothing = {"objective": None, "bound": None, "gap": None, "overhead_gap": None, "schedule": None, "check": {}}
    return plan_by_hand(document, budget_bytes, status="infeasible", infeasibility=infeasibility, **nothing)
