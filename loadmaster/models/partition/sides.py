"""Sides of operators under a strategy for each axis: what they need and make; their strategies; lives of tensors."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from loadmaster.models.partition.placements import Placement, Worker, code
from loadmaster.models.partition.plan import Splits
from loadmaster.models.partition.problem import LASTING, Axis, Operator, PartitionProblem, Strategy
from loadmaster.models.partition.traffic import Halos, Traffic


@dataclass(frozen=True)
class Side:
    """One input as an operator needs it, or one output as it makes it."""

    tensor: int
    placement: Placement
    halos: Halos = ()
    output: bool = False


def sides(operator: Operator, strategies: Sequence[Strategy]) -> Iterator[Side]:
    """Yield what an operator needs and makes under one strategy for each axis."""
    for slot, tensor in enumerate(operator.inputs):
        needs = [strategy.inputs[slot] for strategy in strategies]
        halos = {(code(need.part), need.before, need.after) for need in needs if need.before or need.after}
        yield Side(tensor, tuple(code(need.part) for need in needs), tuple(sorted(halos)))
    for slot, tensor in enumerate(operator.outputs):
        yield Side(tensor, tuple(code(strategy.outputs[slot]) for strategy in strategies), output=True)


def work_share(axes: Sequence[Axis], divides: Iterable[bool]) -> float:
    """Work of the slowest worker on an operator, over its speed, by whether the work is divided along each axis."""
    work, units = 1.0, 1
    for axis, divided in zip(axes, divides, strict=True):
        work *= axis.slowest[divided]
        units *= axis.units if divided else 1
    return work / units


class StrategyStates:
    """Strategies, one for each axis, that an operator can have: those whose units are all equal. Without replicas,
    those of them that divide the work most."""

    def __init__(self, problem: PartitionProblem) -> None:
        self.problem, self.units = problem, [axis.units for axis in problem.axes]
        self._known: dict[object, tuple[tuple[int, ...], ...]] = {}

    def of(self, operator: Operator) -> tuple[tuple[int, ...], ...]:
        """Numbers of strategies, one for each axis."""
        shapes = tuple(self.problem.tensors[t].shape for t in (*operator.inputs, *operator.outputs))
        key = (operator.signature, len(operator.inputs), shapes)
        if key not in self._known:
            self._known[key] = self._possible(operator, shapes)
        return self._known[key]

    def _possible(self, operator: Operator, shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        every = self.problem.strategies(operator)
        # No tensor is stored as terms of a sum, so what needs terms never runs.
        can_run = [n for n, strategy in enumerate(every) if all(need.part != "P" for need in strategy.inputs)]
        states = np.array(list(itertools.product(can_run, repeat=len(self.units))))
        parts = np.array([[code(p) for p in (*(n.part for n in s.inputs), *s.outputs)] for s in every])
        units = np.array(self.units)
        equal = np.ones(len(states), dtype=bool)
        for slot, shape in enumerate(shapes):
            placements = parts[states, slot]
            for d, extent in enumerate(shape):
                equal &= extent % np.where(placements == d, units, 1).prod(axis=1) == 0
        for n, strategy in enumerate(every):
            if strategy.shares_divide is not None:
                equal &= strategy.shares_divide % np.where(states == n, units, 1).prod(axis=1) == 0
        if not self.problem.replicas:
            divided = np.where(np.array([s.divides for s in every])[states], units, 1).prod(axis=1)
            equal &= divided == divided[equal].max()
        return tuple(map(tuple, states[equal].tolist()))


def lives(problem: PartitionProblem) -> list[tuple[int, int]]:
    """First and last operator during which each tensor is in memory: as long as its copies are."""
    count = len(problem.operators)
    made, read = [0] * len(problem.tensors), [-1] * len(problem.tensors)
    for n, operator in enumerate(problem.operators):
        for tensor in operator.outputs:
            made[tensor], read[tensor] = n, max(read[tensor], n)
        for tensor in operator.inputs:
            read[tensor] = n
    for copy, of in reversed(problem.copied.items()):
        read[of] = max(read[of], read[copy])
    return [
        (0, count - 1) if tensor.role in LASTING else (first, last)
        for tensor, first, last in zip(problem.tensors, made, read, strict=True)
    ]


def runs_where_its_tensors_lie(problem: PartitionProblem, operator: Operator) -> bool:
    """Return whether an operator is elementwise, over tensors of one shape: then it has no strategy of its own."""
    shapes = {problem.tensors[t].shape for t in (*operator.inputs, *operator.outputs)}
    return problem.signatures[operator.signature].elementwise and len(shapes) == 1


def exposed(problem: PartitionProblem, tensor: int, *, output: bool) -> float:
    """Part of a redistribution's time that the step waits for. Something in memory from the beginning can be brought
    while earlier operators run, and a gradient while later ones do: no operator of its pass makes the one or reads the
    other. Workers of unequal shares bring nothing early."""
    role = problem.tensors[problem.original(tensor)].role
    early = role in LASTING and all(axis.is_even for axis in problem.axes)
    hidden = role == "gradient" if output else early
    return 1 - (problem.overlap or 0.0) if hidden else 1.0


def copied_bytes(
    problem: PartitionProblem, copy: int, lies: Placement, original_lies: Placement, worker: Worker
) -> int:
    """Bytes that one worker holds of a copy: none where it is placed as its original."""
    if lies == original_lies:
        return 0
    tensor = problem.tensors[copy]
    return worker.held_elements(tensor.shape, lies) * tensor.element_bytes


def buffer_bytes(problem: PartitionProblem, side: Side, worker: Worker) -> int:
    """One worker's share of what an operator needs or makes, halos included."""
    tensor = problem.tensors[side.tensor]
    held = found = worker.held_elements(tensor.shape, side.placement)
    for d, before, after in side.halos:
        if d in side.placement:
            found += held // worker.share_shape(tensor.shape, side.placement)[d] * (before + after)
    return found * tensor.element_bytes


def collectives(problem: PartitionProblem, splits: Splits) -> Counter[str]:
    """Number of collectives of each sort that one step runs."""
    traffic = Traffic(problem.axes)

    @cache
    def between(shape: tuple[int, ...], element_bytes: int, held: Placement, needed: Placement) -> Counter[str]:
        names = (hop.collective for hop in traffic.path(shape, element_bytes, held, needed))
        return Counter(name for name in names if name is not None)

    found: Counter[str] = Counter()
    placements = [tuple(map(code, parts)) for parts in splits.placements]
    for operator, chosen in zip(problem.operators, splits.strategies, strict=True):
        every = problem.strategies(operator)
        for side in sides(operator, [every[s] for s in chosen]):
            of, lies = problem.tensors[side.tensor], placements[side.tensor]
            held, needed = (side.placement, lies) if side.output else (lies, side.placement)
            found += between(of.shape, of.element_bytes, held, needed)
    return found
