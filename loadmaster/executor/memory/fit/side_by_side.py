"""A planned step and the measured one as one trace, to look at next to each other."""

from __future__ import annotations

from typing import Any

from loadmaster.executor.steps.timeline import Timeline
from loadmaster.models.memory.checker import check_plan
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.verdict import planned_events
from loadmaster.models.trace_events import TraceEvent, level, process, run

MEASURED = 2
"""The process number of the measured step in a trace; the planned one is 1."""


def side_by_side(problem: MemoryProblem, plan: MemoryPlan, timeline: Timeline) -> dict[str, Any]:
    """A trace document with the planned step and the measured one, both from 0 on, for https://ui.perfetto.dev.

    Raises:
        InputError: the plan is another problem's, or holds no schedule.
    """
    title = problem.title or problem.name
    events: list[TraceEvent] = planned_events(title, check_plan(problem, plan), plan.budget_bytes)
    events += _measured(title, timeline)
    for at_us in (0.0, timeline.memory[-1][0]):
        events.append(level(MEASURED, "budget", at_us, budget_bytes=plan.budget_bytes))
    return {
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "otherData": {"problem_sha256": plan.problem_sha256, "budget_bytes": plan.budget_bytes},
    }


def measured_alone(title: str, timeline: Timeline) -> dict[str, Any]:
    """A trace document with the measured step of a model that runs no plan."""
    return {"displayTimeUnit": "ms", "traceEvents": _measured(title, timeline)}


def _measured(title: str, timeline: Timeline) -> list[TraceEvent]:
    tracks = sorted({s.track for s in timeline.spans})
    what = "stream" if timeline.device == "cuda" else "thread"
    events: list[TraceEvent] = process(MEASURED, f"{title} (measured)", {t: f"{what} {t}" for t in tracks})
    for s in timeline.spans:
        sort = "copy" if s.is_host_copy else "product" if s.is_product else "move"
        events.append(run(MEASURED, s.track, s.name, sort, s.start_us, s.duration_us))
    for at_us, size in timeline.memory:
        events.append(level(MEASURED, "memory", at_us, allocated_bytes=size))
    return events
