"""What operators need and make under a strategy for each axis, which strategies they can have, when tensors live."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.models.partition.placements import Placement, code, held_elements, shares
from loadmaster.models.partition.problem import LASTING, Operator, PartitionProblem, Strategy
from loadmaster.models.partition.traffic import Halos


@dataclass(frozen=True)
class Side:
    """What an operator needs of one input, or makes of one output."""

    tensor: int
    placement: Placement
    halos: Halos = ()
    output: bool = False


def sides(operator: Operator, strategies: Sequence[Strategy]) -> Iterator[Side]:
    """What an operator needs and makes under one strategy for each axis."""
    for slot, tensor in enumerate(operator.inputs):
        needs = [strategy.inputs[slot] for strategy in strategies]
        halos = {(code(need.part), need.before, need.after) for need in needs if need.before or need.after}
        yield Side(tensor, tuple(code(need.part) for need in needs), tuple(sorted(halos)))
    for slot, tensor in enumerate(operator.outputs):
        yield Side(tensor, tuple(code(strategy.outputs[slot]) for strategy in strategies), output=True)


def work_share(sizes: Sequence[int], strategies: Sequence[Strategy]) -> float:
    """What one worker does of an operator's work."""
    return 1 / math.prod(size for size, strategy in zip(sizes, strategies, strict=True) if strategy.divides)


class StrategyStates:
    """Which strategies, one for each axis, an operator can have: those whose shares are all equal. Without replicas,
    those of them that divide the work most."""

    def __init__(self, problem: PartitionProblem) -> None:
        self.problem, self.sizes = problem, [axis.size for axis in problem.axes]
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
        # No tensor lies as terms of a sum, so what needs terms never runs.
        can_run = [n for n, strategy in enumerate(every) if all(need.part != "P" for need in strategy.inputs)]
        states = np.array(list(itertools.product(can_run, repeat=len(self.sizes))))
        parts = np.array([[code(p) for p in (*(n.part for n in s.inputs), *s.outputs)] for s in every])
        sizes = np.array(self.sizes)
        equal = np.ones(len(states), dtype=bool)
        for slot, shape in enumerate(shapes):
            placements = parts[states, slot]
            for d, extent in enumerate(shape):
                equal &= extent % np.where(placements == d, sizes, 1).prod(axis=1) == 0
        for n, strategy in enumerate(every):
            if strategy.shares_divide is not None:
                equal &= strategy.shares_divide % np.where(states == n, sizes, 1).prod(axis=1) == 0
        if not self.problem.replicas:
            divided = np.where(np.array([s.divides for s in every])[states], sizes, 1).prod(axis=1)
            equal &= divided == divided[equal].max()
        return tuple(map(tuple, states[equal].tolist()))


def lives(problem: PartitionProblem) -> list[tuple[int, int]]:
    """For every tensor the first and the last operator while which it lies in memory: as long as its copies do."""
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
    """Whether it is elementwise, over tensors of one shape: then it has no strategy of its own."""
    shapes = {problem.tensors[t].shape for t in (*operator.inputs, *operator.outputs)}
    return problem.signatures[operator.signature].elementwise and len(shapes) == 1


def exposed(problem: PartitionProblem, tensor: int, *, output: bool) -> float:
    """Of the time of a redistribution, what the step waits for.

    What lies in memory from the beginning can be brought while earlier operators run, and a gradient while later ones
    do: no operator of its pass makes the one or reads the other.
    """
    role = problem.tensors[problem.original(tensor)].role
    hidden = role == "gradient" if output else role in LASTING
    return 1 - (problem.overlap or 0.0) if hidden else 1.0


def copied_bytes(problem: PartitionProblem, copy: int, lies: Placement, original_lies: Placement) -> int:
    """What one worker holds of a copy: nothing where it lies as its original."""
    if lies == original_lies:
        return 0
    tensor = problem.tensors[copy]
    return held_elements(tensor.shape, lies, [axis.size for axis in problem.axes]) * tensor.element_bytes


def buffer_bytes(problem: PartitionProblem, side: Side) -> int:
    """One worker's share of what an operator needs or makes, halos included."""
    tensor = problem.tensors[side.tensor]
    sizes = [axis.size for axis in problem.axes]
    held = held_elements(tensor.shape, side.placement, sizes)
    found = held
    for d, before, after in side.halos:
        n = shares(side.placement, sizes, len(tensor.shape))[d]
        if n > 1:
            found += held // (tensor.shape[d] // n) * (before + after)
    return found * tensor.element_bytes
