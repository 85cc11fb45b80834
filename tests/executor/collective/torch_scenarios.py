"""Scenarios of what PyTorch asks of a process group: ways to wait, types, modes, DDP and FSDP2, a peer that dies."""

from __future__ import annotations

import contextlib
import copy
import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from loadmaster.executor import collective
from loadmaster.executor.collective.engine import ReferenceEngine
from tests.executor.collective.group_scenarios import use
from tests.executor.collective.runner_scenarios import numbers


def types(rank):
    """Of sums and of copies, as torch.distributed has them; what no plan adds up is left to the inner group."""
    n = dist.get_world_size()
    with use(rank, "allreduce", "allgather"):
        for dtype in (torch.uint8, torch.int16, torch.int64, torch.float64, torch.complex64):
            ones = torch.ones(64 * n // dtype.itemsize, dtype=dtype)
            dist.all_reduce(ones)
            assert torch.equal(ones, torch.full_like(ones, n))
        assert collective.stats()["planned"] == {"allreduce": {"reference": 5}}
        for dtype in (torch.uint32, torch.bool):
            flags = torch.ones(64 * n, dtype=dtype)
            with contextlib.suppress(RuntimeError):
                dist.all_reduce(flags, dist.ReduceOp.MAX)
            assert torch.equal(flags, torch.ones_like(flags))
        assert collective.stats()["fell_back"] == {"allreduce": {"operator or type": 2}}
        for dtype in (torch.bool, torch.uint16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64):
            mine = numbers(rank, 64 // dtype.itemsize).to(dtype)
            found = torch.zeros(n * len(mine), dtype=dtype)
            dist.all_gather_into_tensor(found, mine)
            assert torch.equal(found.view(n, -1)[n - 1], numbers(n - 1, len(mine)).to(dtype))
        # As long, of another shape: still even.
        pieces = [torch.zeros(4, 4) if r % 2 else torch.zeros(16) for r in range(n)]
        dist.all_gather(pieces, numbers(rank, 16))
        assert all(torch.equal(piece.flatten(), numbers(r, 16)) for r, piece in enumerate(pieces))
        assert collective.stats()["planned"]["allgather"] == {"reference": 6}


def modes(rank):
    """Tensors made for inference can be written to only in that mode, which is a thread's own."""
    n = dist.get_world_size()
    with use(rank, "allreduce", "allgather"), torch.inference_mode():
        for count in (16 * n, 16 * n + 1):
            ones = torch.ones(count)
            dist.all_reduce(ones)
            assert torch.equal(ones, torch.full_like(ones, n))
    weight = torch.ones(16 * n, requires_grad=True)
    with use(rank, "allreduce"):
        total = (2 * weight).detach()
        dist.all_reduce(total)
        dist.all_reduce(weight.data)
        assert total[0] == 2 * n and weight[0] == n and weight.grad_fn is None


def waiting(rank):
    """Whatever way a call is waited for, it is done then."""
    n = dist.get_world_size()
    with use(rank, "allreduce", "allgather"):
        for wait in (
            lambda work: work.wait(),
            lambda work: work.wait(timedelta(seconds=60)),
            lambda work: work.synchronize(),
            lambda work: work.block_current_stream(),
            lambda work: work.get_future().wait(),
            lambda work: dist.barrier(),
        ):
            ones = torch.ones(1 << 18)
            work = dist.all_reduce(ones, async_op=True)
            wait(work)
            assert torch.equal(ones, torch.full_like(ones, n)) and work.is_completed()
        late = torch.ones(16 * n)
        if rank == 0:
            time.sleep(1)
        work = dist.all_reduce(late, async_op=True)
        if rank == 1:
            with pytest.raises(TimeoutError):
                work.wait(timedelta(milliseconds=10))
        work.wait()
        assert torch.equal(late, torch.full_like(late, n))


def coalesced(rank):
    """Calls that torch makes one: planned where they are one, the inner group's where several."""
    n = dist.get_world_size()
    with use(rank, "allreduce", "allgather") as switched:
        for count in (1, 2):
            sums, gathered = ([torch.ones(16 * n) for _ in range(count)] for _ in range(2))
            with _coalescing_manager(async_ops=True) as manager:
                for one in sums:
                    dist.all_reduce(one)
            manager.wait()
            with _coalescing_manager():
                for one in gathered:
                    dist.all_gather_into_tensor(one, torch.full((16,), 2.0))
            assert all(torch.equal(one, torch.full_like(one, n)) for one in sums)
            assert all(torch.equal(one, torch.full_like(one, 2)) for one in gathered)
        found = collective.stats()
        assert found["planned"] == {"allreduce": {"reference": 1}, "allgather": {"reference": 1}}
        assert found["fell_back"] == {"allreduce": {"coalesced": 1}, "allgather": {"coalesced": 1}}
        # Where the backend itself makes them one, it must have them all; gloo does not, and says so.
        with pytest.raises(RuntimeError, match="oalescing"):
            switched.group._start_coalescing(torch.device("cpu"))
        dist.all_reduce(torch.ones(16 * n))
        assert collective.stats()["planned"]["allreduce"] == {"reference": 2}


def without_options(rank):
    """Methods called as earlier releases of PyTorch and programs of old call them, planned or not."""
    n = dist.get_world_size()
    with use(rank, "allreduce", "allgather", "reduce_scatter") as switched:
        group = switched.group
        for count in (1, 2):
            gathered, parts = [torch.zeros(16 * n) for _ in range(count)], [torch.zeros(16) for _ in range(count)]
            group.allgather_into_tensor_coalesced(gathered, [torch.ones(16)] * count).wait()
            group.reduce_scatter_tensor_coalesced(parts, [torch.ones(16 * n)] * count).wait()
            assert all(bool((one == 1).all()) for one in gathered) and all(bool((one == n).all()) for one in parts)
        gathered, part, total = torch.zeros(16 * n), torch.zeros(16), torch.ones(4)
        group._allgather_base(gathered, torch.ones(16)).wait()
        group._reduce_scatter_base(part, gathered).wait()
        group.allreduce(total).wait()
        group.allreduce([total], dist.ReduceOp.SUM).wait()
        group.broadcast(total, 0).wait()
        group.barrier().wait()
        assert part[0] == n and total[0] == n * n
        found = switched.stats()
        assert found["planned"] == {"allgather": {"reference": 2}, "reduce_scatter": {"reference": 2}}
        assert found["fell_back"] == {
            **{one: {"coalesced": 1} for one in ("allgather", "reduce_scatter")},
            "allreduce": {"form of call": 2},
            "broadcast": {"form of call": 1},
        }


def net():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(12, 33), nn.ReLU(), nn.Linear(33, 17), nn.ReLU(), nn.Linear(17, 1))


def losses(model, rank, steps=4):
    """Of some steps of training, each rank on a batch of its own; and the parameters then."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + rank)
    found = []
    for _ in range(steps):
        x = torch.randn(8, 12, generator=generator)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def ddp(rank):
    model = net()
    plain = losses(DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=0.001), rank)
    with use(rank, "allreduce", "allgather", "broadcast"):
        wrapped = losses(DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=0.001), rank)
        counted = collective.stats()
    assert wrapped == pytest.approx(plain, rel=1e-5)
    assert counted["planned"]["allreduce"]["reference"] >= 4
    assert counted["padded"]["allreduce"] >= 1
    assert "allreduce" not in counted["fell_back"]


def fsdp(rank):
    def sharded():
        model = net()
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        return fully_shard(model)

    plain = losses(sharded(), rank)
    with use(rank, "allreduce", "allgather", "reduce_scatter"):
        wrapped = losses(sharded(), rank)
        counted = collective.stats()
    assert wrapped == pytest.approx(plain, rel=1e-5)
    assert counted["planned"]["allgather"]["reference"] >= 8
    assert counted["planned"]["reduce_scatter"]["reference"] >= 8
    assert counted["fell_back"] == {}


def one_dies(rank):
    """Through the process group: whoever waits for the call learns of the dead peer, DDP too."""
    n = dist.get_world_size()

    def impatient(problem, plan, group, where):
        engine = ReferenceEngine(problem, plan, group, where)
        engine.runner = collective.Runner(problem, plan, group, place=where, timeout_s=4)
        return engine

    use(rank, "allreduce", engines=(impatient,))
    model = DistributedDataParallel(net())
    dist.barrier()
    if rank == n - 1:
        os._exit(0)
    work = dist.all_reduce(torch.ones(16 * n), async_op=True)
    with pytest.raises(collective.PeerError, match=f"Rank {n - 1} does not answer"):
        work.wait()
    with pytest.raises(RuntimeError, match=f"Rank {n - 1} does not answer"):
        work.get_future().wait()
    with pytest.raises(RuntimeError, match="has lost a peer"):
        model(torch.ones(2, 12)).sum().backward()


SCENARIOS = (types, modes, waiting, coalesced, without_options, ddp, fsdp)
