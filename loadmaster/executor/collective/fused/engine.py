"""Planned collectives as one kernel each, over symmetric memory: an engine of the process group, or by itself.

    engine = FusedEngine(problem, plan, group)          # on every rank, once
    engine.run(plan.algorithm_for(size), tensor, tensor, ReduceOp.SUM, size)

On memory that all ranks share nothing is staged (:mod:`loadmaster.executor.collective.fused.shared`). A call of a size
seen before is one launch. A size seen first is cut and encoded, which takes the CPU milliseconds; under capture of a
CUDA graph it must be known already if its program does not fit a launch. Where slots of a call are more than the arena
holds, it is done in several launches, each for a part of every block.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from loadmaster.errors import InputError
from loadmaster.executor.collective.agreement import Place, agree, place_here
from loadmaster.executor.collective.exchange import averages, kind_of
from loadmaster.executor.collective.fused.arena import Arena, Capacity, arena_of
from loadmaster.executor.collective.fused.choice import Choice, Limits, choose
from loadmaster.executor.collective.fused.kernel import SUMMABLE, Launch, fits_inline, kernel_name, launch_of
from loadmaster.executor.collective.fused.operations import Buffers, Operation, block_count, cut_of, operations_of
from loadmaster.executor.collective.fused.shared import SHARED, shared_is_input, shared_table
from loadmaster.executor.collective.fused.table import MOST_RANKS, Table, table_of
from loadmaster.executor.torch_private.devices import raw_stream
from loadmaster.models.collective.collectives import COMBINING
from loadmaster.models.collective.lowering import Lowered, lower
from loadmaster.models.collective.plan import Algorithm, CollectivePlan
from loadmaster.models.collective.problem import Collective, CollectiveProblem

# Pieces of blocks that go in launches of their own begin at multiples of this.
SEGMENT_BYTES = 1 << 10
# Known by identity: comparisons of torch's operators take the better part of a microsecond.
_SUM = dist.ReduceOp.SUM


def tables_of(
    problem: CollectiveProblem,
    algorithm: Algorithm,
    lowered: Lowered,
    size_bytes: int,
    limits: Limits,
    capacity: Capacity,
) -> tuple[tuple[int, Table], ...]:
    """Build the launches of a call: for each, its offset into every block, and its table. InputError: a size that does
    not divide into blocks, that the algorithm is not for, or that the arena cannot hold."""
    blocks = block_count(problem)
    fixed = cut_of(problem, algorithm, 1) is None
    if fixed and size_bytes != algorithm.size_bytes:
        raise InputError("size_bytes", size_bytes, "is not what was planned", f"It runs {algorithm.size_bytes}.")
    if size_bytes % blocks:
        raise InputError("size_bytes", size_bytes, f"does not divide into {blocks} blocks", "Pad the tensor.")
    stride = size_bytes // blocks

    def table(block_bytes: int) -> Table:
        operations = operations_of(lowered, cut_of(problem, algorithm, block_bytes, stride))
        chosen = choose(operations, limits)
        return _fitted(operations, lowered.rank_count, chosen, capacity)

    whole = table(stride)
    segments = -(-whole.arena_bytes // capacity.slots(whole.protocol)[1])
    if segments <= 1:
        return ((0, whole),)
    while not fixed and segments <= -(-stride // SEGMENT_BYTES):
        each = -(-stride // (segments * SEGMENT_BYTES)) * SEGMENT_BYTES
        made = {size: table(size) for size in {each, stride - (stride - 1) // each * each}}
        if all(t.arena_bytes <= capacity.slots(t.protocol)[1] for t in made.values()):
            return tuple((at, made[min(each, stride - at)]) for at in range(0, stride, each))
        segments += 1
    raise InputError("size_bytes", size_bytes, "is more than the arena holds", "Give a larger capacity.")


def _fitted(operations: Sequence[Operation], rank_count: int, chosen: Choice, capacity: Capacity) -> Table:
    """The table as chosen, with fewer lanes where flags are short."""
    lanes = chosen.lanes
    while True:
        made = table_of(
            operations, rank_count, chosen.protocol, lanes, chosen.rounds, chosen.widths, threads=chosen.threads
        )
        if made.flag_count * 8 <= capacity.flags_bytes or lanes == 1:
            return made
        lanes //= 2


class PreparedLaunch:
    """A launch of this rank, complete but for where input and output are."""

    def __init__(
        self, arena: Arena, begin: int, table: Table, dtype: torch.dtype | None, timeout_s: float, region: int | None
    ) -> None:
        offset, size = arena.capacity.slots(table.protocol)
        self.begin = begin
        blocks = len(table.streams[arena.rank]) * table.lanes
        self.words: torch.Tensor | None = None
        if not fits_inline(table, arena.rank):
            if torch.cuda.is_current_stream_capturing():
                raise InputError("tensor", "its size", "is new under capture", "Run it once before the capture.")
            self.words = torch.from_numpy(table.words[arena.rank]).to(arena.device)
        self.launch: Launch = launch_of(
            table,
            arena.rank,
            0 if self.words is None else self.words.data_ptr(),
            state=arena.state.data_ptr(),
            failure=arena.failure.data_ptr(),
            timeout_ns=int(timeout_s * 1e9),
            flags_offset=0,
            flags_bytes=arena.capacity.flags_bytes,
            slots_offset=offset,
            slots_bytes=size,
            table=arena.register(table),
        )
        self.launch.arenas[: arena.size] = arena.addresses
        if region is not None:
            self.launch.shared[: arena.size] = arena.regions[region].addresses
        function = arena.kernels.function(kernel_name(table.protocol, dtype))
        # Of the rank that has most, so that all ranks refuse. Blocks that are not resident are waited for in vain.
        most = max(map(len, table.streams)) * table.lanes
        resident = arena.kernels.resident(function, table.threads)
        if most > resident:
            raise InputError("limits.blocks", most, f"are more than the {resident} that run at once", "Give fewer.")
        self.enqueue = arena.kernels.caller(function, blocks, table.threads, self.launch)
        self._function, self._blocks, self._threads = function, blocks, table.threads

    @property
    def address(self) -> tuple[int, int, int, int, int]:
        """Function, blocks, threads, address of the launch, and where in every buffer it begins."""
        return self._function.value or 0, self._blocks, self._threads, ctypes.addressof(self.launch), self.begin


class PreparedCall(NamedTuple):
    """Bytes of this rank's buffers in a call of one size, and its launches."""

    input_bytes: int
    output_bytes: int
    launches: tuple[PreparedLaunch, ...]


