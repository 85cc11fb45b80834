"""The pager on a CUDA device: the same numbers, and memory that the device's allocator counts, too."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import partial

import pytest
import torch

import loadmaster
from loadmaster.executor import Pager
from loadmaster.executor.placement.pager.copies import CudaCopies
from loadmaster.executor.placement.pager.memory import PagedMemory
from tests.executor.placement.paged_models import Case, peak_bytes, train

pytestmark = pytest.mark.gpu
planner = partial(loadmaster.plan, time_limit_s=2.0, progress=False)
CASES = {
    "adamw": Case(device="cuda"),
    "fused": Case(lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True), device="cuda"),
    "checkpointed": Case(checkpointed=True, device="cuda"),
}


@pytest.mark.parametrize("prefetch", [None, "correlation"])
@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("share", [0.85, 0.7, 0.5])
@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_training_without_a_limit(
    name: str, share: float, planned: bool, prefetch: str | None
) -> None:
    case = CASES[name]
    budget_bytes = int(share * peak_bytes(case))
    paged = train(case, 7, budget_bytes, planner=planner if planned else None, prefetch=prefetch)
    # Under a pager either way: one parameter after the other is another order of the same sums on some kernels.
    assert paged.equals(train(case, 7, 1 << 40))
    assert max(step.peak_bytes for step in paged.stats) <= budget_bytes
    if planned:
        assert paged.stats[-1].planned == 1.0
        assert paged.stats[-1].faults <= max(1, 0.02 * paged.stats[2].faults)


def test_the_backward_thread_is_paged() -> None:
    case = replace(CASES["adamw"], micro_batches=2)
    budget_bytes = int(0.6 * peak_bytes(case))
    assert train(case, 4, budget_bytes).equals(train(case, 4, 1 << 40))


def test_the_allocator_counts_no_more_than_the_limit() -> None:
    """But for what its blocks are larger than what was asked for, and libraries keep."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(12))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(512, 2048, device="cuda")
    torch.mm(x, x.t())  # its library's workspace is there
    beside = torch.cuda.memory_allocated() - sum(p.untyped_storage().nbytes() for p in model.parameters())
    budget_bytes = 400 << 20
    with Pager(model, optimizer, budget_bytes=budget_bytes) as pager:
        torch.cuda.reset_peak_memory_stats()
        for _ in range(4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        assert torch.cuda.max_memory_allocated() <= budget_bytes + beside + (32 << 20)
        assert sum(step.faults for step in pager.stats) > 0


def test_a_load_comes_after_what_its_memory_was_used_for() -> None:
    """Copies beside kernels that still run: contents are right whatever the streams do."""
    memory = PagedMemory(1 << 40, CudaCopies(torch.device("cuda")), small_bytes=1)
    tensors = [torch.full((1 << 20,), float(n), device="cuda") for n in range(8)]
    pages = [memory.add(t.untyped_storage()) for t in tensors]
    big = torch.randn(4096, 4096, device="cuda")
    for round_ in range(4):
        for tensor, page in zip(tensors, pages, strict=True):
            for _ in range(3):
                big = (big @ big).clamp(-1, 1)
            memory.will_be_written(page)
            tensor.add_(1.0)
            memory.store(page)
            memory.evict(page)
            scratch = torch.zeros(1 << 20, device="cuda")
            memory.prefetch(page)
            memory.ensure([page], [page], 0, "test")
            assert float(scratch.sum()) == 0.0
        assert [float(t[0]) for t in tensors] == [n + round_ + 1.0 for n in range(8)]


def test_copies_in_host_memory_are_saved_page_by_page() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8))).cuda()
    expected = {name: value.cpu() for name, value in model.state_dict().items()}
    written = io.BytesIO()
    with Pager(model, budget_bytes="4MiB") as pager:
        torch.save({name: value.cpu() for name, value in model.state_dict().items()}, written)
        assert pager.used_bytes <= pager.budget_bytes
    written.seek(0)
    assert all(torch.equal(value, expected[name]) for name, value in torch.load(written).items())
