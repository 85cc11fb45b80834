"""A step under torch.compile's own knob: plain PyTorch's numbers, and what is saved follows the knob."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._functorch import config

from loadmaster.errors import InputError
from loadmaster.executor import KnobStep
from tests.executor.memory.models import SMALL, mlp_case


def saved_bytes(loss):
    """What the compiled forward pass left for the backward pass."""
    node = loss.grad_fn
    while not hasattr(node, "saved_tensors"):
        node = node.next_functions[0][0]
    return sum(t.nbytes for t in node.saved_tensors)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "knob"), [(SMALL["small convnet"], 1.0), (SMALL["small transformer"], 0.0)])
def test_gradients_are_those_of_plain_pytorch(case, knob):
    model, inputs, loss = case(dtype=torch.float64)
    plain = copy.deepcopy(model)
    step = KnobStep(model, loss, knob=knob)
    for _ in range(2):
        found = step(*inputs)
        expected = plain(*inputs) if loss is None else loss(plain(*inputs[:-1]), inputs[-1])
        torch.testing.assert_close(found, expected)
        found.backward()
        expected.backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    for ours, theirs in zip(model.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.slow
def test_less_is_saved_under_a_lower_knob():
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.Tanh())))
    inputs = (torch.randn(64, 16), torch.randn(64, 16))
    before = config.activation_memory_budget
    saved = [saved_bytes(KnobStep(model, nn.functional.mse_loss, knob=knob)(*inputs)) for knob in (1.0, 0.5, 0.0)]
    assert saved[0] > saved[1] > saved[2]
    assert config.activation_memory_budget == before


class Broken(nn.Module):
    """Breaks the graph: what follows is compiled apart."""

    def __init__(self):
        super().__init__()
        self.after = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.Tanh())))

    def forward(self, x, target):
        torch._dynamo.graph_break()
        return nn.functional.mse_loss(self.after(x), target)


@pytest.mark.slow
def test_each_has_its_own_knob_behind_a_graph_break():
    model, inputs = Broken(), (torch.randn(64, 16), torch.randn(64, 16))
    saved = [saved_bytes(KnobStep(model, knob=knob)(*inputs)) for knob in (1.0, 0.0)]
    assert saved[0] > saved[1]


def test_a_knob_is_a_share_and_wrappers_go_around():
    model, _, loss = mlp_case()
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match=r"knob: is no share .*from 0 to 1"):
            KnobStep(model, loss, knob=wrong)
    assert dict(KnobStep(model, loss, knob=0.5).named_parameters()).keys() == {
        f"step.model.{name}" for name, _ in model.named_parameters()
    }
    assert "activation_memory_budget 0.5" in repr(KnobStep(model, loss, knob=0.5))
