"""The search for collectives that sum: ReduceScatter, Reduce, AllReduce, and custom ones with sums among their chunks.

Sums are found as reversed schedules that spread. What comes after, if anything does, is found twice: as a schedule of
its own that follows and is then pulled forward as far as the order of each resource allows, and by list scheduling on
top of the summing sends, in whatever room they leave, each chunk from the moment its sum is complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from loadmaster.models.collective.bounds import lower_bound
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send
from loadmaster.planner.collective.ground import Release
from loadmaster.planner.collective.prune import finish_ns, in_order, retime
from loadmaster.planner.collective.restarts import OnBetter, Restarts
from loadmaster.planner.collective.reversal import (
    choose_roots,
    gathering,
    reverse,
    reversed_summing,
    sums_ready_ns,
    taken,
)

# The phases take turns; each turn is longer than the one before, so that a first schedule is there soon.
FIRST_TURN_SECONDS = 0.05
LONGER = 1.6
# Below this gap of each phase, no more of it is hoped for.
LEAST_GAP = 1e-3
# Restarts on top of one summing schedule after which no more is hoped for.
ON_TOP_RUNS = 40


@dataclass
class Combining:
    """The search on one instance with sums."""

    instance: Instance
    seed: int
    on_better: OnBetter | None = None
    cancelled: Callable[[], bool] | None = None
    best: tuple[Send, ...] | None = None
    best_ns: int | None = None
    roots: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.instance, self.roots = choose_roots(self.instance)
        self.after = gathering(self.instance, self.roots)
        self.spreading = reversed_summing(self.instance, self.roots)
        self.follows = any(set(chunk.targets) - set(chunk.sources) for chunk in self.after.chunks)

    def search(self, *, good_ns: float, gap: float, seconds: float, runs: int | None = None) -> tuple[Send, ...] | None:
        """See :func:`loadmaster.planner.collective.greedy.search`."""
        until = time.monotonic() + seconds
        turn = FIRST_TURN_SECONDS if runs is None else seconds
        summing = Restarts(self.spreading, self.seed, usable=self.instance.usable_links)
        copying = Restarts(self.after, self.seed)
        phases = [(summing, lower_bound(self.spreading).ns)]
        if self.follows:
            phases.append((copying, lower_bound(self.after).ns))
        on_top: Restarts | None = None
        while True:
            better = False
            for phase, bound_ns in phases:
                before = phase.best_ns
                left = min(turn, until - time.monotonic())
                phase.search(good_ns=bound_ns / (1.0 - gap), seconds=left, runs=runs, cancelled=self.cancelled)
                if phase.best is None:
                    return self.best
                better = better or phase.best_ns != before
            if better and summing.best is not None:
                sums = reverse(self.instance, self.spreading, summing.best)
                self._offer(self._joined(sums, copying.best or ()))
                on_top = self._on_top(sums) if self.follows else None
            if on_top is not None and not self._is_good(good_ns):
                left = min(turn / 2, until - time.monotonic())
                on_top.search(good_ns=good_ns, seconds=left, runs=runs or ON_TOP_RUNS, cancelled=self.cancelled)
            done = all(phase.best_ns is not None and phase.best_ns <= ns / (1.0 - gap) for phase, ns in phases)
            if done and gap > LEAST_GAP:
                # Each phase is good enough, but what rounds off the whole may still be in one of them.
                gap, done = gap / 2, False
            waits = on_top is not None and on_top.count < ON_TOP_RUNS
            if self._is_good(good_ns) or (done and not waits) or runs is not None or time.monotonic() >= until:
                return self.best
            if self.cancelled is not None and self.cancelled():
                return self.best
            turn *= LONGER

    def _is_good(self, good_ns: float) -> bool:
        return self.best_ns is not None and self.best_ns <= good_ns

    def _joined(self, sums: Sequence[Send], copies: Sequence[Send]) -> tuple[Send, ...]:
        """Copies after sums, each as early as the order of every resource allows."""
        end = finish_ns(self.instance, sums)
        later = tuple(replace(send, start_ns=send.start_ns + end) for send in copies)
        return retime(self.instance, in_order((*sums, *later)))

    def _on_top(self, sums: tuple[Send, ...]) -> Restarts:
        """List scheduling of the copies in the room that sums leave."""
        release = Release(sums_ready_ns(self.instance, self.roots, sums), taken(self.instance, sums))

        def better(sends: tuple[Send, ...], _: int) -> None:
            self._offer(retime(self.instance, in_order((*sums, *sends))))

        return Restarts(self.after, self.seed, release=release, on_better=better)

    def _offer(self, sends: tuple[Send, ...]) -> None:
        time_ns = finish_ns(self.instance, sends)
        if self.best_ns is None or time_ns < self.best_ns:
            self.best, self.best_ns = sends, time_ns
            if self.on_better is not None:
                self.on_better(sends, time_ns)
