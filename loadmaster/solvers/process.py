"""Solves in processes of their own: isolated, limited, observable, cancellable, never left behind.

Each solve is a fresh interpreter that imports numpy and one solver (not the caller's script, so a call needs no
``if __name__ == "__main__"`` around it). A thread in the caller's process talks to it, holds it to its limits and
collects what it reports. A solve that is killed or dies still answers with the best point that it reported, and says
what stopped it; it is an error where it had reported none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from loadmaster.errors import InputError, LoadmasterError, SolverError, SolverKilledError
from loadmaster.solvers import registry
from loadmaster.solvers.program import FloatArray, Program
from loadmaster.solvers.solution import (
    OUT_OF_MEMORY,
    STOP,
    Incumbent,
    Progress,
    Solution,
    SolveOptions,
    SolverStatus,
    StoppedBy,
)

__all__ = ["RunningSolve", "check_options", "check_program", "solve", "start"]

logger = logging.getLogger(__name__)

# A cancel answers within a second: this long to stop in good order, then the process is killed.
_ORDERLY_STOP_S = 0.5
# Solvers look at their clocks now and then only; start-up and hand-over come on top.
_GRACE_S = 5.0
_GRACE_SHARE = 0.1
_LOOK_EVERY_S = 0.05
_STDERR_TAIL_BYTES = 2000


def solve(
    program: Program,
    options: SolveOptions | None = None,
    *,
    solver: str = "auto",
    on_progress: Callable[[Progress], None] | None = None,
    on_point: Callable[[FloatArray], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Solution:
    """Solve with ``auto``, ``highs``, ``cpsat`` or ``pulp:NAME``, and wait for the answer.

    Args:
        on_progress: called in this thread with each new report, at most about twice a second.
        on_point: called in the same way with the best point [columns] so far, where that is a better one.
        cancelled: asked several times a second; once true, the solve ends within a second with what it has.

    Raises:
        InputError: options that cannot be used, a solver that is not known, a program the solver cannot take.
        MissingExtraError: the solver's package is not installed.
        SolverError: the solve crashed, ran out of memory, or the solver failed, and it had reported no point.
    """
    with start(program, options, solver=solver) as running:
        seen: Progress | None = None
        known: FloatArray | None = None
        while True:
            solution = running.poll(0.1)
            # The report first: the point comes before the report that counts it.
            latest, point = running.progress(), running.incumbent()
            if on_point is not None and point is not None and point is not known:
                known = point
                on_point(point)
            if on_progress is not None and latest is not None and latest is not seen:
                seen = latest
                on_progress(latest)
            if solution is not None:
                return solution
            if cancelled is not None and cancelled():
                running.cancel()


def start(program: Program, options: SolveOptions | None = None, *, solver: str = "auto") -> RunningSolve:
    """Start a solve and return at once. Several may run at the same time. Errors as for :func:`solve`."""
    options = SolveOptions() if options is None else options
    check_program(program)
    check_options(program, options)
    if program.intervals is not None and not registry.takes_intervals(solver):
        raise InputError("solver", solver, "takes no programs with intervals", "Use cpsat.")
    # A plain dict, whatever mapping it was: the options are about to be pickled.
    options = dataclasses.replace(options, parameters=dict(options.parameters))
    return RunningSolve(program, options, registry.resolve(solver))


class RunningSolve:
    """A solve under way. Leaving its ``with`` block ends it, whatever state it is in."""

    def __init__(self, program: Program, options: SolveOptions, solver: str) -> None:
        self._program = program
        self._options = options
        self._solver = solver
        self._cancel = threading.Event()
        self._abandoned = threading.Event()
        self._finished = threading.Event()
        self._progress: Progress | None = None
        self._incumbent: Incumbent | None = None
        self._outcome: Solution | LoadmasterError | None = None
        self._started = time.monotonic()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the supervising thread
        # Solvers behind PuLP leave files there when they are killed.
        self._folder = tempfile.TemporaryDirectory(prefix="loadmaster-solve-", ignore_cleanup_errors=True)
        self._connection, child_end = Pipe()
        with child_end:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "loadmaster.solvers.child"),
                    *(str(child_end.fileno()), solver, str(options.memory_limit_bytes or 0), self._folder.name),
                ],
                stdin=subprocess.DEVNULL,
                # Only banners: what goes wrong is written to stderr.
                stdout=subprocess.DEVNULL,
                stderr=self._output,
                pass_fds=[child_end.fileno()],
                env={**registry.child_environment(), "TMPDIR": self._folder.name},
                start_new_session=True,
            )
        # A daemon: a program that ends without waiting takes its solves with it.
        threading.Thread(target=self._supervise, name="loadmaster-solve", daemon=True).start()

    @property
    def process_id(self) -> int:
        """The operating system's id of the solve's process."""
        return self._process.pid

    def poll(self, timeout_s: float = 0.0) -> Solution | None:
        """The answer, or None if it has not come within ``timeout_s``. Raises what :func:`solve` raises."""
        if not self._finished.wait(timeout_s):
            return None
        if isinstance(self._outcome, Solution):
            return self._outcome
        assert self._outcome is not None
        raise self._outcome

    def wait(self) -> Solution:
        """Wait for the answer. Raises what :func:`solve` raises."""
        while True:
            solution = self.poll(timeout_s=3600.0)
            if solution is not None:
                return solution

    def progress(self) -> Progress | None:
        """The latest report, or None before the first."""
        return self._progress

    def incumbent(self) -> FloatArray | None:
        """The best point [columns] reported so far."""
        return None if self._incumbent is None else self._incumbent.values

    def cancel(self) -> None:
        """Ask the solve to end; within a second it answers with what it has. Returns at once."""
        self._cancel.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abandoned.set()
        self._finished.wait()

    def _supervise(self) -> None:
        try:
            self._outcome = self._follow()
        finally:
            if self._outcome is None:
                self._outcome = SolverError(f"The {self._solver} process could not be supervised.")
                self._end_process(kill=True)
            self._connection.close()
            self._output.close()
            self._folder.cleanup()
            self._finished.set()

    def _follow(self) -> Solution | LoadmasterError:
        connection: Connection[Any, Any] = self._connection
        # A process that dies before it has read everything shows as the end of its messages, below.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.send((self._program, self._options))
        deadline = _hard_deadline(self._options)
        kill_at: float | None = None
        stopped_by: StoppedBy | None = None
        final: Solution | LoadmasterError | None = None
        while final is None:
            now = time.monotonic()
            if stopped_by is None and (self._cancel.is_set() or now >= deadline):
                stopped_by = StoppedBy.CANCEL if self._cancel.is_set() else StoppedBy.TIME
                kill_at = now + _ORDERLY_STOP_S
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.send(STOP)
            if self._abandoned.is_set() or (kill_at is not None and now >= kill_at):
                stopped_by = stopped_by or StoppedBy.CANCEL
                break
            try:
                if connection.poll(_LOOK_EVERY_S):
                    final = self._receive(connection.recv())
            except (EOFError, OSError, pickle.UnpicklingError):
                break
        cpu_seconds, exit_code = self._end_process(kill=stopped_by is not None and final is None)
        return self._conclude(final, stopped_by, cpu_seconds, exit_code)

    def _receive(self, message: Any) -> Solution | LoadmasterError | None:
        if isinstance(message, Solution | LoadmasterError):
            return message
        if isinstance(message, Progress):
            self._progress = message
        elif isinstance(message, Incumbent):
            self._incumbent = message
        return None

    def _end_process(self, *, kill: bool) -> tuple[float | None, int | None]:
        """End the process and all it started. Returns CPU seconds and, if it ended by itself, the exit code."""
        pid = self._process.pid
        usage = None
        exit_code: int | None = None
        try:
            deadline = time.monotonic() + _ORDERLY_STOP_S
            while usage is None and not kill and time.monotonic() < deadline:
                reaped, status, seen = os.wait4(pid, os.WNOHANG)
                if reaped:
                    usage, exit_code = seen, os.waitstatus_to_exitcode(status)
                else:
                    time.sleep(0.005)
            # Not yet reaped, so the id is still its own; or reaped, and the group holds only its orphans.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            if usage is None:
                _, status, usage = os.wait4(pid, 0)
        except ChildProcessError:
            # Somebody else in this program reaps all children: the usage is lost, the answer is not.
            status = 0
        self._process.returncode = 0 if exit_code is None else exit_code
        return (None if usage is None else usage.ru_utime + usage.ru_stime), exit_code

    def _conclude(
        self,
        final: Solution | LoadmasterError | None,
        stopped_by: StoppedBy | None,
        cpu_seconds: float | None,
        exit_code: int | None,
    ) -> Solution | LoadmasterError:
        if final is None and stopped_by is None:
            final = _death(self._output, exit_code, self._options, self._solver)
        if isinstance(final, LoadmasterError):
            if not isinstance(final, SolverError) or self._incumbent is None:
                return final
            logger.warning("%s The best point that it had reported is used.", final)
            final, stopped_by = None, StoppedBy.CRASH
        if final is None or (final.status is SolverStatus.NO_SOLUTION and self._incumbent is not None):
            final = self._best_so_far(stopped_by or (final.stopped_by if final else StoppedBy.CANCEL))
        elif final.stopped_by is StoppedBy.CANCEL and stopped_by is StoppedBy.TIME:
            final = dataclasses.replace(final, stopped_by=StoppedBy.TIME)
        if final.status is SolverStatus.INFEASIBLE:
            final = dataclasses.replace(final, bound=self._options.cutoff)
        return final if cpu_seconds is None else dataclasses.replace(final, cpu_seconds=cpu_seconds)

    def _best_so_far(self, stopped_by: StoppedBy) -> Solution:
        incumbent, progress = self._incumbent, self._progress
        return Solution(
            status=SolverStatus.NO_SOLUTION if incumbent is None else SolverStatus.FEASIBLE,
            stopped_by=stopped_by,
            values=None if incumbent is None else incumbent.values,
            objective=None if incumbent is None else incumbent.objective,
            bound=None if progress is None else progress.bound,
            seconds=time.monotonic() - self._started,
            cpu_seconds=0.0,
            nodes=0 if progress is None else progress.nodes,
            solver=self._solver,
            solver_version=registry.version(self._solver),
        )


def check_program(program: Program) -> None:
    """Refuse numbers that no solver can use. Raises InputError: names the column or row."""
    remedy = "Check the figures that the program was built from."
    for field, numbers in (("cost", program.cost), ("lower", program.lower), ("upper", program.upper)):
        wrong = np.isnan(numbers) if field != "cost" else ~np.isfinite(numbers)
        if wrong.any():
            column = int(np.flatnonzero(wrong)[0])
            label = program.column_label(column)
            raise InputError(f"{field} of {label}", float(numbers[column]), "not a number", remedy)
    for field, numbers in (("row_lower", program.row_lower), ("row_upper", program.row_upper)):
        if np.isnan(numbers).any():
            row = int(np.flatnonzero(np.isnan(numbers))[0])
            raise InputError(f"{field} of {program.row_label(row)}", float(numbers[row]), "not a number", remedy)
    if not np.isfinite(program.value).all():
        entry = int(np.flatnonzero(~np.isfinite(program.value))[0])
        row = int(np.searchsorted(program.row_start, entry, side="right")) - 1
        label = program.row_label(row)
        raise InputError(f"coefficient in {label}", float(program.value[entry]), "not a finite number", remedy)
    if program.intervals is not None:
        program.intervals.check(program.lower, program.upper, program.integer, program.column_label)


def check_options(program: Program, options: SolveOptions) -> None:
    """Refuse options that no solver could make sense of: the ``InputError`` names option, value and remedy."""
    for name, smallest in (
        ("time_limit_s", 0.0),
        ("gap", 0.0),
        ("node_limit", 0),
        ("threads", 1),
        ("seed", 0),
    ):
        value = getattr(options, name)
        if value is not None and not value >= smallest:
            raise InputError(name, value, "out of range", f"Give a number of at least {smallest}.")
    if options.memory_limit_bytes is not None and options.memory_limit_bytes < 1:
        raise InputError("memory_limit_bytes", options.memory_limit_bytes, "not positive", "Give bytes, or None.")
    if (options.start_columns is None) != (options.start_values is None):
        raise InputError("start_columns", None, "half a MIP start", "Give both start_columns and start_values.")
    if options.start_columns is None or options.start_values is None:
        return
    columns, values = np.asarray(options.start_columns), np.asarray(options.start_values)
    if columns.shape != values.shape or columns.ndim != 1:
        raise InputError(
            "start_values",
            values.shape,
            f"not shaped like start_columns {columns.shape}",
            "Give one value a column.",
        )
    if columns.size and (columns.min() < 0 or columns.max() >= program.column_count):
        raise InputError(
            "start_columns",
            int(columns.max()),
            "not a column of the program",
            f"Give indices in 0..{program.column_count - 1}.",
        )
    if not np.isfinite(values).all():
        raise InputError("start_values", "nan or inf", "not finite", "Leave out columns without a value.")


def _hard_deadline(options: SolveOptions) -> float:
    if options.time_limit_s is None:
        return float("inf")
    return time.monotonic() + options.time_limit_s * (1.0 + _GRACE_SHARE) + _GRACE_S


def _death(output: IO[bytes], exit_code: int | None, options: SolveOptions, solver: str) -> SolverError:
    """Build the error that says why the process ended without an answer."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _STDERR_TAIL_BYTES))
    written = output.read().decode(errors="replace").strip()
    capped = options.memory_limit_bytes is not None and exit_code in (-signal.SIGABRT, -signal.SIGSEGV)
    if capped or "bad_alloc" in written or "MemoryError" in written:
        return SolverError(f"{OUT_OF_MEMORY} ({solver})")
    if exit_code == -signal.SIGKILL:
        return SolverKilledError(
            f"The {solver} process was killed from outside, most likely because the machine ran out of "
            "memory. Free memory, run fewer solves at once, or set memory_limit_bytes."
        )
    how = "ended" if exit_code is None else f"died of {signal.Signals(-exit_code).name}" if exit_code < 0 else "failed"
    tail = f" It wrote: {written}" if written else ""
    return SolverError(
        f"The {solver} process {how} without an answer. Try another solver or seed, and report it.{tail}"
    )