class FusedLauncher:
    """Launcher of prepared calls from C++, with what C++ asks of Python.

    Attributes:
        enqueue_address: of a function as ``cuLaunchKernel``; its argument begins with input's and output's addresses.
        stream_address: of the handle of the stream that the last call ran on.
        failure_address: of a word that is not zero once a kernel waited in vain.
    """

    def __init__(self, arena: Arena, group: dist.ProcessGroup, timeout_s: float) -> None:
        self._arena, self._group, self._timeout_s = arena, group, timeout_s
        self.device = arena.device
        self.enqueue_address = arena.kernels.enqueue_address
        self.stream_address, self.failure_address = arena.stream_address, arena.failure.data_ptr()

    def order(self, stream: int) -> None:
        """Let a stream, the current one, wait for the last call's."""
        self._arena.order(stream)

    def raise_failure(self) -> None:
        """Raise PeerError for what a kernel waited for in vain."""
        self._arena.check(self._group, self._timeout_s)


class FusedEngine:
    """Runs one plan's algorithms on one group; see :class:`loadmaster.executor.collective.engine.Engine`."""

    name = "fused"
    operators = (dist.ReduceOp.SUM, dist.ReduceOp.AVG)

    def __init__(
        self,
        problem: CollectiveProblem,
        plan: CollectivePlan,
        group: dist.ProcessGroup,
        place: Place | None = None,
        *,
        capacity: Capacity | None = None,
        limits: Limits | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        """Make the engine; every rank of the group does so, with the same arguments. Its GPU is the current device.

        ``capacity`` is the group's arena's; None: what it has, or the standard. ``timeout_s`` is how long a kernel
        waits for a peer; after that, calls raise :class:`loadmaster.executor.collective.faults.PeerError`. InputError:
        see :func:`loadmaster.executor.collective.agreement.agree`.
        """
        self.problem, self.plan, self.group = problem, plan, group
        self.limits, self.timeout_s = limits or Limits(), timeout_s
        agree(problem, plan, group, place or place_here(group), "fused")
        self._arena: Arena | None = None
        if problem.topology.node_count == 1 and 1 < problem.topology.rank_count <= MOST_RANKS:
            self._arena = arena_of(group, torch.device("cuda", torch.cuda.current_device()), capacity)
        self._sums = problem.collective in COMBINING
        self._device_index = 0 if self._arena is None else self._arena.device.index
        self._lowered: dict[int, Lowered] = {}
        self._calls: dict[tuple[int, int, torch.dtype | None, int | None], PreparedCall] = {}

    def supports(self, collective: Collective, tensor: torch.Tensor, algorithm: Algorithm) -> bool:
        """Return whether the engine runs a call: on its GPU, sums of fp32, bf16 and fp16, copies of anything."""
        return (
            self._arena is not None
            and tensor.device == self._arena.device
            and (collective not in COMBINING or tensor.dtype in SUMMABLE)
        )

    def run(
        self, algorithm: Algorithm, output: torch.Tensor | None, input: torch.Tensor | None, op: object, size_bytes: int
    ) -> None:
        """Run an algorithm by kernels; see :meth:`loadmaster.executor.collective.engine.Engine.run`. InputError: an
        operator that is not SUM or AVG; a size that does not divide; tensors of other sizes. PeerError: an earlier call
        waited for a peer in vain."""
        arena = self._arena
        assert arena is not None
        arena.check(self.group, self.timeout_s)
        tensor = output if output is not None else input
        dtype = tensor.dtype if self._sums and tensor is not None else None
        if op is not _SUM and dtype is not None and kind_of(op) not in self.operators:
            raise InputError("op", op, "is no sum", "Fused collectives add up: use SUM or AVG.")
        shared = input if shared_is_input(self.problem.collective) else output
        in_place = output is not None and input is not None and output.data_ptr() == input.data_ptr()
        region = None
        if arena.regions and shared is not None and (in_place or self.problem.collective != "allreduce"):
            region = arena.region_of(shared)
        input_bytes, output_bytes, launches = self.prepared(algorithm, size_bytes, dtype, region)
        given_bytes = 0 if input is None else input.nbytes
        taken_bytes = 0 if output is None else output.nbytes
        if given_bytes != input_bytes or taken_bytes != output_bytes:
            problem = f"bytes of input and output are not {[input_bytes, output_bytes]}"
            raise InputError("tensors", [given_bytes, taken_bytes], problem, "Give these.")
        stream = raw_stream(self._device_index)
        if stream != arena.stream:
            arena.order(stream)
        given = 0 if input is None else input.data_ptr()
        taken = 0 if output is None else output.data_ptr()
        for one in launches:
            launch = one.launch
            launch.input = given + one.begin
            launch.output = taken + one.begin
            one.enqueue(stream)
        if op is not _SUM and dtype is not None and output is not None and averages(op):
            output.div_(arena.size)

    def check(self) -> None:
        """Wait until the device is done; PeerError, with message and peer, if a peer was waited for in vain."""
        if self._arena is not None:
            torch.cuda.synchronize(self._arena.device)
            self._arena.check(self.group, self.timeout_s)

    def tables(self, algorithm: Algorithm, size_bytes: int) -> tuple[tuple[int, Table], ...]:
        """Build the launches of a call by :func:`tables_of`; only on a group whose GPUs have an arena."""
        assert self._arena is not None
        lowered = self._lowered.get(id(algorithm))
        if lowered is None:
            lowered = self._lowered[id(algorithm)] = lower(self.problem, algorithm)
        return tables_of(self.problem, algorithm, lowered, size_bytes, self.limits, self._arena.capacity)

    def empty(self, size_bytes: int) -> tuple[torch.Tensor, int] | None:
        """Make memory that all ranks share, by :meth:`Arena.empty`. None: this group's GPUs have no arena."""
        return None if self._arena is None else self._arena.empty(size_bytes)

    @property
    def launcher(self) -> FusedLauncher | None:
        """Launcher of prepared calls from C++. None: this group's GPUs have no arena."""
        return None if self._arena is None else FusedLauncher(self._arena, self.group, self.timeout_s)

    def prepared(
        self, algorithm: Algorithm, size_bytes: int, dtype: torch.dtype | None, region: int | None = None
    ) -> PreparedCall:
        """The launches of a call, made when a size is first seen. They stay as long as the engine does. ``region`` is
        the number of the shared memory that holds the output (of a ReduceScatter, the input). InputError: see
        :func:`tables_of`; under capture, a size whose program does not fit a launch."""
        key = (id(algorithm), size_bytes, dtype if self._sums else None, region)
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = self._prepare(algorithm, *key[1:])
        return call

    def _prepare(
        self, algorithm: Algorithm, size_bytes: int, dtype: torch.dtype | None, region: int | None
    ) -> PreparedCall:
        arena = self._arena
        assert arena is not None
        launches = self.tables(algorithm, size_bytes)
        lowered = self._lowered[id(algorithm)]
        whole = cut_of(self.problem, algorithm, size_bytes // block_count(self.problem))
        # Small calls are faster packed, through the arena: there are fewer words to wait for.
        if region is not None and self.problem.collective in SHARED and launches[0][1].protocol == "simple":
            flags_bytes = arena.capacity.flags_bytes
            made = shared_table(self.problem.collective, arena.size, size_bytes, self.limits.blocks, flags_bytes)
            launches = ((0, made),)
        else:
            region = None
        prepared = tuple(
            PreparedLaunch(arena, begin, table, dtype, self.timeout_s, region) for begin, table in launches
        )
        return PreparedCall(*Buffers(lowered, whole).total_bytes(arena.rank), prepared)
