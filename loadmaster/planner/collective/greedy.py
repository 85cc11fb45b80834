"""The main strategy: symmetric event-driven list scheduling with restarts.

Chunks that are copied or moved are scheduled by :mod:`loadmaster.planner.collective.restarts`; sums by time reversal
(:class:`Combining`), as reversed schedules that spread. The copies that may follow a sum are found twice: as a schedule
of its own, then pulled forward as far as the order of each resource allows; and by list scheduling in the room that the
summing sends leave, each chunk from the moment its sum is complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadmaster.models.collective.bounds import lower_bound
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send
from loadmaster.planner.collective.prune import finish_ns, in_order, retime
from loadmaster.planner.collective.restarts import OnBetter, Restarts, good_enough_ns
from loadmaster.planner.collective.reversal import (
    choose_roots,
    gathering,
    joined,
    relabelled,
    relabelling,
    reverse,
    reversed_summing,
    sums_ready_ns,
    taken,
)
from loadmaster.planner.collective.scheduling_graph import Release

# The phases take turns; each turn is longer than the one before, so that a first schedule is there soon.
FIRST_TURN_SECONDS = 0.05
LONGER = 1.6
# Below this gap of each phase, no more of it is hoped for.
LEAST_GAP = 1e-3
# Restarts on top of one summing schedule after which no more is hoped for.
ON_TOP_RUNS = 40


@dataclass
class Combining:
    """Search for schedules of one instance with sums."""

    instance: Instance
    seed: int
    cancelled: Callable[[], bool] | None = None
    on_better: OnBetter | None = None
    needed: bool = True
    best: tuple[Send, ...] | None = None
    best_ns: int | None = None
    roots: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.instance, self.roots = choose_roots(self.instance)
        self.after = gathering(self.instance, self.roots)
        self.spreading = reversed_summing(self.instance, self.roots)
        self.follows = any(set(chunk.targets) - set(chunk.sources) for chunk in self.after.chunks)
        self.mirror = relabelling(self.spreading, self.instance.usable_links, self.after) if self.follows else None
        self.summing = Restarts(
            self.spreading,
            self.seed,
            usable=self.instance.usable_links,
            cancelled=self.cancelled,
            needed=self.needed,
        )
        self.copying = Restarts(self.after, self.seed, cancelled=self.cancelled, needed=self.needed)
        self.on_top: Restarts | None = None
        self.turn_s = FIRST_TURN_SECONDS
        # Bounds of the phases that are searched. One that is alone has the bound of the whole.
        self.phases: list[tuple[Restarts, int]] = []
        if self.follows:
            self.phases.append((self.summing, lower_bound(self.spreading).ns))
        if self.follows and self.mirror is None:
            self.phases.append((self.copying, lower_bound(self.after).ns))

    def search(
        self, *, bound_ns: float, seconds: float, gap: float = 0.0, runs: int | None = None
    ) -> tuple[Send, ...] | None:
        """Search as :meth:`loadmaster.planner.collective.restarts.Restarts.search`."""
        until, good_ns = time.monotonic() + seconds, good_enough_ns(bound_ns, gap)
        while self.best is None or not (self._is_good(good_ns) or time.monotonic() >= until):
            turn_s = self.turn_s if runs is None else seconds
            goals = [(phase, good_enough_ns(of_phase_ns, gap)) for phase, of_phase_ns in self.phases]
            goals = goals or [(self.summing, good_ns)]
            if not self._turn(goals, turn_s, until, runs):
                break
            left = min(turn_s / 2, until - time.monotonic())
            if self.on_top is not None and left > 0.0 and not self._is_good(good_ns):
                self.on_top.search(bound_ns=good_ns, seconds=left, runs=runs or ON_TOP_RUNS)
            done = all(phase.best_ns is not None and phase.best_ns <= goal_ns for phase, goal_ns in goals)
            if done and gap > LEAST_GAP:
                # Each phase is good enough, but what rounds off the whole may still be in one of them.
                gap, done = gap / 2, False
            waits = self.on_top is not None and self.on_top.count < ON_TOP_RUNS
            if (done and not waits) or runs is not None or (self.cancelled is not None and self.cancelled()):
                break
            self.turn_s *= LONGER
        return self.best

    def _turn(self, goals: Sequence[tuple[Restarts, float]], turn_s: float, until: float, runs: int | None) -> bool:
        """Give every phase a turn; False where one of them finds no schedule."""
        better = self.best is None
        for done, (phase, goal_ns) in enumerate(goals):
            before = phase.best_ns
            left = until - time.monotonic()
            first_s = left / (len(goals) - done)
            phase.search(bound_ns=goal_ns, seconds=min(turn_s, left), runs=runs, first_s=first_s)
            if phase.best is None:
                return False
            better = better or phase.best_ns != before
        if better and self.summing.best is not None:
            sums = reverse(self.instance, self.spreading, self.summing.best)
            copies = relabelled(self.summing.best, self.mirror) if self.mirror else self.copying.best or ()
            self._offer(joined(self.instance, sums, copies))
            self.on_top = self._on_top(sums) if self.follows else None
        return True

    def _is_good(self, good_ns: float) -> bool:
        return self.best_ns is not None and self.best_ns <= good_ns

    def _on_top(self, sums: tuple[Send, ...]) -> Restarts:
        """Prepare list scheduling of the copies in the room that sums leave."""
        release = Release(sums_ready_ns(self.instance, self.roots, sums), taken(self.instance, sums))

        def better(sends: tuple[Send, ...], _: int) -> None:
            self._offer(retime(self.instance, in_order((*sums, *sends))))

        return Restarts(
            self.after,
            self.seed,
            release=release,
            cancelled=self.cancelled,
            on_better=better,
            needed=False,
        )

    def _offer(self, sends: tuple[Send, ...]) -> None:
        time_ns = finish_ns(self.instance, sends)
        if self.best_ns is None or time_ns < self.best_ns:
            self.best, self.best_ns = sends, time_ns
            if self.on_better is not None:
                self.on_better(sends, time_ns)


def searcher(
    instance: Instance,
    seed: int = 0,
    *,
    needed: bool = True,
    cancelled: Callable[[], bool] | None = None,
    on_better: OnBetter | None = None,
) -> Combining | Restarts:
    """Make the search for schedules of one instance; each call of its ``search`` goes on where the last one stopped.

    Args:
        seed: the same seed and the same ``runs`` of each call give the same schedules.
        needed: there must be a schedule in the end: the plainest where list scheduling found none in time.
        cancelled: asked between events.
        on_better: called with each better schedule and its time in ns.
    """
    kind = Combining if instance.combines else Restarts
    return kind(instance, seed, cancelled=cancelled, on_better=on_better, needed=needed)
