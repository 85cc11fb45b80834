"""Verdict of the checker on a plan, and the timeline that it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from loadmaster.models.places import Placed
from loadmaster.models.trace_events import TraceEvent, level, process, run


@dataclass(frozen=True)
class Event(Placed):
    """One operator in the replay: when it starts, how long it runs, the bytes resident while it does."""

    stage: int
    what: str  # "forward", "recompute" or "backward"
    operator: int
    op: str
    start_us: float
    duration_us: float
    resident_bytes: int
    stall_us: float = 0.0
    module: str | None = None
    source: str | None = None


class Moment(NamedTuple):
    """A moment when bytes are counted: just ``before`` forward operator ``operator``, or while an operator runs.
    ``implementation`` and ``in_place`` say how it runs; ``travelling_bytes`` are on their way to or from the host."""

    stage: int
    what: Literal["before", "forward", "backward"]
    operator: int
    implementation: int = 0
    in_place: bool = False
    travelling_bytes: int = 0


@dataclass(frozen=True)
class Copy:
    """One result on the host link: when its copy starts and how long it takes."""

    forward: int
    direction: Literal["to_host", "from_host"]
    start_us: float
    duration_us: float
    size_bytes: int


@dataclass(frozen=True)
class MemoryCheck:
    """The verdict.

    Attributes:
        violations: in words, empty when ok.
        peak_bytes, peak_at: the highest resident bytes and the operator there.
        peak: the same moment as data; None where nothing was replayed.
        objective: of the replay, in the problem's unit.
        time_us: of the whole step, with its parts forward, recompute, backward, stall and cut.
        events, copies: the timelines of the operators and of the host link.
    """

    ok: bool
    violations: tuple[str, ...]
    peak_bytes: int
    peak_at: str
    objective: float
    time_us: float
    forward_us: float
    recompute_us: float
    backward_us: float
    stall_us: float
    recomputed: int
    offloaded_bytes: int
    events: tuple[Event, ...] = field(repr=False)
    copies: tuple[Copy, ...] = field(default=(), repr=False)
    peak: Moment | None = None
    cut_us: float = 0.0

    def summary(self) -> dict[str, object]:
        """Summarize the check for the plan document."""
        names = ("ok", "peak_bytes", "peak_at", "time_us", "forward_us", "recompute_us", "backward_us", "stall_us")
        cut = ("cut_us",) if self.cut_us else ()
        return {name: getattr(self, name) for name in (*names, *cut, "recomputed", "offloaded_bytes")}


PLANNED = 1
"""The process number of the planned step; a measured one next to it takes another."""

_COMPUTE = 1
_LINKS = {"to_host": 2, "from_host": 3}


def planned_events(title: str, check: MemoryCheck, budget_bytes: int) -> list[TraceEvent]:
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
