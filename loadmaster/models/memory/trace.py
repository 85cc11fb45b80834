"""A planned step as trace events: what the checker replays, for https://ui.perfetto.dev or chrome://tracing.

The compute track, one track for each direction of the host link, and resident bytes next to the budget.

The bytes are a counter next to a constant one for the budget (:mod:`loadmaster.models.trace_events`).
"""

from __future__ import annotations

from loadmaster.models.memory.verdict import Check
from loadmaster.models.trace_events import TraceEvent, level, process, run

PLANNED = 1
"""The process number of the planned step; a measured one next to it takes another."""

_COMPUTE = 1
_LINKS = {"to_host": 2, "from_host": 3}


def planned_events(title: str, check: Check, budget_bytes: int) -> list[TraceEvent]:
    """The tracks and counters of a planned step."""
    tracks = {_COMPUTE: "compute"}
    if check.copies:
        tracks |= {track: direction.replace("_", " ") for direction, track in _LINKS.items()}
    events = process(PLANNED, f"{title} (planned)", tracks)
    clock_us = 0.0
    for e in check.events:
        if e.start_us > clock_us:
            events.append(run(PLANNED, _COMPUTE, "wait for copies", "stall", clock_us, e.start_us - clock_us))
        clock_us = e.start_us + e.duration_us
        details = {"stage": e.stage, "operator": e.operator, "op": e.op, "resident_bytes": e.resident_bytes}
        events.append(run(PLANNED, _COMPUTE, e.words, e.what, e.start_us, e.duration_us, **details))
        events.append(level(PLANNED, "memory", e.start_us, resident_bytes=e.resident_bytes))
    made_by = {e.operator: e.words for e in check.events if e.what == "forward" and e.words != e.op}
    for c in check.copies:
        name = made_by.get(c.forward, f"forward {c.forward}")
        what = {"forward": c.forward, "size_bytes": c.size_bytes}
        events.append(run(PLANNED, _LINKS[c.direction], name, "copy", c.start_us, c.duration_us, **what))
    for at_us in (0.0, check.time_us):
        events.append(level(PLANNED, "budget", at_us, budget_bytes=budget_bytes))
    return events
