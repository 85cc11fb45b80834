"""Replays a placement plan without a look at how it was found.

What a plan may do:
- An absence is in one live gap of its block, at most one in each.
- Its bytes are in its tier meanwhile: a store of what the gap holds, queued after the write and no later than the
  absence, or a block that no operator writes.
- A block that is stored is on the device, with contents that will be read: no absence of these comes before the store.
- At every operator, what is on the device takes no more than the budget. A block counts from the operator at which its
  load is queued.
- No tier holds more than its capacity. A copy counts from the operator at which its store is queued to the last reader
  that it is loaded for, one of a block that no operator writes for the whole step.
The time of a step is that of :mod:`loadmaster.models.placement.replay`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from loadmaster.errors import InputError
from loadmaster.models.documents import expect_problem
from loadmaster.models.placement.accesses import Accesses, Gap, add_cyclic
from loadmaster.models.placement.limits import least_bytes, least_us, peak_bytes
from loadmaster.models.placement.plan import Absence, Moves, PlacementPlan, Store
from loadmaster.models.placement.problem import PlacementProblem
from loadmaster.models.placement.replay import TimedAbsence, TimedStore, Timeline, replay
from loadmaster.models.statements import Recomputed, Statements, unexplained
from loadmaster.models.units import show_bytes
from loadmaster.solvers.program import IntArray

# More would say the same again.
_MOST_SAID = 20


@dataclass(frozen=True)
class PlacementCheck:
    """The verdict.

    Attributes:
        violations: in words, empty when the plan holds.
        peak_bytes, peak_at: the most that is on the device, and the operator there.
        resident_bytes: [operators] what is on the device while each runs.
        stored_bytes, loaded_bytes: that a step moves, over all tiers.
        written_bytes: that a step writes to each tier.
        timeline: None where the plan does not hold.
    """

    violations: tuple[str, ...]
    peak_bytes: int
    peak_at: str
    resident_bytes: IntArray = field(repr=False)
    stored_bytes: int
    loaded_bytes: int
    written_bytes: tuple[int, ...]
    compute_us: float
    timeline: Timeline | None = field(repr=False)

    @property
    def ok(self) -> bool:
        """True if there are no violations."""
        return not self.violations

    @property
    def objective(self) -> float:
        """Time of a step in microseconds."""
        return 0.0 if self.timeline is None else self.timeline.step_us

    def summary(self) -> dict[str, object]:
        """Summarize the check for the plan document."""
        return {
            "ok": self.ok,
            "peak_bytes": self.peak_bytes,
            "peak_at": self.peak_at,
            "step_us": self.objective,
            "stall_us": max(self.objective - self.compute_us, 0.0),
            "stored_bytes": self.stored_bytes,
            "loaded_bytes": self.loaded_bytes,
        }


def check_plan(problem: PlacementProblem, plan: PlacementPlan) -> PlacementCheck:
    """Replay a plan; raise InputError for a plan of another problem, or an infeasible one."""
    expect_problem(plan.problem_sha256, problem.sha256)
    if plan.moves is None:
        raise InputError("status", plan.status, "there are no moves to replay", "Check a plan that was found.")
    return check(problem, plan.moves, plan.budget_bytes)


def check(
    problem: PlacementProblem, moves: Moves, budget_bytes: int, accesses: Accesses | None = None
) -> PlacementCheck:
    """Hold moves against the rules above, and time them."""
    return _Replay(problem, moves, budget_bytes, accesses or Accesses(problem)).verdict()


class _Replay:
    def __init__(self, problem: PlacementProblem, moves: Moves, budget_bytes: int, accesses: Accesses) -> None:
        self.problem, self.moves, self.budget_bytes, self.accesses = problem, moves, budget_bytes, accesses
        self.count = accesses.count
        self.wrong: list[str] = []
        self._stores: dict[tuple[int, int], list[int]] = {}
        for s, store in enumerate(moves.stores):
            self._stores.setdefault((store.block, store.tier), []).append(s)

    def verdict(self) -> PlacementCheck:
        resident = self.accesses.live_bytes.copy()
        held = [np.zeros(self.count, dtype=np.int64) for _ in self.problem.tiers]
        timed: list[TimedAbsence] = []
        if self._indices_hold():
            timed = self._absences(resident, held)
            self._capacities(held)
        at = int(resident.argmax())
        if resident[at] > self.budget_bytes:
            over = show_bytes(int(resident[at]) - self.budget_bytes)
            self.wrong.append(f"{show_bytes(int(resident[at]))} at {self._name(at)} are {over} over the budget")
        sizes = [b.size_bytes for b in self.problem.blocks]
        written = [0] * len(self.problem.tiers)
        timeline = None
        if not self.wrong:
            for store in self.moves.stores:
                written[store.tier] += sizes[store.block]
            stores = [
                TimedStore(s.tier, s.at, self.problem.tiers[s.tier].store_us(sizes[s.block])) for s in self.moves.stores
            ]
            timeline = replay(self.problem, stores, timed)
        return PlacementCheck(
            violations=tuple(self.wrong[:_MOST_SAID]),
            peak_bytes=int(resident[at]),
            peak_at=self._name(at),
            resident_bytes=resident,
            stored_bytes=sum(written),
            loaded_bytes=sum(sizes[a.block] for a in self.moves.absences) if timeline is not None else 0,
            written_bytes=tuple(written),
            compute_us=self.problem.compute_us,
            timeline=timeline,
        )

    def _indices_hold(self) -> bool:
        blocks, tiers = len(self.problem.blocks), len(self.problem.tiers)
        everything: tuple[Store | Absence, ...] = (*self.moves.stores, *self.moves.absences)
        for move in everything:
            if move.block >= blocks or move.tier >= tiers:
                self.wrong.append(f"block {move.block}, tier {move.tier} is moved: there is no such one")
        for n, store in enumerate(self.moves.stores):
            if store.at >= self.count:
                self.wrong.append(f"store {n} is at {store.at}: the step has {self.count} operators")
        for n, absence in enumerate(self.moves.absences):
            if absence.gone_at >= self.count or not 0 < absence.load_at - absence.gone_at <= self.count:
                self.wrong.append(f"absence {n} from {absence.gone_at} to {absence.load_at} is no part of a step")
        return not self.wrong

    def _absences(self, resident: IntArray, held: list[IntArray]) -> list[TimedAbsence]:
        """Check each absence and time it with its gap and copy; what is free and what is held goes into the arrays."""
        timed = []
        taken: set[Gap] = set()
        first_gone: dict[tuple[int, int | None], int] = {}
        used: list[tuple[int, Gap, int, int]] = []
        for n, absence in enumerate(self.moves.absences):
            found = self._gap(absence)
            if found is None:
                self.wrong.append(f"{self._of(n)} is in no gap in which the block is only waited for")
                continue
            gap, shift = found
            if gap in taken:
                self.wrong.append(f"{self._of(n)} is the second one in the same gap")
            taken.add(gap)
            gone = absence.gone_at + shift
            age = gone - self._written(gap)
            first_gone[gap.contents] = min(age, first_gone.get(gap.contents, age))
            used.append((n, gap, gone, age))
            size = self.problem.blocks[absence.block].size_bytes
            add_cyclic(resident, absence.gone_at, absence.load_at, -size)
        self._stores_hold(first_gone)
        last_read: dict[tuple[int, int | None, int], tuple[int, int]] = {}
        for n, gap, gone, age in used:
            absence = self.moves.absences[n]
            size, tier = self.problem.blocks[absence.block].size_bytes, self.problem.tiers[absence.tier]
            store, store_steps = None, 0
            start, end = 0, self.count
            if gap.written is not None:
                store, store_age = self._copy(absence, age, first_gone[gap.contents])
                if store is None:
                    self.wrong.append(f"{self._of(n)} has no store before it that holds what is read again")
                    continue
                position = gone - age + store_age
                # Positions of the replay count from the step of gone_at.
                store_steps = (position - gone + absence.gone_at - self.moves.stores[store].at) // self.count
                start, end = position, gap.before
            key = (*gap.contents, absence.tier)
            before = last_read.get(key, (start, 0))
            last_read[key] = (start, max(before[1], end - start))
            timed.append(
                TimedAbsence(
                    absence.tier,
                    absence.gone_at,
                    absence.load_at,
                    gap.before - gone + absence.gone_at,
                    tier.load_us(size),
                    store,
                    store_steps,
                )
            )
        for (block, _, number), (start, length) in last_read.items():
            add_cyclic(held[number], start, start + min(length, self.count), self.problem.blocks[block].size_bytes)
        return timed

    def _stores_hold(self, first_gone: Mapping[tuple[int, int | None], int]) -> None:
        """Check that each store copies what an operator wrote and another will read, before the first absence of it."""
        for n, store in enumerate(self.moves.stores):
            said = f"store {n} of {self.problem.blocks[store.block].name} at {store.at}"
            found = self._around(store.block, store.at, store.at)
            if found is None:
                self.wrong.append(f"{said} is of nothing that is read again")
                continue
            gap, shift = found
            if gap.written is None:
                self.wrong.append(f"{said} is of a block that nobody writes")
            elif store.at + shift - self._written(gap) > first_gone.get(gap.contents, self.count):
                self.wrong.append(f"{said} comes after it has left")

    def _gap(self, absence: Absence) -> tuple[Gap, int] | None:
        return self._around(absence.block, absence.gone_at, absence.load_at)

    def _around(self, block: int, start: int, end: int) -> tuple[Gap, int] | None:
        """Live gap of a block that these positions are in, and what is added to them to count from its step."""
        for gap in self.accesses.by_block[block]:
            for shift in (0, self.count):
                if gap.after < start + shift and end + shift <= gap.before:
                    return gap, shift
        return None

    def _written(self, gap: Gap) -> int:
        """Position of the write of what it holds; that of the gap's first use where nothing writes the block."""
        if gap.written is None:
            return gap.after
        return gap.written if gap.written <= gap.after else gap.written - self.count

    def _copy(self, absence: Absence, age: int, first_gone: int) -> tuple[int | None, int]:
        """The store of what an absence ``age`` operators after the write holds, and the store's own age: 1 is at once.
        It comes no later than the first absence of the same contents."""
        written = absence.gone_at - age
        for s in self._stores.get((absence.block, absence.tier), ()):
            store_age = (self.moves.stores[s].at - written - 1) % self.count + 1
            if store_age <= first_gone:
                return s, store_age
        return None, 0

    def _capacities(self, held: list[IntArray]) -> None:
        for tier, used in zip(self.problem.tiers, held, strict=True):
            at = int(used.argmax())
            if tier.capacity_bytes is not None and used[at] > tier.capacity_bytes:
                most = show_bytes(tier.capacity_bytes)
                self.wrong.append(f"{tier.name} holds {show_bytes(int(used[at]))} at {self._name(at)}, of {most}")

    def _of(self, n: int) -> str:
        absence = self.moves.absences[n]
        return f"absence {n} of {self.problem.blocks[absence.block].name} from {absence.gone_at} to {absence.load_at}"

    def _name(self, i: int) -> str:
        return f"operator {i} ({self.problem.operators[i].words})"


