"""A memory plan as a Chrome trace, for https://ui.perfetto.dev: the compute track and resident bytes."""

from __future__ import annotations

from typing import Any

from loadmaster.api.report.memory.view import MemoryView
from loadmaster.models.memory.verdict import planned_events


def chrome_trace(view: MemoryView) -> dict[str, Any]:
    """The trace document of one planned step."""
    title = view.problem.title or view.problem.name
    return {
        "displayTimeUnit": "ms",
        "traceEvents": planned_events(title, view.check, view.plan.budget_bytes),
        "otherData": {"problem_sha256": view.plan.problem_sha256, "budget_bytes": view.plan.budget_bytes},
    }
