"""``dgl.ops`` of the CPU wheel says what g-SpMM, g-SDDMM and softmax over edges are, where that wheel installs."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import Tensor

from loadmaster.executor.graph.messages.sparse import edge_softmax, sddmm, spmm
from loadmaster.executor.graph.structure.graph import Graph

JOINS = ("add", "sub", "mul", "div")


@pytest.fixture(scope="module")
def dgl(tmp_path_factory):
    """Without the part of it that needs another PyTorch than this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DGLBACKEND", "pytorch")
        patch.setenv("DGLDEFAULTDIR", str(tmp_path_factory.mktemp("dgl")))
        patch.setitem(sys.modules, "dgl.graphbolt", types.ModuleType("dgl.graphbolt"))
        yield pytest.importorskip("dgl", exc_type=ImportError)


@pytest.fixture
def both(dgl):
    torch.manual_seed(0)
    # Every node has a message: dgl.ops, unlike DGL's graphs, gives an infinity under max where none is.
    source, destination = torch.randint(0, 9, (40,)), torch.cat([torch.arange(10), torch.randint(0, 9, (30,))])
    return Graph(source, destination, node_count=10), dgl.graph((source, destination), num_nodes=10)


def same(ours: Tensor, theirs: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn(theirs.shape)
    for one, other in zip(*(torch.autograd.grad((x * weights).sum(), inputs) for x in (ours, theirs)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("join", JOINS)
def test_messages_of_sources_and_edges(dgl, both, join, reduce) -> None:
    ours, theirs = both
    u, e = torch.randn(10, 2, 3, requires_grad=True), (torch.rand(40, 2, 1) + 0.5).requires_grad_()
    got = spmm(ours.adjacency, join, ("u", u), ("e", e), reduce)
    same(got, getattr(dgl.ops, f"u_{join}_e_{reduce}")(theirs, u, e), [u, e])


@pytest.mark.parametrize("join", [*JOINS, "dot"])
def test_values_of_edges(dgl, both, join) -> None:
    ours, theirs = both
    u, v = torch.randn(10, 2, 3, requires_grad=True), (torch.rand(10, 2, 3) + 0.5).requires_grad_()
    same(sddmm(ours.adjacency, join, ("u", u), ("v", v)), getattr(dgl.ops, f"u_{join}_v")(theirs, u, v), [u, v])


def test_softmax(dgl, both) -> None:
    ours, theirs = both
    scores = torch.randn(40, 2, 1, requires_grad=True)
    same(edge_softmax(ours, scores), dgl.ops.edge_softmax(theirs, scores), [scores])
