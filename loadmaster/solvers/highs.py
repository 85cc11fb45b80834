"""HiGHS, through highspy's flat ``passModel``: the production path for mixed-integer and linear programs.

The flat call hands over a 1.1-million-nonzero program in a tenth of a second; filling a ``HighsLp`` object attribute by
attribute takes fourteen times as long. Progress and cancellation hang on the interrupt callbacks: HiGHS's own logging
callback may stay silent for a whole solve.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any

import highspy
import numpy as np

from loadmaster.errors import InputError, SolverError
from loadmaster.solvers.program import FloatArray, Program
from loadmaster.solvers.solution import Link, Progress, Solution, SolveOptions, SolverStatus, StoppedBy, relative_gap

__all__ = ["pass_program", "solve"]

_Status = highspy.HighsModelStatus

_STOPPED_BY = {
    _Status.kObjectiveTarget: StoppedBy.GAP,
    _Status.kTimeLimit: StoppedBy.TIME,
    _Status.kIterationLimit: StoppedBy.NODES,
    _Status.kSolutionLimit: StoppedBy.NODES,  # HiGHS's word for its node limit, too
    _Status.kInterrupt: StoppedBy.CANCEL,
}

# An optimum and its bound may be apart by this share more than asked, or by so much, as HiGHS sums in another order and
# stops at an absolute gap of its own.
_SAME = 1e-6
_SAME_COST = 1e-5


def solve(program: Program, options: SolveOptions, link: Link) -> Solution:
    """Solve with HiGHS. See :class:`loadmaster.solvers.solution.Driver`.

    Integer columns of the incumbent are rounded to the integers they stand for.

    Raises:
        InputError: HiGHS has no such option, or refuses its value.
        SolverError: HiGHS refused the program or failed.
    """
    started = time.perf_counter()
    for asked in _attempts(options):
        highs = _run(program, asked, link, started)
        status = highs.getModelStatus()
        if link.stop_asked() or not _is_broken(highs, program, options, status):
            break
    if status == _Status.kUnboundedOrInfeasible:
        status = _disambiguate(highs, program)

    values: FloatArray | None = None
    bound: float | None = None
    if status == _Status.kInfeasible:
        outcome = (SolverStatus.INFEASIBLE, StoppedBy.PROOF)
    elif status == _Status.kUnbounded:
        outcome = (SolverStatus.UNBOUNDED, StoppedBy.PROOF)
    else:
        values = _incumbent(highs, program)
        bound = _finite(_bound(highs, program, status))
        outcome = _outcome(status, values is not None, highs.modelStatusToString(status))
    return Solution(
        status=outcome[0],
        stopped_by=outcome[1],
        values=values,
        objective=None if values is None else program.objective(values),
        bound=bound,
        seconds=time.perf_counter() - started,
        cpu_seconds=time.process_time(),
        nodes=max(0, int(highs.getInfo().mip_node_count)),
        solver="highs",
        solver_version=highs.version(),
    )


def _attempts(options: SolveOptions) -> Iterator[SolveOptions]:
    """The options as given, and what is tried where HiGHS breaks: without the start, then without presolve too."""
    yield options
    bare = dataclasses.replace(options, start_columns=None, start_values=None)
    if options.start_columns is not None:
        yield bare
    yield dataclasses.replace(bare, parameters={"presolve": "off", **options.parameters})


def _run(program: Program, options: SolveOptions, link: Link, started: float) -> Any:
    """Run HiGHS once, within what is left of the time limit."""
    highs = _new()
    if options.time_limit_s is not None:
        left_s = options.time_limit_s - (time.perf_counter() - started)
        options = dataclasses.replace(options, time_limit_s=max(0.0, left_s))
    _set_options(highs, options)
    pass_program(highs, program)
    _set_start(highs, program, options)
    _listen(highs, program, link, started)
    highs.run()
    return highs


def _is_broken(highs: Any, program: Program, options: SolveOptions, status: Any) -> bool:
    """Return whether HiGHS failed, or contradicts itself. Seen in 1.16.0: "solve error" for programs of twenty columns
    that it solves without presolve, and "optimal" for a start that is 4 % dearer than the optimum which it has proved,
    and found in the presolved program."""
    if status != _Status.kOptimal:
        return bool(status in (_Status.kSolveError, _Status.kPresolveError, _Status.kPostsolveError))
    values = _incumbent(highs, program)
    if values is None or not program.integer.any():
        return values is None
    gap = relative_gap(program.objective(values), _finite(_bound(highs, program, status)))
    absolute = abs(program.objective(values) - _bound(highs, program, status))
    return gap is not None and gap > options.gap + _SAME and absolute > _SAME_COST


def pass_program(highs: Any, program: Program) -> None:
    """Hand the arrays over in one call. Raises SolverError: HiGHS refused them."""
    status = highs.passModel(
        program.column_count,
        program.row_count,
        program.nonzero_count,
        int(highspy.MatrixFormat.kRowwise),
        int(highspy.ObjSense.kMinimize),
        program.offset,
        program.cost,
        program.lower,
        program.upper,
        program.row_lower,
        program.row_upper,
        program.row_start.astype(np.int32),
        program.column_index,
        program.value,
        program.integer.astype(np.int32),
    )
    if status == highspy.HighsStatus.kError:
        raise SolverError(
            "HiGHS refused the program: a cost, bound or coefficient is not a number or is too large. "
            "Scale the program's units."
        )


def _set_options(highs: Any, options: SolveOptions) -> None:
    chosen: dict[str, bool | int | float | str] = {
        "threads": options.threads,
        "random_seed": options.seed,
        "mip_rel_gap": options.gap,
    }
    if options.threads == 1:
        chosen["parallel"] = "off"
    if options.time_limit_s is not None:
        chosen["time_limit"] = float(options.time_limit_s)
    if options.node_limit is not None:
        chosen["mip_max_nodes"] = options.node_limit
    for name, value in {**chosen, **options.parameters}.items():
        if highs.setOptionValue(name, value) != highspy.HighsStatus.kOk:
            raise InputError(
                f"parameters.{name}",
                value,
                "HiGHS has no such option, or refuses this value",
                "See the list of options in the HiGHS documentation.",
            )


def _set_start(highs: Any, program: Program, options: SolveOptions) -> None:
    if options.start_columns is None or options.start_values is None or not len(options.start_columns):
        return
    if len(options.start_columns) == program.column_count:
        values = np.empty(program.column_count)
        values[options.start_columns] = options.start_values
        whole = highspy.HighsSolution()
        whole.col_value = values
        highs.setSolution(whole)
    else:
        highs.setSolution(
            len(options.start_columns),
            np.asarray(options.start_columns, dtype=np.int32),
            np.asarray(options.start_values, dtype=np.float64),
        )


def _listen(highs: Any, program: Program, link: Link, started: float) -> None:
    def report(event: Any) -> None:
        out = event.data_out
        link.progress(
            Progress(
                seconds=time.perf_counter() - started,
                objective=_finite(out.mip_primal_bound),
                bound=_finite(out.mip_dual_bound),
                nodes=max(0, int(out.mip_node_count)),
            )
        )
        if link.stop_asked():
            event.interrupt()

    def only_stop(event: Any) -> None:
        if link.stop_asked():
            event.interrupt()

    def keep(event: Any) -> None:
        values = _rounded(program, event.data_out.mip_solution)
        link.incumbent(program.objective(values), values)

    highs.cbMipInterrupt.subscribe(report)
    highs.cbMipImprovingSolution.subscribe(keep)
    highs.cbSimplexInterrupt.subscribe(only_stop)
    highs.cbIpmInterrupt.subscribe(only_stop)


def _outcome(status: Any, has_incumbent: bool, words: str) -> tuple[SolverStatus, StoppedBy]:
    if status == _Status.kOptimal and has_incumbent:
        return SolverStatus.OPTIMAL, StoppedBy.GAP
    if status == _Status.kMemoryLimit:
        raise SolverError("HiGHS ran out of memory. Raise memory_limit_bytes, or plan a smaller problem.")
    if status not in _STOPPED_BY:
        raise SolverError(f"HiGHS failed ({words}). Scale the program's units, or try another solver.")
    return (SolverStatus.FEASIBLE if has_incumbent else SolverStatus.NO_SOLUTION), _STOPPED_BY[status]


def _incumbent(highs: Any, program: Program) -> FloatArray | None:
    if highs.getInfo().primal_solution_status != highspy.kSolutionStatusFeasible:
        return None
    return _rounded(program, highs.getSolution().col_value)


def _rounded(program: Program, point: Any) -> FloatArray:
    values = np.array(point, dtype=np.float64)
    values[program.integer] = np.round(values[program.integer])
    return values


def _bound(highs: Any, program: Program, status: Any) -> float:
    if program.integer.any():
        return float(highs.getInfo().mip_dual_bound)
    # A simplex stopped halfway has proved nothing about a linear program.
    return float(highs.getInfo().objective_function_value) if status == _Status.kOptimal else -math.inf


def _disambiguate(highs: Any, program: Program) -> Any:
    """Ask whether any feasible point exists, where presolve may have learned only "unbounded or infeasible"."""
    columns = np.arange(program.column_count, dtype=np.int32)
    highs.changeColsCost(program.column_count, columns, np.zeros(program.column_count))
    highs.run()
    status = highs.getModelStatus()
    return _Status.kUnbounded if status == _Status.kOptimal else status


def _new() -> Any:
    make: Any = highspy.Highs
    highs = make()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    return highs


def _finite(number: float) -> float | None:
    # HiGHS writes 1e200 and beyond where it means "nothing yet".
    return float(number) if abs(number) < 1e100 else None
