"""Hooks that transformers sets under a lock in a model's first call: the step is one graph all the same."""

from __future__ import annotations

import threading
from types import ModuleType

import pytest
import torch
from torch import nn

from loadmaster.errors import InputError
from loadmaster.executor import apply, capture
from loadmaster.executor.steps import library_hooks
from tests.executor.memory.schedules import plan, schedule

LOCK = threading.Lock()


class PreTrained(nn.Module):
    """A model of the library."""


class Encoder(PreTrained):
    """Gives what each of its layers made, which hooks collect."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.made: list[torch.Tensor] = []

    def forward(self, x):
        maybe_install_capturing_hooks(self)
        made = self.made = []
        for layer in self.layers:
            x = layer(x).tanh()
        self.made = []
        return made


class Segmenter(PreTrained):
    """Adds up what the encoder's layers made."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()

    def forward(self, x):
        return sum(made.square().sum() for made in self.encoder(x))


def maybe_install_capturing_hooks(model):
    """As the library has it."""
    if getattr(model, "is_hooked", False):
        return
    with LOCK:
        for module in model.modules():
            if isinstance(module, Encoder):
                for layer in module.layers:
                    layer.register_forward_hook(lambda _layer, _args, made, module=module: module.made.append(made))
            module.is_hooked = True


@pytest.fixture
def library(monkeypatch):
    """Stands for transformers."""
    found, capturing = ModuleType("transformers"), ModuleType(library_hooks.MODULE)
    found.PreTrainedModel = PreTrained
    capturing.maybe_install_capturing_hooks = maybe_install_capturing_hooks
    monkeypatch.setitem(library_hooks.sys.modules, "transformers", found)
    monkeypatch.setitem(library_hooks.sys.modules, library_hooks.MODULE, capturing)


def test_they_are_set_where_the_trace_ended(library):
    torch.manual_seed(0)
    model, twin, batch = Segmenter(), Segmenter(), (torch.randn(4, 8),)
    twin.load_state_dict(model.state_dict())
    twin(*batch).backward()
    problem = capture(model, batch, hardware="cpu", backend="eager")
    assert [len(layer._forward_hooks) for layer in model.encoder.layers] == [1, 1, 1]
    apply(plan(problem, schedule(problem, lambda i: False)), model, backend="eager")(*batch).backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])


def test_a_plan_from_elsewhere_has_them_set_too(library):
    model, batch = Segmenter(), (torch.randn(4, 8),)
    problem = capture(model, batch, hardware="cpu", backend="eager")
    fresh = Segmenter()
    apply(plan(problem, schedule(problem, lambda i: False)), fresh, backend="eager")(*batch).backward()
    assert all(p.grad is not None for p in fresh.parameters())


def test_without_the_library_the_lock_is_named():
    with pytest.raises(InputError, match=r"in maybe_install_capturing_hooks: with LOCK"):
        capture(Segmenter(), (torch.randn(4, 8),), hardware="cpu", backend="eager")


def test_a_lock_of_the_users_sets_no_hooks(library):
    class Locked(Segmenter):
        def forward(self, x):
            with LOCK:
                return x.sum()

    model = Locked()
    with pytest.raises(InputError, match="with LOCK"):
        capture(model, (torch.randn(4, 8),), hardware="cpu", backend="eager")
    assert not any(layer._forward_hooks for layer in model.encoder.layers)
