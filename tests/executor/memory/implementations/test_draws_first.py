"""What draws small random numbers comes before all else, with what is computed from them; nothing else moves."""

from __future__ import annotations

import pytest
import torch
from joint_graphs import arguments, joint_graph
from torch import nn

from loadmaster.executor import apply
from loadmaster.executor.costs import roofline
from loadmaster.executor.memory.capture import capture
from loadmaster.executor.memory.implementations.passes import run_passes
from loadmaster.executor.memory.run import backends
from tests.executor.memory.schedules import plan, schedule


def by_torchvision(x, survives):
    """As torchvision's ``stochastic_depth`` has it."""
    noise = torch.empty([x.shape[0], 1], dtype=x.dtype, device=x.device)
    return x * noise.bernoulli_(survives).div_(survives)


def by_timm(x, survives):
    """As timm's ``drop_path`` has it."""
    noise = x.new_empty((x.shape[0], 1)).bernoulli_(survives)
    return x * noise.div_(survives)


class Blocks(nn.Module):
    """Each leaves out as many of its results as it is told."""

    def __init__(self, drop, survive):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in survive
        )
        self.drop, self.survive = drop, survive

    def forward(self, x):
        for layer, survives in zip(self.layers, self.survive, strict=True):
            x = x + self.drop(layer(x), survives)
        return x


@pytest.mark.parametrize("drop", [by_torchvision, by_timm])
def test_draws_of_stochastic_depth_come_first(drop):
    model = Blocks(drop, (0.9, 0.8))
    joint = run_passes(joint_graph(model, torch.randn(16, 8)))
    called = [str(n.target) for n in joint.graph.nodes if n.op == "call_function"]
    first = called.index("aten.native_layer_norm.default")
    assert [name for name in called[:first] if "bernoulli" in name or "div" in name] == [
        *("aten.bernoulli.p", "aten.div.Tensor", "aten.bernoulli.p", "aten.div.Tensor")
    ]
    assert not any("bernoulli" in name for name in called[first:])


@pytest.mark.parametrize("drop", [by_torchvision, by_timm])
def test_nothing_is_dropped_where_all_survive(drop):
    model, x = Blocks(drop, (1.0, 1.0)).double(), torch.randn(16, 8, dtype=torch.float64)
    want = model(x)
    joint = run_passes(joint_graph(model, x))
    primals, tangents = arguments(model, (x,), (torch.ones_like(want),))
    torch.testing.assert_close(joint(primals, tangents)[0][0], want)


def test_what_reads_a_value_stays_and_so_do_large_draws():
    class Draws(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            y = self.layer(x)
            return torch.bernoulli(y.sigmoid()).sum() + (y.sum() * torch.rand(1 << 15)).sum()

    joint = run_passes(joint_graph(Draws(), torch.randn(16, 8)))
    called = [str(n.target) for n in joint.graph.nodes if n.op == "call_function"]
    product = called.index("aten.addmm.default")
    assert not any("bernoulli" in name or "rand" in name for name in called[:product])


@pytest.mark.slow
@pytest.mark.parametrize("drop", [by_torchvision, by_timm])
def test_blocks_that_survive_differently_are_compiled_once(drop, monkeypatch):
    compiled = []
    original = backends._compile
    monkeypatch.setattr(backends, "_compile", lambda *given: compiled.append(given) or original(*given))
    model, batch, loss = Blocks(drop, [1 - 0.01 * n for n in range(10)]), (torch.randn(16, 8),) * 2, nn.MSELoss()
    problem = capture(model, batch, loss, costs=roofline("cpu"))
    step = apply(plan(problem, schedule(problem, lambda i: True)), model, loss)
    step(*batch).backward()
    assert len(compiled) < 10
    assert all(p.grad.isfinite().all() for p in model.parameters())
