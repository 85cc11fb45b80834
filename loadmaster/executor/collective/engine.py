"""Interface of engines, which run planned algorithms: the seam between the process group and what moves the bytes.

An engine is made once per plan and group, on every rank; a call goes to the process group's first engine that supports
it. What an engine answers must be the same on every rank.

The reference executor sends point-to-point messages of ``torch.distributed``. It runs on whatever has sends and
receives (gloo on CPUs, NCCL on GPUs), on any number of nodes. Batches of messages are posted in one order on every
rank; sums are added once their batch is over, in the global order of messages and, for bf16 and fp16, in fp32, rounded
once before they are sent on: the same bits in every run.

    runner = Runner(problem, plan)             # on every rank, once
    runner.all_reduce(gradient, op=dist.ReduceOp.AVG)

Source: [Shah23], section 5.6 (any algorithm can be trivially implemented so).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
import torch.distributed as dist

from loadmaster.errors import InputError
from loadmaster.executor.collective.agreement import Place, agree, place_here
from loadmaster.executor.collective.exchange import (
    OPERATORS,
    Exchange,
    Memory,
    Sums,
    averages,
    bytes_of,
    can_combine,
    copy,
    flat,
    in_the_way,
    view,
)
from loadmaster.executor.collective.faults import PeerError
from loadmaster.executor.collective.staging import Order, Piece, Staged, stage
from loadmaster.executor.torch_private.distributed import default_group
from loadmaster.models.collective.collectives import COMBINING, cuts
from loadmaster.models.collective.lowering import lower
from loadmaster.models.collective.plan import Algorithm, CollectivePlan
from loadmaster.models.collective.problem import Collective, CollectiveProblem


def size_bytes_of(problem: CollectiveProblem, output: torch.Tensor | None, input: torch.Tensor | None) -> int:
    """Size that a plan's table goes by: bytes of the largest buffer of a rank."""
    ranks = problem.topology.rank_count
    match problem.collective:
        case "alltoallv" | "custom":
            return problem.sizes_bytes[0]
        case "allgather" | "broadcast" | "allreduce":
            return bytes_of(output)
        case "scatter":
            return ranks * bytes_of(output)
        case "gather":
            return ranks * bytes_of(input)
        case _:
            return bytes_of(input)


def finish(staged: Staged, memory: Memory, sums: Sums) -> None:
    """Finish after the last step: copy to the output what a rank had all along, and add up what it gathered."""
    for origin, home in staged.copies:
        copy(view(memory, home), view(memory, origin))
    for offset, pieces in staged.sums:
        sums.total(Piece("output", offset, pieces[0].size_bytes), pieces)


