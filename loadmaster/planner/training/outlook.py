"""Outlook on a step before it is planned: under a few budgets, the time that no plan is below, and that of the quickest
baseline.

Both are known in a second. The bound is that of the relaxed program
(:mod:`loadmaster.models.training.formulation`), the baselines are :mod:`loadmaster.planner.training.baselines`; where
these take long, there is the bound alone.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from loadmaster.errors import SolverError
from loadmaster.models.summary import Summary
from loadmaster.models.training import limits
from loadmaster.models.training.formulation import formulate
from loadmaster.models.training.limits import least_bytes, least_us, peak_bytes
from loadmaster.models.training.phases import Phases
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.models.training.runs import runs
from loadmaster.models.units import show_bytes, show_cost
from loadmaster.planner.effort import Effort, proved
from loadmaster.planner.options import PlanOptions
from loadmaster.planner.training.baselines import BASELINES, baseline
from loadmaster.planner.training.search import Found, Search
from loadmaster.solvers.solution import SolverStatus

# Budgets looked at: the largest one, halves of it, and the least.
_HALVINGS = 4
_WORKERS = 2
# Baselines of a step with more phases times groups than this take minutes; of such a step there is the bound alone.
_MOST_TRIED = 10_000
# For one relaxed program; most take half a second.
_LIMIT_S = 10.0


@dataclass(frozen=True)
class Outlook:
    """Bound of a step under a budget (infinite: no plan fits), and the step of the quickest ``baseline`` that fits, if
    one does."""

    budget_bytes: int
    bound_us: float
    step_us: float | None = None
    baseline: str | None = None


def relaxed_us(problem: TrainingProblem, effort: Effort) -> float | None:
    """Return the least time of the relaxed program, which no plan under the effort's budget is below: infinity where
    none fits, None where the time limit came first or the solver broke."""
    if least_bytes(problem)[0] > effort.budget_bytes:
        return math.inf
    of = runs(problem, 1)
    formulated = formulate(problem, effort.budget_bytes, of)
    try:
        solution = effort.solved(formulated.relaxed(), lambda: None, gap=0.0)
    except SolverError:
        return None
    if solution.status is SolverStatus.INFEASIBLE:
        return math.inf
    if solution.status is not SolverStatus.OPTIMAL or solution.bound is None:
        return None
    return max(least_us(problem), proved(solution.bound, formulated.unit_us))


def by_baseline(problem: TrainingProblem, method: str, budget_bytes: int) -> Found | None:
    """Return a baseline's schedule under a budget; None if none fits."""
    search = Search(problem, budget_bytes, 0)
    mix = baseline(problem, method, search.step_us)
    return None if mix is None else search.evaluate(mix)


def known_bound_us(problem: TrainingProblem, budget_bytes: int) -> float:
    """Return :func:`relaxed_us`, or what holds under any budget where that is not known soon."""
    found = relaxed_us(problem, Effort(PlanOptions(budget_bytes=budget_bytes, time_limit_s=_LIMIT_S)))
    return least_us(problem) if found is None else found


def outlook(problem: TrainingProblem, budget_bytes: int) -> Outlook:
    """Look at one budget."""
    bound = known_bound_us(problem, budget_bytes)
    if bound == math.inf or not _is_quick(problem):
        return Outlook(budget_bytes, bound)
    found = {name: by_baseline(problem, name, budget_bytes) for name in BASELINES}
    steps = {name: one.step_us for name, one in found.items() if one is not None}
    quickest = min(steps, key=steps.__getitem__, default=None)
    return Outlook(budget_bytes, bound, None if quickest is None else steps[quickest], quickest)


def _is_quick(problem: TrainingProblem) -> bool:
    return len(Phases(problem)) * len(problem.groups) <= _MOST_TRIED


def outlooks(problem: TrainingProblem) -> list[Outlook]:
    """Look at some budgets, descending: the problem's own, halves of it, and the least; where no plan fits the
    problem's own, at it and at the same from the peak down."""
    peak, own = peak_bytes(problem), problem.budget_bytes
    if own is None or own >= peak:
        return _outlooks(problem, peak)
    found = _outlooks(problem, own)
    if any(one.bound_us < math.inf for one in found):
        return found
    above = [one for one in _outlooks(problem, peak) if one.budget_bytes > own]
    return [*above, Outlook(own, math.inf)]


def _outlooks(problem: TrainingProblem, largest: int) -> list[Outlook]:
    least = least_bytes(problem)[0]
    sizes = [size for n in range(_HALVINGS + 1) if (size := largest >> n) > least]
    sizes += [least] if least <= largest else []
    with ThreadPoolExecutor(_WORKERS) as pool:
        return list(pool.map(lambda size: outlook(problem, size), sizes))


def summary(problem: TrainingProblem) -> Summary:
    """Summarize a step: what it takes, and how fast it can be under which limit."""
    own = limits.summary(problem)
    seen = outlooks(problem)
    rows = [("" if n else "how fast", _words(problem, one)) for n, one in enumerate(seen)]
    figures = [
        {
            "budget_bytes": one.budget_bytes,
            "bound": None if one.bound_us == math.inf else one.bound_us,
            "objective": one.step_us,
            "method": one.baseline,
        }
        for one in seen
    ]
    return replace(own, rows=(*own.rows, *rows), figures={**own.figures, "how_fast": figures})


def _words(problem: TrainingProblem, one: Outlook) -> str:
    unit = problem.unit
    size = f"{show_bytes(one.budget_bytes):>9}"
    if one.bound_us == math.inf:
        return f"{size}  no plan fits"
    said = f"{size}  no plan takes less than {show_cost(one.bound_us, unit)}"
    if one.step_us is None:
        return f"{said}; no baseline fits" if _is_quick(problem) else said
    return f"{said}; {one.baseline} takes {show_cost(one.step_us, unit)}"
