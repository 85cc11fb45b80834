"""A small graph with all that is special about graphs, and how a compiled layer is held against plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from loadmaster.executor.graph.compiled.module import CompiledLayer
from tests.executor.graph.compiled.plain_layers import PLAIN, PlainGraph

TYPES = torch.tensor([0] * 5 + [1] * 4)
# Node 4 is alone, relation 6 has a hub, several relations have no edges; one edge is there twice.
SOURCE = torch.tensor([0, 1, 2, 3, 0, 5, 6, 7, 8, 5, 0, 0, 1])
TARGET = torch.tensor([5, 5, 6, 7, 8, 0, 0, 0, 0, 1, 1, 1, 5])
KINDS = 2 * TYPES[SOURCE] + TYPES[TARGET] + torch.tensor([0, 4, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0])
PLAIN_GRAPH = PlainGraph(SOURCE, TARGET, KINDS, TYPES)
LAYERS = [(name, heads) for name in PLAIN for heads in (1, 2) if (name, heads) != ("rgcn", 2)]


def run(module: CompiledLayer, values: Mapping[str, Tensor]) -> list[Tensor]:
    """Outputs, with parameters from outside."""
    features = {name: values[name] for name in module.program.given("feature")}
    weights = {name: values[name] for name in module.program.given("parameter")}
    found = torch.func.functional_call(module, weights, (), features)
    return [found] if isinstance(found, Tensor) else list(found)


def expect_same(module: CompiledLayer, plain: PlainGraph, values: Mapping[str, Tensor], expected: list[Tensor]) -> None:
    """Hold values and all gradients against plain PyTorch."""
    found = run(module, values)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    upstream = [torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=x.dtype) for x in expected]
    gradients = [
        torch.autograd.grad(
            outputs, list(values.values()), upstream, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for outputs in (found, expected)
    ]
    for name, a, b in zip(values, *gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")
