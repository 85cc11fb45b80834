"""A planner that does as its problem says, for tests of the service: quick, slow, infeasible, broken, crashing.

A problem is ``{"kind": "fake", "name": ..., "behaviour": ..., ...}``; see :meth:`FakePlanner.plan`.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadmaster.api.planning import Request
from loadmaster.errors import CancelledError, InputError, LimitReachedError, SolverError
from loadmaster.models.canonical import sha256
from loadmaster.models.documents import Document
from loadmaster.planner import PlanProgress

BEHAVIOURS = (
    *("quick", "slow", "loose", "infeasible", "deaf", "forking"),
    *("crash", "crash_once", "solver_error", "limit", "nothing"),
)
OPTIMUM = 100.0
# As short as a plan of this planner takes, so that its parts fit in the whole.
SECONDS = {"build": 1e-6, "solve": 2e-6, "check": 3e-6}
logger = logging.getLogger("loadmaster.fake")


def problem(behaviour: str = "quick", name: str = "a problem", **more: Any) -> dict[str, Any]:
    """A problem document for the fake planner."""
    return {"kind": "fake", "name": name, "behaviour": behaviour, **more}


class FakePlanner:
    """Knows the one kind ``fake``."""

    def read(self, problem: Document, options: Document) -> Request:
        for name in options:
            if name not in ("gap", "time_limit_s", "budget_bytes", "limit", "seed"):
                raise InputError(f"options.{name}", options[name], "is no option", "Leave it out.")
        if problem.get("behaviour") not in BEHAVIOURS:
            raise InputError(
                "problem.behaviour", problem.get("behaviour"), "is unknown", f"Use one of {', '.join(BEHAVIOURS)}."
            )
        complete = {"gap": 0.02, "time_limit_s": 60.0, **options}
        return Request(
            kind="fake",
            name=str(problem["name"]),
            options=complete,
            gap=complete["gap"],
            time_limit_s=complete["time_limit_s"],
            limit=complete.get("budget_bytes", complete.get("limit")),
            cache_key=sha256({"problem": dict(problem), "options": complete}),
            sizes={key: len(value) for key, value in problem.items() if isinstance(value, list)},
        )

    def read_each(self, problem: Document, options: Sequence[Document]) -> list[Request]:
        return [self.read(problem, one) for one in options]

    def plan(
        self,
        problem: Document,
        options: Document,
        *,
        on_progress: Callable[[PlanProgress], None],
        cancelled: Callable[[], bool],
    ) -> dict[str, Any]:
        """Two incumbents, then the end that ``behaviour`` names. ``marker`` is a file that notes each start.

        With ``hands_out``, the incumbents come with their plans, and then a worse one.
        """
        started = time.monotonic()
        starts = self._note_start(problem.get("marker"))
        behaviour = problem["behaviour"]
        if behaviour == "crash" or (behaviour == "crash_once" and starts == 1):
            os.kill(os.getpid(), signal.SIGSEGV)
        if behaviour == "solver_error":
            raise SolverError("the solver broke")
        if behaviour == "limit":
            raise LimitReachedError("the limit came before any plan")
        if behaviour == "infeasible":
            return {"kind": "fake", "status": "infeasible", "unit": "us", "infeasibility": {"short_bytes": 3}}
        if behaviour == "nothing":
            _wait(problem.get("seconds", 60.0), cancelled)
            raise CancelledError("nothing was found")
        logger.info("two incumbents follow")
        objective = OPTIMUM
        hands_out = problem.get("hands_out", False)
        for objective in (1.2 * OPTIMUM, 1.1 * OPTIMUM, *([1.3 * OPTIMUM] if hands_out else [])):
            seconds = time.monotonic() - started
            gap = (objective - OPTIMUM) / objective
            plan: Any = functools.partial(_plan, objective, "nothing") if hands_out else None
            on_progress(PlanProgress(seconds, "search", "looking", objective, OPTIMUM, gap, plan))
        if behaviour == "forking":
            self._note_start(problem["marker"], subprocess.Popen(["sleep", "600"]).pid)
        if behaviour in ("deaf", "forking"):
            time.sleep(600.0)
        if behaviour == "slow":
            stopped = _wait(problem.get("seconds", 60.0), cancelled)
            return _plan(1.1 * OPTIMUM, "cancel" if stopped else "time")
        if behaviour == "loose":
            return _plan(1.1 * OPTIMUM, "time")
        # More room, better plans: but not always, so that a frontier has something to mend.
        budget_bytes = options.get("budget_bytes") or options.get("limit") or 0
        return _plan(OPTIMUM + problem.get("worse_by", {}).get(str(budget_bytes), 0.0), "gap", OPTIMUM)

    def document(self, plan: Any) -> dict[str, Any]:
        return dict(plan)

    @staticmethod
    def _note_start(marker: str | None, pid: int | None = None) -> int:
        if marker is None:
            return 1
        with Path(marker).open("a") as notes:
            notes.write(f"{pid or os.getpid()}\n")
        return len(Path(marker).read_text().splitlines())


def _plan(objective: float, stopped_by: str, bound: float = OPTIMUM) -> dict[str, Any]:
    gap = (objective - bound) / objective
    status = "optimal" if gap <= 0.02 else "feasible"
    return {
        "kind": "fake",
        "status": status,
        "objective": objective,
        "bound": bound,
        "gap": gap,
        "unit": "us",
        "stopped_by": stopped_by,
        "seconds": SECONDS,
    }


def _wait(seconds: float, cancelled: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if cancelled():
            return True
        time.sleep(0.02)
    return False
