"""A placement plan as a Chrome trace, for https://ui.perfetto.dev: compute, both directions of each link, and bytes."""

from __future__ import annotations

from typing import Any

from loadmaster.api.report.placement.links import link_rows
from loadmaster.api.report.placement.view import PlacementView
from loadmaster.models.trace_events import level, process, run

_PLANNED, _COMPUTE = 1, 1


def chrome_trace(view: PlacementView) -> dict[str, Any]:
    """The trace document of one planned step."""
    problem, found, budget_bytes = view.problem, view.run, view.plan.budget_bytes
    rows = link_rows(problem, found)
    tracks = {_COMPUTE: "compute"} | {_COMPUTE + 1 + n: row.label for n, row in enumerate(rows)}
    events = process(_PLANNED, f"{problem.title or problem.name} (planned)", tracks)
    for i, operator in enumerate(problem.operators):
        start, wait, size = float(found.starts_us[i]), float(found.stall_us[i]), int(found.resident_bytes[i])
        if wait > 0:
            events.append(run(_PLANNED, _COMPUTE, "wait for copies", "stall", start - wait, wait))
        details = {"operator": i, "op": operator.op, "resident_bytes": size}
        events.append(run(_PLANNED, _COMPUTE, operator.words, "operator", start, operator.time_us, **details))
        events.append(level(_PLANNED, "memory", start - wait, resident_bytes=size))
    for n, row in enumerate(rows):
        for busy in row.copies:
            block = problem.blocks[busy.copy.block]
            what = {"block": busy.copy.block, "role": block.role, "size_bytes": block.size_bytes}
            length = busy.end_us - busy.start_us
            events.append(run(_PLANNED, _COMPUTE + 1 + n, block.name, busy.copy.what, busy.start_us, length, **what))
    for at_us in (0.0, found.last_us):
        events.append(level(_PLANNED, "budget", at_us, budget_bytes=budget_bytes))
    return {
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "otherData": {"problem_sha256": view.plan.problem_sha256, "budget_bytes": budget_bytes},
    }
