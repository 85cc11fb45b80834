"""Where operators come from, held against what they read: an operator that reads a weight is of the weight's module."""

from __future__ import annotations

import operator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

from loadmaster.executor.memory.capture import capture
from loadmaster.executor.memory.implementations.passes import run_passes
from loadmaster.executor.steps.places import Place, places
from loadmaster.executor.steps.step_graph import StepGraph, is_compute
from loadmaster.executor.steps.tracing import trace
from loadmaster.models.memory.problem import MemoryProblem

WIDTH = 8


class Block(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.fc = nn.Linear(WIDTH, hidden)
        self.out = nn.Linear(hidden, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.fc(self.norm(x))
        wide = F.gelu(wide)  # GELU
        return self.dropout(self.out(wide))  # OUT


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(20 + n) for n in range(2)])
        self.named = nn.ModuleDict({"first": Block(30)})
        self.head = nn.Sequential(nn.Linear(WIDTH, 9), nn.ReLU(), nn.Linear(9, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        x = checkpoint(self.named["first"], x, use_reentrant=False)
        return self.head(torch.sin(x))  # SIN


def line(mark: str) -> str:
    """Where this file says ``# MARK``."""
    lines = Path(__file__).read_text("utf-8").splitlines()
    return f"{Path(__file__).name}:{next(i for i, text in enumerate(lines, 1) if text.endswith(f'# {mark}'))}"


@pytest.fixture(scope="module")
def traced() -> tuple[StepGraph, dict[fx.Node, Place]]:
    graph = trace(Model(), batch(), F.cross_entropy, passes=run_passes)
    return graph, places(graph)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, WIDTH), torch.randint(0, 5, (3,))


def modules_by_shape() -> dict[tuple[int, ...], str]:
    """The module of every weight matrix: no two have the same shape."""
    weights = [(name, tuple(p.shape)) for name, p in Model().named_parameters() if p.dim() == 2]
    found = {shape: name.rpartition(".")[0] for name, shape in weights}
    assert len(found) == len(weights)
    return found


def test_operators_that_read_a_parameter_are_of_its_module(traced: tuple[StepGraph, dict[fx.Node, Place]]) -> None:
    graph, where = traced
    modules = modules_by_shape()
    seen: dict[bool, set[str]] = {True: set(), False: set()}
    for node in filter(is_compute, graph.nodes):
        for root in graph.reads([node]):
            if root in graph.primals and (module := modules.get(tuple(root.meta["val"].shape))):
                assert where[node].module == module, node
                seen[node in graph.forward].add(module)
    assert seen == {True: set(modules.values()), False: set(modules.values())}


def test_lines_are_those_of_the_model(traced: tuple[StepGraph, dict[fx.Node, Place]]) -> None:
    graph, where = traced
    lines = {(str(n.target).removesuffix(".default"), where[n].module, where[n].source) for n in graph.nodes}
    for block in ("layers.0", "layers.1", "named.first"):
        assert ("aten.gelu", block, line("GELU")) in lines
        assert ("aten.gelu_backward", block, line("GELU")) in lines
        assert ("aten.addmm", f"{block}.out", line("OUT")) in lines
    assert ("aten.sin", "Model", line("SIN")) in lines


def test_what_a_pass_puts_in_place_and_summed_gradients_have_a_place(
    traced: tuple[StepGraph, dict[fx.Node, Place]],
) -> None:
    graph, where = traced
    seeded = [n for n in graph.nodes if "seeded_dropout" in str(n.target) and n.target is not operator.getitem]
    assert {where[n].module for n in seeded} >= {"layers.0.dropout", "layers.1.dropout"}
    assert all(where[n].module is not None for n in graph.nodes if is_compute(n) and n not in graph.forward)


def test_captured_operators_say_where_they_are_from() -> None:
    problem: MemoryProblem = capture(Model(), batch(), nn.CrossEntropyLoss(), hardware="h200", backend="eager")
    found = {o.label.rpartition(" (")[0] for o in (*problem.forward, *problem.backward)}
    assert f"layers.1, gelu, {line('GELU')}" in found
    assert f"head.0, mm, {line('SIN')}" in found
    assert all(o.module is not None for o in (*problem.forward, *problem.backward))
    assert problem.forward[-1].module == "loss"
