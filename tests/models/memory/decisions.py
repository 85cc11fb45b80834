"""What a schedule decides, read back from it."""

from __future__ import annotations

from loadmaster.models.memory.completion import Decisions
from loadmaster.models.memory.plan import Schedule


def decisions_of(schedule: Schedule) -> Decisions:
    """The decisions that a schedule carries out: completing them again gives no worse a schedule."""
    return Decisions(
        computes=tuple(frozenset(c.forward for c in s.computes) for s in schedule.stages),
        backward=tuple(s.implementation or 0 for s in schedule.stages[1:]),
        offload=schedule.offload,
        fetches={t: s.fetches for t, s in enumerate(schedule.stages) if s.fetches},
        keep={t: frozenset(s.keep) for t, s in enumerate(schedule.stages)},
    )
