"""The engine from call to launch, with the kernel on a CPU: arenas in this process, launches written down, then run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from benchmarks.collective.calls import Case, fused
from benchmarks.collective.plans import direct
from loadmaster.errors import InputError
from loadmaster.executor.collective.faults import PeerError
from loadmaster.executor.collective.fused import arena as arenas
from loadmaster.executor.collective.fused import engine as engines
from loadmaster.executor.collective.fused.arena import Arena, Capacity
from loadmaster.executor.collective.fused.choice import Limits
from loadmaster.executor.collective.fused.engine import FusedEngine
from loadmaster.executor.collective.fused.kernel import FAILURE_WORDS, THREADS, Launch
from tests.executor.collective.test_fused_emulated import VARIANTS, library

pytestmark = pytest.mark.slow  # several ranks in processes

__all__ = ["library"]  # the fixture

CAPACITY = Capacity(flags_bytes=8 << 10, packed_bytes=8 << 10, simple_bytes=8 << 10)
LIMITS = Limits(blocks=6, packed_bytes=1000, piece_bytes=256)
CPU = torch.device("cpu")


class Written:
    """In place of built kernels: what was launched."""

    def __init__(self) -> None:
        self.launches: list[tuple[str, int, Launch]] = []
        self.room = LIMITS.blocks

    def function(self, name: str) -> str:
        return name

    def resident(self, function: str, threads: int) -> int:
        return self.room

    def caller(self, function: str, blocks: int, threads: int, launch: Launch) -> Callable[[int], None]:
        assert threads % 32 == 0 and 0 < threads <= THREADS

        def call(stream: int) -> None:
            written = Launch()
            ctypes.memmove(ctypes.addressof(written), ctypes.addressof(launch), ctypes.sizeof(Launch))
            self.launches.append((function, blocks, written))

        return call


class Node:
    """Ranks of one process, each with an engine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, collective: str, ranks: int, timeout_s: float = 60.0) -> None:
        self.ranks = ranks
        self.memory = [np.zeros(CAPACITY.total_bytes + 16, dtype=np.uint8) for _ in range(ranks)]
        self.written = [Written() for _ in range(ranks)]
        problem, plan = direct(collective, ranks)  # type: ignore[arg-type]
        monkeypatch.setattr(engines, "agree", lambda *given: "")
        monkeypatch.setattr(engines, "place_here", lambda group: None)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
        self.engines = []
        for rank in range(ranks):
            made = self._arena(rank)
            monkeypatch.setattr(engines, "arena_of", lambda *given, made=made: made)
            group: Any = None
            self.engines.append(
                FusedEngine(problem, plan, group, capacity=CAPACITY, limits=LIMITS, timeout_s=timeout_s)
            )

    def _arena(self, rank: int) -> Arena:
        made = Arena.__new__(Arena)
        made.device, made.capacity, made.rank, made.size = CPU, CAPACITY, rank, self.ranks
        made.kernels = self.written[rank]  # type: ignore[assignment]
        made.addresses = [-(-memory.ctypes.data // 16) * 16 for memory in self.memory]
        made.state = torch.zeros(4, dtype=torch.int64)
        made.failure = torch.zeros(FAILURE_WORDS, dtype=torch.int64)
        made._failed = made.failure.numpy()
        made.regions, made._tables, made._stream, made._last = [], [], ctypes.c_int64(0), None
        return made

    def play(self, library: ctypes.CDLL, absent: tuple[int, ...] = ()) -> None:
        """Run what all ranks launched since the last time."""
        count = len(self.written[-1].launches)
        launches = (Launch * (self.ranks * count))()
        streams = (ctypes.c_int * len(launches))()
        kinds = (ctypes.c_int * len(launches))()
        for rank, written in enumerate(self.written):
            for number, (function, blocks, launch) in enumerate(written.launches):
                at = rank * count + number
                ctypes.memmove(ctypes.addressof(launches[at]), ctypes.addressof(launch), ctypes.sizeof(Launch))
                streams[at], kinds[at] = blocks // launch.lanes, VARIANTS.index(function)
            written.launches.clear()
        gone = (ctypes.c_int * self.ranks)(*(rank in absent for rank in range(self.ranks)))
        library.run(self.ranks, count, 4, launches, streams, kinds, gone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter", "alltoall"])
def test_calls_of_all_sizes(
    monkeypatch: pytest.MonkeyPatch, library: ctypes.CDLL, collective: str, dtype: torch.dtype
) -> None:
    node = Node(monkeypatch, collective, 3)
    cases, outputs = [], []
    # Packed; simple; in several launches. None is whole vectors.
    for size in (3 * 44, 3 * 1004, 3 * 20_004):
        of_size = [Case(collective, size, dtype, rank, 3, CPU) for rank in range(3)]  # type: ignore[arg-type]
        outputs.append([case.empty() for case in of_size])
        given = [case.input_of(case.rank) for case in of_size]
        for case, made, output, one in zip(of_size, node.engines, outputs[-1], given, strict=True):
            assert made.supports(case.collective, one, made.plan.algorithms[0])
            fused(case, made)(output, one)
        node.play(library)
        cases.append(of_size)
    for of_size, made in zip(cases, outputs, strict=True):
        for case, output in zip(of_size, made, strict=True):
            assert torch.equal(output, case.expected())
    for one in node.engines:
        one.check()


def test_a_call_on_another_stream_waits_for_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Node(monkeypatch, "allreduce", 2).engines[0]
    waited: list[tuple[int, int]] = []

    class Stream:
        def __init__(self, number: int) -> None:
            self.number = number

        def wait_stream(self, other: Stream) -> None:
            waited.append((self.number, other.number))

    tensor = torch.ones(8)
    for number in (5, 5, 6, 0, 0):
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index, n=number: n, raising=False)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, n=number: Stream(n))
        made.run(made.plan.algorithms[0], tensor, tensor, dist.ReduceOp.SUM, 32)
    assert waited == [(6, 5), (0, 6)]


def test_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, "allreduce", 2)
    made = node.engines[0]
    given, output = torch.ones(8), torch.full((8,), 6.0)
    made.run(made.plan.algorithms[0], output, given, dist.ReduceOp.AVG, 32)
    assert torch.equal(output, torch.full((8,), 3.0))


