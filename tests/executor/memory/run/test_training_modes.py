"""The ways people train: each works under a plan as it does without one, or is refused in words."""

from __future__ import annotations

import copy
import functools
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from loadmaster.errors import InputError
from loadmaster.executor import apply, capture, measure
from loadmaster.executor.memory.run import backends
from loadmaster.executor.memory.run.compiled_plans import CompiledPlans
from loadmaster.models.memory.checker import check
from tests.executor.memory.models import Mlp, convnet_case, mlp_case, transformer_case
from tests.executor.memory.schedules import plan, schedule

pytestmark = pytest.mark.slow  # most of its tests trace and run a model


@pytest.fixture
def compilations(monkeypatch):
    """One entry for every graph a plan was asked for."""
    asked = []
    inner = CompiledPlans.partition
    monkeypatch.setattr(CompiledPlans, "partition", lambda self, joint: asked.append(1) or inner(self, joint))
    return asked


def convnet():
    return convnet_case(blocks=1)


def planned_for(model, inputs, loss, **options):
    problem = capture(model, inputs, loss, hardware="cpu", backend="eager", **options)
    return plan(problem, schedule(problem, lambda i: i % 3 == 0))


def planned(model, inputs, loss, **options):
    return apply(planned_for(model, inputs, loss), model, loss, backend="eager", **options)


def plainly(model, inputs, loss):
    return model(*inputs) if loss is None else loss(model(*inputs[:-1]), inputs[-1])


def assert_same_gradients(model, twin, rtol=1e-8):
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        if q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=rtol, atol=1e-10)


def test_gradients_add_up_over_micro_batches(compilations):
    model, inputs, loss = convnet()
    twin, step = copy.deepcopy(model), planned(model, inputs, loss)
    for _ in range(2):
        for micro in (inputs, tuple(t.flip(0) for t in inputs), inputs):
            (step(*micro) / 3).backward()
            (plainly(twin, micro, loss) / 3).backward()
        assert_same_gradients(model, twin)
        model.zero_grad(set_to_none=False)
        twin.zero_grad(set_to_none=False)
    assert len(compilations) == 1


@pytest.mark.parametrize("held", [False, True])
def test_gradients_that_are_held_count(held):
    """Over micro-batches the old gradients and the new ones are there together."""
    model, inputs, loss = transformer_case(dtype=torch.float32, batch=4, tokens=64)
    problem = capture(model, inputs, loss, hardware="cpu", backend="eager", gradients_held=held)
    by_hand = schedule(problem, lambda i: random.Random(i).random() < 0.3)
    step = apply(plan(problem, by_hand), model, loss, backend="eager")
    step(*inputs).backward()
    if not held:
        model.zero_grad()
    resident = [*model.parameters(), *inputs, *(p.grad for p in model.parameters() if p.grad is not None)]
    measured = measure(lambda: step(*inputs).backward(), resident=resident, warmup=0, repeats=0).peak_bytes
    promised = check(problem, by_hand, 1 << 50).peak_bytes
    assert 0.9 * promised < measured <= promised + 4096


