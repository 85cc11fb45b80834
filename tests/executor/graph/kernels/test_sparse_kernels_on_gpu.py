"""On a GPU the kernels give what plain PyTorch gives in float64, the same bits every time, and far ids are reached."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from loadmaster.executor.graph.messages.sparse import edge_softmax, sddmm, spmm
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.graph.structure.sampling import NeighbourSampler

pytestmark = pytest.mark.gpu
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 4e-2, torch.float64: 1e-9}


def skewed(nodes: int = 3000, edges: int = 60_000) -> Graph:
    """Degrees from 0 to many chunks."""
    torch.manual_seed(0)
    destination = (nodes * torch.rand(edges).pow(6)).long()
    return Graph(torch.randint(0, nodes, (edges,)), destination, node_count=nodes)


def twice(graph: Graph, run, shapes, dtype, least: float = 0.0) -> None:
    """On the GPU in this dtype, and on the CPU in float64. What is nothing but rounding is compared with ``least``."""
    rows = {"u": graph.num_nodes(), "v": graph.num_nodes(), "e": graph.num_edges()}
    given = [(torch.rand(rows[where], *shape) + 0.5).to(dtype) for where, shape in shapes]
    found = []
    for device, kind in (("cuda", dtype), ("cuda", dtype), ("cpu", torch.float64)):
        inputs = [value.to(device=device, dtype=kind).requires_grad_() for value in given]
        made = run(graph.to(device), *inputs)
        weights = torch.linspace(0.5, 1.5, made.numel(), dtype=torch.float64).view(made.shape).to(device, kind)
        found.append([made, *torch.autograd.grad((made * weights).sum(), inputs)])
    for one, again, want in zip(*found, strict=True):
        assert torch.equal(one, again)
        scale = max(float(want.detach().abs().max()), least) * TOLERANCE[dtype]
        torch.testing.assert_close(one.double().cpu(), want.detach(), rtol=TOLERANCE[dtype], atol=scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("width", [1, 7, 32, 100, 256, 300])
def test_sums_and_means_of_sources(width: int, dtype: torch.dtype) -> None:
    graph = skewed()
    for reduce in ("sum", "mean"):
        twice(graph, lambda g, u, r=reduce: spmm(g.adjacency, "copy", ("u", u), None, r), [("u", (width,))], dtype)


@pytest.mark.parametrize("reduce", ["sum", "max", "min"])
@pytest.mark.parametrize("join", ["add", "mul", "div"])
def test_sources_joined_with_edges(join: str, reduce: str) -> None:
    shapes = [("u", (4, 16)), ("e", (4, 1))]
    twice(skewed(), lambda g, u, e: spmm(g.adjacency, join, ("u", u), ("e", e), reduce), shapes, torch.float32)


def test_attention() -> None:
    def run(graph: Graph, h: Tensor, left: Tensor, right: Tensor) -> Tensor:
        scores = torch.nn.functional.leaky_relu(sddmm(graph.adjacency, "add", ("u", left), ("v", right)), 0.2)
        return spmm(graph.adjacency, "mul", ("u", h), ("e", edge_softmax(graph, scores)), "sum")

    # A softmax does not see what all edges of a node have in common: the last gradient is nothing.
    twice(skewed(), run, [("u", (4, 16)), ("u", (4, 1)), ("u", (4, 1))], torch.float32, least=0.1)


def test_dot_products_of_ends() -> None:
    shapes = [("u", (2, 48)), ("u", (2, 48))]
    twice(skewed(), lambda g, u, v: sddmm(g.adjacency, "dot", ("u", u), ("v", v)), shapes, torch.float32)


def test_tables_of_more_than_31_bits_of_numbers_are_reached() -> None:
    nodes, width = 2**23 + 2, 257
    table = torch.zeros(nodes, width, device="cuda", dtype=torch.bfloat16)
    table[-1], table[-2] = 1, 2
    graph = Graph([nodes - 1, nodes - 2, 0], [0, nodes - 1, 1], node_count=nodes, device="cuda")
    made = spmm(graph.adjacency, "copy", ("u", table), None, "sum")
    assert made[0].eq(1).all() and made[-1].eq(2).all() and made[1].eq(0).all()


@pytest.mark.parametrize("replace", [False, True])
def test_blocks_are_sampled_on_the_device(replace: bool) -> None:
    graph = skewed().to("cuda")
    seeds = torch.randperm(3000, device="cuda")[:64]
    drawn = []
    for _ in range(2):
        generator = torch.Generator("cuda").manual_seed(1)
        drawn.append(NeighbourSampler(graph, [5, 5], replace=replace, generator=generator)(seeds))
    for one, other in zip(drawn[0].blocks, drawn[1].blocks, strict=True):
        assert torch.equal(one.edge_ids, other.edge_ids)
    block = drawn[0].blocks[-1]
    assert torch.equal(graph.destination[block.edge_ids.long()].long(), seeds[block.destination.long()])


def test_no_pass_holds_features_for_every_edge() -> None:
    graph = skewed().to("cuda").create_formats_()
    h = torch.randn(graph.num_nodes(), 4, 64, device="cuda", requires_grad=True)
    w = torch.rand(graph.num_edges(), 4, 1, device="cuda", requires_grad=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    spmm(graph.adjacency, "mul", ("u", h), ("e", w), "sum").sum().backward()
    assert torch.cuda.max_memory_allocated() - before < graph.num_edges() * 4 * 64 * h.element_size() / 2