def test_a_missing_peer_is_named(monkeypatch: pytest.MonkeyPatch, library: ctypes.CDLL) -> None:
    def told(lost: Any, rank: int, group: Any, name: str) -> PeerError:
        return PeerError(lost.why, 0, 0, (), lost.peer, 0)

    monkeypatch.setattr(arenas, "peer_error", told)
    for collective in ("allreduce", "allgather"):
        for size in (2 * 64, 2 * 1200):
            node = Node(monkeypatch, collective, 2, timeout_s=0.1)
            kept = []
            for rank, made in enumerate(node.engines):
                case = Case(collective, size, torch.float32, rank, 2, CPU)  # type: ignore[arg-type]
                kept.append((case.empty(), case.input_of(rank)))
                fused(case, made)(*kept[-1])
            node.play(library, absent=(1,))
            with pytest.raises(PeerError, match="chunk") as found:
                node.engines[0].check()
            assert found.value.peer == 1
            with pytest.raises(PeerError):
                fused(case, node.engines[0])(*kept[0])


def test_what_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Node(monkeypatch, "alltoall", 2).engines[0]
    algorithm, tensor = made.plan.algorithms[0], torch.zeros(8)
    with pytest.raises(InputError, match="bytes of input and output"):
        made.run(algorithm, tensor[:4], tensor, dist.ReduceOp.SUM, 32)
    for size in (8 << 10, 64):
        node = Node(monkeypatch, "alltoall", 2)
        node.written[0].room = 1  # of blocks; each of the two would wait for the other
        given = torch.zeros(size, dtype=torch.uint8)
        with pytest.raises(InputError, match=r"limits\.blocks.*more than the 1 that run at once"):
            node.engines[0].run(algorithm, given.clone(), given, dist.ReduceOp.SUM, size)
        assert not node.written[0].launches
    sums = Node(monkeypatch, "allreduce", 2).engines[0]
    with pytest.raises(InputError, match="is no sum"):
        sums.run(sums.plan.algorithms[0], tensor, tensor, dist.ReduceOp.MAX, 32)
    assert not sums.supports("allreduce", torch.zeros(8, dtype=torch.int32), algorithm)
    assert made.supports("alltoall", torch.zeros(8, dtype=torch.int32), algorithm)
