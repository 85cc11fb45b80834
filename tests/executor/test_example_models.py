"""The example models are the published ones, and their factories give something that trains."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["resnet50", "gpt"])
def test_small_factories_train(name):
    torch.manual_seed(0)
    model, inputs, loss = example(name).small()
    value = loss(model(*inputs[:-1]), inputs[-1])
    value.backward()
    assert value.shape == ()
    assert value.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_published_parameter_counts():
    with torch.device("meta"):
        resnet, _, _ = example("resnet50").full()
        gpt = example("gpt").GPT(vocabulary=50_257, context=1024, layers=24, width=1024, heads=16)
    assert sum(p.numel() for p in resnet.parameters()) == 25_557_032
    assert sum(p.numel() for p in gpt.parameters()) == 354_823_168


def test_gpt_looks_at_no_later_token():
    torch.manual_seed(0)
    model = example("gpt").GPT(vocabulary=50, context=12, layers=2, width=16, heads=2).double()
    tokens = torch.randint(50, (2, 12))
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 50
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])
