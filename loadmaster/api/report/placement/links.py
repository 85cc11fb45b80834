"""Times at which each direction of each link is busy, within one step of those that repeat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loadmaster.api.report.over_time import within_step
from loadmaster.models.placement.policies.outcome import LinkCopy, PolicyRun
from loadmaster.models.placement.problem import PlacementProblem
from loadmaster.models.units import show_bytes


@dataclass(frozen=True)
class Busy:
    """A copy, or the part of it that is in the step: what is under way at its end is so at its start too."""

    copy: LinkCopy
    start_us: float
    end_us: float
    words: str


@dataclass(frozen=True)
class LinkRow:
    """One direction of one link."""

    label: str
    copies: tuple[Busy, ...]


def link_rows(problem: PlacementProblem, run: PolicyRun) -> list[LinkRow]:
    """Both directions of all links that carry something."""
    rows = []
    for number, tier in enumerate(problem.tiers):
        for what, label in (("store", f"to {tier.name}"), ("load", f"from {tier.name}")):
            own = [copy for copy in run.copies if (copy.what, copy.tier) == (what, number)]
            busy = [part for copy in own for part in _within(problem, copy, run.last_us)]
            if busy:
                rows.append(LinkRow(label, tuple(sorted(busy, key=lambda part: part.start_us))))
    return rows


def _within(problem: PlacementProblem, copy: LinkCopy, step_us: float) -> Iterator[Busy]:
    """The parts of a copy in one step."""
    block = problem.blocks[copy.block]
    words = f"{block.name} ({show_bytes(block.size_bytes)})"
    for start, end in within_step(copy.start_us, copy.end_us, step_us):
        yield Busy(copy, start, end, words)
