"""A planner for chains that answers by hand, for a real service under the command line's tests.

The seed says how: 0 at once, 1 only when it is cancelled, 2 that no plan exists.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from loadmaster.api.planning import Request
from loadmaster.models.canonical import sha256
from loadmaster.models.documents import Document
from loadmaster.models.kinds import read_problem, write_plan
from loadmaster.models.memory.plan import Blocker, MemoryInfeasibility
from loadmaster.planner.options import PlanOptions, PlanProgress
from tests.api.cli.plans_by_hand import MEGABYTE, no_plan, plan_by_hand


class HandPlanner:
    """Plans by hand."""

    def read(self, problem: Document, options: Document) -> Request:
        asked = PlanOptions.from_document(options)
        typed = read_problem(problem)
        key = sha256({"problem": typed.sha256, "options": asked.to_document()})
        return Request(
            "memory", typed.name, asked.to_document(), asked.gap, asked.time_limit_s, asked.given_limit, key, {}
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
        asked = PlanOptions.from_document(options)
        budget_bytes = asked.given_limit or 0
        first: Any = functools.partial(plan_by_hand, problem, budget_bytes, stopped_by="nothing")
        on_progress(PlanProgress(0.0, "by hand", "thinking", 12_000.0, 9_000.0, 0.25, first))
        if asked.seed == 2:
            blocker = Blocker("forward 4", "block", MEGABYTE)
            why = MemoryInfeasibility(budget_bytes + MEGABYTE, MEGABYTE, "backward 2 (block)", (blocker,))
            return write_plan(no_plan(problem, budget_bytes, why))
        stopped_by = "time"
        if asked.seed == 1:
            while not cancelled():
                time.sleep(0.02)
            stopped_by = "cancel"
        return write_plan(plan_by_hand(problem, budget_bytes, stopped_by=stopped_by))

    def document(self, plan: Any) -> dict[str, Any]:
        return write_plan(plan)
