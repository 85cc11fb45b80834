"""Events of a Chrome trace, for https://ui.perfetto.dev or chrome://tracing: slices on tracks, and counters.

Format: Trace Event Format, JSON object form; ``ts`` and ``dur`` are microseconds. Slices are complete events
(``ph: X``), values over time are counters (``ph: C``).
"""

from __future__ import annotations

from typing import Any

TraceEvent = dict[str, Any]


def process(number: int, name: str, tracks: dict[int, str]) -> list[TraceEvent]:
    """Make the events that name a process and its tracks."""
    events: list[TraceEvent] = [{"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}]
    for track, title in tracks.items():
        events.append({"ph": "M", "name": "thread_name", "pid": number, "tid": track, "args": {"name": title}})
    return events


def run(
    number: int, track: int, name: str, category: str, start_us: float, duration_us: float, **details: object
) -> TraceEvent:
    """Make the slice of something that ran on a track."""
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": number,
        "tid": track,
        "ts": start_us,
        "dur": duration_us,
        "args": details,
    }


def level(number: int, name: str, at_us: float, **values: int) -> TraceEvent:
    """Make the event of a counter's values from a moment on."""
    return {"ph": "C", "name": name, "pid": number, "ts": at_us, "args": values}
