"""Outcome of a step under a policy, or under a checked plan: times, waits, bytes each way, bytes on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InputError
from loadmaster.models.placement.checker import PlacementCheck
from loadmaster.models.placement.plan import Moves
from loadmaster.models.placement.policies.correlation import Correlation
from loadmaster.models.placement.policies.policy import Belady, Lru, Policy
from loadmaster.models.placement.policies.simulator import STEPS, Log, replay_under
from loadmaster.models.placement.problem import PlacementProblem
from loadmaster.solvers.program import IntArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class LinkCopy:
    """The copy of a block on a link, from the start of the last step on."""

    what: Literal["store", "load"]
    block: int
    tier: int
    start_us: float
    end_us: float


@dataclass(frozen=True)
class PolicyRun:
    """Figures of the last step, where nothing else is said.

    Attributes:
        step_us: of every step; those before the last are warm-up.
        starts_us: [operators] when each starts; 0 is the end of the step before.
        stall_us: [operators] how long each waits for copies.
        faults: blocks that an operator had to wait for because nobody had brought them.
        dropped_bytes: of victims that left for nothing, because the tier had a good copy.
        resident_bytes: [operators] the most on the device, workspace included, from the end of the operator before to
            the end of each.
        peak_bytes: of all steps.
    """

    policy: str
    step_us: tuple[float, ...]
    starts_us: FloatArray = field(repr=False)
    stall_us: FloatArray = field(repr=False)
    faults: int
    faults_by_step: tuple[int, ...]
    stored_bytes: int
    loaded_bytes: int
    dropped_bytes: int
    peak_bytes: int
    resident_bytes: IntArray = field(repr=False)
    copies: tuple[LinkCopy, ...] = field(repr=False)

    @property
    def last_us(self) -> float:
        """Time of the last step."""
        return self.step_us[-1]

    @property
    def total_stall_us(self) -> float:
        """Sum of all waits of the last step."""
        return float(self.stall_us.sum())


def of_log(problem: PlacementProblem, policy: str, log: Log, tier: int = 0) -> PolicyRun:
    """The figures of a run, from its log alone."""
    count = len(problem.operators)
    sizes = [block.size_bytes for block in problem.blocks]
    taken = {"load": 1, "make": 1, "dropped": -1, "gone": -1, "dead": -1}
    moved = {"store": 0, "load": 0, "dropped": 0}
    # Position of all steps that is running, or is waited for.
    position, last = 0, (log.steps - 1) * count
    ends = [0.0]
    starts, resident = np.zeros(count), np.zeros(count, dtype=np.int64)
    on_device = peak = 0
    since: dict[tuple[str, int], float] = {}
    copies: list[LinkCopy] = []
    for event in log.events:
        block, what = event.of, event.what
        if what == "run":
            on_device += problem.operators[block].workspace_bytes
            starts[block] = event.at_us
        elif what == "ran":
            on_device -= problem.operators[block].workspace_bytes
            position += 1
            if position % count == 0:
                ends.append(event.at_us)
        else:
            on_device += taken.get(what, 0) * sizes[block]
            if what == "load" or what == "store":
                since[what, block] = event.at_us
            elif what == "loaded" or what == "stored":
                way: Literal["store", "load"] = "load" if what == "loaded" else "store"
                start = since.pop((way, block))
                if position >= last:
                    copies.append(LinkCopy(way, block, tier, start, event.at_us))
            if position >= last and what in moved:
                moved[what] += sizes[block]
        peak = max(peak, on_device)
        if last <= position < last + count:
            resident[position - last] = max(resident[position - last], on_device)
    zero = ends[-2]
    step_us = tuple(end - start for start, end in pairwise(ends))
    starts -= zero
    by_step = np.bincount([step for step, _, _ in log.faults], minlength=log.steps)
    return PolicyRun(
        policy=policy,
        step_us=step_us,
        starts_us=starts,
        stall_us=_waits(problem, starts),
        faults=int(by_step[-1]),
        faults_by_step=tuple(map(int, by_step)),
        stored_bytes=moved["store"],
        loaded_bytes=moved["load"],
        dropped_bytes=moved["dropped"],
        peak_bytes=peak,
        resident_bytes=resident,
        copies=tuple(LinkCopy(c.what, c.block, c.tier, c.start_us - zero, c.end_us - zero) for c in copies),
    )


def of_plan(problem: PlacementProblem, moves: Moves, check: PlacementCheck) -> PolicyRun:
    """Outcome of a plan that holds, from what the checker replayed: a step of those that repeat."""
    assert check.timeline is not None
    timeline = check.timeline
    copies = []
    for copy in timeline.copies:
        move = moves.stores[copy.index] if copy.what == "store" else moves.absences[copy.index]
        copies.append(LinkCopy(copy.what, move.block, move.tier, copy.start_us, copy.end_us))
    starts = np.array(timeline.starts_us)
    return PolicyRun(
        policy="plan",
        step_us=(timeline.step_us,),
        starts_us=starts,
        stall_us=_waits(problem, starts),
        faults=0,
        faults_by_step=(0,),
        stored_bytes=check.stored_bytes,
        loaded_bytes=check.loaded_bytes,
        dropped_bytes=max(check.loaded_bytes - check.stored_bytes, 0),
        peak_bytes=check.peak_bytes,
        resident_bytes=check.resident_bytes,
        copies=tuple(copies),
    )


def _waits(problem: PlacementProblem, starts: FloatArray) -> FloatArray:
    """Time that each operator waits, from when the one before it has ended."""
    times = np.array([operator.time_us for operator in problem.operators])
    ended = np.concatenate([[0.0], (starts + times)[:-1]])
    # Sums of times are rounded.
    return np.where(starts - ended > 1e-9 * (1.0 + starts), starts - ended, 0.0)


POLICIES: dict[str, Callable[[PlacementProblem], Policy]] = {
    "lru": lambda problem: Lru(),
    "belady": Belady,
    "correlation": Correlation,
}


def run_policy(
    problem: PlacementProblem,
    policy: str | Policy,
    budget_bytes: int,
    *,
    steps: int = STEPS,
    invalidate: bool = True,
    tier: int = 0,
) -> PolicyRun:
    """The step under a policy: one of :data:`POLICIES` as it is by default, or one that was made with other parameters.
    Raises InputError if no policy has this name, or an operator alone needs more than the budget."""
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise InputError("policy", policy, "is no policy", f"Choose one of: {', '.join(POLICIES)}.")
        policy = POLICIES[policy](problem)
    log = replay_under(problem, policy, budget_bytes, steps=steps, invalidate=invalidate, tier=tier)
    return of_log(problem, policy.name, log, tier)
