"""CP-SAT, from OR-tools: for programs whose columns are all integer and bounded, above all those with intervals.

CP-SAT computes in 64-bit integers. Rows with fractional coefficients are multiplied by the smallest number that makes
them whole, so that nothing is rounded; where no such number exists the program is refused. The model is filled through
the compiled helper that ``cp_model`` stands on: ``cp_model`` itself would import pandas.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import math
import threading
import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from ortools.sat.python import cp_model_helper

from loadmaster.errors import InputError, SolverError
from loadmaster.solvers.intervals import NO_COLUMN, Intervals
from loadmaster.solvers.program import FloatArray, IntArray, Program
from loadmaster.solvers.solution import Link, Progress, Solution, SolveOptions, SolverStatus, StoppedBy

__all__ = ["build_model", "solve"]

_Status = cp_model_helper.CpSolverStatus

_LARGEST_DENOMINATOR = 10**6
# Sums of terms stay below this, two bits under the end of int64, as CP-SAT asks.
_LARGEST_SUM = 2**61
_INT64 = np.iinfo(np.int64)
_BOUND_TOLERANCE = 1e-9
_LOOK_EVERY_S = 0.1


def solve(program: Program, options: SolveOptions, link: Link) -> Solution:
    """Solve with CP-SAT. See :class:`loadmaster.solvers.solution.Driver`.

    ``node_limit`` counts units of deterministic time (about a second each), and makes parallel search interleaved, so
    that it repeats exactly.

    Raises:
        InputError: a column is continuous or unbounded, a coefficient cannot be made whole, or an option is unknown.
        SolverError: CP-SAT refused the model.
    """
    started = time.perf_counter()
    model = build_model(program)
    _hint(model, program, options)
    parameters = _parameters(options)
    solver: Any = cp_model_helper.SolveWrapper()
    solver.set_parameters(parameters)
    listener = _Listener(program, link, started)
    solver.add_solution_callback(listener)
    solver.add_best_bound_callback(listener.new_bound)
    with _ReportThread(solver, listener, link):
        response = solver.solve(model)
    solver.clear_solution_callback(listener)

    status, stopped_by = _outcome(response, options, link, model)
    values = np.array(list(response.solution), dtype=np.float64) if len(response.solution) else None
    return Solution(
        status=status,
        stopped_by=stopped_by,
        values=values,
        objective=None if values is None else program.objective(values),
        bound=listener.bound if values is None else _bound(program, response),
        seconds=time.perf_counter() - started,
        cpu_seconds=time.process_time(),
        nodes=int(response.num_branches),
        solver="cpsat",
        solver_version=importlib.metadata.version("ortools"),
    )


def build_model(program: Program) -> Any:
    """The program as a ``CpModelProto``: variable i is column i, constraint k is row k. Errors as for :func:`solve`.
    Intervals follow the rows, in their order, and then the groups that must not overlap."""
    lower, upper = _domains(program)
    scaled, scale = _whole_rows(program)
    magnitude = np.maximum(np.abs(lower), np.abs(upper)).astype(np.float64)
    _refuse_overflow(program, scaled, magnitude)
    model = cp_model_helper.CpModelProto()
    variables = model.variables
    for domain in np.stack([lower, upper], axis=1).tolist():
        variables.add().domain.extend(domain)
    low = _whole_bounds(program.row_lower, scale, math.ceil, _INT64.min)
    high = _whole_bounds(program.row_upper, scale, math.floor, _INT64.max)
    columns, coefficients, starts = program.column_index.tolist(), scaled.tolist(), program.row_start.tolist()
    constraints = model.constraints
    for row, (first, last) in enumerate(itertools.pairwise(starts)):
        linear = constraints.add().linear
        linear.vars.extend(columns[first:last])
        linear.coeffs.extend(coefficients[first:last])
        linear.domain.extend([low[row], high[row]])
    if program.intervals is not None:
        _add_intervals(model, program.intervals, program.row_count)
    _objective(model, program, magnitude)
    return model


def _add_intervals(model: Any, intervals: Intervals, first: int) -> None:
    parts = (intervals.start, intervals.size, intervals.presence)
    for start, size, presence in zip(*(part.tolist() for part in parts), strict=True):
        constraint = model.constraints.add()
        if presence != NO_COLUMN:
            constraint.enforcement_literal.append(presence)
        interval = constraint.interval
        interval.size.offset = interval.end.offset = size
        for end in (interval.start, interval.end):
            end.vars.append(start)
            end.coeffs.append(1)
    for group in intervals.groups:
        model.constraints.add().no_overlap.intervals.extend((group + first).tolist())


def _domains(program: Program) -> tuple[IntArray, IntArray]:
    for wrong, problem, remedy in (
        (~program.integer, "continuous", "Use auto or highs: it takes whole numbers only."),
        (~np.isfinite(program.lower), "without a lower bound", "Give every column finite bounds, or use highs."),
        (~np.isfinite(program.upper), "without an upper bound", "Give every column finite bounds, or use highs."),
        (
            np.maximum(np.abs(program.lower), np.abs(program.upper)) > _LARGEST_SUM,
            "bounded only beyond 64-bit integers",
            "Scale the program's units, or use highs.",
        ),
    ):
        if wrong.any():
            label = program.column_label(int(np.flatnonzero(wrong)[0]))
            raise InputError("solver", "cpsat", f"CP-SAT cannot take column {label}: it is {problem}", remedy)
    return np.ceil(program.lower).astype(np.int64), np.floor(program.upper).astype(np.int64)


def _whole_rows(program: Program) -> tuple[IntArray, list[int]]:
    """Coefficients [nonzeros] made whole, and the factor of each row that made them so."""
    scale = [1] * program.row_count
    scaled = program.value.copy()
    fractional = np.flatnonzero(program.value != np.round(program.value))
    if fractional.size:
        rows = np.searchsorted(program.row_start, fractional, side="right") - 1
        for entry, row in zip(fractional.tolist(), rows.tolist(), strict=True):
            denominator = _denominator(float(program.value[entry]))
            if denominator is None:
                raise InputError(
                    "solver",
                    "cpsat",
                    f"CP-SAT works in integers, and coefficient {program.value[entry]!r} of row "
                    f"{program.row_label(row)} is no ratio of small ones",
                    "Round the coefficients to a common unit, or use highs.",
                )
            scale[row] = math.lcm(scale[row], denominator)
        lengths = np.diff(program.row_start)
        factors = np.repeat(np.array([float(factor) for factor in scale]), lengths)
        scaled = np.round(program.value * factors)
    # What is clipped here is far beyond _LARGEST_SUM, and refused for that.
    return np.clip(scaled, -(2.0**62), 2.0**62).astype(np.int64), scale


def _denominator(number: float) -> int | None:
    ratio = Fraction(number).limit_denominator(_LARGEST_DENOMINATOR)
    return ratio.denominator if float(ratio) == number else None


def _refuse_overflow(program: Program, scaled: IntArray, magnitude: FloatArray) -> None:
    row = np.repeat(np.arange(program.row_count), np.diff(program.row_start))
    sums = np.bincount(row, weights=np.abs(scaled) * magnitude[program.column_index], minlength=program.row_count)
    if sums.size and sums.max() > _LARGEST_SUM:
        raise InputError(
            "solver",
            "cpsat",
            f"row {program.row_label(int(sums.argmax()))} overflows CP-SAT's 64-bit integers",
            "Use coarser units (MiB for bytes, say), round the coefficients, or use highs.",
        )


def _whole_bounds(bounds: FloatArray, scale: Sequence[int], rounding: Any, infinite: int) -> list[int]:
    whole = []
    for bound, factor in zip(bounds.tolist(), scale, strict=True):
        if math.isinf(bound) or abs(bound * factor) > _LARGEST_SUM:
            # No sum reaches this far: a bound out there either always holds or never does.
            whole.append(infinite if math.isinf(bound) else int(math.copysign(2**62, bound)))
            continue
        number = bound * factor
        nearest = round(number)
        near = abs(number - nearest) <= _BOUND_TOLERANCE * max(1.0, abs(number))
        whole.append(nearest if near else rounding(number))
    return whole


def _objective(model: Any, program: Program, magnitude: FloatArray) -> None:
    """Set the objective: integers where a common denominator exists, else CP-SAT scales it, and its bound is valid."""
    columns = np.flatnonzero(program.cost)
    costs = program.cost[columns].tolist()
    scale: int | None = 1
    for cost in set(costs):
        denominator = 1 if cost == round(cost) else _denominator(cost)
        scale = None if denominator is None or scale is None else math.lcm(scale, denominator)
    if scale is not None and float(np.abs(program.cost) @ magnitude) * scale < _LARGEST_SUM:
        objective = model.objective
        objective.coeffs.extend([round(cost * scale) for cost in costs])
        objective.offset = program.offset * scale
        objective.scaling_factor = 1.0 / scale
    else:
        objective = model.floating_point_objective
        objective.coeffs.extend(costs)
        objective.offset = program.offset
    objective.vars.extend(columns.tolist())


def _hint(model: Any, program: Program, options: SolveOptions) -> None:
    if options.start_columns is None or options.start_values is None:
        return
    model.solution_hint.vars.extend(np.asarray(options.start_columns).tolist())
    values = np.asarray(options.start_values, dtype=np.float64)
    model.solution_hint.values.extend(np.round(values).astype(np.int64).tolist())


def _parameters(options: SolveOptions) -> Any:
    parameters = cp_model_helper.SatParameters()
    parameters.num_workers = options.threads
    parameters.random_seed = options.seed
    parameters.relative_gap_limit = options.gap
    if options.time_limit_s is not None:
        parameters.max_time_in_seconds = options.time_limit_s
    if options.node_limit is not None:
        parameters.max_deterministic_time = float(options.node_limit)
        parameters.interleave_search = True
    for name, value in options.parameters.items():
        try:
            if not hasattr(parameters, name):
                raise AttributeError(name)
            setattr(parameters, name, value)
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(
                f"parameters.{name}",
                value,
                "CP-SAT has no such parameter, or refuses this value",
                "See sat_parameters.proto in the OR-tools documentation.",
            ) from error
    return parameters


class _Listener(cp_model_helper.SolutionCallback):
    def __init__(self, program: Program, link: Link, started: float) -> None:
        super().__init__()
        self._program = program
        self._link = link
        self._started = started
        self.objective: float | None = None
        self.bound: float | None = None
        self.branches = 0

    def OnSolutionCallback(self) -> None:
        self.objective = self.ObjectiveValue()
        self.bound = _finite(self.BestObjectiveBound())
        self.branches = self.NumBranches()
        respond: Any = self.Response
        values = np.array(list(respond().solution), dtype=np.float64)
        self._link.incumbent(self._program.objective(values), values)

    def new_bound(self, bound: float) -> None:
        self.bound = _finite(bound)

    def report(self) -> None:
        seconds = time.perf_counter() - self._started
        self._link.progress(Progress(seconds, self.objective, self.bound, self.branches))


class _ReportThread:
    """A thread next to the search that reports how it stands and stops it when asked."""

    def __init__(self, solver: Any, listener: _Listener, link: Link) -> None:
        self._solver = solver
        self._listener = listener
        self._link = link
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._report, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _report(self) -> None:
        while not self._over.wait(_LOOK_EVERY_S):
            self._listener.report()
            if self._link.stop_asked():
                self._solver.stop_search()


def _outcome(response: Any, options: SolveOptions, link: Link, model: Any) -> tuple[SolverStatus, StoppedBy]:
    if response.status == _Status.OPTIMAL:
        return SolverStatus.OPTIMAL, StoppedBy.GAP
    if response.status == _Status.INFEASIBLE:
        return SolverStatus.INFEASIBLE, StoppedBy.PROOF
    if response.status == _Status.MODEL_INVALID:
        reason = cp_model_helper.CpSatHelper.validate_model(model) or response.solution_info
        raise SolverError(f"CP-SAT refused the model: {reason}. Scale the program's units, or use highs.")
    status = SolverStatus.FEASIBLE if response.status == _Status.FEASIBLE else SolverStatus.NO_SOLUTION
    if link.stop_asked():
        return status, StoppedBy.CANCEL
    within = options.time_limit_s is None or response.wall_time < options.time_limit_s
    return status, StoppedBy.NODES if options.node_limit is not None and within else StoppedBy.TIME


def _bound(program: Program, response: Any) -> float | None:
    # Without an objective CP-SAT reports zero.
    return _finite(response.best_objective_bound) if program.cost.any() else program.offset


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) and abs(number) < 2.0**61 else None
