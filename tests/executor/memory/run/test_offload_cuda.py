"""Offload on a GPU: no race however the streams run against each other, the budget kept, copies beside the compute."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from loadmaster.executor import apply, capture, measure
from loadmaster.executor.steps import transfers
from loadmaster.executor.steps.pinned import pool_of
from loadmaster.models.hardware import HostLink
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.planner import plan as plan_problem
from loadmaster.planner.options import PlanOptions
from tests.executor.memory.models import Transformer
from tests.executor.memory.run.test_offloaded_steps import random_journeys, staying
from tests.executor.memory.schedules import plan, schedule, travelling

pytestmark = pytest.mark.gpu
LINK = HostLink(to_host_gbps=50.0, from_host_gbps=50.0)
CYCLES = 3_000_000  # of a sleep: between one and two milliseconds


def transformer(batch: int, tokens: int, width: int, layers: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model = Transformer(vocabulary=512, width=width, layers=layers, heads=4).cuda()
    return model, tuple(torch.randint(0, 512, (batch, tokens), device="cuda") for _ in range(2))


def steps(model: nn.Module, inputs: Any, chosen: MemoryPlan, backend: Any, count: int = 1) -> list[torch.Tensor]:
    """Losses and gradients of some steps of one planned step, brought to the host at the end."""
    model = copy.deepcopy(model)
    step = apply(chosen, model, backend=backend)
    found = []
    for _ in range(count):
        value = step(*inputs)
        value.backward()
        found += [value.detach(), *(p.grad for p in model.parameters())]
        for p in model.parameters():
            p.grad = None
    return [t.cpu() for t in found]


@pytest.fixture
def out_of_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Both streams sleep at random around every copy and every wait. Gives the number of copies, as it grows."""
    draw, started = random.Random(0), [0]
    start, wait = transfers._start, transfers._wait

    def sleep() -> None:
        if draw.random() < 0.6:
            torch.cuda._sleep(int(CYCLES * draw.random()))

    def slow_start(target: torch.Tensor, source: torch.Tensor, device: torch.device) -> Any:
        sleep()
        copying = transfers._copy_stream(device)
        with torch.cuda.stream(copying):
            sleep()
        started[0] += 1
        return start(target, source, device)

    def slow_wait(copies: Any, target: torch.Tensor, device: torch.device) -> None:
        wait(copies, target, device)
        sleep()

    monkeypatch.setattr(transfers, "_start", slow_start)
    monkeypatch.setattr(transfers, "_wait", slow_wait)
    yield started
    assert not transfers._sends and not transfers._fetches


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_gradients_are_the_same_however_the_streams_run(out_of_step: list[int], backend: str, seed: int) -> None:
    """Memory that is freed too early is written over by the compute, which runs on while a copy sleeps."""
    model, inputs = transformer(batch=8, tokens=128, width=128, layers=2)
    problem = capture(model, inputs, hardware="h200", backend=backend, host_link=LINK)
    by_hand = random_journeys(problem, seed, 0.9)
    assert len(by_hand.offload) >= 5 and check(problem, by_hand, 1 << 50).ok
    expected = steps(model, inputs, plan(problem, staying(problem, by_hand)), backend, 3)
    got = steps(model, inputs, plan(problem, by_hand), backend, 3)
    assert out_of_step[0] > 3 * len(by_hand.offload)
    for a, b in zip(got, expected, strict=True):
        if backend == "eager":
            assert torch.equal(a, b)
        else:  # other segments fuse otherwise
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_pass_that_is_given_up_leaves_nothing_behind(out_of_step: list[int]) -> None:
    model, inputs = transformer(batch=8, tokens=128, width=128, layers=2)
    problem = capture(model, inputs, hardware="h200", backend="eager", host_link=LINK)
    chosen = plan(problem, travelling(problem, schedule(problem, lambda i: True), lambda i: True, lambda i: 3))
    expected = steps(model, inputs, chosen, "eager")
    twin = copy.deepcopy(model)
    step = apply(chosen, twin, backend="eager")

    def fail(gradient: torch.Tensor) -> None:
        raise ValueError("given up")

    handle = twin.norm.weight.register_hook(fail)
    for _ in range(3):
        with pytest.raises(ValueError, match="given up"):
            step(*inputs).backward()
    step(*inputs)  # and never differentiated
    handle.remove()
    torch.cuda.synchronize()
    for p in twin.parameters():
        p.grad = None
    step(*inputs).backward()
    for p, g in zip(twin.parameters(), expected[1:], strict=True):
        assert torch.equal(p.grad.cpu(), g)


def budget_between(problem: MemoryProblem, share: float) -> int:
    peak = check(problem, schedule(problem, lambda i: True), 1 << 50).peak_bytes
    resident = problem.forward[0].fixed_bytes
    return int(resident + share * (peak - resident))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_the_budget_is_kept_and_host_memory_is_used_again(backend: Any) -> None:
    model, inputs = transformer(batch=64, tokens=128, width=256, layers=4)
    problem = capture(model, inputs, backend=backend, host_link=HostLink(1e4, 1e4))
    # Nothing may be computed again: only the host makes room.
    problem = replace(problem, forward=tuple(replace(f, recomputable=False) for f in problem.forward))
    for share in (0.6, 0.8):
        budget = budget_between(problem, share)
        chosen = plan_problem(problem, PlanOptions(budget_bytes=budget, time_limit_s=15, gap=0.01))
        assert chosen.schedule is not None and chosen.schedule.offload
        step = apply(chosen, model, backend=backend)

        def run(step: Callable[..., torch.Tensor] = step) -> None:
            step(*inputs).backward()
            for p in model.parameters():
                p.grad = None

        run()
        held = pool_of(torch.cuda.current_device()).held_bytes
        assert held > 0
        found = measure(run, device="cuda")
        assert found.requested_bytes <= budget
        assert pool_of(torch.cuda.current_device()).held_bytes == held


class Products(nn.Module):
    """Large matrix products, which take longer than copying their results."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.float().square().mean()


def test_copies_run_beside_the_compute() -> None:
    torch.manual_seed(0)
    model = Products(16384, 6).cuda().bfloat16()
    x = torch.randn(4096, 16384, device="cuda", dtype=torch.bfloat16)
    problem = capture(model, (x,), hardware="h200", backend="eager", host_link=LINK)
    stays = schedule(problem, lambda i: True)
    travels = travelling(problem, stays, lambda i: i < 5, lambda i: 3, lambda i: 2)
    assert len(travels.offload) == 5
    times_us = []
    for chosen in (stays, travels):
        step = apply(plan(problem, chosen), model, backend="eager")

        def run(step: Callable[..., torch.Tensor] = step) -> None:
            step(x).backward()
            for p in model.parameters():
                p.grad = None

        times_us.append(measure(run, device="cuda", repeats=9).step_us)
    one_way_us = LINK.to_host_us(int(problem.output_bytes[list(travels.offload)].sum()))
    # One after the other, both ways together would make it longer by twice that.
    assert times_us[1] < times_us[0] + 0.5 * one_way_us
