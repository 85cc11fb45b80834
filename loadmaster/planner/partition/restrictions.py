"""Plans that choose among fewer states: published methods, to compare plans with.

``recursive``      Tofu [Wang20] section 3.5.2: one axis after the other, each the best one given those before
``equal-chop``     every tensor along one dimension only, every operator along one index
``no-reduction``   no strategy whose results must be summed, as in [Jia18]
``all-row``        every tensor along its first dimension, every operator its best strategy then
``spartan``        [Huang15]: the largest tensor first, then its operators, then the next tensor
``data-parallel``  parameters whole on every GPU, all else along its first dimension (the batch)
``fsdp``           the same with every parameter divided over all GPUs, and gathered where it is needed (ZeRO-3)
``zero-2``         the same, gathered once for both passes
``hsdp``           every parameter divided over the last axis, and whole on the others
``megatron``       the last axis divides matrices, which are never gathered, [Megatron19]; the others divide batches

Where only placements are restricted, operators run as is cheapest then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from loadmaster.models.partition.choices import Choices, coarsened
from loadmaster.models.partition.placements import WHOLE
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.planner.partition.pairwise import minimize
from loadmaster.solvers.program import FloatArray

Kept = Sequence[Sequence[int]]
Stop = Callable[[], bool]
# (part, whether it is on the last axis) -> whether a tensor may have it.
_Allowed = Callable[[int, bool], bool]


def best_of(choices: Choices, kept: Kept, stop: Stop) -> list[int]:
    """Find the best assignment to states that are kept, or nearly: see :func:`.pairwise.minimize`."""
    rows = [np.array(k) for k in kept]
    unary = [costs[k] for costs, k in zip(choices.unary, rows, strict=True)]
    pairs = {(t, o): costs[np.ix_(rows[t], rows[o])] for (t, o), costs in choices.pairs.items()}
    chosen, _ = minimize(unary, pairs, stop=stop)
    return [int(k[x]) for k, x in zip(rows, chosen, strict=True)]


def recursive(choices: Choices, stop: Stop) -> list[int]:
    """Plan one axis after the other, outermost first. What cannot go on from an earlier axis is chosen again."""
    problem = choices.problem
    so_far: list[tuple[int, ...]] | None = None
    for axis in range(1, len(problem.axes) + 1):
        now = choices if axis == len(problem.axes) else coarsened(replace(problem, axes=problem.axes[:axis]))
        kept: list[list[int]] = []
        for v, variable in enumerate(now.variables):
            states = range(len(variable.states))
            going_on = [n for n in states if so_far is None or variable.states[n][: axis - 1] == so_far[v]]
            kept.append(going_on or [*states])
        chosen = best_of(now, kept, stop)
        so_far = [variable.states[x] for variable, x in zip(now.variables, chosen, strict=True)]
    return chosen


def equal_chop(choices: Choices, stop: Stop) -> list[int]:
    """Split every tensor and operator in the same way on all axes, where that is possible."""
    return best_of(choices, _where(choices, lambda v, state: len(set(state)) == 1), stop)


def no_reduction(choices: Choices, stop: Stop) -> list[int]:
    """Avoid sums over workers, where an operator has a strategy without."""

    def adds_up(v: int, state: tuple[int, ...]) -> bool:
        variable = choices.variables[v]
        if variable.of == "tensors":
            return False
        strategies = choices.problem.strategies(choices.problem.operators[variable.members[0]])
        return any("P" in strategies[s].outputs for s in state)

    return best_of(choices, _where(choices, lambda v, state: not adds_up(v, state)), stop)


def all_row(choices: Choices, stop: Stop) -> list[int]:
    """Split every tensor along its first dimensions, and keep it whole only where it has no other placement."""

    def order(state: tuple[int, ...]) -> list[tuple[bool, int]]:
        return [(part < 0, part) for part in state]

    kept = [
        [variable.states.index(min(variable.states, key=order))]
        if variable.of == "tensors"
        else [*range(len(variable.states))]
        for variable in choices.variables
    ]
    return best_of(choices, kept, stop)


def spartan(choices: Choices, stop: Stop) -> list[int]:
    """Plan the largest class of tensors first: its cheapest placement, then strategies of operators around it."""
    near: dict[int, list[tuple[int, FloatArray]]] = {v: [] for v in range(len(choices.variables))}
    for (t, o), costs in choices.pairs.items():
        near[t].append((o, costs))
        near[o].append((t, costs.T))
    chosen: dict[int, int] = {}

    def choose(v: int) -> None:
        """Choose the state that costs least with what is chosen, and at best with what is not."""
        if v not in chosen:
            costs = choices.unary[v].copy()
            for other, pair in near[v]:
                costs += pair[:, chosen[other]] if other in chosen else pair.min(axis=1)
            chosen[v] = int(costs.argmin())

    def size_bytes(v: int) -> int:
        variable = choices.variables[v]
        if variable.of == "operators":
            return 0
        problem = choices.problem
        return sum(problem.tensors[m].size_bytes for m in variable.members if m not in problem.copied)

    for v in sorted(near, key=size_bytes, reverse=True):
        choose(v)
        for other, _ in near[v]:
            choose(other)
    return [chosen[v] for v in range(len(choices.variables))]


def data_parallel(choices: Choices, stop: Stop) -> list[int]:
    """Divide batches over all axes; parameters stay whole."""
    return best_of(choices, _placed(choices, parameters=lambda part, last: part == WHOLE), stop)


def fsdp(choices: Choices, stop: Stop) -> list[int]:
    """Divide batches, and every parameter on all axes."""
    return best_of(choices, _placed(choices, parameters=lambda part, last: part != WHOLE), stop)


def zero_2(choices: Choices, stop: Stop) -> list[int]:
    """Divide batches, and every parameter on all axes; gather it once, for both passes."""
    kept = _placed(choices, parameters=lambda part, last: part != WHOLE, copies=lambda part, last: part == WHOLE)
    return best_of(choices, kept, stop)


def hsdp(choices: Choices, stop: Stop) -> list[int]:
    """Divide batches, and every parameter on the last axis."""
    return best_of(choices, _placed(choices, parameters=_on_last), stop)


def _on_last(part: int, last: bool) -> bool:
    return (part == WHOLE) != last


def megatron(choices: Choices, stop: Stop) -> list[int]:
    """Divide matrices over the last axis, where operators read shares of them, and batches over the others; along the
    last axis the rest follows: heads, columns, or a sequence."""
    problem = choices.problem

    def reads_shares(v: int, state: tuple[int, ...]) -> bool:
        variable = choices.variables[v]
        if variable.of == "tensors":
            return True
        operator = problem.operators[variable.members[0]]
        read = zip(operator.inputs, problem.strategies(operator)[state[-1]].inputs, strict=True)
        return not any(_is_matrix(problem, t) and need.part == "R" for t, need in read)

    placed, read = _placed(choices, _on_last, batch_on_last=False), _where(choices, reads_shares)
    return best_of(choices, [sorted({*a} & {*b}) or a for a, b in zip(placed, read, strict=True)], stop)


def _is_matrix(problem: PartitionProblem, tensor: int) -> bool:
    of = problem.tensors[problem.original(tensor)]
    return of.role == "parameter" and len(of.shape) > 1


def _placed(
    choices: Choices, parameters: _Allowed, copies: _Allowed | None = None, *, batch_on_last: bool = True
) -> list[list[int]]:
    """Select states: parameters as given on every axis, all else split along its first dimension, and every operator's
    work divided over all axes. ``parameters``: whether a parameter, its gradient and states may have a part;
    ``copies``: of its copies, None: the same. ``batch_on_last``: all else is split along its first dimension on the
    last axis, too; or never."""
    problem = choices.problem

    def keep(v: int, state: tuple[int, ...]) -> bool:
        variable = choices.variables[v]
        if variable.of == "operators":
            strategies = problem.strategies(problem.operators[variable.members[0]])
            return all(strategies[s].divides for s in state)
        last = len(state) - 1
        if any(problem.tensors[problem.original(m)].role == "parameter" for m in variable.members):
            are_copies = all(m in problem.copied for m in variable.members)
            allowed = copies if copies is not None and are_copies else parameters
            return all(allowed(part, n == last) for n, part in enumerate(state))
        return all((part == 0) == (n != last or batch_on_last) for n, part in enumerate(state))

    return _where(choices, keep)


def _where(choices: Choices, keep: Callable[[int, tuple[int, ...]], bool]) -> list[list[int]]:
    """Select the states to keep; all of a variable that has none of them."""
    kept = []
    for v, variable in enumerate(choices.variables):
        states = [n for n, state in enumerate(variable.states) if keep(v, state)]
        kept.append(states or [*range(len(variable.states))])
    return kept


METHODS: dict[str, Callable[[Choices, Stop], list[int]]] = {
    "recursive": recursive,
    "equal-chop": equal_chop,
    "no-reduction": no_reduction,
    "all-row": all_row,
    "spartan": spartan,
    "data-parallel": data_parallel,
    "fsdp": fsdp,
    "zero-2": zero_2,
    "hsdp": hsdp,
    "megatron": megatron,
}
