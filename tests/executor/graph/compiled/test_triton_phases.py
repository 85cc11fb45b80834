"""Passes over rows, and sources: what is read once, and what is the same for every graph."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from loadmaster.executor.graph.compiled.triton import TritonKernel
from loadmaster.models.graph.autodiff import with_backward
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.lowering import greedy_schedule
from loadmaster.models.graph.operators import GIVEN
from loadmaster.models.graph.phases import phases
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel
from loadmaster.models.graph.tracing import leaky_relu, traced
from tests.executor.graph.compiled.triton_runs import random_indices

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton (the triton extra)")


def passes(program: Program, kernel: Kernel, kept: set[int]) -> list[tuple[int, ...]]:
    held = {n for n, value in enumerate(program.values) if value.op in GIVEN} | kept
    found = phases(program, kernel.stores, frozenset(held - set(kernel.stores)))
    return [phase.aggregates for phase in found]


def softmax_kernel(program: Program) -> tuple[Kernel, set[int]]:
    schedule = greedy_schedule(program)
    kernel = next(k for k in schedule.kernels if any(program.values[n].reduce == "logsumexp" for n in k.stores))
    return kernel, set(schedule.kept)


@pytest.mark.parametrize("name", ["rgat", "hgt", "gat", "simple-hgn"])
@pytest.mark.parametrize("heads", [1, 2])
def test_softmax_and_weighted_sum_share_a_pass(name, heads):
    program = layer(name, 8, 8, heads)
    kernel, kept = softmax_kernel(program)
    assert len(kernel.stores) == 2
    assert passes(program, kernel, kept) == [kernel.stores]


def test_heads_that_are_joined_before_the_sum_share_a_pass():
    def forward(nodes, edges, weights):
        h = edges.source(nodes.h).heads(2)
        return edges.sum((edges.softmax(leaky_relu(edges.e)) * h).joined())

    program = traced(forward, nodes={"h": 8}, edges={"e": 2})
    kernel, kept = softmax_kernel(program)
    assert passes(program, kernel, kept) == [kernel.stores]


@pytest.mark.parametrize("power", [0, 2, 3])
def test_sums_that_are_not_proportional_to_the_softmax_take_a_pass_of_their_own(power):
    def forward(nodes, edges, weights):
        a = edges.softmax(edges.e)
        weight = {0: a + 1.0, 2: a * a, 3: a * edges.e + edges.e}[power]
        return edges.sum(weight * edges.source(nodes.h))

    program = traced(forward, nodes={"h": 8}, edges={"e": ()})
    kernel, kept = softmax_kernel(program)
    assert passes(program, kernel, kept) == [(n,) for n in kernel.stores]


def test_the_backward_pass_of_a_softmax_takes_two_passes():
    program = with_backward(layer("gat", 8, 8, 1))
    schedule = greedy_schedule(program)
    held = {n for n, value in enumerate(program.values) if value.op in GIVEN} | set(schedule.kept)
    found = [
        len(phases(program, k.stores, frozenset(held - set(k.stores))))
        for k in schedule.kernels[schedule.forward_count :]
        if k.template == "traverse" and k.rows == "target"
    ]
    assert max(found) == 2


@needs_triton
def test_graphs_of_one_shape_share_their_sources(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_KERNEL_CACHE", str(tmp_path))
    program = with_backward(layer("rgat", 8, 8, 2))
    schedule = greedy_schedule(program)
    written = []
    for seed, edges in ((0, 300), (1, 310)):
        indices = random_indices(40, edges, 5, seed)
        for kernel in schedule.kernels:
            TritonKernel(program, kernel, frozenset(schedule.kept), torch.float32).on(indices)
        written.append(len([*tmp_path.iterdir()]))
    assert written[0] == written[1]


@needs_triton
def test_one_plain_product_is_left_to_pytorch():
    program = layer("gat", 8, 8, 1)
    (linear,) = (n for n, value in enumerate(program.values) if value.op == "linear")
    kernel = Kernel("gemm", "node", (linear,))
    assert TritonKernel(program, kernel, frozenset({linear}), torch.float32).on(random_indices(6, 20, 3)) is None