def test_autocast_belongs_to_the_plan(compilations):
    model, inputs, loss = convnet_case(dtype=torch.float32, blocks=1)
    twin = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16):
        step = planned(model, inputs, loss)
        for _ in range(2):
            value, expected = step(*inputs), plainly(twin, inputs, loss)
            assert torch.equal(value, expected)
    value.backward()  # outside of autocast, as PyTorch recommends
    plainly_gradients = torch.autograd.grad(expected, list(twin.parameters()))
    for p, g in zip(model.parameters(), plainly_gradients, strict=True):
        assert p.grad.dtype == torch.float32
        assert torch.equal(p.grad, g)
    assert len(compilations) == 1
    with pytest.raises(InputError, match=r"autocast on cpu is off, planned for torch\.bfloat16"):
        step(*inputs)
    with torch.autocast("cpu", torch.float16), pytest.raises(InputError, match=r"autocast on cpu is torch\.float16"):
        step(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        step(*inputs).backward()  # and goes on after a refusal


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_evaluation_takes_any_batch_and_never_asks_for_a_plan(without, compilations):
    model, inputs, loss = convnet_case(blocks=1, batch=10)
    step = planned(model, inputs, loss)
    step(*inputs).backward()
    step.eval()
    assert not model.training
    for size in range(10, 0, -1):
        part = tuple(t[:size] for t in inputs)
        with without():
            value = step(*part)
        assert not value.requires_grad
        assert torch.equal(value, plainly(model, part, loss).detach())
    statistics = copy.deepcopy(model.state_dict())
    step.train()
    step(*inputs).backward()
    assert len(compilations) == 1
    assert not all(torch.equal(a, b) for a, b in zip(statistics.values(), model.state_dict().values(), strict=True))


def test_evaluation_before_the_first_step(compilations):
    model, inputs, loss = convnet()
    step = planned(model, inputs, loss)
    with torch.no_grad():
        assert torch.equal(step.eval()(*inputs), plainly(model, inputs, loss))
    assert compilations == []
    step.train()(*inputs).backward()
    assert len(compilations) == 1


def test_the_mode_belongs_to_the_plan():
    model, inputs, loss = convnet()
    step = planned(model, inputs, loss)
    step(*inputs).backward()
    with pytest.raises(InputError, match="mode of the model is eval, planned for train"):
        step.eval()(*inputs)
    model.train()
    step(*inputs).backward()
    model.eval()  # to fine-tune with fixed statistics, capture in that mode
    twin, fixed = copy.deepcopy(model), planned(model, inputs, loss)
    model.zero_grad()
    twin.zero_grad()
    fixed(*inputs).backward()
    plainly(twin, inputs, loss).backward()
    assert_same_gradients(model, twin)


def test_a_short_last_batch_runs_under_the_plan(compilations):
    model, inputs, loss = convnet()
    twin, step = copy.deepcopy(model), planned(model, inputs, loss)
    tail = tuple(t[:3] for t in inputs)
    for _ in range(2):
        for part in (inputs, tail):
            step(*part).backward()
            plainly(twin, part, loss).backward()
    assert_same_gradients(model, twin)
    assert len(compilations) == 2


@pytest.mark.parametrize("case", [convnet_case, transformer_case])
@pytest.mark.parametrize("seed", range(2))
def test_smaller_batches_take_no_more_than_the_larger_one(case, seed):
    """Also where they would be grouped otherwise, under schedules with any implementations."""
    sizes = {"tokens": 32} if case is transformer_case else {}
    model, inputs, loss = case(dtype=torch.float32, batch=8, **sizes)
    problem = capture(model, inputs, loss, hardware="cpu", backend="eager")
    draw = random.Random(seed)
    chosen = [draw.randrange(len(b.implementations)) for b in problem.backward]
    by_hand = schedule(problem, lambda i: draw.random() < 0.5, lambda k: chosen[k - 1])
    step = apply(plan(problem, by_hand), model, loss, backend="eager")
    peaks = []
    for part in (tuple(t[:n] for t in inputs) for n in (8, 7, 4, 2)):
        twin = copy.deepcopy(model)
        step(*part).backward()
        plainly(twin, part, loss).backward()
        assert_same_gradients(model, twin, rtol=1e-4)
        model.zero_grad()
        run = functools.partial(lambda part: step(*part).backward(), part)
        resident = [*model.parameters(), *model.buffers(), *inputs]
        peaks.append(measure(run, resident=resident, warmup=0, repeats=0).peak_bytes)
        model.zero_grad()
    assert peaks == sorted(peaks, reverse=True)


def larger(inputs):
    """The batch, and its first row once more."""
    return tuple(torch.cat([t, t[:1]]) for t in inputs)


def test_a_larger_batch_is_refused_and_training_goes_on(compilations):
    model, inputs, loss = convnet()
    twin, step = copy.deepcopy(model), planned(model, inputs, loss)
    for _ in range(2):
        step(*inputs).backward()
        plainly(twin, inputs, loss).backward()
        with pytest.raises(InputError, match=r"input \[0\] is \(5, 3, 12, 12\).*planned for \(4, 3, 12, 12\)"):
            step(*larger(inputs))
    assert_same_gradients(model, twin)
    assert len(compilations) == 3  # the planned graph once, the refused one each time


def test_a_larger_batch_may_run_without_a_plan(compilations):
    model, inputs, loss = convnet()
    twin, step = copy.deepcopy(model), planned(model, inputs, loss, unplanned="run")
    with pytest.raises(InputError, match="was made for the graph"):
        step(*larger(inputs))  # a step that never fitted its plan: the plan is for another model
    for epoch in range(3):
        step(*inputs).backward()
        if epoch == 0:
            with pytest.warns(UserWarning, match=r"without a plan and its budget.*input \[0\] is \(5,"):
                step(*larger(inputs)).backward()
        else:
            step(*larger(inputs)).backward()
        plainly(twin, inputs, loss).backward()
        plainly(twin, larger(inputs), loss).backward()
    assert_same_gradients(model, twin)
    assert len(compilations) == 3


def test_the_ninth_shape_runs_without_a_plan():
    model, inputs, loss = mlp_case()
    inputs = tuple(torch.cat([t] * 12)[:12] for t in inputs)
    twin, step = copy.deepcopy(model), planned(model, inputs, loss, unplanned="run")
    parts = [tuple(t[:n] for t in inputs) for n in range(12, 1, -1)]
    with pytest.warns(UserWarning, match="compiled for 8 kinds of calls") as told:
        for part in parts:
            step(*part).backward()
            plainly(twin, part, loss).backward()
    assert_same_gradients(model, twin)
    assert len([w for w in told if "without a plan" in str(w.message)]) == len(parts) - 8


class Annealed(Mlp):
    """With a weight of its loss that is another number in every call."""

    def forward(self, x, target, weight):
        return (super().forward(x) - target).square().mean() * weight


def test_a_number_that_always_changes_is_not_traced_for_ever(compilations):
    _, (x, target), _ = mlp_case()
    model = Annealed().double()
    twin, step = copy.deepcopy(model), planned(model, (x, target, 1.0), None, unplanned="run")
    with pytest.warns(UserWarning, match=r"input \[2\] is 0\.\d+, planned for 1\.0.*So will other calls"):
        for weight in (1.0, *(0.5 / n for n in range(1, 21))):
            step(x, target, weight).backward()
            twin(x, target, weight).backward()
    assert_same_gradients(model, twin)
    assert len(compilations) == 9
    step(x, target, 1.0)
    assert len(compilations) == 9  # under its plan, as before


def test_batches_of_several_shapes_have_a_plan_each(compilations):
    model, inputs, loss = convnet()
    sizes = [tuple(t[:n] for t in inputs) for n in (4, 3, 2)]
    plans = [planned_for(model, part, loss) for part in sizes]
    twin, step = copy.deepcopy(model), apply(plans, model, loss, backend="eager")
    for part in (*sizes, *sizes):
        step(*part).backward()
        plainly(twin, part, loss).backward()
    assert_same_gradients(model, twin)
    assert len(compilations) == 3
    with pytest.raises(InputError, match=r"was made for the graph .*, .*, .*, this step"):
        step(*larger(inputs))


def test_a_gradient_scaler_scales_and_skips():
    model, inputs, loss = mlp_case(torch.float32)
    twin, step = copy.deepcopy(model), planned(model, inputs, loss)
    sides = []
    for m in (model, twin):
        sides.append((torch.amp.GradScaler("cpu", init_scale=2.0**10), torch.optim.SGD(m.parameters(), lr=0.1), m))
    for spoiled in (False, True, False):
        for call, (scaler, optimizer, m) in zip((step, lambda *i: plainly(twin, i, loss)), sides, strict=True):
            optimizer.zero_grad()
            scaler.scale(call(*inputs)).backward()
            if spoiled:
                m.layers[0].weight.grad[0, 0] = torch.inf
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(m.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
    assert sides[0][0].get_scale() == sides[1][0].get_scale() == 2.0**9
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_parameters_frozen_after_capture_need_another_plan():
    model, inputs, loss = mlp_case()
    step = planned(model, inputs, loss)
    step(*inputs).backward()
    model.layers[0].requires_grad_(False)
    with pytest.raises(InputError, match=r"parameter layers.0.weight is .* on cpu, planned for .* requires a gradient"):
        step(*inputs)
    twin, again = copy.deepcopy(model), planned(model, inputs, loss)
    model.zero_grad()
    twin.zero_grad()
    again(*inputs).backward()
    plainly(twin, inputs, loss).backward()
    assert_same_gradients(model, twin)


def test_tied_weights_get_one_gradient():
    model, inputs, loss = transformer_case(layers=1)
    twin, step = copy.deepcopy(model), planned(model, inputs, loss)
    assert model.head.weight is model.embedding.weight
    step(*inputs).backward()
    plainly(twin, inputs, loss).backward()
    assert_same_gradients(model, twin)
    untied = copy.deepcopy(model)
    untied.head.weight = nn.Parameter(untied.head.weight.detach().clone())
    with pytest.raises(InputError, match="was made for the graph"):
        apply(step.plans, untied, loss, backend="eager")(*inputs)


class Options(nn.Module):
    """Takes a dictionary of tensors, a number and a word."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, batch, factor, reduction):
        y = self.layer(batch["x"]).tanh() * factor
        return y.sum() if reduction == "sum" else (y - batch["y"]).pow(2).mean()


def test_inputs_that_are_no_tensors_belong_to_the_plan():
    torch.manual_seed(0)
    model, batch = Options(), {"x": torch.randn(3, 4), "y": torch.randn(3, 4)}
    twin, step = copy.deepcopy(model), planned(model, (batch, 0.5, "mean"), None)
    other = {name: t.flip(0) for name, t in batch.items()}
    for one in (batch, other):
        step(one, 0.5, "mean").backward()
        twin(one, 0.5, "mean").backward()
    assert_same_gradients(model, twin)
    with pytest.raises(InputError, match=r"input \[1\] is 0.25, planned for 0.5"):
        step(batch, 0.25, "mean")
    with pytest.raises(InputError, match=r"input \[2\] is 'sum', planned for 'mean'"):
        step(batch, 0.5, "sum")
    with pytest.raises(InputError, match=r"input \[0\]\['x'\] is \(6, 4\)"):
        step({name: torch.cat([t, t]) for name, t in batch.items()}, 0.5, "mean")


def test_dictionaries_of_tensors_count_as_inputs():
    model, x = Options(), torch.randn(3, 4)
    small, large = (capture(model, ({"x": x, "y": y}, 0.5, "mean"), hardware="cpu") for y in (x, x.clone()))
    assert large.forward[0].fixed_bytes - small.forward[0].fixed_bytes == x.nbytes


class Checkpointed(Mlp):
    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(lambda x, layer=layer: F.relu(layer(x)), x, use_reentrant=False)
        return x


class CheckpointedSequence(Mlp):
    def forward(self, x):
        return checkpoint_sequential(nn.Sequential(*self.layers, nn.ReLU()), 2, x, use_reentrant=False)


CHECKPOINTED = {"checkpoint": Checkpointed, "checkpoint_sequential": CheckpointedSequence}


@pytest.mark.parametrize("wrap", [*CHECKPOINTED, "whole", "blocks"])
def test_checkpoints_and_compiled_parts_give_way_to_the_plan(wrap, compilations):
    torch.manual_seed(0)
    model = CHECKPOINTED.get(wrap, Mlp)().double()
    _, inputs, loss = mlp_case()
    twin, bare = copy.deepcopy(model), copy.deepcopy(model)
    if wrap == "whole":
        model = torch.compile(model, backend="aot_eager")
    if wrap == "blocks":
        for layer in model.layers:
            layer.compile(backend="aot_eager")
    step = planned(model, inputs, loss)
    problems = [capture(m, inputs, loss, hardware="cpu", backend="eager", name="x") for m in (model, bare)]
    if wrap not in CHECKPOINTED:
        assert problems[0].name == problems[1].name
    step(*inputs).backward()
    plainly(twin, inputs, loss).backward()
    assert_same_gradients(model, twin)
    assert len(compilations) == 1


def test_a_planned_step_inside_a_compiled_function_keeps_its_plan(compilations):
    model, inputs, loss = mlp_case()
    twin, step = copy.deepcopy(model), planned(model, inputs, loss)
    torch.compile(lambda *i: step(*i) * 2, backend="aot_eager")(*inputs).backward()
    (plainly(twin, inputs, loss) * 2).backward()
    assert_same_gradients(model, twin)
    assert len(compilations) == 1


def test_a_copied_step_trains_its_own_copy():
    model, inputs, loss = mlp_case()
    step = planned(model, inputs, loss)
    step(*inputs).backward()
    model.zero_grad()
    twin = copy.deepcopy(step)
    twin(*inputs).backward()
    assert all(p.grad is None for p in model.parameters())
    assert all(p.grad is not None for p in twin.parameters())


def test_hooks_on_the_forward_pass_and_on_parameters_run():
    model, inputs, loss = mlp_case()
    seen = []
    model.layers[0].register_forward_hook(lambda module, given, made: made * 2)
    model.layers[1].register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    twin = copy.deepcopy(model)
    for m in (model, twin):
        m.layers[0].weight.register_hook(lambda gradient: gradient * 3)
        m.layers[2].weight.register_post_accumulate_grad_hook(seen.append)
    planned(model, inputs, loss)(*inputs).backward()
    plainly(twin, inputs, loss).backward()
    assert_same_gradients(model, twin)
    assert len(seen) == 2


def test_gradients_twice_but_not_of_gradients():
    model, inputs, loss = mlp_case()
    twin, step = copy.deepcopy(model), planned(model, inputs, loss)
    value = step(*inputs)
    value.backward(retain_graph=True)
    value.backward()
    (2 * plainly(twin, inputs, loss)).backward()
    assert_same_gradients(model, twin)
    gradients = torch.autograd.grad(step(*inputs), list(model.parameters()), create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        sum(g.square().sum() for g in gradients).backward()


@pytest.mark.slow
def test_inductor_evaluates_any_batch_and_runs_larger_ones_without_a_plan(monkeypatch):
    model, inputs, loss = mlp_case()
    twin = copy.deepcopy(model)
    chosen = planned_for(model, inputs, loss)
    lowered = []
    inner = backends.inductor
    monkeypatch.setitem(backends.COMPILERS, "inductor", lambda *arguments: lowered.append(1) or inner(*arguments))
    step = apply(chosen, model, loss, backend="inductor", unplanned="run")
    step(*inputs).backward()
    with pytest.warns(UserWarning, match="without a plan"):
        step(*larger(inputs)).backward()
    plainly(twin, inputs, loss).backward()
    plainly(twin, larger(inputs), loss).backward()
    assert_same_gradients(model, twin, rtol=1e-6)
    assert len(lowered) == 2  # one plan, forward and backward
    with torch.no_grad():
        for part in (inputs, larger(inputs)):
            torch.testing.assert_close(step.eval()(*part), plainly(twin.eval(), part, loss), rtol=1e-8, atol=1e-10)
