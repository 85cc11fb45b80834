"""Attributes and hooks as transformers and PEFT have them: the step is one graph, and what the model holds stays."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from loadmaster.errors import InputError
from loadmaster.executor import KnobStep, apply, capture
from tests.executor.memory.plain_gradients import expect_plain_gradients
from tests.executor.memory.schedules import plan, schedule


class Encoder(nn.Module):
    """Three layers."""

    __module__ = "transformers.models.bart.modeling_bart"

    def __init__(self, layerdrop: float, leaves_out) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.layerdrop, self.leaves_out = layerdrop, leaves_out

    def forward(self, x):
        for layer in self.layers:
            if self.leaves_out(self):
                continue
            x = layer(x).tanh()
        return x.square().sum()


class FeatureEncoder(nn.Module):
    """As HuBERT's."""

    __module__ = "transformers.models.hubert.modeling_hubert"

    def __init__(self) -> None:
        super().__init__()
        self.layer, self._requires_grad = nn.Conv1d(1, 4, 3), True

    def forward(self, x):
        x = x[:, None]
        if self._requires_grad and self.training:
            x.requires_grad = True
        return self.layer(x).square().sum()


class Adapted(nn.Module):
    """As PEFT's LoHa."""

    __module__ = "peft.tuners.loha.layer"

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.adapter = nn.Linear(8, 8), nn.Linear(8, 8)
        self.active_adapters, self.module_dropout = ["default"], {"default": 0.0, "other": 0.5}

    def forward(self, x):
        result = self.layer(x)
        for name in self.active_adapters:
            if (not self.training) or (self.training and torch.rand(1) > self.module_dropout[name]):
                result = result + self.adapter(x)
        return result.tanh().square().sum()


def bart(encoder):
    if encoder.training:
        dropout_probability = torch.rand([])
        if dropout_probability < encoder.layerdrop:
            return True
    return False


def seamless(encoder):
    dropout_probability = torch.rand([])
    return encoder.training and (dropout_probability < encoder.layerdrop)


def oneformer(encoder):
    layerdrop_prob = torch.rand([])
    return not (not encoder.training or (layerdrop_prob > encoder.layerdrop))


def guarded(encoder):
    return encoder.training and encoder.layerdrop > 0.0 and bool(torch.rand([]) < encoder.layerdrop)


@pytest.mark.parametrize("leaves_out", [bart, seamless, oneformer, guarded])
def test_layers_are_kept_under_a_plan(leaves_out):
    torch.manual_seed(0)
    model = Encoder(0.0, leaves_out)
    expect_plain_gradients(model, (torch.randn(4, 8),))
    assert type(model.layerdrop) is float
    assert model.layerdrop == 0.0


def test_a_view_of_the_input_becomes_no_leaf():
    torch.manual_seed(0)
    model = FeatureEncoder()
    expect_plain_gradients(model, (torch.randn(4, 8),))
    assert model._requires_grad is True


def test_adapters_are_kept_under_a_plan():
    torch.manual_seed(0)
    model, batch = Adapted(), (torch.randn(4, 8),)
    expect_plain_gradients(model, batch)
    assert model.module_dropout == {"default": 0.0, "other": 0.5}
    model.active_adapters = ["other"]
    with pytest.raises(InputError, match="data-dependent branching"):
        capture(model, batch, hardware="cpu", backend="eager")


def test_frozen_embeddings_become_no_leaves():
    """As transformers' ``enable_input_require_grads`` makes them, for checkpoints of frozen layers."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    layers[:2].requires_grad_(False)

    def make_inputs_require_grads(_module, _input, output):
        output.requires_grad_(True)

    layers[0].register_forward_hook(lambda _module, _input, output: 2.0 * output)
    layers[0].register_forward_hook(make_inputs_require_grads)
    layers[0].register_forward_hook(lambda _module, _input, output: 3.0 * output)
    hooks = list(layers[0]._forward_hooks.values())
    batch = (torch.randint(9, (4, 5)), torch.zeros(4, 5, 1))
    expect_plain_gradients(layers, batch, nn.functional.mse_loss)
    assert list(layers[0]._forward_hooks.values()) == hooks


def test_classes_made_from_the_librarys_are_known():
    model = type("Wrapped", (Encoder,), {"__module__": "torch.distributed"})(0.0, bart)
    assert capture(model, (torch.randn(4, 8),), hardware="cpu", backend="eager").forward


@pytest.mark.slow
def test_the_knob_sees_one_graph():
    counters.clear()
    model = Encoder(0.0, bart)
    KnobStep(model, knob=0.5)(torch.randn(4, 8)).backward()
    assert not counters["graph_break"]
    assert type(model.layerdrop) is float


def test_layers_that_may_be_left_out_are_no_graph():
    model = Encoder(0.5, bart)
    with pytest.raises(InputError, match=r"dropout_probability < encoder\.layerdrop"):
        capture(model, (torch.randn(4, 8),), hardware="cpu", backend="eager")
    assert model.layerdrop == 0.5


def test_a_later_probability_is_seen():
    model, batch = Encoder(0.0, bart), (torch.randn(4, 8),)
    problem = capture(model, batch, hardware="cpu", backend="eager")
    step = apply(plan(problem, schedule(problem, lambda i: True)), model, backend="eager")
    step(*batch).backward()
    model.layerdrop = 0.5
    with pytest.raises(InputError, match="layerdrop"):
        step(*batch)
    assert model.layerdrop == 0.5