_FULL = ", with all tiers full"


def _recompute(problem: PlacementProblem, plan: PlacementPlan, verdict: PlacementCheck | None) -> Recomputed:
    fields = {"compute_us": problem.compute_us, "method": plan.options.get("method", plan.method)}
    if verdict is not None:
        return Recomputed(fields, least_us(problem, plan.budget_bytes))
    peak, (least, at) = peak_bytes(problem), least_bytes(problem)
    if peak <= plan.budget_bytes:
        return Recomputed({**fields, "status": "feasible", "infeasibility": None})
    if plan.infeasibility is None:
        return unexplained(fields)
    # An operator that needs more by itself says how much; what tiers lack takes a search to say.
    minimum, where = plan.infeasibility.minimum_budget_bytes, plan.infeasibility.where
    least = max(least, plan.budget_bytes + 1)
    follows: dict[str, object] = {}
    if not where.endswith(_FULL):
        minimum = follows["minimum_budget_bytes"] = least
    crowded = int(Accesses(problem).live_bytes.argmax())
    places = [f"operator {i} ({problem.operators[i].words})" for i in (at, crowded)]
    follows["where"] = where if where.removesuffix(_FULL) in places else places[0]
    follows["short_bytes"] = minimum - plan.budget_bytes
    said = f"infeasibility.minimum_budget_bytes: the plan says {minimum}, which is not in {least}..{peak}"
    return Recomputed({**fields, "infeasibility": follows}, wrong=() if least <= minimum <= peak else (said,))


STATEMENTS = Statements(
    decisions=frozenset({"moves"}),
    trusted=frozenset({"infeasibility.minimum_budget_bytes"}),
    recompute=_recompute,
)
