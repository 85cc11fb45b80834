"""Launching tuned kernels directly: which ones, and in every graph of a step."""

from __future__ import annotations

import copy
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime.triton_heuristics import CachingAutotuner, DebugAutotuner

from loadmaster.executor import KnobStep
from loadmaster.executor.memory.run import backends
from loadmaster.executor.steps import launches, tracing
from loadmaster.executor.steps.launches import Launched, launch_directly
from tests.executor.memory.models import mlp_case
from tests.executor.memory.run.test_cuda_graphs import planned, trained


def launcher(launched, *, is_static=True, is_tuned=True):
    """One that writes down what it is called with."""

    def launch(*args, stream):
        launched.append((*args, stream))

    launch._is_static = is_static
    launch.config = SimpleNamespace(found_by_coordesc=is_tuned)
    return launch


def kernel(launchers, kind=CachingAutotuner, **other):
    """An autotuner of Inductor's as it is after its first launch; it cannot be run."""
    made = object.__new__(kind)
    usual = {"triton_interpret": False, "dump_launch_params": False, "dump_launch_tensors": False, "inductor_meta": {}}
    vars(made).update(usual, launchers=launchers, **other)
    return made


def launched_directly(held):
    """What stands for it in a module afterwards."""
    module = ModuleType("written")
    module.kernel, module.call = held, print
    launch_directly([module])
    assert module.call is print
    return module.kernel


@pytest.fixture
def before_torch_2_13(monkeypatch):
    """PyTorch's own object does not skip what it asks."""
    monkeypatch.setattr(launches, "LAUNCHES_FAST", False)


@pytest.mark.usefixtures("before_torch_2_13")
def test_a_tuned_kernel_is_launched_with_what_it_is_given():
    launched = []
    launched_directly(kernel([launcher(launched)])).run("x", 3, stream=7)
    assert launched == [("x", 3, 7)]
    tuned = {"coordinate_descent_tuning": True}
    assert isinstance(launched_directly(kernel([launcher(launched)], inductor_meta=tuned)), Launched)


@pytest.mark.usefixtures("before_torch_2_13")
@pytest.mark.parametrize(
    "other",
    [
        kernel([]),
        kernel([launcher([]), launcher([])]),
        kernel([launcher([], is_static=False)]),
        kernel([launcher([], is_tuned=False)], inductor_meta={"coordinate_descent_tuning": True}),
        kernel([launcher([])], triton_interpret=True),
        kernel([launcher([])], dump_launch_params=True),
        kernel([launcher([])], dump_launch_tensors=True),
        kernel([launcher([])], DebugAutotuner),
        "no kernel",
    ],
)
def test_a_kernel_with_more_to_do_is_left_alone(other):
    assert launched_directly(other) is other


def test_nothing_is_done_where_pytorch_skips_it_itself(monkeypatch):
    monkeypatch.setattr(launches, "LAUNCHES_FAST", True)
    tuned = kernel([launcher([])])
    assert launched_directly(tuned) is tuned


@pytest.mark.slow
def test_every_graph_of_a_knob_step_is_seen(monkeypatch):
    model, batch, loss = mlp_case()
    seen, known = [], len(PyCodeCache.modules)
    monkeypatch.setattr(tracing, "launch_directly", seen.extend)
    trained(model, KnobStep(model, loss, knob=0.5), [batch], steps=2)
    assert seen == [m for m in PyCodeCache.modules[known:] if hasattr(m, "call")] and len(seen) == 2


@pytest.mark.slow
def test_every_graph_of_a_planned_step_is_seen(monkeypatch):
    model, batch, loss = mlp_case()
    seen, known = [], len(PyCodeCache.modules)
    monkeypatch.setattr(backends, "launch_directly", seen.extend)
    trained(model, planned(model, batch, loss), [batch], steps=2)
    written = [m for m in PyCodeCache.modules[known:] if hasattr(m, "call")]
    assert sorted(map(id, seen)) == sorted(map(id, written)) and len(written) > 2


@pytest.mark.gpu
def test_steps_that_launch_directly_train_as_plain_pytorch():
    with torch.device("cuda"):
        model, batch, loss = mlp_case()
    model, batch = model.cuda(), [tuple(t.cuda() for t in batch)]
    plain, under_knob = copy.deepcopy(model), copy.deepcopy(model)
    expected = trained(plain, lambda x, y: loss(plain(x), y), batch)
    torch.testing.assert_close(trained(model, planned(model, batch[0], loss), batch), expected)
    torch.testing.assert_close(trained(under_knob, KnobStep(under_knob, loss, knob=0.5), batch), expected)
    direct = [v for m in PyCodeCache.modules for v in vars(m).values() if isinstance(v, Launched)]
    assert bool(direct) != launches.LAUNCHES_FAST
