"""A step under any valid schedule computes what plain PyTorch computes: loss, gradients, running statistics."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from loadmaster.errors import InputError
from loadmaster.executor import apply, capture
from loadmaster.executor.memory.operators.grouping import group
from loadmaster.executor.memory.run.emission import emit
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.plan import Compute, MemoryInfeasibility, Stage
from tests.executor.memory.models import SMALL, Mlp, convnet_case, mlp_case, transformer_case
from tests.executor.memory.replay import Replay
from tests.executor.memory.schedules import plan, schedule
from tests.executor.memory.tracing import trace

CASES = {"mlp": mlp_case, "convnet": convnet_case, "transformer": transformer_case}
FUSED = " fused"  # operators as a compiler fuses them; such a plan runs eagerly as well
NAMES = [name + suffix for name in CASES for suffix in ("", FUSED)]
COMPILED = [name + suffix for name in ("mlp", "small convnet", "small transformer") for suffix in ("", FUSED)]


@pytest.fixture(scope="module")
def captured():
    """Every case with its problem, captured once."""
    found = {}
    for name, case in (CASES | SMALL).items():
        model, inputs, loss = case()
        for suffix, backend in (("", "eager"), (FUSED, "inductor")):
            problem = capture(model, inputs, loss, hardware="cpu", backend=backend, name=name)
            found[name + suffix] = (model, inputs, loss, problem)
    return found


@pytest.fixture(scope="module")
def traced(captured):
    """The same steps, to run under many schedules."""
    return {name: Replay(*captured[name][:3], fused=name.endswith(FUSED)) for name in NAMES}


def plain(model, inputs, loss):
    """Loss, gradients and buffers of plain PyTorch."""
    model = copy.deepcopy(model)
    value = model(*inputs) if loss is None else loss(model(*inputs[:-1]), inputs[-1])
    value.backward()
    return value, [p.grad for p in model.parameters()], list(model.buffers())


def planned(model, inputs, loss, chosen, backend="eager"):
    """The same under a plan."""
    model = copy.deepcopy(model)
    value = apply(chosen, model, loss, backend=backend)(*inputs)
    value.backward()
    return value, [p.grad for p in model.parameters()], list(model.buffers())


def assert_same(got, expected, rtol=1e-10):
    (loss, gradients, buffers), (loss0, gradients0, buffers0) = got, expected
    torch.testing.assert_close(loss, loss0, rtol=rtol, atol=1e-12)
    assert len(gradients) == len(gradients0)
    for g, g0 in zip(gradients, gradients0, strict=True):
        torch.testing.assert_close(g, g0, rtol=rtol, atol=1e-12)
    for b, b0 in zip(buffers, buffers0, strict=True):
        torch.testing.assert_close(b, b0, rtol=rtol, atol=1e-12)  # statistics and counts: updated exactly once


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keep", [True, False])
def test_keep_everything_and_recompute_everything(captured, name, keep):
    model, inputs, loss, problem = captured[name]
    by_hand = schedule(problem, lambda i: keep)
    assert check(problem, by_hand, 1 << 50).ok
    got = planned(model, inputs, loss, plan(problem, by_hand))
    assert_same(got, plain(model, inputs, loss))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "convnet"])
def test_gradients_are_bit_equal_where_operators_are_the_same(captured, name):
    model, inputs, loss, problem = captured[name]
    for keep in (True, False):
        statistics_again = name == "convnet" and not keep  # BatchNorm has another recomputation, equal to rounding
        loss1, gradients, _ = planned(model, inputs, loss, plan(problem, schedule(problem, lambda i, k=keep: k)))
        loss0, gradients0, _ = plain(model, inputs, loss)
        assert torch.equal(loss1, loss0)
        if not statistics_again:
            assert all(torch.equal(g, g0) for g, g0 in zip(gradients, gradients0, strict=True))


@pytest.mark.slow
@settings(max_examples=24, deadline=None)
@given(seed=st.integers(0, 10**6), name=st.sampled_from(NAMES), share=st.floats(0, 1))
def test_random_schedules_with_random_implementations(captured, traced, seed, name, share):
    problem = captured[name][-1]

    def draw(*key: int) -> float:
        return random.Random(hash((seed, *key))).random()

    by_hand = schedule(
        problem,
        lambda i: draw(i) < share,
        lambda k: int(draw(0, k) * len(problem.backward[k - 1].implementations)),
        lambda k, i: draw(1, k, i) < share,
    )
    verdict = check(problem, by_hand, 1 << 50)
    assert verdict.ok, verdict.violations
    for got, expected in zip(traced[name].under(by_hand), traced[name].expected(), strict=True):
        assert got is expected is None or torch.allclose(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_several_steps_of_training_follow_plain_pytorch():
    model, inputs, loss = convnet_case()
    problem = capture(model, inputs, loss, hardware="cpu", backend="eager")
    twin = copy.deepcopy(model)
    step = apply(plan(problem, schedule(problem, lambda i: i % 3 == 0)), model, loss, backend="eager")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, twin)]
    for _ in range(3):
        losses = []
        for optimizer, call in zip(optimizers, (step, lambda x, y: loss(twin(x), y)), strict=True):
            optimizer.zero_grad()
            value = call(*inputs)
            value.backward()
            optimizer.step()
            losses.append(value.detach())
        torch.testing.assert_close(*losses, rtol=1e-8, atol=1e-10)
    for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.slow
def test_dropout_is_drawn_once_and_replayed():
    model, inputs, loss = transformer_case(dropout=0.5)
    problem = capture(model, inputs, loss, hardware="cpu", backend="eager")
    results = []
    for keep in (True, False):
        torch.manual_seed(7)
        results.append(planned(model, inputs, loss, plan(problem, schedule(problem, lambda i, k=keep: k))))
    assert_same(*results)
    torch.manual_seed(8)
    other = planned(model, inputs, loss, plan(problem, schedule(problem, lambda i: True)))
    assert not torch.equal(other[0], results[0][0])


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_inductor_computes_the_same(captured, name):
    model, inputs, loss, problem = captured[name]
    by_hand = schedule(problem, lambda i: i % 3 == 0)
    got = planned(model, inputs, loss, plan(problem, by_hand), backend="inductor")
    assert_same(got, plain(model, inputs, loss), rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "suffix"), [(1, ""), (2, FUSED)])
def test_inductor_under_random_schedules(captured, seed, suffix):
    model, inputs, loss, problem = captured["small transformer" + suffix]
    draw = random.Random(seed)
    kept = {f.id: draw.random() < 0.4 for f in problem.forward}
    stays = {(b.id, f.id): draw.random() < 0.5 for b in problem.backward for f in problem.forward}
    by_hand = schedule(problem, kept.__getitem__, keep_recomputed=lambda k, i: stays[k, i])
    assert check(problem, by_hand, 1 << 50).ok
    got = planned(model, inputs, loss, plan(problem, by_hand), backend="inductor")
    assert_same(got, plain(model, inputs, loss), rtol=1e-8)


class Awkward(nn.Module):
    """Unused parameter and result, an input that requires a gradient, a frozen layer, in-place operators, a split."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, scale):
        self.calls += 1
        a, b = self.used(x).chunk(2, -1)
        y = torch.cat([a.sigmoid(), (b + 1).mul_(0.1)], -1)
        y[:, 0] += 1
        self.unused(x)
        z = self.frozen(y).tanh()
        return (z * scale + y[:, :1].expand_as(z)).pow(2).mean()


