"""Holds partition plans against their problem, from shapes alone.

A plan holds when

(P1)  every tensor has a part on every axis, is split into equal units, along dimensions that are of use
      (:mod:`.classes`), is stored nowhere as terms of a sum and, where the problem asks for equal shares of
      everything, is divided as far as it can be;
(P2)  every operator has strategies that it has, by which all its inputs and outputs are split into equal units; where
      the problem asks for equal shares of everything, its work is divided as far as it can be;
(P3)  every input can be brought from where it is stored to where it is needed, every output from where it is made to
      where it is stored;
(P4)  tensors of one tie have one placement, operators of one tie one strategy on every axis; elementwise operators run
      where their tensors are, all of which have one placement; copies run where their results are, which is where
      their originals are if nothing may be stored twice;
(P5)  a worker never holds more than its part of the budget. While an operator runs it holds its shares of all tensors
      that live then (what lasts, and what was made and is read now or later), a buffer for every input that is needed
      otherwise than it is stored, and one for every output that is made otherwise than it is stored. A copy that is
      placed as its original takes nothing: the two are one; a copy placed otherwise needs no buffer of its own.

The objective is the bytes that all workers receive, or the time of the step: what operators take on their shares, each
as long as the slowest worker, and what the redistributions take (:mod:`.traffic`), one after the other. Of parameters
that are gathered and gradients that are summed only so much counts as the problem says the step waits for (its
``overlap``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from loadmaster.errors import InputError
from loadmaster.models.documents import expect_problem
from loadmaster.models.partition.classes import Classes
from loadmaster.models.partition.limits import least_bytes, least_us, over_time
from loadmaster.models.partition.placements import TERM, Placement, Worker, code, divided, divides
from loadmaster.models.partition.plan import PartitionPlan, Redistribution, Splits
from loadmaster.models.partition.problem import Operator, PartitionProblem, Tensor
from loadmaster.models.partition.sides import (
    Side,
    buffer_bytes,
    copied_bytes,
    exposed,
    runs_where_its_tensors_lie,
    sides,
    work_share,
)
from loadmaster.models.partition.traffic import Traffic
from loadmaster.models.statements import Recomputed, Statements, unexplained
from loadmaster.models.units import show_bytes
from loadmaster.solvers.program import IntArray

_MOST_SHOWN = 20


@dataclass(frozen=True)
class PartitionCheck:
    """The verdict.

    Attributes:
        violations: in words, empty when the plan holds.
        peak_bytes, peak_at: the most that one worker holds, and the operator there. Of a worker that has a part of the
            budget, it is the budget that it needs.
        moved_bytes: what all workers receive together.
        resident_bytes: [operators] what one worker holds while each runs, the fullest one, counted as the peak is.
        held_bytes: for each sort of workers the most that one of them holds.
        redistributions: those that move anything.
    """

    violations: tuple[str, ...]
    objective: float
    peak_bytes: int
    peak_at: str
    moved_bytes: int
    compute_us: float
    transfer_us: float
    resident_bytes: IntArray = field(repr=False)
    held_bytes: Mapping[Worker, int] = field(repr=False)
    redistributions: tuple[Redistribution, ...] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        """True if the plan holds."""
        return not self.violations

    def summary(self) -> dict[str, object]:
        """Summarize the check for the plan document."""
        names = ("ok", "peak_bytes", "peak_at", "moved_bytes", "transfer_us", "compute_us")
        return {name: getattr(self, name) for name in names}


def check_plan(problem: PartitionProblem, plan: PartitionPlan) -> PartitionCheck:
    """Check a plan; raise InputError for a plan of another problem, or an infeasible one."""
    expect_problem(plan.problem_sha256, problem.sha256)
    if plan.splits is None:
        raise InputError("status", plan.status, "nothing is split", "Check a plan that was found.")
    return check(problem, plan.splits, plan.budget_bytes)


def check(problem: PartitionProblem, splits: Splits, budget_bytes: int, rules: Rules | None = None) -> PartitionCheck:
    """Hold placements and strategies against the rules above; give ``rules`` to check several plans of one problem."""
    return _Checking(problem, splits, budget_bytes, rules or Rules(problem)).verdict()


class Rules:
    """Classes and strategies of one problem, and the costs of redistributions: shared by all its checks."""

    def __init__(self, problem: PartitionProblem) -> None:
        self.classes, self.traffic = Classes(problem), Traffic(problem.axes)


class _Checking:
    def __init__(self, problem: PartitionProblem, splits: Splits, budget_bytes: int, rules: Rules) -> None:
        self.problem, self.splits, self.budget_bytes = problem, splits, budget_bytes
        self.traffic, self.classes = rules.traffic, rules.classes
        self.units, self.workers = self.traffic.mesh.units, self.traffic.mesh.workers
        self.possible = self.classes.strategies
        self.wrong: list[str] = []
        self.placements: list[Placement] = []
        self.redistributions: list[Redistribution] = []
        self.compute_us = 0.0
        self._known: dict[object, tuple[float, float]] = {}

    def verdict(self) -> PartitionCheck:
        held = np.zeros((len(self.workers), len(self.problem.operators)), dtype=np.int64)
        needed = held[0]
        if self._sizes_agree() and self._placements_hold():
            for row, worker in zip(held, self.workers, strict=True):
                row += over_time(self.problem, [self._held_bytes(t, p, worker) for t, p in enumerate(self.placements)])
            for n in range(held.shape[1]):
                held[:, n] += self._operator(n)
            self._ties()
            factors = np.array([[worker.memory_factor] for worker in self.workers])
            needed = np.ceil(held / factors).astype(np.int64).max(axis=0)
            self._budget(held, needed)
        at = int(needed.argmax())
        moved = sum(r.received_bytes for r in self.redistributions)
        transfer_us = sum(r.time_us for r in self.redistributions)
        return PartitionCheck(
            violations=tuple(self.wrong[:_MOST_SHOWN]),
            objective=float(moved) if self.problem.objective == "bytes" else self.compute_us + transfer_us,
            peak_bytes=int(needed[at]),
            peak_at=self._name(at),
            moved_bytes=moved,
            compute_us=self.compute_us,
            transfer_us=transfer_us,
            resident_bytes=needed,
            held_bytes=dict(zip(self.workers, held.max(axis=1).tolist(), strict=True)),
            redistributions=tuple(self.redistributions),
        )

    def _budget(self, held: IntArray, needed: IntArray) -> None:
        """Check (P5): no worker holds more than its part of the budget; held [workers, operators], needed
        [operators]."""
        over = np.flatnonzero(needed > self.budget_bytes)
        if len(over):
            n = int(over[0])
            worst = max(range(len(self.workers)), key=lambda w: float(held[w, n]) / self.workers[w].memory_factor)
            limit = show_bytes(int(self.workers[worst].memory_factor * self.budget_bytes))
            self.wrong.append(f"a worker holds {show_bytes(int(held[worst, n]))} at {self._name(n)}, over {limit}")

    def _name(self, n: int) -> str:
        return f"operator {n} ({self.problem.operators[n].words})"

    def _sizes_agree(self) -> bool:
        """Check for (P1) and (P2) that every tensor has a part, and every operator a strategy, on every axis."""
        axes = len(self.units)
        for what, found, wanted in (
            ("placements", self.splits.placements, self.problem.tensors),
            ("strategies", self.splits.strategies, self.problem.operators),
        ):
            if len(found) != len(wanted):
                self.wrong.append(f"there are {len(found)} {what} for {len(wanted)}")
            for n, row in enumerate(found):
                if len(row) != axes:
                    self.wrong.append(f"{what}[{n}] is for {len(row)} axes, the mesh has {axes}")
        for n, (operator, row) in enumerate(zip(self.problem.operators, self.splits.strategies, strict=False)):
            known = len(self.problem.signatures[operator.signature].strategies)
            self.wrong += [f"{self._name(n)} has no strategy {s}" for s in row if s > known]
        return not self.wrong

    def _placements_hold(self) -> bool:
        """Check (P1) for every tensor."""
        for n, (tensor, row) in enumerate(zip(self.problem.tensors, self.splits.placements, strict=True)):
            placement = tuple(map(code, row))
            self.placements.append(placement)
            shown = f"tensor {n} ({tensor.name}), {list(tensor.shape)}, as {' '.join(row)}"
            if not divides(tensor.shape, placement, self.units):
                self.wrong.append(f"{shown}: shares are not equal{self._undivided(tensor, placement)}")
            elif TERM in placement:
                self.wrong.append(f"{shown}: lies as terms of a sum")
        for members, placements in zip(self.classes.tensors, self.classes.placements, strict=True):
            for n in members:
                if not self.wrong and self.placements[n] not in placements:
                    named = f"tensor {n} ({self.problem.tensors[n].name}) as {' '.join(self.splits.placements[n])}"
                    self.wrong.append(f"{named}: can be divided further, or is split as no operator needs or makes it")
        return not self.wrong

    def _undivided(self, tensor: Tensor, placement: Placement) -> str:
        """Name the dimensions that do not divide into equal units; empty where the tensor lacks one."""
        if max(placement) >= len(tensor.shape):
            return ""
        counts = enumerate(divided(tensor.shape, placement, self.units))
        return "".join(f", dimension {d} is no multiple of {n}" for d, n in counts if tensor.shape[d] % n)

    def _held_bytes(self, tensor: int, placement: Placement, worker: Worker) -> int:
        if tensor in self.problem.copied:
            return copied_bytes(self.problem, tensor, placement, self.placements[self.problem.copied[tensor]], worker)
        of = self.problem.tensors[tensor]
        return worker.held_elements(of.shape, placement) * of.element_bytes

    def _operator(self, n: int) -> IntArray:
        """Check (P2) and (P3), and add what an operator costs; returns its buffers in bytes, on each of the workers."""
        operator = self.problem.operators[n]
        every = self.problem.strategies(operator)
        strategies = [every[s] for s in self.splits.strategies[n]]
        if self.splits.strategies[n] not in self.possible.of(operator):
            names = " ".join(strategy.name for strategy in strategies)
            self.wrong.append(f"{self._name(n)} cannot run as {names} on tensors of these shapes")
            return np.zeros(len(self.workers), dtype=np.int64)
        self.compute_us += operator.worker_us(work_share(self.problem.axes, [s.divides for s in strategies]))
        buffers = np.zeros(len(self.workers), dtype=np.int64)
        for side in sides(operator, strategies):
            of = self.problem.tensors[side.tensor]
            if side.placement == self.placements[side.tensor] and not side.halos:
                continue
            received, time_us = self._moved(side)
            time_us *= exposed(self.problem, side.tensor, output=side.output)
            if not math.isfinite(received):
                self.wrong.append(f"{self._name(n)} needs {of.name} as terms of a sum, which it is not")
                continue
            if not self.problem.is_copy(operator):
                buffers += np.array([buffer_bytes(self.problem, side, worker) for worker in self.workers])
            if received or time_us:
                self.redistributions.append(Redistribution(n, side.tensor, round(received), time_us, side.output))
        return buffers

    def _ties(self) -> None:
        """Check (P4): ties, elementwise operators and copies."""
        classes: tuple[tuple[str, Sequence[Tensor | Operator], Sequence[tuple[str | int, ...]]], ...] = (
            ("tensors", self.problem.tensors, self.splits.placements),
            ("operators", self.problem.operators, self.splits.strategies),
        )
        for what, tied, chosen in classes:
            first: dict[str, tuple[object, ...]] = {}
            for n, (one, row) in enumerate(zip(tied, chosen, strict=True)):
                if one.tie is not None and first.setdefault(one.tie, row) != row:
                    self.wrong.append(f"{what}[{n}] is split otherwise than others of its tie {one.tie}")
        for n, operator in enumerate(self.problem.operators):
            copies = self.problem.is_copy(operator)
            if copies or runs_where_its_tensors_lie(self.problem, operator):
                alike = operator.outputs if copies and self.problem.replicas else (*operator.inputs, *operator.outputs)
                lie = {self.placements[t] for t in alike}
                every = self.problem.strategies(operator)
                run = {s.placement for s in sides(operator, [every[s] for s in self.splits.strategies[n]])}
                if len(lie | run) > 1:
                    what = "a copy" if copies else "elementwise"
                    self.wrong.append(f"{self._name(n)} is {what}, and does not run where its tensors lie")

    def _moved(self, side: Side) -> tuple[float, float]:
        of, lies = self.problem.tensors[side.tensor], self.placements[side.tensor]
        held, needed = (side.placement, lies) if side.output else (lies, side.placement)
        key = (of.shape, of.element_bytes, held, needed, side.halos)
        if key not in self._known:
            of_rule = (of.shape, of.element_bytes, [held], [needed], side.halos)
            received = float(self.traffic.received_bytes(*of_rule)[0, 0])
            self._known[key] = (received, float(self.traffic.time_us(*of_rule)[0, 0]))
        return self._known[key]


def _recompute(problem: PartitionProblem, plan: PartitionPlan, verdict: PartitionCheck | None) -> Recomputed:
    fields = {"method": plan.options.get("method", plan.method)}
    if verdict is not None:
        least = 0.0 if problem.objective == "bytes" else least_us(problem)
        return Recomputed({**fields, "redistributions": verdict.redistributions}, least)
    found = plan.infeasibility
    if found is None:
        return unexplained(fields)
    minimum, least_budget, wrong = found.minimum_budget_bytes, least_bytes(problem), tuple[str, ...]()
    if minimum < max(least_budget, plan.budget_bytes + 1):
        said = f"the plan says {minimum}; the budget is {plan.budget_bytes}, and no plan takes less than {least_budget}"
        wrong = (f"infeasibility.minimum_budget_bytes: {said}",)
    follows = {"short_bytes": minimum - plan.budget_bytes}
    return Recomputed({**fields, "redistributions": (), "infeasibility": follows}, wrong=wrong)


STATEMENTS = Statements(
    decisions=frozenset({"splits"}),
    trusted=frozenset(
        f"infeasibility.{name}" for name in ("minimum_budget_bytes", "where", "largest", "planned_budget_bytes")
    ),
    recompute=_recompute,
)
