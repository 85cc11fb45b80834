"""Plans for single blocks: limits on what a block keeps and takes, the same gradients, refusals."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import loadmaster
from loadmaster.errors import InputError
from loadmaster.executor import apply, apply_to_blocks, capture_block, measure
from loadmaster.executor.memory.run.compiled_plans import CompiledPlans
from loadmaster.models.memory.unconstrained import unconstrained_cost
from tests.executor.memory.models import ConvNet, Mlp, Transformer
from tests.executor.memory.schedules import plan, schedule

pytestmark = pytest.mark.slow  # most of its tests trace and run a model

ROOM = {"kept_bytes": 1 << 30, "budget_bytes": 1 << 30}
BLOCKS = 4


def transformer():
    torch.manual_seed(0)
    model = Transformer(layers=BLOCKS, width=64)
    tokens = tuple(torch.randint(0, 64, (4, 64)) for _ in range(2))
    return model, tokens, torch.randn(4, 64, 64, requires_grad=True)


def peak_bytes(model, tokens):
    def run():
        model.zero_grad()
        model(*tokens).backward()

    run()
    model.zero_grad()
    return measure(run, resident=[*model.parameters(), *tokens], warmup=0, repeats=0).peak_bytes


class Checkpointed(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


def test_blocks_keep_no_more_than_they_may_and_the_sum_holds():
    model, tokens, x = transformer()
    rest = copy.deepcopy(model)
    for i in range(BLOCKS):
        rest.blocks[i] = Checkpointed(rest.blocks[i])  # keeps nothing but its input
    rest_bytes = peak_bytes(rest, tokens)
    peaks, costs = [], []
    for kept_bytes in (0, 300_000, 900_000):
        limits = {"kept_bytes": kept_bytes, "budget_bytes": 2_000_000}
        problem = capture_block(model.blocks[0], (x,), hardware="cpu", backend="eager", **limits)
        chosen = loadmaster.plan(problem, time_limit_s=20)
        kept = sum(problem.forward[i].output_bytes for i in chosen.schedule.stages[0].keep)
        assert 0.7 * kept_bytes <= kept <= kept_bytes
        trained, twin = copy.deepcopy(model), copy.deepcopy(model)
        trained.blocks = nn.Sequential(*apply_to_blocks(chosen, trained.blocks, backend="eager"))
        trained(*tokens).backward()
        twin(*tokens).backward()
        for p, q in zip(trained.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5)
        peaks.append(peak_bytes(trained, tokens))
        costs.append(chosen.objective)
        assert peaks[-1] <= rest_bytes + (BLOCKS - 1) * kept_bytes + limits["budget_bytes"]
    assert peaks == sorted(peaks)
    assert costs == sorted(costs, reverse=True)


def test_blocks_with_statistics_and_evaluation():
    torch.manual_seed(0)
    model = ConvNet(blocks=2).double()
    x, twin = torch.randn(4, 3, 12, 12, dtype=torch.float64), copy.deepcopy(model)
    given = torch.randn(4, 8, 6, 6, dtype=torch.float64, requires_grad=True)
    problem = capture_block(model.blocks[0], (given,), hardware="cpu", backend="eager", **ROOM)
    chosen = plan(problem, schedule(problem, lambda i: i % 3 == 0))
    model.blocks = nn.Sequential(*apply_to_blocks(chosen, model.blocks, backend="eager"))
    model(x).square().mean().backward()
    twin(x).square().mean().backward()
    for a, b in zip((*model.parameters(), *model.buffers()), (*twin.parameters(), *twin.buffers()), strict=True):
        torch.testing.assert_close(a, b)
        assert a.grad is None or torch.allclose(a.grad, b.grad)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x[:3]), twin.eval()(x[:3]))


def test_a_block_that_fits_its_limits_costs_nothing():
    model, _, x = transformer()
    problem = capture_block(model.blocks[0], (x,), hardware="cpu", **ROOM)
    chosen = loadmaster.plan(problem, time_limit_s=20)
    assert chosen.objective == pytest.approx(unconstrained_cost(problem))
    assert problem.budget_bytes == ROOM["budget_bytes"]


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_many_blocks_are_compiled_once(backend, monkeypatch):
    asked = []
    inner = CompiledPlans.partition
    monkeypatch.setattr(CompiledPlans, "partition", lambda self, joint: asked.append(1) or inner(self, joint))
    torch.manual_seed(0)
    model = Transformer(layers=12, width=16).double()
    tokens = tuple(torch.randint(0, 64, (2, 8)) for _ in range(2))
    x = torch.randn(2, 8, 16, dtype=torch.float64, requires_grad=True)
    problem = capture_block(model.blocks[0], (x,), hardware="cpu", backend=backend, **ROOM)
    chosen, twin = plan(problem, schedule(problem, lambda i: i % 2 == 0)), copy.deepcopy(model)
    model.blocks = nn.Sequential(*apply_to_blocks(chosen, model.blocks, backend=backend))
    for _ in range(2):
        for m in (model, twin):
            m(*tokens).backward()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-8, atol=1e-10)
    assert asked == [1]


class Two(Mlp):
    def forward(self, x):
        y = super().forward(x)
        return y, y.mean()


class Same(Mlp):
    def forward(self, x):
        super().forward(x)
        return x


def test_what_is_no_block_is_refused():
    x = torch.randn(8, 16, requires_grad=True)
    for block in (Two(), Same()):
        with pytest.raises(InputError, match=r"block: does not return one tensor|no gradient"):
            capture_block(block, (x,), hardware="cpu", **ROOM)
    for field in ROOM:
        with pytest.raises(InputError, match=f"{field}: is negative"):
            capture_block(Mlp(), (x,), hardware="cpu", **{**ROOM, field: -1})


def test_plans_of_blocks_and_inputs_that_differ_are_refused():
    model, tokens, x = transformer()
    problem = capture_block(model.blocks[0], (x,), hardware="cpu", backend="eager", **ROOM)
    chosen = plan(problem, schedule(problem, lambda i: True))
    block = apply(chosen, model.blocks[0], backend="eager")
    block(x).sum().backward()
    with pytest.raises(
        InputError, match=r"input \[0\] is \(4, 64, 64\) float32 on cpu, planned for .* requires a grad"
    ):
        block(x.detach())
    with pytest.raises(InputError, match="was made for the graph"):
        apply(chosen, model, backend="eager")(*tokens)
