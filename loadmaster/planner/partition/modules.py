"""Plans that a model's own modules can run, by ``fully_shard`` and by hooks around them: choices with fewer states.

Every axis of the mesh has one role for the whole model (:mod:`loadmaster.models.partition.plan`).

On an axis that divides batches, everything computed from the batch is split along its first dimension, and operators
need parameters whole. Axes that shard divide one dimension of a parameter.

On a tensor axis nothing moves inside a module: what its operators read is placed as they need it, and what they make
stays as it is made. Not even terms of a sum are added up there: ``DTensor`` refuses in-place operators on them. What
goes into a module or comes out of it may move: a hook can do that, for each module by itself, so copies have the
placement of their originals. Parameters are used as they are placed, and every worker has the whole input of the step.

Parameters that are sharded are gathered in each pass, or all of them once: then their copies are whole on axes that
divide batches, and stay from the forward pass to the backward pass (``reshard_after_forward=False``).

Convolutions run whole there: of what ``DTensor`` computes on their channels some is wrong (PyTorch 2.13, issue 186129).

The best roles are found by trying all: three to the power of the axes, and most of them twice, each a problem much
smaller than the whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import get_args

import numpy as np

from loadmaster.models.partition.choices import Choices, Variable, coarsened
from loadmaster.models.partition.placements import WHOLE, Placement
from loadmaster.models.partition.plan import Role, Roles
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.models.partition.sides import Side, sides
from loadmaster.solvers.program import FloatArray, IntArray

# The dimension of batches.
_BATCH = 0
# Not to be split by ``DTensor``.
_WHOLE_OPERATORS = ("aten.convolution",)


def by_roles(problem: PartitionProblem) -> Iterator[tuple[Roles, bool, Choices]]:
    """Yield (roles of the axes, whether sharded parameters are gathered once, the choices that this leaves)."""
    again, once = (_Modules(coarsened(problem, copies)) for copies in ("none", "of parameters"))
    for roles in itertools.product(get_args(Role), repeat=len(problem.axes)):
        yield roles, False, again.under(roles)
        if "shard" in roles and once.copies:
            yield roles, True, once.under(roles)


class _Modules:
    def __init__(self, choices: Choices) -> None:
        self.choices, self.problem = choices, choices.problem
        self._maker: dict[int, int] = {}
        self._readers: dict[int, list[int]] = {}
        for n, operator in enumerate(self.problem.operators):
            if not self.problem.is_copy(operator):
                self._maker.update((tensor, n) for tensor in operator.outputs)
                for tensor in map(self.problem.original, operator.inputs):
                    self._readers.setdefault(tensor, []).append(n)
        self._of_batch = self._computed_from_batch()
        self._parameters = {
            v
            for v, variable in enumerate(choices.variables)
            if variable.of == "tensors" and any(self.problem.tensors[t].role == "parameter" for t in variable.members)
        }
        self.copies = {
            v
            for v, variable in enumerate(choices.variables)
            if variable.of == "tensors"
            and v not in self._parameters
            and any(self.problem.tensors[self.problem.original(t)].role == "parameter" for t in variable.members)
        }

    def under(self, roles: Sequence[Role]) -> Choices:
        """Reduce the choices to the states that roles leave; a variable that none of its states suits keeps all."""
        divided = [axis for axis, role in enumerate(roles) if role != "tensor"]
        kept = []
        for v, variable in enumerate(self.choices.variables):
            keep = self._tensors(v, roles) if variable.of == "tensors" else self._operators(variable, divided)
            kept.append(np.array(keep or range(len(variable.states))))
        tensor_axes = [axis for axis, role in enumerate(roles) if role == "tensor"]
        pairs = {}
        for (t, o), costs in self.choices.pairs.items():
            left = costs[np.ix_(kept[t], kept[o])]
            still = self._alike if o in self.copies else self._still
            pairs[t, o] = still(left, t, o, kept[t], kept[o], tensor_axes) if tensor_axes else left
        variables = [
            replace(variable, states=tuple(variable.states[n] for n in keep))
            for variable, keep in zip(self.choices.variables, kept, strict=True)
        ]
        unary = [costs[keep] for costs, keep in zip(self.choices.unary, kept, strict=True)]
        return replace(self.choices, variables=variables, unary=unary, pairs=pairs)

    def _computed_from_batch(self) -> set[int]:
        """Find the inputs of the step, and whatever is computed from them."""
        found = {n for n, tensor in enumerate(self.problem.tensors) if tensor.role == "input" and tensor.shape}
        for operator in self.problem.operators:
            if not found.isdisjoint(operator.inputs):
                found.update(operator.outputs)
        return found

    def _tensors(self, v: int, roles: Sequence[Role]) -> list[int]:
        variable = self.choices.variables[v]
        if v in self._parameters:
            return self._of_parameters(variable, roles)
        part = _BATCH if any(t in self._of_batch for t in variable.members) else WHOLE
        is_input = any(self.problem.tensors[t].role == "input" for t in variable.members)
        wanted = [part if role != "tensor" else WHOLE if is_input else None for role in roles]
        return [n for n, state in enumerate(variable.states) if _matches(state, wanted)]

    def _of_parameters(self, variable: Variable, roles: Sequence[Role]) -> list[int]:
        """List states of parameters: whole on axes that replicate, sharded along one dimension if the mesh can."""
        whole = [WHOLE if role == "replicate" else None for role in roles]
        found = [n for n, state in enumerate(variable.states) if _matches(state, whole)]
        sharded = [axis for axis, role in enumerate(roles) if role == "shard"]
        along_one = [n for n in found if len({variable.states[n][axis] for axis in sharded}) <= 1]
        divided = [n for n in along_one if all(variable.states[n][axis] != WHOLE for axis in sharded)]
        return divided or along_one

    def _operators(self, variable: Variable, divided: Sequence[int]) -> list[int]:
        """List states of an operator: on axes that divide batches, parameters whole and work divided if possible."""
        operator = self.problem.operators[variable.members[0]]
        every = self.problem.strategies(operator)
        if operator.op.startswith(_WHOLE_OPERATORS):
            whole = len(every) - 1
            others = [axis for axis in range(len(self.problem.axes)) if axis not in divided]
            states = [n for n, state in enumerate(variable.states) if all(state[axis] == whole for axis in others)]
        else:
            states = [*range(len(variable.states))]
        parameters = self._parameters | self.copies
        slots = [n for n, t in enumerate(operator.inputs) if self.choices.tensor_of[t] in parameters]
        fitting = [
            n
            for n in states
            if all(every[variable.states[n][axis]].inputs[slot].part == "R" for axis in divided for slot in slots)
        ]
        dividing = [n for n in fitting if all(every[variable.states[n][axis]].divides for axis in divided)]
        of_batch = not self._of_batch.isdisjoint(operator.inputs)
        return dividing if of_batch and dividing else fitting

    def _alike(
        self, costs: FloatArray, t: int, copy: int, lies: IntArray, goes: IntArray, tensor_axes: Sequence[int]
    ) -> FloatArray:
        """Make costs infinite where a copy is placed otherwise than its original on tensor axes."""
        originals, copies = (
            np.array([variable.states[n] for n in kept])[:, tensor_axes]
            for variable, kept in ((self.choices.variables[t], lies), (self.choices.variables[copy], goes))
        )
        are_alike = (originals[:, None] == copies).all(axis=-1)
        return np.where(are_alike, costs, np.inf)

    def _still(
        self, costs: FloatArray, t: int, o: int, lies: IntArray, runs: IntArray, tensor_axes: Sequence[int]
    ) -> FloatArray:
        """Make costs infinite where something would move inside a module."""
        tensors, operators = self.choices.variables[t], self.choices.variables[o]
        operator = self.problem.operators[operators.members[0]]
        every = self.problem.strategies(operator)
        found = costs.copy()
        placements = [tensors.states[n] for n in lies]
        moves = self._may_move(t, o)
        for column, n in enumerate(runs):
            for side in sides(operator, [every[s] for s in operators.states[n]]):
                if self.choices.tensor_of[side.tensor] == t and not moves[side.output]:
                    stays = [_stays(side, placement, tensor_axes) for placement in placements]
                    found[~np.array(stays), column] = np.inf
        return found

    def _may_move(self, t: int, o: int) -> dict[bool, bool]:
        """Return whether tensors of a class may move into operators of one, and out of them: if all cross a module."""
        into, out = True, True
        for n in self.choices.variables[o].members:
            operator = self.problem.operators[n]
            for tensor in operator.inputs:
                if self.choices.tensor_of[tensor] == t:
                    original = self.problem.original(tensor)
                    maker = self._maker.get(original)
                    if maker is None:
                        into &= self.problem.tensors[original].role == "input"
                    else:
                        into &= self.problem.operators[maker].module != operator.module
            for tensor in operator.outputs:
                if self.choices.tensor_of[tensor] == t:
                    readers = self._readers.get(tensor, ())
                    out &= all(self.problem.operators[reader].module != operator.module for reader in readers)
        return {False: into, True: out}


def _matches(state: Placement, wanted: Sequence[int | None]) -> bool:
    return all(part is None or part == has for has, part in zip(state, wanted, strict=True))


def _stays(side: Side, placement: Placement, axes: Sequence[int]) -> bool:
    """Return whether nothing moves on these axes between a tensor and an operator."""
    return all(side.placement[axis] == placement[axis] for axis in axes)
