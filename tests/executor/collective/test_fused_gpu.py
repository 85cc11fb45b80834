"""Fused collectives on all GPUs of this machine: right, the same bits every time, under graphs, and never hanging."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from benchmarks.collective.calls import Case, fused
from benchmarks.collective.plans import direct
from loadmaster.errors import InputError
from loadmaster.executor.collective.faults import PeerError
from loadmaster.executor.collective.fused.arena import Capacity
from loadmaster.executor.collective.fused.choice import Limits
from loadmaster.executor.collective.fused.engine import FusedEngine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "alltoall")
CAPACITY = Capacity(simple_bytes=4 << 20)


def everywhere(work: object, folder: Path) -> None:
    """Run ``work(rank, ranks)`` on every GPU, each in a process of its own."""
    count = min(8, torch.cuda.device_count())
    torch.multiprocessing.spawn(_begin, (work, count, f"file://{folder / 'store'}"), count)


def _begin(rank: int, work, count: int, store: str) -> None:  # type: ignore[no-untyped-def]
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", init_method=store, rank=rank, world_size=count, device_id=device)
    work(rank, count)
    # Where a rank plays dead, its peers do not wait for it at the end.
    os._exit(0)


def engine(collective: str, ranks: int, limits: Limits | None = None, timeout_s: float = 10.0) -> FusedEngine:
    problem, plan = direct(collective, ranks)  # type: ignore[arg-type]
    group = dist.distributed_c10d._get_default_group()
    return FusedEngine(problem, plan, group, capacity=CAPACITY, limits=limits, timeout_s=timeout_s)


def _right(rank: int, ranks: int) -> None:
    device = torch.device("cuda", rank)
    for collective in COLLECTIVES:
        for limits in (Limits(), Limits(packed_bytes=0), Limits(blocks=8, packed_bytes=1 << 30)):
            made = engine(collective, ranks, limits)
            # The last is more than an arena holds; one size is neither aligned nor whole vectors.
            for size in (1 << 10, (16 << 10) + 12 * ranks, 1 << 20, 48 << 20):
                for dtype in (torch.bfloat16, torch.float16, torch.float32):
                    case = Case(collective, size, dtype, rank, ranks, device)  # type: ignore[arg-type]
                    given, expected = case.input_of(rank), case.expected()
                    for _ in range(2):
                        output = case.empty()
                        fused(case, made)(output, given)
                        made.check()
                        assert torch.equal(output, expected), (collective, limits, size, dtype)
                    if collective == "allreduce":
                        fused(case, made)(given, given)
                        made.check()
                        assert torch.equal(given, expected), ("in place", limits, size, dtype)


def _refused(rank: int, ranks: int) -> None:
    made = engine("allgather", ranks, Limits(blocks=600, packed_bytes=0))
    case = Case("allgather", 16 << 20, torch.bfloat16, rank, ranks, torch.device("cuda", rank))
    with pytest.raises(InputError, match=r"limits\.blocks.*run at once"):
        fused(case, made)(case.empty(), case.input_of(rank))


def _replayed(rank: int, ranks: int) -> None:
    device = torch.device("cuda", rank)
    calls = []
    for collective in COLLECTIVES:
        made = engine(collective, ranks)
        for size in (8 << 10, 8 << 20):
            case = Case(collective, size, torch.bfloat16, rank, ranks, device)  # type: ignore[arg-type]
            calls.append((fused(case, made), case.empty(), case.input_of(rank), case.expected(), made))
    for call, output, given, _, _ in calls:
        call(output, given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call, output, given, _, _ in calls:
            call(output, given)
    for _ in range(10):
        for _, output, _, _, _ in calls:
            output.zero_()
        graph.replay()
        # Calls outside go on counting from where the graph is.
        calls[0][0](calls[0][1], calls[0][2])
    for _, output, _, expected, made in calls:
        made.check()
        assert torch.equal(output, expected)


def _one_is_missing(rank: int, ranks: int) -> None:
    for collective in ("allreduce", "allgather"):
        for packed_bytes in (0, 1 << 20):
            made = engine(collective, ranks, Limits(packed_bytes=packed_bytes), timeout_s=2.0)
            case = Case(collective, 64 << 10, torch.float32, rank, ranks, torch.device("cuda", rank))  # type: ignore[arg-type]
            fused(case, made)(case.empty(), case.input_of(rank))
            made.check()
    if rank == 1:
        # It lives, and waits for the others to say what they have to say.
        torch.cuda.synchronize()
        dist.distributed_c10d._get_default_store().wait(["named 0"])
        return
    fused(case, made)(case.empty(), case.input_of(rank))
    with pytest.raises(PeerError) as found:
        made.check()
    assert "gave up after 2.0 s" in str(found.value)
    assert rank != 0 or ranks > 2 or found.value.peer == 1
    dist.distributed_c10d._get_default_store().set(f"named {rank}", str(found.value.peer))


def test_every_collective_in_every_type(tmp_path: Path) -> None:
    everywhere(_right, tmp_path)


def test_graphs_and_calls_outside_take_turns(tmp_path: Path) -> None:
    everywhere(_replayed, tmp_path)


def test_more_blocks_than_run_at_once_are_refused(tmp_path: Path) -> None:
    everywhere(_refused, tmp_path)


def test_a_missing_peer_is_named_in_time(tmp_path: Path) -> None:
    everywhere(_one_is_missing, tmp_path)
