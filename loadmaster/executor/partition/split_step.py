"""Training step on shares: every operator on this rank's part, redistributions only where the plan has them.

Operators are run in the order of the problem, as the plan's strategies say. An input is first brought to the placement
that its operator needs; a result is brought at once to the placement of its tensor. Tensors are freed when nothing
needs them any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from loadmaster.errors import InputError
from loadmaster.executor.partition.on_shares import results_of
from loadmaster.executor.partition.redistribute import Redistributor
from loadmaster.models.partition.placements import Placement, code
from loadmaster.models.partition.plan import Splits
from loadmaster.models.partition.problem import LASTING, PartitionProblem, Strategy
from loadmaster.models.partition.sides import sides
from loadmaster.models.partition.traffic import Hop, Traffic

# (shares of the inputs, shapes of the shares of the results) -> results; one that updates in place returns nothing.
Kernel = Callable[[Sequence[Tensor], Sequence[Sequence[int]]], object]


class SplitStep:
    """Runner of one step under a plan, on this rank. ``kernels`` are those of the problem's operators, in order;
    operators beyond them run elsewhere. ``kept`` tensors are held when nothing reads them any more, like those that
    last the whole step. Raises InputError if the mesh is not that of the problem."""

    def __init__(
        self,
        problem: PartitionProblem,
        splits: Splits,
        kernels: Sequence[Kernel],
        mesh: DeviceMesh,
        kept: Collection[int] = (),
    ) -> None:
        sizes = tuple(axis.size for axis in problem.axes)
        if tuple(mesh.shape) != sizes:
            remedy = f"Make a mesh of {' x '.join(map(str, sizes))}."
            raise InputError("mesh", tuple(mesh.shape), "is not the mesh of the problem", remedy)
        self.problem, self.kernels = problem, kernels
        self.redistribute = Redistributor(mesh, Traffic(problem.axes))
        self._worker = self.redistribute.worker
        self.placements: list[Placement] = [tuple(map(code, parts)) for parts in splits.placements]
        kept = {*kept, *(n for n, tensor in enumerate(problem.tensors) if tensor.role in LASTING)}
        last_read = {t: n for n, operator in enumerate(problem.operators) for t in operator.inputs}
        self._calls = [
            self._call(n, [problem.strategies(operator)[s] for s in chosen], kept, last_read)
            for n, (operator, chosen) in enumerate(zip(problem.operators, splits.strategies, strict=True))
        ]

    def cut(self, tensor: int, whole: Tensor) -> Tensor:
        """Cut this rank's share out of a tensor of the problem."""
        return self.redistribute.cut(whole, self.placements[tensor])

    def whole(self, tensor: int, share: Tensor) -> Tensor:
        """Gather a whole tensor of the problem from its shares."""
        return self.redistribute.whole(share, self.problem.tensors[tensor].shape, self.placements[tensor])

    def run(self, held: MutableMapping[int, Tensor], first: int = 0, last: int | None = None) -> None:
        """Run operators from the first to before the last one, on shares that are ``held`` by the number of their
        tensor: results are added, and what nothing reads any more is removed."""
        along = self.redistribute.along
        for n in range(first, len(self.kernels) if last is None else last):
            call = self._calls[n]
            given = [along(held[tensor], path) if path else held[tensor] for tensor, path in call.reads]
            results = results_of(self.kernels[n](given, call.shapes))
            for (tensor, path), result in zip(call.makes, results, strict=True):
                held[tensor] = along(result, path) if path else result
            for tensor in call.freed:
                held.pop(tensor, None)

    def _call(
        self, n: int, strategies: Sequence[Strategy], kept: Collection[int], last_read: Mapping[int, int]
    ) -> _Call:
        """Work out, once, the redistributions around an operator and the tensors to free after it."""
        operator = self.problem.operators[n]
        reads: list[tuple[int, list[Hop]]] = []
        makes: list[tuple[int, list[Hop]]] = []
        shapes = []
        for side in sides(operator, strategies):
            of, lies = self.problem.tensors[side.tensor], self.placements[side.tensor]
            held, needed = (side.placement, lies) if side.output else (lies, side.placement)
            path = self.redistribute.traffic.path(of.shape, of.element_bytes, held, needed)
            (makes if side.output else reads).append((side.tensor, path))
            if side.output:
                shapes.append(self._worker.share_shape(of.shape, side.placement))
        touched = dict.fromkeys((*operator.inputs, *operator.outputs))
        freed = tuple(t for t in touched if t not in kept and last_read.get(t, n) <= n)
        return _Call(tuple(reads), tuple(makes), tuple(shapes), freed)


@dataclass(frozen=True)
class _Call:
    """Steps that run one operator on shares: tensors that it reads and makes, each with the path to the placement that
    is needed, or that the tensor has; shapes of the shares that are made; and tensors that nothing reads any more."""

    reads: tuple[tuple[int, list[Hop]], ...]
    makes: tuple[tuple[int, list[Hop]], ...]
    shapes: tuple[list[int], ...]
    freed: tuple[int, ...]
