"""From decisions to the best schedule that carries them out.

The formulations decide *what is computed when* and *what each backward operator reads*. Given that, the rest is exact
and cheap: a recomputation that nothing wants is dropped, results are kept exactly as long as the accounting asks, and
every operator takes its cheapest implementation that fits the bytes left while it runs (an implementation's workspace
is held by that operator alone, so the choices do not interact).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from loadmaster.models.memory.plan import Compute, Fetch, Schedule, Stage
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.solvers.program import IntArray


@dataclass(frozen=True)
class Decisions:
    """What a formulation decided.

    Attributes:
        computes: forward operators run in each stage 0..K (stage 0: which encoded results too).
        backward: implementation of each backward operator, [K], first entry for k = 1.
        offload: results sent to the host.
        fetches: for each stage, results that arrive there, with the stage that issues them.
    """

    computes: tuple[frozenset[int], ...]
    backward: tuple[int, ...]
    offload: tuple[int, ...] = ()
    fetches: Mapping[int, tuple[Fetch, ...]] = field(default_factory=dict)


def complete(problem: MemoryProblem, budget_bytes: int, decisions: Decisions) -> Schedule:
    """The cheapest schedule of those decisions. It may still break the budget: the checker says so."""
    computes, keeps = _liveness(problem, decisions)
    stages = []
    stored: frozenset[int] = frozenset()
    for t in range(problem.stage_count):
        fetches = tuple(f for f in decisions.fetches.get(t, ()))
        stored |= {f.forward for f in fetches}
        room = _Room(problem, budget_bytes, t, stored, keeps[t], computes[t], _needs(problem, decisions, t))
        stages.append(
            Stage(
                computes=room.forward_choices(computes[t]),
                implementation=None if t == 0 else room.backward_choice(decisions.backward[t - 1]),
                keep=tuple(sorted(keeps[t])),
                fetches=fetches,
            )
        )
        stored = keeps[t]
    return Schedule(tuple(stages), decisions.offload)


def _needs(problem: MemoryProblem, decisions: Decisions, t: int) -> frozenset[int]:
    if t == 0:
        return frozenset()
    return frozenset(problem.backward[t - 1].implementations[decisions.backward[t - 1]].needs)


def _liveness(problem: MemoryProblem, decisions: Decisions) -> tuple[list[frozenset[int]], list[frozenset[int]]]:
    """Computes without the useless ones, and the least keep of every stage; backwards over the stages."""
    count = problem.stage_count
    computes: list[frozenset[int]] = [frozenset()] * count
    keeps: list[frozenset[int]] = [frozenset()] * count
    wanted_later: frozenset[int] = frozenset()
    for t in range(count - 1, -1, -1):
        needs = _needs(problem, decisions, t)
        arriving = {f.forward for f in decisions.fetches.get(t, ())}
        if t == 0:
            keeps[0] = wanted_later
            computes[0] = frozenset(
                j for j in decisions.computes[0] if problem.forward[j].encodes is None or j in wanted_later
            )
            break
        wanted = set(wanted_later | needs)
        useful: set[int] = set()
        for j in sorted(decisions.computes[t], reverse=True):
            # An encoded result is computed beside its parent, wanted or not.
            if j in wanted or any(e in useful for e in problem.encodings[j]):
                useful.add(j)
                wanted.update(problem.forward[j].inputs)
        computes[t] = frozenset(useful)
        # What backward reads from storage, not from this stage's computes, stays through the stage.
        keeps[t] = wanted_later | (needs - useful)
        wanted_later = frozenset(_read_from_storage(problem, useful) | (keeps[t] - useful)) - arriving
    return computes, keeps


def _read_from_storage(problem: MemoryProblem, computes: set[int]) -> set[int]:
    """Inputs of this stage's computes that the stage itself does not compute."""
    return {i for j in computes for i in problem.forward[j].inputs if i not in computes}


