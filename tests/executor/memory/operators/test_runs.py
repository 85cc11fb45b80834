"""Runs: time and peak of one operator, node by node and fused, against replays by hand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx, nn

from loadmaster.executor.memory.operators.accounting import Run
from loadmaster.executor.memory.operators.grouping import group
from loadmaster.executor.memory.operators.groups import Operators
from tests.executor.memory.tracing import trace

ROWS, WIDTH = 64, 32
BIG = 4 * ROWS * WIDTH


@dataclass(frozen=True)
class Flat:
    """Every operator takes 1 us and 10 bytes, every fused kernel 100 us plus its bytes."""

    def node_us(self, node: fx.Node) -> float:
        return 1.0

    def workspace_bytes(self, node: fx.Node) -> int:
        return 10

    def move_us(self, size_bytes: int, kernels: int = 1) -> float:
        return 100.0 * kernels + size_bytes


class Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x):
        return self.last(self.first(x).sin().cos().exp()).sum()


def operators(*, fused: bool) -> Operators:
    return group(trace(Waves(), (torch.randn(ROWS, WIDTH),)), fused=fused)


def replayed(found: Operators) -> Run:
    """All forward operators up to the exponential, as one run."""
    step_graph = found.step_graph
    nodes = [n for f in found.forward for n in f.nodes]
    end = next(i for i, n in enumerate(nodes) if "exp" in n.name)

    def emit(emitter) -> None:
        for node in nodes[: end + 1]:
            emitter.run(node)

    return Run.emitted(found, emit, lambda emitter: [emitter.held[step_graph.roots[nodes[end]]]])


def test_node_by_node_every_result_is_there_until_its_last_reader():
    usage = replayed(operators(fused=False)).usage(Flat(), fused=False)
    assert usage.time_us == 4
    assert usage.peak_bytes == 2 * BIG + 10


def test_fused_only_products_and_what_others_read_reach_memory():
    usage = replayed(operators(fused=True)).usage(Flat(), fused=True)
    assert usage.time_us == 1 + 100 + 2 * BIG
    assert usage.peak_bytes == BIG + 10  # the exponential is written over the product, which had its workspace beside


def test_what_dies_inside_makes_room():
    found = operators(fused=False)
    run = replayed(found)
    source = next(r for r in run.stand_ins if "primals" in r.name and r.meta["val"].shape == (ROWS, WIDTH))
    with_input = run.usage(Flat(), fused=False).peak_bytes
    without = run.usage(Flat(), fused=False, dying=[source]).peak_bytes
    assert without == with_input - BIG  # gone after the product, before two results are there


def test_an_inlined_result_costs_its_inputs_and_no_memory():
    found = operators(fused=True)
    inlining = [(b, c) for b in found.backward for c in b.choices if c.inlined]
    assert inlining
    for b, choice in inlining:
        inputs = {i for j in choice.inlined for i in found.forward[j].inputs}
        assert inputs <= set(choice.needs)
        assert not set(choice.inlined) & set(choice.needs)
        assert set(choice.needs) <= set(b.choices[0].needs) | inputs