@pytest.mark.slow
@pytest.mark.parametrize("keep", [True, False])
def test_awkward_models(keep):
    torch.manual_seed(0)
    model = Awkward().double()
    x, scale = torch.randn(4, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    problem = capture(model, (x.requires_grad_(), scale), hardware="cpu", backend="eager")
    twin = copy.deepcopy(model)
    x0 = x.detach().clone().requires_grad_()
    twin(x0, scale).backward()
    step = apply(plan(problem, schedule(problem, lambda i: keep)), model, backend="eager")
    step(x, scale).backward()
    assert torch.equal(x.grad, x0.grad)
    assert torch.equal(model.calls, twin.calls)
    for p, p0 in zip(model.parameters(), twin.parameters(), strict=True):
        assert (p.grad is None) == (p0.grad is None)
        assert p.grad is None or torch.equal(p.grad, p0.grad)


class Writing(nn.Module):
    """Writes to a buffer, to its input, and to a parameter before it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x):
        x.add_(1)
        with torch.no_grad():
            self.first.weight.mul_(0.9)
        y = self.first(x).tanh()
        with torch.no_grad():
            self.average.lerp_(y.mean(0), 0.1)
        return (self.second(y) - self.average).pow(2).mean()


@pytest.mark.parametrize("keep", [True, False])
def test_what_the_model_writes_is_written_once(keep):
    torch.manual_seed(0)
    model = Writing().double()
    x = torch.randn(4, 8, dtype=torch.float64)
    problem = capture(model, (x.clone(),), hardware="cpu", backend="eager")
    twin, x0 = copy.deepcopy(model), x.clone()
    step = apply(plan(problem, schedule(problem, lambda i: keep)), model, backend="eager")
    for _ in range(2):
        assert torch.equal(step(x), twin(x0))
    step(x).backward()
    twin(x0).backward()
    assert torch.equal(x, x0) and torch.equal(model.average, twin.average)
    for p, p0 in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, p0) and torch.equal(p.grad, p0.grad)


def test_the_forward_graph_writes_running_statistics_itself(captured):
    """A compiler fuses the copies; returned values would be copied one by one after every step."""
    model, inputs, loss, problem = captured["convnet"]
    forward, _ = emit(group(trace(model, inputs, loss)), schedule(problem, lambda i: True))
    copies = forward.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    assert len(copies) == len({n.args[0] for n in copies}) == len(list(model.buffers()))
    assert all(n.args[0].op == "placeholder" for n in copies)
    returned = forward.graph.output_node().args[0]
    assert returned[0].meta["val"].shape == ()  # the loss comes first


def test_a_plan_for_another_model_or_batch_is_refused(captured):
    model, (x, y), loss, problem = captured["mlp"]
    chosen = plan(problem, schedule(problem, lambda i: True))
    with pytest.raises(InputError, match="was made for the graph") as found:
        apply(chosen, Mlp(depth=2).double(), loss, backend="eager")(x, y)
    assert problem.name.rpartition("-")[2] in str(found.value)
    assert "this step on cpu is" in found.value.problem and "Capture this model on cpu" in found.value.remedy
    with pytest.raises(InputError, match="was made for the graph"):
        apply(chosen, model, loss, backend="eager")(x[:3], y[:3])


def test_plans_that_cannot_be_applied(captured):
    model, inputs, loss, problem = captured["mlp"]
    chosen = plan(problem, schedule(problem, lambda i: True))
    with pytest.raises(InputError, match="backend"):
        apply(chosen, model, loss, backend="tensorrt")
    with pytest.raises(InputError, match="status"):
        apply(replace(chosen, schedule=None, status="infeasible"), model, loss)
    least = MemoryInfeasibility(minimum_budget_bytes=700, short_bytes=1, where="loss", blockers=())
    for why, enough in ((least, "700 bytes"), (replace(least, planned_budget_bytes=800), "800 bytes")):
        with pytest.raises(InputError, match=f"Plan again with {enough} or more"):
            apply(replace(chosen, schedule=None, status="infeasible", infeasibility=why), model, loss)
    with pytest.raises(InputError, match="fingerprint"):
        apply(replace(chosen, name="resnet50"), model, loss)
    stages = chosen.schedule.stages
    wrong = {
        "are not the": stages[:-1],
        "outside": (stages[0], Stage((Compute(10**6),), 0, ()), *stages[2:]),
        "none of the": (stages[0], replace(stages[1], implementation=7), *stages[2:]),
        "not captured": (
            replace(stages[0], computes=(*stages[0].computes[:-1], Compute(len(problem.forward) - 1, 1))),
            *stages[1:],
        ),
        "leaves forward operators out": (replace(stages[0], computes=stages[0].computes[1:]), *stages[1:]),
        "neither stored nor computed": (replace(stages[0], keep=()), *(replace(s, keep=()) for s in stages[1:])),
    }
    for message, bad in wrong.items():
        broken = replace(chosen, schedule=replace(chosen.schedule, stages=tuple(bad)))
        with pytest.raises(InputError, match=message):
            apply(broken, model, loss, backend="eager")(*inputs)


def test_accumulation_evaluation_and_two_plans_for_one_model(captured):
    model, inputs, loss, problem = captured["mlp"]
    model, twin = copy.deepcopy(model), copy.deepcopy(model)
    steps = [
        apply(plan(problem, schedule(problem, lambda i, k=keep: k)), model, loss, backend="eager")
        for keep in (True, False)
    ]
    for step in steps:
        step(*inputs).backward()
        loss(twin(inputs[0]), inputs[1]).backward()
    for p, p0 in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p.grad, p0.grad)
    with torch.no_grad():
        assert torch.equal(steps[0](*inputs), loss(model(inputs[0]), inputs[1]))


def test_loss_modules_work():
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(4, 3)), (torch.randn(5, 4), torch.randint(0, 3, (5,)))
    problem = capture(model, inputs, nn.CrossEntropyLoss(), hardware="cpu", backend="eager")
    chosen = plan(problem, schedule(problem, lambda i: False))
    got = planned(model, inputs, nn.CrossEntropyLoss(), chosen)
    torch.testing.assert_close(got[0], F.cross_entropy(model(inputs[0]), inputs[1]))


class Turned(nn.Linear):
    """Channels by time, as models of time series return it."""

    def forward(self, x):
        return super().forward(x).transpose(1, 2)


@pytest.mark.parametrize("kind", [nn.MSELoss, nn.SmoothL1Loss, nn.HuberLoss])
def test_gradients_that_do_not_lie_as_traced(kind):
    """PyTorch lays out the gradient of such a loss otherwise than it says."""
    model, batch, loss = Turned(8, 8), (torch.randn(4, 6, 8), torch.randn(4, 8, 6)), kind()
    problem = capture(model, batch, loss, hardware="cpu", backend="eager")
    found = planned(model, batch, loss, plan(problem, schedule(problem, lambda i: False)))
    torch.testing.assert_close(found, plain(model, batch, loss))