class _Room:
    """The bytes left to each operator of one stage, by the checker's accounting."""

    def __init__(
        self,
        problem: MemoryProblem,
        budget_bytes: int,
        t: int,
        stored: frozenset[int],
        keep: frozenset[int],
        computes: frozenset[int],
        needs: frozenset[int],
    ) -> None:
        self.problem, self.budget, self.t = problem, budget_bytes, t
        self.keep, self.computes, self.needs = keep, computes, needs
        sizes = problem.output_bytes
        self.after = np.concatenate((np.cumsum(_bytes_of(stored, sizes)[::-1])[::-1], [0]))
        self.before = np.concatenate(([0], np.cumsum(_bytes_of(keep | needs, sizes))))

    def forward_choices(self, computes: frozenset[int]) -> tuple[Compute, ...]:
        """The cheapest implementation of each compute that fits, in place where that is legal and pays."""
        chosen: list[Compute] = []
        in_place: dict[int, bool] = {}
        gradients = self.problem.gradient_bytes(self.t)
        sizes = self.problem.output_bytes
        for j in sorted(computes):
            f = self.problem.forward[j]
            resident = (
                gradients
                + f.output_bytes
                + f.live_bytes
                + int(self.after[j + 1])
                + int(self.before[j])
                - sum(int(sizes[i]) for i in f.live_inputs if i in self.keep)
            )
            implementations = f.implementations if self.t == 0 else f.recompute_implementations
            options = []
            for inside in self._in_place_options(j, in_place):
                delta = f.in_place if inside else None
                extra_bytes = delta.workspace_delta_bytes if delta is not None else 0
                extra_cost = self.problem.in_place_cost(delta) if delta is not None else 0.0
                for c, implementation in enumerate(implementations):
                    peak = resident + implementation.workspace_bytes + extra_bytes
                    cost = self.problem.cost(implementation) + extra_cost
                    options.append((max(0, peak - self.budget), cost, peak, c, inside))
            _, _, _, c, inside = min(options)
            in_place[j] = inside
            chosen.append(Compute(j, c, inside))
        return tuple(chosen)

    def _in_place_options(self, j: int, in_place: Mapping[int, bool]) -> tuple[bool, ...]:
        f = self.problem.forward[j]
        if f.in_place is None:
            return (False,)
        if f.encodes is not None:
            return (in_place.get(f.encodes, False),)
        lost = f.in_place.overwrites
        read_later = any(j < r and r in self.computes for r in self.problem.consumers[lost])
        if lost in self.keep or lost in self.needs or read_later:
            return (False,)
        return (False, True)

    def backward_choice(self, decided: int) -> int:
        """The cheapest backward implementation that fits and reads no more than the decided one made available."""
        operator = self.problem.backward[self.t - 1]
        sizes = self.problem.output_bytes
        intact = self.keep | self.needs
        options = []
        for number, choice in enumerate(operator.implementations):
            if not set(choice.needs) <= intact:
                continue
            peak = (
                choice.workspace_bytes
                + operator.live_bytes
                + operator.fixed_bytes
                + operator.output_bytes
                + sum(int(sizes[i]) for i in self.keep | set(choice.needs))
            )
            over = max(0, peak - self.budget)
            options.append((over, self.problem.cost(choice), number != decided, number))
        return min(options)[3]


def _bytes_of(ids: frozenset[int], sizes: IntArray) -> IntArray:
    held = np.zeros(len(sizes), dtype=np.int64)
    index = np.fromiter(ids, dtype=np.int64, count=len(ids))
    held[index] = sizes[index]
    return held


def decisions_of(schedule: Schedule) -> Decisions:
    """The decisions a schedule carries out (used to start one formulation from another's plan)."""
    return Decisions(
        computes=tuple(frozenset(c.forward for c in s.computes) for s in schedule.stages),
        backward=tuple(s.implementation or 0 for s in schedule.stages[1:]),
        offload=schedule.offload,
        fetches={t: s.fetches for t, s in enumerate(schedule.stages) if s.fetches},
    )


def stored_at(schedule: Schedule, t: int) -> frozenset[int]:
    """S[t]: results on the device when stage t starts."""
    stages: Sequence[Stage] = schedule.stages
    carried = frozenset(stages[t - 1].keep) if t > 0 else frozenset()
    return carried | {f.forward for f in stages[t].fetches}
