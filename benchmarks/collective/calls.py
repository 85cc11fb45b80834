"""Collectives to measure: the same data for every method, the expected output, and the call of each method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from loadmaster.executor.collective.fused.engine import FusedEngine
from loadmaster.models.collective.problem import Collective

KIB, MIB = 1 << 10, 1 << 20
# torch's own one-shot moves every input to every rank: no method for large ones.
ONE_SHOT_BYTES = 16 * MIB
TWO_SHOT_BYTES = 256 * MIB


@dataclass(frozen=True)
class Case:
    """Collective of one size and type; ``size_bytes`` of the largest buffer of a rank."""

    collective: Collective
    size_bytes: int
    dtype: torch.dtype
    rank: int
    ranks: int
    device: torch.device

    @property
    def size(self) -> int:
        return self.size_bytes // self.dtype.itemsize

    @property
    def piece(self) -> int:
        return self.size // self.ranks

    def input_of(self, rank: int) -> torch.Tensor:
        """Make a rank's input: every rank can make every other's."""
        count = self.piece if self.collective == "allgather" else self.size
        generator = torch.Generator(self.device).manual_seed(1000 + rank)
        return torch.randn(count, dtype=self.dtype, device=self.device, generator=generator)

    def empty(self) -> torch.Tensor:
        """Make an output that holds NaN everywhere."""
        count = self.piece if self.collective == "reduce_scatter" else self.size
        return torch.full((count,), float("nan"), dtype=self.dtype, device=self.device)

    def expected(self) -> torch.Tensor:
        """Compute the expected output: copies as they are, sums in fp32 in the order of ranks, rounded once."""
        mine = slice(self.rank * self.piece, (self.rank + 1) * self.piece)
        if self.collective == "allgather":
            return torch.cat([self.input_of(rank) for rank in range(self.ranks)])
        if self.collective == "alltoall":
            return torch.cat([self.input_of(rank)[mine] for rank in range(self.ranks)])
        part = mine if self.collective == "reduce_scatter" else slice(None)
        total = self.input_of(0)[part].float()
        for rank in range(1, self.ranks):
            total += self.input_of(rank)[part].float()
        return total.to(self.dtype)


def fused(case: Case, engine: FusedEngine) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Build ``call(output, input)`` that runs the plan's fused kernel."""
    algorithm = engine.plan.algorithm_for(case.size_bytes)
    size = case.size_bytes
    return lambda output, input: engine.run(algorithm, output, input, dist.ReduceOp.SUM, size)


def methods(
    case: Case, engine: FusedEngine, planned: dist.ProcessGroup, inner: dist.ProcessGroup, shared: torch.Tensor
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield each method by name, as a call on buffers of its own.

    ``loadmaster`` and ``nccl`` are the same call of ``torch.distributed``, on the planned group and on the one that it
    stands on; ``shared`` is that of the planned group with the output (of a ReduceScatter, the input) in memory of
    ``Installed.empty``; ``engine`` is the kernel launched directly, without ``torch.distributed``.
    """
    given, direct = case.input_of(case.rank), case.empty()
    yield "loadmaster", called(case, given, planned)[0]
    yield "shared", called(case, given, planned, shared)[0]
    call = fused(case, engine)
    yield "engine", lambda: call(direct, given)
    yield "nccl", called(case, given, inner)[0]
    if case.collective == "allreduce":
        yield from _symmetric(case, given, inner)


def called(
    case: Case, given: torch.Tensor, group: dist.ProcessGroup, shared: torch.Tensor | None = None
) -> tuple[Callable[[], Any], torch.Tensor]:
    """Build the collective as a program calls it, with its output: its own, or on memory that all ranks share."""
    output = case.empty()
    if shared is not None and case.collective == "reduce_scatter":
        given = shared[: given.nbytes].view(case.dtype).copy_(given)
    elif shared is not None:
        output = shared[: output.nbytes].view(case.dtype)
    match case.collective:
        case "allgather":
            return lambda: dist.all_gather_into_tensor(output, given, group=group), output
        case "reduce_scatter":
            return lambda: dist.reduce_scatter_tensor(output, given, group=group), output
        case "alltoall":
            return lambda: dist.all_to_all_single(output, given, group=group), output
        case "allreduce":
            # In place: after many calls it adds up infinities, as fast as anything else.
            output.copy_(given)
            return lambda: dist.all_reduce(output, group=group), output
        case other:
            raise ValueError(f"{other} is not measured here")


def _symmetric(
    case: Case, given: torch.Tensor, group: dist.ProcessGroup
) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """torch's own kernels: on a buffer in symmetric memory, as they want it, and from and to ordinary tensors as ours
    and NCCL's are (``..._copied``), by copies into that buffer and out of it."""
    import torch.distributed._symmetric_memory as symmetric

    if case.size_bytes > TWO_SHOT_BYTES:
        return
    shared = symmetric.empty(case.size, dtype=case.dtype, device=case.device)
    symmetric.rendezvous(shared, group)
    shared.copy_(given)
    output = case.empty()

    def one_shot() -> torch.Tensor:
        return torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", group.group_name)

    def two_shot() -> torch.Tensor:
        return torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", group.group_name)

    def one_shot_copied() -> torch.Tensor:
        shared.copy_(given)
        return one_shot()

    def two_shot_copied() -> torch.Tensor:
        shared.copy_(given)
        return output.copy_(two_shot())

    if case.size_bytes <= ONE_SHOT_BYTES:
        yield "one_shot", one_shot
        yield "one_shot_copied", one_shot_copied
    yield "two_shot", two_shot
    yield "two_shot_copied", two_shot_copied
