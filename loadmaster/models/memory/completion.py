"""Completion of decisions: the best schedule that carries them out.

The formulations decide *what is computed when* and *what each backward operator reads*. Given that, the rest is exact
and cheap: a recomputation that nothing wants is dropped, results are kept exactly as long as the accounting asks, and
every operator takes its cheapest implementation that fits the bytes left while it runs (an implementation's workspace
is held by that operator alone, so the choices do not interact; only running in place is chosen for an operator and its
encoded results at once). Results that are sent leave the device as late as the budget allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from loadmaster.models.memory.links import latest_departures, sending_order
from loadmaster.models.memory.plan import Compute, Fetch, Schedule, Stage
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.solvers.program import IntArray


@dataclass(frozen=True)
class Decisions:
    """Decisions of a formulation: what is computed, sent, fetched and kept in which stage.

    Attributes:
        computes: forward operators run in each stage 0..K (stage 0: which encoded results too).
        backward: implementation of each backward operator, [K], first entry for k = 1.
        fetches: for each stage, results that arrive there, with the stage that issues them.
        keep: for each stage, what it may keep without anybody reading it later. That is worth something where backward
            reads a result and a compute of the stage counts it among its live inputs: the accounting charges it once if
            it is kept, and twice if it is not.
    """

    computes: tuple[frozenset[int], ...]
    backward: tuple[int, ...]
    offload: tuple[int, ...] = ()
    fetches: Mapping[int, tuple[Fetch, ...]] = field(default_factory=dict)
    keep: Mapping[int, frozenset[int]] = field(default_factory=dict)


def complete(problem: MemoryProblem, budget_bytes: int, decisions: Decisions) -> Schedule:
    """The cheapest schedule of those decisions. It may still break the budget: the checker says so."""
    computes, keeps, fetches = _liveness(problem, decisions)
    fetched = {f.forward for arriving in fetches for f in arriving}
    offload = sending_order(problem, [i for i in decisions.offload if i in fetched])
    gone_before: tuple[int, ...] = ()
    stages = []
    stored: frozenset[int] = frozenset()
    for t in range(problem.stage_count):
        stored |= {f.forward for f in fetches[t]}
        under_way = [f.forward for arriving in fetches[t + 1 :] for f in arriving if f.issued_at <= t]
        room = _Room(
            problem,
            budget_bytes - int(problem.output_bytes[under_way].sum()),
            t,
            stored,
            keeps[t],
            computes[t],
            _needs(problem, decisions, t),
            not_lost=frozenset(offload) if t == 0 else frozenset(),
        )
        chosen = room.forward_choices(computes[t])
        if t == 0:
            gone_before = latest_departures(problem, offload, room.left_bytes(chosen))
        stages.append(
            Stage(
                computes=chosen,
                implementation=None if t == 0 else room.backward_choice(decisions.backward[t - 1]),
                keep=tuple(sorted(keeps[t])),
                fetches=fetches[t],
            )
        )
        stored = keeps[t]
    return Schedule(tuple(stages), offload, gone_before)


def _needs(problem: MemoryProblem, decisions: Decisions, t: int) -> frozenset[int]:
    if t == 0:
        return frozenset()
    return frozenset(problem.backward[t - 1].implementations[decisions.backward[t - 1]].needs)


def _liveness(
    problem: MemoryProblem, decisions: Decisions
) -> tuple[list[frozenset[int]], list[frozenset[int]], list[tuple[Fetch, ...]]]:
    """Computes and fetches without the useless ones, and the least keep of every stage; backwards over the stages."""
    count = problem.stage_count
    computes: list[frozenset[int]] = [frozenset()] * count
    keeps: list[frozenset[int]] = [frozenset()] * count
    fetches: list[tuple[Fetch, ...]] = [()] * count
    wanted_next: frozenset[int] = frozenset()
    for t in range(count - 1, 0, -1):
        needs = _needs(problem, decisions, t)
        arriving = {f.forward for f in decisions.fetches.get(t + 1, ())}
        wanted = set(wanted_next | needs)
        useful: set[int] = set()
        for j in sorted(decisions.computes[t], reverse=True):
            # An encoded result is computed with its parent, wanted or not.
            if j in wanted or any(e in useful for e in problem.encodings[j]):
                useful.add(j)
                wanted.update(problem.forward[j].inputs)
        computes[t] = frozenset(useful)
        live = {i for j in useful for i in problem.forward[j].live_inputs}
        # What backward reads from storage, not from this stage's computes, stays through the stage.
        keeps[t] = (wanted_next - arriving) | (needs - useful) | (needs & live & decisions.keep.get(t, frozenset()))
        fetches[t] = decisions.fetches.get(t, ())
        _drop_needless(fetches, t + 1, wanted_next - keeps[t])
        wanted_next = frozenset(_read_from_storage(problem, useful) | (keeps[t] - useful))
    keeps[0] = wanted_next - {f.forward for f in fetches[1]}
    _drop_needless(fetches, 1, wanted_next)
    lasting = keeps[0] | {f.forward for arrived in fetches for f in arrived}
    computes[0] = problem.first_run(lasting & decisions.computes[0])
    return computes, keeps, fetches


def _drop_needless(fetches: list[tuple[Fetch, ...]], t: int, wanted: frozenset[int]) -> None:
    if t < len(fetches):
        fetches[t] = tuple(f for f in fetches[t] if f.forward in wanted)


def _read_from_storage(problem: MemoryProblem, computes: set[int]) -> set[int]:
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
        not_lost: frozenset[int],
    ) -> None:
        self.problem, self.budget, self.t = problem, budget_bytes, t
        self.keep, self.computes, self.needs = keep, computes, needs
        self.lasting = keep | needs | not_lost
        sizes = problem.output_bytes
        self.after = np.concatenate((np.cumsum(_bytes_of(stored, sizes)[::-1])[::-1], [0]))
        self.before = np.concatenate(([0], np.cumsum(_bytes_of(keep | needs, sizes))))

    def forward_choices(self, computes: frozenset[int]) -> tuple[Compute, ...]:
        """The cheapest implementation of each compute that fits, in place where that is legal and pays."""
        chosen: list[Compute] = []
        in_place: dict[int, bool] = {}
        for j in sorted(computes):
            f = self.problem.forward[j]
            if f.encodes is not None:
                in_place[j] = f.in_place is not None and in_place.get(f.encodes, False)
            else:
                in_place[j] = self._may_overwrite(j) and self._together(j, True) < self._together(j, False)
            *_, c = self._best(j, in_place[j])
            chosen.append(Compute(j, c, in_place[j]))
        return tuple(chosen)

    def left_bytes(self, chosen: Sequence[Compute]) -> list[int]:
        """Bytes left of the budget [V]: just before each forward operator, and while it runs if it does."""
        gradients = self.problem.gradient_bytes(self.t)
        used = [gradients + int(self.after[j] + self.before[j]) for j in range(len(self.problem.forward))]
        for c in chosen:
            used[c.forward] = max(used[c.forward], self._peak_bytes(c.forward, c.implementation, c.in_place))
        return [self.budget - size for size in used]

    def _best(self, j: int, inside: bool) -> tuple[int, float, int, int]:
        """The cheapest implementation of j that fits: bytes over the budget, cost, bytes resident, its number."""
        f = self.problem.forward[j]
        extra_cost = self.problem.in_place_cost(f.in_place) if inside and f.in_place is not None else 0.0
        options = []
        for c, implementation in enumerate(f.implementations if self.t == 0 else f.recompute_implementations):
            peak = self._peak_bytes(j, c, inside)
            options.append((max(0, peak - self.budget), self.problem.cost(implementation) + extra_cost, peak, c))
        return min(options)

    def _peak_bytes(self, j: int, implementation: int, inside: bool) -> int:
        f = self.problem.forward[j]
        sizes = self.problem.output_bytes
        choices = f.implementations if self.t == 0 else f.recompute_implementations
        return (
            self.problem.gradient_bytes(self.t)
            + f.output_bytes
            + f.live_bytes
            + int(self.after[j + 1])
            + int(self.before[j])
            - sum(int(sizes[i]) for i in f.live_inputs if i in self.keep)
            + choices[implementation].workspace_bytes
            + (f.in_place.workspace_delta_bytes if inside and f.in_place is not None else 0)
        )

    def _together(self, j: int, inside: bool) -> tuple[int, float, int]:
        """Bytes over the budget, cost and bytes resident, summed over j and its encoded results run in place too."""
        beside = [e for e in self.problem.encodings[j] if e in self.computes]
        parts = [self._best(i, inside) for i in (j, *(e for e in beside if self.problem.forward[e].in_place))]
        return sum(p[0] for p in parts), sum(p[1] for p in parts), sum(p[2] for p in parts)

    def _may_overwrite(self, j: int) -> bool:
        f = self.problem.forward[j]
        if f.in_place is None:
            return False
        lost = f.in_place.overwrites
        read_later = any(j < r and r in self.computes for r in self.problem.consumers[lost])
        return lost not in self.lasting and not read_later

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


def stored_at(schedule: Schedule, t: int) -> frozenset[int]:
    """Results on the device when stage t starts, S[t]."""
    stages: Sequence[Stage] = schedule.stages
    carried = frozenset(stages[t - 1].keep) if t > 0 else frozenset()
    return carried | {f.forward for f in stages[t].fetches}
