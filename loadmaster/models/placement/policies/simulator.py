"""Replays the step of a placement problem under a policy: demand paging over one link that works in both directions.

An operator starts when the one before it has ended and all its blocks are on the device. Blocks that it reads and that
are neither there nor on their way are *faults*: they are loaded, after victims have left for them. Blocks that it
writes whole only need memory. While operators run, what the policy wants early is loaded, in memory that is free or
that the policy gives up early. Bytes on the device, workspace included, never exceed the budget.

In the first step nothing is on the device: what the step reads before it writes it is in the tier. That is one tier,
which takes all that leaves.

With ``invalidate``, a block whose contents are dead (:mod:`loadmaster.models.placement.accesses`) leaves at once and
for nothing, as [DeepUM23] section 5.2 has it. Without, it stays until it is a victim, is stored as any other, and comes
back before it is written.

Example: a budget of 2 bytes, blocks A, B, C of 1 byte that take 5 us each way, and three operators of 10 us that read
A, B and C. Under LRU each evicts what the next but one reads: every operator has a fault. Nobody writes the blocks, so
that victims leave for nothing, and a step takes 3 * (5 + 10) = 45 us.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loadmaster.errors import InputError
from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.limits import least_bytes
from loadmaster.models.placement.policies.device import Device, Event, Place
from loadmaster.models.placement.policies.policy import Policy
from loadmaster.models.placement.problem import PlacementProblem
from loadmaster.models.units import show_bytes

STEPS = 3


@dataclass(frozen=True)
class Log:
    """The record of a run of so many steps: all events, and faults (step, operator, block)."""

    events: tuple[Event, ...]
    steps: int
    faults: tuple[tuple[int, int, int], ...]


def replay_under(
    problem: PlacementProblem,
    policy: Policy,
    budget_bytes: int,
    *,
    steps: int = STEPS,
    invalidate: bool = True,
    tier: int = 0,
) -> Log:
    """Run ``steps`` steps; a policy is for one run. Raises InputError if one operator needs more than the budget."""
    expect_budget(problem, budget_bytes)
    if not 0 <= tier < len(problem.tiers):
        raise InputError("tier", tier, "is no tier", f"Tiers are numbered 0 to {len(problem.tiers) - 1}.")
    if steps < 1:
        raise InputError("steps", steps, "is no number of steps", "Give at least 1.")
    return _Run(problem, policy, Device(problem, policy, budget_bytes, tier), invalidate).run(steps)


def expect_budget(problem: PlacementProblem, budget_bytes: int) -> None:
    """Refuse a budget that no policy and no plan can keep; the InputError says which operator needs how much."""
    least, at = least_bytes(problem)
    if budget_bytes < least:
        where = f"operator {at} ({problem.operators[at].words})"
        found = f"{show_bytes(least)} ({least} bytes) are needed for {where} alone"
        raise InputError("budget_bytes", budget_bytes, found, "Give at least that much, or split the operator.")


class _Run:
    def __init__(self, problem: PlacementProblem, policy: Policy, device: Device, invalidate: bool) -> None:
        self.problem, self.policy, self.device = problem, policy, device
        self.blocks = [operator.blocks for operator in problem.operators]
        self.pins = [frozenset(blocks) for blocks in self.blocks]
        self.dying: list[list[int]] = [[] for _ in problem.operators]
        for block, uses in enumerate(Accesses(problem).uses):
            if uses:
                device.stored[block] = uses[0][1]
                for (i, _, _), (_, reads, _) in zip(uses, (*uses[1:], uses[0]), strict=True):
                    if invalidate and not reads:
                        self.dying[i].append(block)
        self.faults: list[tuple[int, int, int]] = []

    def run(self, steps: int) -> Log:
        self.policy.start(self.device)
        for step in range(steps):
            for i in range(len(self.problem.operators)):
                self._operator(step, i)
        return Log(tuple(self.device.log), steps, tuple(self.faults))

    def _operator(self, step: int, i: int) -> None:
        device, operator = self.device, self.problem.operators[i]
        self.policy.starts(operator, step * len(self.blocks) + i)
        made = []
        for block in self.blocks[i]:
            place = device.place[block]
            if place is Place.GOING:
                device.keep(block)
            elif place is Place.AWAY and device.stored[block]:
                self.faults.append((step, i, block))
                device.await_load(block)
            elif place is Place.AWAY:
                made.append(block)
        own = sum(device.sizes[block] for block in made) + operator.workspace_bytes
        self._advance(i, None, own, lambda: self._is_ready(i, own))
        for block in made:
            device.make(block)
        for block in self.blocks[i]:
            self.policy.used(block)
        device.workspace_bytes = operator.workspace_bytes
        device.note("run", i)
        self._advance(i, device.now_us + operator.time_us, 0, lambda: False)
        device.note("ran", i)
        device.workspace_bytes = 0
        for block in operator.writes:
            device.written(block)
        for block in self.dying[i]:
            device.die(block)

    def _is_ready(self, i: int, own_bytes: int) -> bool:
        """Return whether an operator can start: all that it reads is there, and memory for the rest."""
        device = self.device
        if device.awaited_bytes or device.free_bytes < own_bytes:
            return False
        return device.coming is None or device.coming not in self.pins[i]

    def _advance(self, i: int, until_us: float | None, own_bytes: int, ready: Callable[[], bool]) -> None:
        """Let copies go on until a moment or a condition; ``own_bytes`` are kept for operator i."""
        device = self.device
        waits = until_us is None
        while True:
            device.end_copies()
            if waits:
                self._make_room(i, own_bytes)
            if ready():
                return
            device.start_copies()
            self._bring_early(i, own_bytes + device.awaited_bytes)
            end_us = device.next_end_us()
            if until_us is not None and (end_us is None or end_us > until_us):
                device.now_us = until_us
                return
            assert end_us is not None, "an operator waits for nothing"
            device.now_us = end_us

    def _make_room(self, i: int, own_bytes: int) -> None:
        """Evict what an operator that waits needs room for."""
        device = self.device
        while device.free_bytes + device.going_bytes < own_bytes + device.awaited_bytes:
            victim = self.policy.victim(self._pinned(i))
            if victim is None:
                assert device.coming is not None, "the working set of every operator fits"
                return  # what is being loaded can leave once it is there
            device.evict(victim)

    def _bring_early(self, i: int, kept_bytes: int) -> None:
        """Load what the policy wants, as far as there is room; early victims leave one after the other."""
        device = self.device
        for block in list(self.policy.wanted()):
            if device.place[block] is not Place.AWAY or not device.stored[block]:
                continue
            kept_bytes += device.sizes[block]
            while device.free_bytes + device.going_bytes < kept_bytes:
                victim = self.policy.early_victim(self._pinned(i)) if device.can_store else None
                if victim is None:
                    return
                device.evict(victim)
                device.start_copies()
            if device.can_load and device.free_bytes >= kept_bytes:
                device.load(block)
                kept_bytes -= device.sizes[block]

    def _pinned(self, i: int) -> frozenset[int]:
        coming = self.device.coming
        return self.pins[i] if coming is None else self.pins[i] | {coming}
