"""Choices of a plan, coarsened ([Wang20] section 3.5.1): variables with few values each, costs on pairs of them.

A variable is a class of tensors that have one placement, or a class of operators that have one strategy on every axis
(:mod:`.classes`): blocks that repeat, time steps, all tensors around an elementwise operator. Every other operator
makes a pair with each tensor that it needs or makes; the cost of a pair is that of bringing the tensor from where it
is stored to where it is needed, or from where it is made to where it is stored (:mod:`.traffic`). A copy makes a pair
of its original's class and its own. So a plan is an assignment x, and its cost

    sum_v a_v(x_v) + sum_(t,o) b_to(x_t, x_o)

with a_v the compute of an operator (nothing where bytes are counted) and b_to the traffic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from loadmaster.models.partition.classes import Classes, Copies
from loadmaster.models.partition.placements import Placement, part_of
from loadmaster.models.partition.plan import Splits
from loadmaster.models.partition.problem import PartitionProblem, Strategy
from loadmaster.models.partition.sides import exposed, sides, work_share
from loadmaster.models.partition.traffic import Halos, Traffic
from loadmaster.solvers.program import FloatArray

States = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Variable:
    """Class of tensors, whose states are placements, or of operators, whose states are strategies on every axis."""

    of: Literal["tensors", "operators"]
    members: tuple[int, ...]
    states: States


@dataclass
class Choices:
    """A coarsened problem.

    Attributes:
        tensor_of, operator_of: the variable of each; None: an operator that runs where its result is.
        unary: [states] cost of each variable's states.
        pairs: (tensors, operators), (originals, copies) -> [states, states] cost.
    """

    problem: PartitionProblem
    variables: list[Variable]
    tensor_of: list[int]
    operator_of: list[int | None]
    unary: list[FloatArray]
    pairs: dict[tuple[int, int], FloatArray] = field(default_factory=dict)

    def cost(self, chosen: Sequence[int]) -> float:
        """Cost of an assignment: a state for each variable."""
        found = sum(float(a[x]) for a, x in zip(self.unary, chosen, strict=True))
        return found + sum(float(b[chosen[t], chosen[o]]) for (t, o), b in self.pairs.items())

    def add(self, t: int, v: int, cost: FloatArray) -> None:
        """Add a cost to what a pair costs already."""
        self.pairs[t, v] = self.pairs[t, v] + cost if (t, v) in self.pairs else cost

    def splits(self, chosen: Sequence[int]) -> Splits:
        """The plan that an assignment stands for."""
        states = [variable.states[x] for variable, x in zip(self.variables, chosen, strict=True)]
        placements = [states[v] for v in self.tensor_of]
        strategies = []
        for operator, v in zip(self.problem.operators, self.operator_of, strict=True):
            if v is not None:
                strategies.append(states[v])
                continue
            placement = placements[(*operator.outputs, *operator.inputs)[0]]
            found = self.problem.strategies(operator)
            strategies.append(tuple(_elementwise_strategy(found, part) for part in placement))
        return Splits(tuple(tuple(map(part_of, p)) for p in placements), tuple(strategies))


def _elementwise_strategy(strategies: Sequence[Strategy], part: int) -> int:
    """Number of the strategy whose tensors all have that part; -1 for none."""
    wanted = part_of(part)
    for n, strategy in enumerate(strategies):
        if {need.part for need in strategy.inputs} | set(strategy.outputs) == {wanted}:
            return n
    return -1


def coarsened(problem: PartitionProblem, copies: Copies = "all") -> Choices:
    """The variables of a problem, and what they cost; ``copies`` may be placed otherwise than their originals. Raises
    InputError for tied tensors or operators that have nothing to choose together."""
    return _Coarsening(problem, Classes(problem, copies)).choices()


class _Coarsening:
    def __init__(self, problem: PartitionProblem, classes: Classes) -> None:
        self.problem = problem
        self.traffic = Traffic(problem.axes)
        self.timed = problem.objective == "time"
        self.classes = classes
        self._known: dict[object, FloatArray] = {}

    def choices(self) -> Choices:
        problem, classes = self.problem, self.classes
        variables: list[Variable] = []
        tensor_of = [0] * len(problem.tensors)
        for members, placements in zip(classes.tensors, classes.placements, strict=True):
            for member in members:
                tensor_of[member] = len(variables)
            variables.append(Variable("tensors", members, placements))
        operator_of: list[int | None] = [None] * len(problem.operators)
        for members, states in zip(classes.operators, classes.states, strict=True):
            for member in members:
                operator_of[member] = len(variables)
            variables.append(Variable("operators", members, states))
        unary = [np.zeros(len(variable.states)) for variable in variables]
        found = Choices(problem, variables, tensor_of, operator_of, unary)
        if self.timed:
            self._compute(found)
        self._pairs(found)
        return found

    def _shape(self, tensor: int) -> tuple[int, ...]:
        return self.problem.tensors[tensor].shape

    def _compute(self, found: Choices) -> None:
        for operator, v in zip(self.problem.operators, found.operator_of, strict=True):
            if v is not None:
                strategies = self.problem.strategies(operator)
                states = found.variables[v].states
                shares = [work_share(self.problem.axes, [strategies[s].divides for s in state]) for state in states]
                found.unary[v] += np.array([operator.worker_us(share) for share in shares])
                continue
            tensor = (*operator.outputs, *operator.inputs)[0]
            v = found.tensor_of[tensor]
            placements = found.variables[v].states
            shares = [work_share(self.problem.axes, [part >= 0 for part in p]) for p in placements]
            found.unary[v] += np.array([operator.worker_us(share) for share in shares])

    def _pairs(self, found: Choices) -> None:
        """Add the traffic between tensors and operators; equal members of a pair are computed once."""
        alike: Counter[tuple[int, int, int, tuple[int, ...], int, float]] = Counter()
        for operator, v in zip(self.problem.operators, found.operator_of, strict=True):
            if v is not None:
                for slot, tensor in enumerate((*operator.inputs, *operator.outputs)):
                    of = self.problem.tensors[tensor]
                    share = self._share(tensor, output=slot >= len(operator.inputs))
                    alike[found.tensor_of[tensor], v, slot, of.shape, of.element_bytes, share] += 1
        for (t, v, slot, shape, element_bytes, share), count in alike.items():
            cost = count * share * self._traffic(found.variables[t], found.variables[v], slot, shape, element_bytes)
            found.add(t, v, cost)
        self._copies(found)

    def _share(self, tensor: int, *, output: bool) -> float:
        return exposed(self.problem, tensor, output=output) if self.timed else 1.0

    def _copies(self, found: Choices) -> None:
        price = self.traffic.time_us if self.timed else self.traffic.received_bytes
        alike: Counter[tuple[int, int, tuple[int, ...], int, float]] = Counter()
        for copy, original in self.problem.copied.items():
            of = self.problem.tensors[copy]
            share = self._share(original, output=False)
            alike[found.tensor_of[original], found.tensor_of[copy], of.shape, of.element_bytes, share] += 1
        for (t, v, shape, element_bytes, share), count in alike.items():
            if t != v:
                cost = count * share * price(shape, element_bytes, found.variables[t].states, found.variables[v].states)
                found.add(t, v, cost)

    def _traffic(
        self, tensors: Variable, operators: Variable, slot: int, shape: tuple[int, ...], element_bytes: int
    ) -> FloatArray:
        """Cost of bringing one tensor to or from one operator: [placements, strategies]."""
        operator = self.problem.operators[operators.members[0]]
        key = (tensors.states, operators.states, operator.signature, slot, shape, element_bytes)
        if key in self._known:
            return self._known[key]
        strategies = self.problem.strategies(operator)
        found = [list(sides(operator, [strategies[s] for s in state]))[slot] for state in operators.states]
        made = found[0].output
        kinds = {(side.placement, side.halos): 0 for side in found}
        kinds = {kind: n for n, kind in enumerate(kinds)}
        price = self.traffic.time_us if self.timed else self.traffic.received_bytes
        columns: list[FloatArray] = [np.empty(0)] * len(kinds)
        by_halo: dict[Halos, list[Placement]] = {}
        for placement, halos in kinds:
            by_halo.setdefault(halos, []).append(placement)
        for halos, placements in by_halo.items():
            if made:
                prices = price(shape, element_bytes, placements, tensors.states).T
            else:
                prices = price(shape, element_bytes, tensors.states, placements, halos)
            for n, placement in enumerate(placements):
                columns[kinds[placement, halos]] = prices[:, n]
        self._known[key] = np.stack(columns, axis=1)[:, [kinds[side.placement, side.halos] for side in found]]
        return self._known[key]
