"""The process of one job: ``python -m loadmaster.api.worker.child FD MEMORY_BYTES FOLDER``.

Started by :mod:`loadmaster.api.worker.process`, never by hand. It reads the job from the inherited connection FD,
plans in FOLDER, and sends messages back: ("progress", ...), ("log", line), now and then ("best_plan", ...), and at the
end ("plan", document) or ("error", document). It ends itself, and everything it has started, when its parent is gone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import resource
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from loadmaster import priority
from loadmaster.api.planning import load_planner
from loadmaster.api.worker.best_plans import BestPlans
from loadmaster.errors import InputError, LoadmasterError, SolverError
from loadmaster.models.documents import Document
from loadmaster.orphans import end_with_files, wake_when_orphaned
from loadmaster.planner import PlanProgress

__all__ = ["CANCEL", "OUT_OF_MEMORY", "LogForwarder", "ParentConnection", "error_document", "main", "plan_job"]

CANCEL = "cancel"
OUT_OF_MEMORY = "Planning ran out of memory. Raise max_job_memory_bytes, or use a machine with more memory."
_WATCH_EVERY_S = 0.25
_REPORT_EVERY_S = 0.5
_LONGEST_LINE = 4000


class ParentConnection:
    """The child's end of the connection: sends from any thread, listens for a cancel, watches the parent."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._phase: str | None = None
        self._best: float | None = None
        self._due = 0.0

    def send(self, kind: str, content: Any) -> None:
        with self._lock:
            self._connection.send((kind, content))

    def progress(self, progress: PlanProgress) -> None:
        """Report: new phases and better plans at once, and in the log; the rest at most twice a second."""
        better = progress.objective is not None and (self._best is None or progress.objective < self._best)
        new_phase = progress.phase != self._phase
        now = time.monotonic()
        if not (better or new_phase) and now < self._due:
            return
        self._phase, self._due = progress.phase, now + _REPORT_EVERY_S
        if better:
            self._best = progress.objective
            self.send("log", f"{progress.seconds:.1f} s  {progress.phase}: a plan of {progress.objective:g}")
        elif new_phase:
            self.send("log", f"{progress.seconds:.1f} s  {progress.phase}: {progress.message}"[:_LONGEST_LINE])
        self.send("incumbent" if better else "progress", _finite(progress.figures()))

    def cancel(self) -> None:
        """Note that the parent wants the job to end."""
        self._cancelled.set()

    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def watch(self, folder: str) -> None:
        """Watch the parent until it ends: note a cancel, and then end with all solvers and files of this process."""
        parent = os.getppid()
        while os.getppid() == parent:
            if not self._connection.poll(_WATCH_EVERY_S):
                continue
            try:
                if self._connection.recv() == CANCEL:
                    self.cancel()
            except (EOFError, OSError):
                break
        end_with_files(folder)


def _finite(figures: dict[str, Any]) -> dict[str, Any]:
    """Replace infinities, which JSON has not, by None: a bound or gap that is not known yet."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in figures.items()
    }


class LogForwarder(logging.Handler):
    """Sends Loadmaster's own log records to the parent, for the job's log."""

    def __init__(self, parent: ParentConnection) -> None:
        super().__init__(logging.INFO)
        self._parent = parent

    def emit(self, record: logging.LogRecord) -> None:
        # The parent may be gone already; a lost log line must not end the planning.
        with contextlib.suppress(OSError):
            self._parent.send("log", f"{record.levelname.lower()} {record.name}: {record.getMessage()}"[:_LONGEST_LINE])


def error_document(error: LoadmasterError) -> dict[str, Any]:
    """An error as the job keeps it: its class by name, its message, and the parts of an InputError."""
    document: dict[str, Any] = {"type": type(error).__name__, "detail": str(error)}
    if isinstance(error, InputError):
        document.update(field=error.field, value=repr(error.value)[:80], problem=error.problem, remedy=error.remedy)
    return document


def plan_job(parent: ParentConnection, planner_path: str, problem: bytes, options: Document) -> None:
    """Plan one job; log lines, reports and the answer go to the parent."""
    handler, package = LogForwarder(parent), logging.getLogger("loadmaster")
    package.addHandler(handler)
    try:
        planner = load_planner(planner_path)
        best = BestPlans(parent, planner.document)
        plan = planner.plan(json.loads(problem), options, on_progress=best.progress, cancelled=best.cancelled)
        parent.send("plan", plan)
    except LoadmasterError as error:
        parent.send("error", error_document(error))
    except MemoryError:
        parent.send("error", error_document(SolverError(OUT_OF_MEMORY)))
    finally:
        package.removeHandler(handler)


def main() -> None:
    """Receive one job, plan it, send the answer."""
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    memory_bytes, folder = int(sys.argv[2]), sys.argv[3]
    wake_when_orphaned()
    priority.lower()
    if memory_bytes:
        # Some systems know the limit but refuse to set it: the job then runs without one.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    parent = ParentConnection(connection)
    logging.getLogger("loadmaster").setLevel(logging.INFO)
    try:
        planner_path, problem, options = connection.recv()
        threading.Thread(target=parent.watch, args=(folder,), daemon=True).start()
        plan_job(parent, planner_path, problem, options)
    except (EOFError, ConnectionError):
        # The parent is gone, and nobody hears the answer.
        end_with_files(folder)


if __name__ == "__main__":
    main()