class Runner:
    """Runs the algorithms of one plan, on one rank of a group; ``calls`` counts the collectives run so far."""

    def __init__(
        self,
        problem: CollectiveProblem,
        plan: CollectivePlan,
        group: dist.ProcessGroup | None = None,
        *,
        place: Place | None = None,
        order: Order = "levels",
        timeout_s: float = 300.0,
        watch: bool | None = None,
    ) -> None:
        """Make a runner; every rank of the group does so, with the same problem and plan.

        Args:
            group: None: the default one.
            place: where this rank runs; None: found out.
            order: of messages: ``levels`` (fewest steps) or ``global`` (each link's messages as planned).
            timeout_s: patience for one step.
            watch: wait for every step on the CPU, so that a lost peer is named; None: where the tensors are on the CPU.
                On a GPU without it, steps are only put on the stream, and the backend's own watchdog minds them.

        Raises:
            InputError: on every rank: see :func:`loadmaster.executor.collective.agreement.agree`.
        """
        self.problem, self.plan, self.order = problem, plan, order
        self.group = group if group is not None else default_group()
        self.rank = self.group.rank()
        self.calls = 0
        name = agree(problem, plan, self.group, place or place_here(self.group), order)
        self._exchange = Exchange(self.group, name, timeout_s, watch)
        self._staged: dict[tuple[int, int, str, int], Staged] = {}
        self._lost = False

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> None:
        """Gather every rank's ``input`` into ``output``, by rank."""
        self._expect("allgather")
        self.run(output, input)

    def all_reduce(self, tensor: torch.Tensor, op: object = dist.ReduceOp.SUM) -> None:
        """Reduce the tensors of all ranks, in place on every rank."""
        self._expect("allreduce")
        self.run(tensor, tensor, op)

    def reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, op: object = dist.ReduceOp.SUM) -> None:
        """Reduce every rank's ``input``; ``output`` is this rank's part of the result."""
        self._expect("reduce_scatter")
        self.run(output, input, op)

    def all_to_all(self, output: torch.Tensor, input: torch.Tensor) -> None:
        """Send piece d of ``input`` to rank d; uneven pieces are those the plan is made for."""
        self._expect("alltoall", "alltoallv")
        self.run(output, input)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send the tensor of the plan's root to every rank, in place."""
        self._expect("broadcast")
        self.run(tensor, tensor if self._is_root else None)

    def reduce(self, tensor: torch.Tensor, op: object = dist.ReduceOp.SUM) -> None:
        """Reduce the tensors of all ranks, in place on the plan's root; elsewhere the tensor stays as it is."""
        self._expect("reduce")
        self.run(tensor if self._is_root else None, tensor, op)

    def scatter(self, output: torch.Tensor, input: torch.Tensor | None = None) -> None:
        """Send piece d of the root's ``input`` to rank d."""
        self._expect("scatter")
        self.run(output, input if self._is_root else None)

    def gather(self, output: torch.Tensor | None, input: torch.Tensor) -> None:
        """Gather every rank's ``input`` into the root's ``output``, by rank."""
        self._expect("gather")
        self.run(output if self._is_root else None, input)

    @property
    def _is_root(self) -> bool:
        return self.rank == (self.problem.root or 0)

    def _expect(self, *collectives: Collective) -> None:
        if self.problem.collective not in collectives:
            remedy = "Call the method of the plan's own collective, or give a plan for this one."
            raise InputError("plan.collective", self.problem.collective, f"is not {' or '.join(collectives)}", remedy)

    def staged(self, size_bytes: int, algorithm: Algorithm | None = None) -> Staged:
        """Steps of this rank at a size; algorithm None: the plan's. InputError: it does not divide into its chunks."""
        algorithm = algorithm or self.plan.algorithm_for(size_bytes)
        key = (algorithm.size_bytes, algorithm.chunk_count, algorithm.form, size_bytes)
        if key not in self._staged:
            scaled = replace(algorithm, size_bytes=size_bytes)
            self._staged[key] = stage(lower(self.problem, scaled), self.rank, self.order)
        return self._staged[key]

    def run(
        self,
        output: torch.Tensor | None,
        input: torch.Tensor | None,
        op: object = dist.ReduceOp.SUM,
        *,
        algorithm: Algorithm | None = None,
        size_bytes: int | None = None,
    ) -> None:
        """Run the plan's collective, on buffers as :mod:`loadmaster.models.collective.lowering` lays them out.

        Args:
            output, input: contiguous, of one type and device; may be the same memory where ``torch.distributed`` allows
                it. None: this rank has nothing to receive, or nothing to send.
            algorithm: of the plan; None: the one for the size.
            size_bytes: of the largest buffer of a rank; None: as the tensors say.

        Raises:
            InputError: sizes or types that do not fit the plan; the same on every rank if all make the same call.
            PeerError: a peer did not do its part.
        """
        if self._lost:
            raise InputError("runner", self.rank, "has lost a peer", "Start the group again.")
        given = [tensor for tensor in (output, input) if tensor is not None]
        if not given:
            raise InputError("input", None, "is missing, as is the output", "Give at least one of them.")
        if size_bytes is None:
            size_bytes = size_bytes_of(self.problem, output, input)
        staged = self.staged(size_bytes, algorithm)
        self._expect_buffers(staged, output, input, op)
        dtype, device = given[0].dtype, given[0].device
        memory = {
            "input": flat(input, device),
            "output": flat(output, device),
            "scratch": torch.empty(staged.scratch_bytes, dtype=torch.uint8, device=device),
        }
        if in_the_way(staged, memory):
            memory["input"] = memory["input"].clone()
        sums = Sums(memory, dtype, op)
        try:
            for number, step in enumerate(staged.steps):
                sums.add(step, self._exchange.step(number, step, memory))
        except PeerError:
            self._lost = True
            raise
        finish(staged, memory, sums)
        if averages(op) and output is not None and self.problem.collective in COMBINING:
            output.detach().div_(self.group.size())
        self.calls += 1

    def _expect_buffers(
        self, staged: Staged, output: torch.Tensor | None, input: torch.Tensor | None, op: object
    ) -> None:
        for name, tensor, planned in (("output", output, staged.output_bytes), ("input", input, staged.input_bytes)):
            if bytes_of(tensor) != planned:
                problem = f"bytes long; on rank {self.rank} the plan takes {planned}"
                raise InputError(name, bytes_of(tensor), problem, "Give as many.")
            if tensor is not None and not tensor.is_contiguous():
                raise InputError(name, list(tensor.stride()), "is not contiguous", "Give tensor.contiguous().")
        if output is not None and input is not None and (output.dtype, output.device) != (input.dtype, input.device):
            problem = f"is not of the input's type and device ({input.dtype})"
            raise InputError("output", str(output.dtype), problem, "Give it so.")
        given = output if output is not None else input
        if self.problem.collective in COMBINING and given is not None:
            if not can_combine(op, given.dtype):
                raise InputError("op", str(op), f"of {given.dtype} is not done by a plan", "Call torch.distributed.")
            if staged.unit_bytes % given.element_size():
                remedy = "Give a size that divides into the algorithm's chunks in whole elements."
                raise InputError("tensor", str(given.dtype), f"is cut by chunks of {staged.unit_bytes} bytes", remedy)


