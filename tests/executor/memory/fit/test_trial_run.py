"""Trial steps leave no trace: values, objects, gradients, buffers, random state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from loadmaster.executor.memory.fit.trial_runs import run_trial, runner, unchanged
from loadmaster.executor.steps.step import Step


class Restless(nn.Module):
    """Changes whatever a module can change: a buffer in place, a buffer by another, a tensor that is no buffer, its
    inputs, random state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("last", torch.full((4,), torch.nan))
        self.state, self.made = torch.zeros(3, 4), None

    def forward(self, x, places=None):
        self.count += 1
        self.state = self.made = self.state + x
        if places is not None:
            places.requires_grad_()
        self.last = x.detach().mean(0)
        y = self.layer(nn.functional.dropout(x)).sum()
        with torch.no_grad():
            self.layer.bias.add_(1)
        return y


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k].nan_to_num(7), b[k].nan_to_num(7)) for k in a)


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_as_it_was(fails):
    model, x, places = Restless(), torch.randn(3, 4, requires_grad=True), torch.randn(2)
    model.layer.weight.grad = kept = torch.ones(4, 4)
    step = Step(model, None)
    before, last, generator, values = state(model), model.last, torch.get_rng_state(), x.detach().clone()
    held = model.state

    def inside():
        with unchanged(step, (x, places)) as set_aside:
            assert set_aside == [kept] and set_aside[0] is kept
            assert model.layer.weight.grad is None
            model(x, places).backward()
            with torch.no_grad():
                x.zero_()
            assert not same(state(model), before)
            if fails:
                raise RuntimeError("the trial broke")

    if fails:
        with pytest.raises(RuntimeError, match="broke"):
            inside()
    else:
        inside()
    assert same(state(model), before)
    assert model.last is last
    assert model.state is held and model.made is None
    assert x.requires_grad and not places.requires_grad
    assert model.layer.weight.grad is kept and torch.equal(kept, torch.ones(4, 4))
    assert model.layer.bias.grad is None and x.grad is None
    assert torch.equal(x, values)
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize(("held", "expected"), [(False, None), (True, 3.0)])
def test_gradients_are_dropped_or_added_to(held, expected):
    model = nn.Linear(1, 1, bias=False)
    step = Step(model, None)
    run = runner(step, step, (torch.ones(1, 1),), gradients_held=held)
    for _ in range(3):
        run()
    gradient = model.weight.grad
    assert (None if gradient is None else float(gradient)) == expected


def test_a_trial_counts_by_hand():
    """One product of [1000, 500] by [500, 250], its sum: on top of what is resident, result and gradient of it."""
    model = nn.Linear(500, 250, bias=False)

    def loss(y, _target):
        return y.sum()

    step = Step(model, loss)
    x, target = torch.randn(1000, 500), torch.zeros(1)
    resident = model.weight.nbytes + x.nbytes + target.nbytes
    found = run_trial(step, step, (x, target), repeats=1)
    assert found.resident_bytes == resident
    least = resident + model.weight.nbytes  # the gradient
    assert least < found.peak_bytes <= least + 3 * 1000 * 250 * 4
    assert found.requested_bytes == found.reserved_bytes == found.peak_bytes
    assert found.step_us > 0
    held = run_trial(step, step, (x, target), gradients_held=True, repeats=1)
    assert held.resident_bytes == resident + model.weight.nbytes


def test_a_trial_inside_autocast_counts_what_training_takes():
    """Autocast keeps its copies of the weights until it ends: in training, before the backward pass."""
    layers = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(6)))
    step, x = Step(layers, lambda y, _t: y.float().sum()), torch.randn(2, 512)

    def trained(*batch):
        with torch.autocast("cpu", torch.bfloat16):
            return step(*batch)

    outside = run_trial(trained, step, (x, x), repeats=0, warm_up=0)
    with torch.autocast("cpu", torch.bfloat16):
        inside = run_trial(step, step, (x, x), repeats=0, warm_up=0)
    assert inside.peak_bytes == outside.peak_bytes


def test_hooks_on_parameters_rest():
    """An optimizer that steps inside the backward pass would train, and make its state, in a trial."""
    model, x = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    optimizer = torch.optim.Adam([model.weight])
    called = []

    def in_backward(_parameter):
        called.append("step")
        optimizer.step()

    handle = model.weight.register_post_accumulate_grad_hook(in_backward)
    model.bias.register_hook(lambda gradient: called.append("bias"))
    x.register_hook(lambda gradient: called.append("input"))
    step = Step(nn.Sequential(model, nn.Flatten(0), nn.Softmax(0)), lambda y, _t: y.square().sum())
    run_trial(step, step, (x, x), repeats=1)
    assert not called and not optimizer.state
    step(x, x).backward()
    assert sorted(called) == ["bias", "input", "step"] and optimizer.state
    handle.remove()
    step(x, x).backward()
    assert called.count("step") == 1


def test_inputs_that_cannot_be_written_need_not_be():
    """NaN is not equal to itself, and an expanded tensor refuses to be written."""
    model = nn.Linear(4, 4)
    x = torch.full((1, 4), torch.nan).expand(3, 4)
    with torch.no_grad():
        model.bias.fill_(torch.nan)
    step = Step(nn.Sequential(model, nn.Flatten(0)), lambda y, _t: y.sum())
    version = model.bias._version
    run_trial(step, step, (x, x), repeats=1)
    assert bool(x.isnan().all()) and model.bias._version == version


def test_a_trial_needs_no_gradients_around_it():
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    step = Step(model, lambda y, _t: y.sum())
    with torch.no_grad():
        run_trial(step, step, (x, x), repeats=1)
        assert not torch.is_grad_enabled()
    assert model.weight.grad is None
