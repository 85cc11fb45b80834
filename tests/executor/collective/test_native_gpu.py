"""Compiled planned calls on all GPUs of this machine, beside NCCL: as results, under graphs, asynchronous, in DDP."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.collective.plans import direct
from loadmaster.executor import collective
from tests.executor.collective.test_fused_gpu import COLLECTIVES, everywhere

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


def _use(ranks: int, **more) -> collective.Installed:
    installed = collective.use([direct(one, ranks) for one in COLLECTIVES], **{"calibrate": False, **more})
    assert installed.compiled
    return installed


def _calls(rank: int, ranks: int, asynchronous: bool) -> list[torch.Tensor]:
    """What comes of every collective on whole numbers, which sums are exact for."""
    found = []
    for count in (256 * ranks, (3 << 18) * ranks):
        whole = torch.arange(count, device="cuda").remainder(7).bfloat16() + rank
        part, other = whole[: count // ranks].clone(), torch.empty_like(whole)
        total, gathered = whole.clone(), torch.empty_like(whole)
        scattered = torch.empty_like(part)
        works = [
            dist.all_reduce(total, async_op=asynchronous),
            dist.all_gather_into_tensor(gathered, part, async_op=asynchronous),
            dist.reduce_scatter_tensor(scattered, whole, async_op=asynchronous),
            dist.all_to_all_single(other, whole, async_op=asynchronous),
        ]
        for work in works:
            assert asynchronous == (work is not None)
            if work is not None:
                work.wait()
        average = whole.clone()
        dist.all_reduce(average, dist.ReduceOp.AVG)
        found += [total, gathered, scattered, other, average]
    return found


def _as_nccl(rank: int, ranks: int) -> None:
    expected = _calls(rank, ranks, False)
    with _use(ranks) as installed:
        for asynchronous in (False, True, False):
            for one, other in zip(_calls(rank, ranks, asynchronous), expected, strict=True):
                assert torch.equal(one, other)
        counted = installed.stats()["planned"]
        assert counted["alltoall"] == {"fused": 6} and counted["allreduce"] == {"fused": 12}


def _on_several_streams(rank: int, ranks: int) -> None:
    with _use(ranks):
        streams = [torch.cuda.Stream() for _ in range(3)]
        tensors = []
        for turn in range(60):
            with torch.cuda.stream(streams[turn % 3]):
                tensors.append(torch.full((4096,), float(turn), device="cuda"))
                work = dist.all_reduce(tensors[-1], async_op=turn % 2 == 0)
                if work is not None:
                    work.wait()
                tensors[-1] += 1
        torch.cuda.synchronize()
        for turn, tensor in enumerate(tensors):
            assert torch.equal(tensor, torch.full_like(tensor, turn * ranks + 1.0))


def _replayed(rank: int, ranks: int) -> None:
    with _use(ranks):
        ones = torch.ones(4096, device="cuda")
        dist.all_reduce(ones)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dist.all_reduce(ones)
            work = dist.all_reduce(ones, async_op=True)
            work.wait()
        ones.fill_(1)
        for _ in range(3):
            graph.replay()
        assert torch.equal(ones, torch.full_like(ones, ranks**6))


def _in_ddp(rank: int, ranks: int) -> None:
    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(4))).cuda()
        trained = DistributedDataParallel(model, bucket_cap_mb=1)
        torch.manual_seed(rank)
        for _ in range(2):
            trained.zero_grad()
            trained(torch.randn(8, 512, device="cuda")).square().sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    expected = gradients()
    with _use(ranks) as installed:
        for one, other in zip(gradients(), expected, strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)
        assert installed.stats()["planned"]["allreduce"]["fused"] >= 2


def _on_shared_memory(rank: int, ranks: int) -> None:
    with _use(ranks) as installed:
        for count in (256 * ranks, (3 << 18) * ranks, (1 << 20) * ranks + 5):
            shared = installed.empty(count + 8, dtype=torch.bfloat16)[8:]
            whole = torch.arange(count, device="cuda").remainder(7).bfloat16() + rank
            total = ranks * torch.arange(count, device="cuda").remainder(7).bfloat16() + ranks * (ranks - 1) / 2
            for asynchronous in (False, True):
                for _ in range(20):  # the same memory again and again
                    shared.copy_(whole)
                    work = dist.all_reduce(shared, async_op=asynchronous)
                    if work is not None:
                        work.wait()
                    assert torch.equal(shared, total)
            if count % ranks:
                continue
            parts = whole.view(ranks, -1)
            for _ in range(20):
                dist.all_gather_into_tensor(shared, parts[rank])
                expected = torch.stack([parts[k] + (k - rank) for k in range(ranks)])
                assert torch.equal(shared.view_as(parts), expected)
                shared.copy_(whole)
                scattered = torch.empty_like(parts[0])
                dist.reduce_scatter_tensor(scattered, shared)
                assert torch.equal(scattered, total.view_as(parts)[rank])
                dist.all_to_all_single(shared, whole)
                expected = torch.stack([parts[rank] + (k - rank) for k in range(ranks)])
                assert torch.equal(shared.view_as(parts), expected)
        assert set(installed.stats()["fell_back"]) <= {"allreduce"}


def _measured(rank: int, ranks: int) -> None:
    expected = _calls(rank, ranks, False)
    with _use(ranks, calibrate=True, largest_bytes=1 << 22) as installed:
        assert {t.collective for t in installed.calibration.timings} == set(COLLECTIVES)
        for one, other in zip(_calls(rank, ranks, False), expected, strict=True):
            assert torch.equal(one, other)


def test_calls_give_what_nccl_gives(tmp_path: Path) -> None:
    everywhere(_as_nccl, tmp_path)


def test_calls_on_shared_memory_follow_one_another(tmp_path: Path) -> None:
    everywhere(_on_shared_memory, tmp_path)


def test_calls_of_several_streams_take_turns(tmp_path: Path) -> None:
    everywhere(_on_several_streams, tmp_path)


def test_graphs_hold_calls_of_both_kinds(tmp_path: Path) -> None:
    everywhere(_replayed, tmp_path)


def test_gradients_of_ddp_are_the_same(tmp_path: Path) -> None:
    everywhere(_in_ddp, tmp_path)


def test_what_was_measured_decides(tmp_path: Path) -> None:
    everywhere(_measured, tmp_path)
