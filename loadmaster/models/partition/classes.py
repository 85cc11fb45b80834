"""Classes of tensors and of operators that are split in one way, and the placements and strategies each can have.

Tensors of one tie have one placement, and so have all tensors of an elementwise operator, which runs where they are.
Operators of one tie run in one way. A copy runs where its result is; without replicas nothing is stored twice, and it
is placed as its original.

A tensor is split only along dimensions by which an operator can make or need one of its class, or a copy of one, or
what it is a copy of: along others it would have to move for every one of them. Operators that are elementwise can split
along any and do not count, unless all are elementwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Literal

from loadmaster.errors import InputError
from loadmaster.models.partition.placements import Placement, code, possible
from loadmaster.models.partition.problem import Operator, PartitionProblem
from loadmaster.models.partition.sides import StrategyStates, runs_where_its_tensors_lie

Copies = Literal["all", "of parameters", "none"]


class Classes:
    """The classes of one problem, members ascending.

    Args:
        copies: which copies may be placed otherwise than their originals: none where nothing may be stored twice.
    """

    def __init__(self, problem: PartitionProblem, copies: Copies = "all") -> None:
        self.problem, self._copies = problem, copies if problem.replicas else "none"
        self.units = tuple(axis.units for axis in problem.axes)
        self.copies = [problem.is_copy(operator) for operator in problem.operators]
        self.elementwise = [runs_where_its_tensors_lie(problem, operator) for operator in problem.operators]
        self.merged = [a or b for a, b in zip(self.copies, self.elementwise, strict=True)]
        self.strategies = StrategyStates(problem)

    @cached_property
    def tensors(self) -> list[tuple[int, ...]]:
        """Numbers of the tensors of each class."""
        sets = _Sets(len(self.problem.tensors))
        sets.tie(tensor.tie for tensor in self.problem.tensors)
        for n, operator in enumerate(self.problem.operators):
            if self.elementwise[n] or (self.copies[n] and not self._is_placed_apart(operator)):
                sets.join((*operator.inputs, *operator.outputs))
        return sets.groups()

    def _is_placed_apart(self, copy: Operator) -> bool:
        if self._copies == "of parameters":
            return self.problem.tensors[copy.inputs[0]].role == "parameter"
        return self._copies == "all"

    @cached_property
    def operators(self) -> list[tuple[int, ...]]:
        """Classes of operators, elementwise ones left out."""
        sets = _Sets(len(self.problem.operators))
        sets.tie(operator.tie for operator in self.problem.operators)
        return [members for members in sets.groups() if not self.merged[members[0]]]

    @cached_property
    def placements(self) -> list[tuple[Placement, ...]]:
        """Placements that each class of tensors can have; raises InputError where its members have none in common."""
        useful_to = self._useful()
        found = []
        for members in self.tensors:
            shapes = dict.fromkeys(self.problem.tensors[t].shape for t in members)
            useful = useful_to[members[0]] or None
            first, *others = [possible(s, self.units, useful, replicas=self.problem.replicas) for s in shapes]
            common = tuple(p for p in first if all(p in other for other in others))
            if not common:
                names = [self.problem.tensors[t].name for t in members[:2]]
                remedy = "Give tensors of one tie, and those of an elementwise operator, equal shapes."
                raise InputError(f"tensors[{members[0]}].tie", names, "have no placement in common", remedy)
            found.append(common)
        return found

    @cached_property
    def states(self) -> list[tuple[tuple[int, ...], ...]]:
        """States of each class of operators: numbers of strategies, one for each axis; raises InputError where its
        members have none in common."""
        found = []
        for members in self.operators:
            first, *others = dict.fromkeys(self.strategies.of(self.problem.operators[m]) for m in members)
            common = tuple(state for state in first if all(state in other for other in others))
            if not common:
                words = [self.problem.operators[m].words for m in members[:2]]
                remedy = "Tie operators whose tensors have equal shapes."
                raise InputError(f"operators[{members[0]}].tie", words, "have no strategy in common", remedy)
            found.append(common)
        return found

    def _useful(self) -> dict[int, frozenset[int]]:
        """Dimensions of each tensor that are of use to one of its class, their copies and originals."""
        dims = self._dimensions()
        sets = _Sets(len(self.problem.tensors))
        for members in (*self.tensors, *self.problem.copied.items()):
            sets.join(members)
        found = {}
        for kin in sets.groups():
            useful = frozenset().union(*(dims.get(t, ()) for t in kin))
            found.update(dict.fromkeys(kin, useful))
        return found

    def _dimensions(self) -> dict[int, set[int]]:
        """Dimensions along which an operator that is not elementwise can split each tensor."""
        found: dict[int, set[int]] = {}
        for operator, merged in zip(self.problem.operators, self.merged, strict=True):
            if merged:
                continue
            for strategy in self.problem.signatures[operator.signature].strategies:
                parts = (*(need.part for need in strategy.inputs), *strategy.outputs)
                for tensor, part in zip((*operator.inputs, *operator.outputs), parts, strict=True):
                    if code(part) >= 0:
                        found.setdefault(tensor, set()).add(code(part))
        return found


class _Sets:
    """Disjoint sets of numbers that are joined (union-find)."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def _find(self, x: int) -> int:
        while self._parent[x] != x:
            self._parent[x] = x = self._parent[self._parent[x]]
        return x

    def join(self, members: Iterable[int]) -> None:
        first, *others = map(self._find, members)
        for other in others:
            self._parent[self._find(other)] = self._find(first)

    def tie(self, ties: Iterable[str | None]) -> None:
        first: dict[str, int] = {}
        for n, tie in enumerate(ties):
            if tie is not None:
                self.join((first.setdefault(tie, n), n))

    def groups(self) -> list[tuple[int, ...]]:
        found: dict[int, list[int]] = {}
        for x in range(len(self._parent)):
            found.setdefault(self._find(x), []).append(x)
        return [tuple(members) for members in found.values()]
