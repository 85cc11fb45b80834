"""Better evictions, step by step: what operators wait for stays, something else goes, and what is better is kept.

Large neighbourhood search [Shaw98]: one move takes back some of the evictions whose copies an operator waits for, gives
every operator what it then lacks from the gaps with the most idle link time, takes back what is not needed, and replays
the step.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from loadmaster.errors import CheckFailedError
from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.checker import PlacementCheck, check
from loadmaster.models.placement.plan import Moves
from loadmaster.models.placement.replay import Timeline
from loadmaster.planner.placement.evictions import Evictions, TiersFullError
from loadmaster.planner.placement.links import Clock, Links
from loadmaster.planner.placement.schedule import queued

# A step that is so much longer is still gone on from: the way to a better one may lead over it.
_SLIGHTLY_LONGER = 5e-4
# Of the evictions that are taken back, so many are asked last for what is lacking then.
_BARRED_SHARE = 0.7
# How many are taken back at once: mostly few.
_TAKEN_BACK = (1, 1, 2, 3, 5)
_CLOSE_US = 1e-6
# After so many neighbours for each gap of which none was better, another is not expected to be.
_FRUITLESS = 8


@dataclass(frozen=True, eq=False)
class Found:
    """Evictions, the moves that they make, and what the checker says of them."""

    evictions: Evictions
    moves: Moves
    check: PlacementCheck

    @property
    def step_us(self) -> float:
        """Objective: the time of a step in us."""
        return self.check.objective

    @property
    def timeline(self) -> Timeline:
        """Timeline of the checker's replay."""
        assert self.check.timeline is not None
        return self.check.timeline


class Search:
    """Looks for better moves of one problem under one budget."""

    def __init__(self, accesses: Accesses, budget_bytes: int, seed: int) -> None:
        self.accesses, self.budget_bytes = accesses, budget_bytes
        self.times_us = [o.time_us for o in accesses.problem.operators]
        self._random = random.Random(seed)

    def evaluate(self, evictions: Evictions, clock: Clock) -> Found:
        """Schedule the moves of evictions by a clock, and check them. Raises CheckFailedError if the checker refuses
        them."""
        moves = queued(evictions, clock)
        verdict = check(self.accesses.problem, moves, self.budget_bytes, self.accesses)
        if not verdict.ok:
            name = self.accesses.problem.name
            raise CheckFailedError(f"a plan of {name} fails its check: {verdict.violations[0]}. Please report it.")
        return Found(evictions, moves, verdict)

    def clock(self, found: Found) -> Clock:
        """Clock of a replay's times."""
        return Clock(found.timeline.starts_us, self.times_us, found.timeline.step_us)

    def idle_links(self, clock: Clock) -> Links:
        """Idle times of links without any copies."""
        nothing: list[list[tuple[float, float]]] = [[] for _ in self.accesses.problem.tiers]
        return Links(clock, nothing, nothing)

    def improve(self, found: Found, over: Callable[[], bool], told: Callable[[Found], None]) -> Found:
        """Search until it is over, nothing waits any more, or nothing gets better; return the best found. ``told`` is
        called with each that is better than all before."""
        best = here = found
        fruitless = 0
        while fruitless < _FRUITLESS * len(found.evictions.gaps) and not over():
            fruitless += 1
            tried = self._neighbour(here)
            if tried is None:
                break
            if tried.step_us <= here.step_us * (1 + _SLIGHTLY_LONGER):
                here = tried
            if tried.step_us < best.step_us - _CLOSE_US:
                best, fruitless = tried, 0
                told(best)
        return best

    def _neighbour(self, found: Found) -> Found | None:
        """Change evictions around an operator that waits; None where none does."""
        clock = self.clock(found)
        starts = np.array(clock.starts_us)
        wait = np.maximum(starts - np.array([0.0, *clock.ends_us[:-1]]), 0.0)
        if wait.sum() <= _CLOSE_US * clock.step_us:
            return None
        i = self._random.choices(range(len(wait)), weights=wait.tolist())[0]
        awaited = self._awaited(found, float(starts[i] - wait[i]), float(starts[i]))
        count = min(len(awaited), self._random.choice(_TAKEN_BACK))
        evictions = found.evictions.copy()
        barred = np.zeros(len(evictions.gaps), dtype=np.bool_)
        for g in self._random.sample(awaited, count):
            evictions.tier[g] = -1
            barred[g] = self._random.random() < _BARRED_SHARE
        try:
            evictions.keep_the_budget(self._links(found, clock), barred)
        except TiersFullError:
            return found
        order = np.flatnonzero(evictions.tier >= 0).tolist()
        self._random.shuffle(order)
        evictions.relax(np.array(order, dtype=np.int64))
        return self.evaluate(evictions, clock)

    def _awaited(self, found: Found, start_us: float, end_us: float) -> list[int]:
        """List gaps whose copies end while an operator waits from ``start_us`` to ``end_us``."""
        of_block: dict[int, list[int]] = {}
        of_absence: dict[tuple[int, int], int] = {}
        for g in np.flatnonzero(found.evictions.tier >= 0).tolist():
            block = found.evictions.gaps[g].block
            of_block.setdefault(block, []).append(g)
            of_absence[block, int(found.evictions.first[g]) % self.accesses.count] = g
        awaited: dict[int, None] = {}
        for c in found.timeline.copies:
            for shift in (0.0, found.timeline.step_us):
                if start_us - _CLOSE_US < c.end_us - shift <= end_us + _CLOSE_US:
                    if c.what == "store":
                        awaited.update(dict.fromkeys(of_block.get(found.moves.stores[c.index].block, ())))
                    else:
                        absence = found.moves.absences[c.index]
                        awaited[of_absence[absence.block, absence.gone_at]] = None
        return list(awaited)

    def _links(self, found: Found, clock: Clock) -> Links:
        stores: list[list[tuple[float, float]]] = [[] for _ in self.accesses.problem.tiers]
        loads: list[list[tuple[float, float]]] = [[] for _ in self.accesses.problem.tiers]
        for c in found.timeline.copies:
            if c.what == "store":
                stores[found.moves.stores[c.index].tier].append((c.start_us, c.end_us))
            else:
                loads[found.moves.absences[c.index].tier].append((c.start_us, c.end_us))
        return Links(clock, stores, loads)
