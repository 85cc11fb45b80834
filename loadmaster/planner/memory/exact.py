"""The published formulation, solved whole, and again without each point that takes more than the budget.

The program relaxes the budget by about a millionth where sizes are odd (:mod:`loadmaster.models.memory.monet`). What it
proves holds, and a point that the checker refuses is covered. A handful of covers is enough, as few schedules are
within a millionth of the budget.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np

from loadmaster.models.memory import monet
from loadmaster.planner.memory.search import Search
from loadmaster.solvers.program import FloatArray
from loadmaster.solvers.solution import Progress, SolveOptions, SolverStatus


def solve_exactly(search: Search, limit_s: float = math.inf) -> None:
    """Solve the published formulation, whole: its optimum is the optimum, its bound a proof. It knows no offload: with
    a host link it still has plans, and its bound proves nothing."""
    problem = search.problem
    full = search.built(lambda: monet.formulate(problem, search.budget_bytes))
    proves, program = not problem.may_offload, full.program

    def live(progress: Progress) -> None:
        if proves:
            search.raise_bound(progress.bound)
        search.say("exact", f"{progress.nodes} nodes", progress.objective)

    def found(values: FloatArray) -> None:
        search.offer(lambda: full.schedule(values), "monet")

    gap, until = search.effort.options.gap / 2, time.monotonic() + limit_s
    while (left_s := until - time.monotonic()) > 0:
        start = SolveOptions(seed=search.effort.options.seed, cutoff=search.objective)
        if search.best is not None and not search.best.offload:
            values = full.start(search.best)
            start = replace(start, start_columns=np.arange(len(values)), start_values=values)
        solution = search.solved(program, left_s, gap, live, search.gap_is_proved, start, found)
        if proves:
            search.raise_bound(solution.bound)
            # Under a cutoff, infeasible only means that nothing better exists.
            if solution.status is SolverStatus.INFEASIBLE and start.cutoff is None:
                search.prove_infeasible("exact")
        if solution.values is None:
            return
        schedule = full.schedule(solution.values)
        verdict = search.adopt(schedule, "monet")
        if verdict.peak_bytes <= search.budget_bytes or verdict.peak is None or search.done():
            return
        coefficients, least = full.cover(schedule, verdict.peak)
        if coefficients @ solution.values >= least:
            return
        program = program.with_row("cover", coefficients, lower=least)