class Engine(Protocol):
    """Runs the algorithms of one plan on one group; ``name`` is for :func:`loadmaster.executor.collective.stats`."""

    name: str

    @property
    def operators(self) -> tuple[object, ...]:
        """Sums that the engine does, of ``torch.distributed.ReduceOp``; other calls go to the next engine."""

    def supports(self, collective: Collective, tensor: torch.Tensor, algorithm: Algorithm) -> bool:
        """Return whether the engine runs that algorithm on tensors of that type and device."""

    def run(
        self, algorithm: Algorithm, output: torch.Tensor | None, input: torch.Tensor | None, op: object, size_bytes: int
    ) -> None:
        """Run the algorithm, on the current stream where the tensors are on a GPU.

        ``output`` and ``input`` are this rank's, flat and contiguous; the same memory where the call is in place.
        ``op`` is one of ``operators``; ``size_bytes``, of the largest buffer of a rank, a multiple of
        :func:`grain_bytes`.
        """


MakeEngine = Callable[[CollectiveProblem, CollectivePlan, dist.ProcessGroup, Place | None], Engine]
"""Makes an engine; every rank of the group calls it."""


class ReferenceEngine:
    """Engine that runs any algorithm on any device, by point-to-point messages."""

    name = "reference"
    operators = tuple(OPERATORS)

    def __init__(
        self, problem: CollectiveProblem, plan: CollectivePlan, group: dist.ProcessGroup, place: Place | None = None
    ) -> None:
        self.runner = Runner(problem, plan, group, place=place)

    def supports(self, collective: Collective, tensor: torch.Tensor, algorithm: Algorithm) -> bool:
        """Return True: messages run every algorithm on every tensor."""
        return True

    def run(
        self, algorithm: Algorithm, output: torch.Tensor | None, input: torch.Tensor | None, op: object, size_bytes: int
    ) -> None:
        """Run the algorithm by messages; arguments as in :meth:`Engine.run`."""
        self.runner.run(output, input, op, algorithm=algorithm, size_bytes=size_bytes)


def grain_bytes(problem: CollectiveProblem, algorithm: Algorithm, itemsize: int) -> int:
    """Bytes of which a size is a multiple where an algorithm runs it: every chunk is then of whole elements."""
    return cuts(problem, algorithm.chunk_count, algorithm.form) * itemsize
