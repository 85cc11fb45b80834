"""Retries of solves that fail: tried again, then taken for no answer, until too many in a row have failed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from loadmaster.errors import SolverError
from loadmaster.solvers.solution import Solution, SolveOptions, SolverStatus, StoppedBy

# A solve is tried so often. A search goes on with other programs, and ends when so many tries in a row have failed.
TRIES = 2
MOST_FAILURES = 6
NO_ANSWER = Solution(SolverStatus.NO_SOLUTION, StoppedBy.CRASH, None, None, None, 0.0, 0.0, 0, "none", "")

logger = logging.getLogger(__name__)


@dataclass
class Retries:
    """Count of the solves of one search that failed in a row."""

    failures: int = 0

    def answer(self, ask: Callable[[SolveOptions], Solution], options: SolveOptions) -> Solution:
        """Ask a solver, again where it fails; :data:`NO_ANSWER` if it fails every time. Raises SolverError if it
        failed, and so did all that were asked before it."""
        for n in range(TRIES):
            try:
                solution = ask(replace(options, seed=options.seed + n))
            except SolverError as error:
                self.failures += 1
                if self.failures == MOST_FAILURES:
                    raise
                logger.warning("%s It is tried again, and other programs are.", error)
            else:
                self.failures = 0
                return solution
        return NO_ANSWER
