"""Solvers that PuLP finds on this machine, asked for as ``pulp:NAME``.

The program goes over as an MPS file and comes back as values, so there is no progress to see, no bound of a stopped
solve, and no way to stop but to end the process. Limits are passed on where the solver's PuLP class knows them.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pulp

from loadmaster.errors import InputError, SolverError
from loadmaster.solvers.mps import write_mps
from loadmaster.solvers.program import FloatArray, Program
from loadmaster.solvers.solution import Driver, Link, Solution, SolveOptions, SolverStatus, StoppedBy

__all__ = ["driver", "installed"]

_CBC = {"PULP_CBC_CMD", "COIN_CMD"}

# A solver that stopped at this share of its time limit is taken to have stopped because of it.
_TIME_IS_UP = 0.9


def installed() -> list[str]:
    """Names of the solvers that PuLP can call here, as ``pulp:NAME`` takes them."""
    return list(pulp.listSolvers(onlyAvailable=True))


def driver(name: str) -> Driver:
    """The driver of a solver by PuLP's name, such as ``PULP_CBC_CMD``; ``InputError``: PuLP does not find it here."""
    found = installed()
    if name not in found:
        raise InputError("solver", f"pulp:{name}", "not installed", f"Installed here: {', '.join(found)}.")
    return partial(_solve, name)


def _solve(name: str, program: Program, options: SolveOptions, link: Link) -> Solution:
    started = time.perf_counter()
    problem = _problem(program)
    columns = {variable.name: variable for variable in problem.variables()}
    if options.start_columns is not None and options.start_values is not None:
        for column, value in zip(options.start_columns.tolist(), options.start_values.tolist(), strict=True):
            columns[f"c{column}"].setInitialValue(value, check=False)
    status, stopped_by = _run(name, problem, options, started)
    is_boxed = np.isfinite(program.lower).all() and np.isfinite(program.upper).all()
    if status is SolverStatus.INFEASIBLE and program.cost.any() and not is_boxed:
        # Some solvers say "infeasible" where they mean "infeasible or unbounded".
        problem.setObjective(pulp.LpAffineExpression(dict.fromkeys(columns.values(), 0.0)))
        again, _ = _run(name, problem, options, started)
        status = SolverStatus.UNBOUNDED if again is SolverStatus.OPTIMAL else status
    seconds = time.perf_counter() - started
    values: FloatArray | None = None
    if status in (SolverStatus.OPTIMAL, SolverStatus.FEASIBLE):
        values = np.array([columns[f"c{column}"].varValue or 0.0 for column in range(program.column_count)])
        values[program.integer] = np.round(values[program.integer])
    objective = None if values is None else program.objective(values)
    return Solution(
        status=status,
        stopped_by=stopped_by,
        values=values,
        objective=objective,
        bound=_bound(status, objective, options, mixed=bool(program.integer.any())),
        seconds=seconds,
        cpu_seconds=time.process_time(),
        nodes=0,
        solver=f"pulp:{name}",
        solver_version=str(pulp.VERSION),
    )


def _run(name: str, problem: Any, options: SolveOptions, started: float) -> tuple[SolverStatus, StoppedBy]:
    try:
        problem.solve(_solver(name, options))
    except pulp.PulpError as error:
        if name in _CBC and _is_infeasible_to_preprocessing(name, problem, options):
            return SolverStatus.INFEASIBLE, StoppedBy.PROOF
        raise SolverError(f"pulp:{name} failed: {error}. Check its installation, or use highs.") from error
    return _outcome(name, problem, options, time.perf_counter() - started)


def _problem(program: Program) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.mps"
        with path.open("w") as file:
            write_mps(program, file)
        return pulp.LpProblem.fromMPS(str(path), sense=pulp.LpMinimize)[1]


def _is_infeasible_to_preprocessing(name: str, problem: Any, options: SolveOptions) -> bool:
    """Return whether CBC's preprocessing proves that there is no point: CBC 2.10.3 without it crashes on some such
    programs."""
    try:
        problem.solve(_solver(name, options, preprocesses=True))
    except pulp.PulpError:
        return False
    return bool(problem.status == pulp.LpStatusInfeasible)


def _solver(name: str, options: SolveOptions, *, preprocesses: bool = False) -> Any:
    known = inspect.signature(type(pulp.getSolver(name)).__init__).parameters
    asked: dict[str, Any] = {
        "msg": False,
        "timeLimit": options.time_limit_s,
        "gapRel": options.gap,
        "threads": options.threads,
        "maxNodes": options.node_limit,
        "warmStart": True if options.start_columns is not None else None,
    }
    if name in _CBC and not preprocesses:
        # CBC 2.10.3 calls points optimal after it that are not, or that break rows.
        asked["options"] = ["preprocess off"]
    passed = {key: value for key, value in asked.items() if value is not None and key in known}
    try:
        return pulp.getSolver(name, **passed, **options.parameters)
    except TypeError as error:
        raise InputError(
            "parameters",
            dict(options.parameters),
            f"pulp:{name} has no such parameter",
            f"It knows {', '.join(sorted(set(known) - {'self'}))}.",
        ) from error


def _outcome(name: str, problem: Any, options: SolveOptions, seconds: float) -> tuple[SolverStatus, StoppedBy]:
    time_is_up = options.time_limit_s is not None and seconds >= _TIME_IS_UP * options.time_limit_s
    limit = StoppedBy.NODES if options.node_limit is not None and not time_is_up else StoppedBy.TIME
    # What a solver found when a limit stopped it is called optimal in PuLP's status: only sol_status tells.
    if problem.sol_status == pulp.LpSolutionOptimal:
        return SolverStatus.OPTIMAL, StoppedBy.GAP
    if problem.sol_status == pulp.LpSolutionIntegerFeasible:
        return SolverStatus.FEASIBLE, limit
    if problem.status == pulp.LpStatusInfeasible:
        return SolverStatus.INFEASIBLE, StoppedBy.PROOF
    if problem.status == pulp.LpStatusUnbounded:
        return SolverStatus.UNBOUNDED, StoppedBy.PROOF
    if problem.status == pulp.LpStatusNotSolved or time_is_up:
        return SolverStatus.NO_SOLUTION, limit
    words = pulp.LpStatus[problem.status]
    raise SolverError(f"pulp:{name} gave no answer (status {words}). Try another solver.")


def _bound(status: SolverStatus, objective: float | None, options: SolveOptions, *, mixed: bool) -> float | None:
    """The bound that the solver's word "optimal" proves: the objective, less the gap it was allowed."""
    if status is not SolverStatus.OPTIMAL or objective is None:
        return None
    return objective - options.gap * abs(objective) if mixed else objective


if __name__ == "__main__":
    sys.stdout.write("\n".join(installed()))
