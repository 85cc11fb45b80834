"""A plan as a Chrome trace, for https://ui.perfetto.dev: the compute track and resident bytes.

Format: Trace Event Format, JSON object form; ``ts`` and ``dur`` are microseconds. Slices are complete events
(``ph: X``), the bytes a counter (``ph: C``) beside a constant one for the budget.
"""

from __future__ import annotations

from typing import Any

from loadmaster.api.report.view import View

_PROCESS = 1
_COMPUTE = 1


def chrome_trace(view: View) -> dict[str, Any]:
    """The trace document of one planned step."""
    title = view.problem.title or view.problem.name
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": _PROCESS, "args": {"name": f"{title} (planned)"}},
        {"ph": "M", "name": "thread_name", "pid": _PROCESS, "tid": _COMPUTE, "args": {"name": "compute"}},
    ]
    clock_us = 0.0
    for event in view.events:
        if event.start_us > clock_us:
            events.append(_slice("wait for copies", "stall", clock_us, event.start_us - clock_us, {}))
        clock_us = event.start_us + event.duration_us
        details = {"stage": event.stage, "operator": event.operator, "resident_bytes": event.resident_bytes}
        events.append(_slice(event.op, event.what, event.start_us, event.duration_us, details))
        events.append(
            {
                "ph": "C",
                "name": "memory",
                "pid": _PROCESS,
                "ts": event.start_us,
                "args": {"resident_bytes": event.resident_bytes},
            }
        )
    for ts in (0.0, view.check.time_us):
        budget = {"budget_bytes": view.plan.budget_bytes}
        events.append({"ph": "C", "name": "budget", "pid": _PROCESS, "ts": ts, "args": budget})
    return {
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "otherData": {"problem_sha256": view.plan.problem_sha256, "budget_bytes": view.plan.budget_bytes},
    }


def _slice(name: str, category: str, start_us: float, duration_us: float, details: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": _PROCESS,
        "tid": _COMPUTE,
        "ts": start_us,
        "dur": duration_us,
        "args": details,
    }
