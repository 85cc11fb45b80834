"""Whole layers on a GPU, generated kernels and all, beside the same layers on the CPU in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from loadmaster.executor.graph.compiled.compiling import compile as compile_layer
from loadmaster.executor.graph.compiled.module import CompiledLayer
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.graph.structure.sampling import NeighbourSampler
from loadmaster.models.graph.library import LAYERS
from loadmaster.models.graph.tracing import Edges, Nodes, Traced, traced

pytestmark = pytest.mark.gpu
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 6e-2}
NODES, EDGES, TYPES, RELATIONS = 2_000, 30_000, 3, 12


def random_graph() -> Graph:
    generator = torch.Generator().manual_seed(0)
    counts = torch.tensor([900, 700, 400])
    first = torch.tensor([0, 900, 1600])
    kinds = torch.randint(RELATIONS - 1, (EDGES,), generator=generator)  # the last relation has no edges
    ends = [kinds % TYPES, kinds // TYPES % TYPES]
    source, target = (first[t] + (torch.rand(EDGES, generator=generator) ** 3 * counts[t]).long() for t in ends)
    relations = [(str(r % TYPES), f"r{r}", str(r // TYPES % TYPES)) for r in range(RELATIONS)]
    return Graph(
        source, target, node_counts={str(t): int(n) for t, n in enumerate(counts)}, relation=kinds, relations=relations
    )


GRAPH = random_graph()


def expect_close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Within the tolerance of the dtype, of the greatest number."""
    error = (found.detach().double().cpu() - expected.detach()).abs().max()
    assert error <= TOLERANCE[dtype] * (expected.detach().abs().max() + 1e-6), float(error)


def on_a_grid(tensor: Tensor) -> Tensor:
    """Sixteenths: scores of them are the same in float32 and float64, and on the same side of leaky_relu's kink."""
    return (tensor * 16).round() / 16


def step(module: CompiledLayer, h: Tensor) -> list[Tensor]:
    out = module(h)
    out.double().square().mean().backward()
    found = [out, h.grad, *(x.grad for x in module.parameters())]
    return [x for x in found if x is not None]


@pytest.mark.parametrize("launch", ["eager", "graph"])
@pytest.mark.parametrize("dtype", [*TOLERANCE])
@pytest.mark.parametrize(
    ("name", "heads"), [(n, heads) for n in LAYERS for heads in (1, 4) if (n, heads) != ("rgcn", 4)]
)
def test_a_layer_on_a_gpu_equals_the_one_on_the_cpu(name: str, heads: int, dtype: torch.dtype, launch: str) -> None:
    torch.manual_seed(0)
    there = compile_layer(name, GRAPH, width=32, out=32, heads=heads, launch=launch)  # type: ignore[arg-type]
    there.load_state_dict({key: on_a_grid(value) for key, value in there.state_dict().items()})
    there = there.cuda().to(dtype)
    here = compile_layer(name, GRAPH, width=32, out=32, heads=heads).double()
    here.load_state_dict(there.state_dict())
    h = on_a_grid(torch.randn(NODES, 32)).to(dtype)
    expected = step(here, h.double().clone().requires_grad_())
    for _ in range(4):  # captured by then
        there.zero_grad()
        found = step(there, h.cuda().requires_grad_())
    for a, b in zip(found, expected, strict=True):
        expect_close(a, b, dtype)


def test_features_of_edges_and_blocks_on_a_gpu_equal_those_on_the_cpu() -> None:
    def weighted(nodes: Nodes, edges: Edges, weights: object) -> Traced:
        return edges.sum(edges.source(nodes.h) * edges.softmax(edges.w))

    module = compile_layer(traced(weighted, nodes={"h": 16}, edges={"w": ()}), GRAPH)
    h, w = torch.randn(NODES, 16, dtype=torch.float64), torch.randn(EDGES, dtype=torch.float64)
    given = [[x.to(device).requires_grad_() for x in (h, w)] for device in ("cpu", "cuda")]
    found = [[module(*xs), *torch.autograd.grad(module(*xs).square().sum(), xs)] for xs in given]
    for a, b in zip(found[1], found[0], strict=True):
        expect_close(a, b, torch.float64)
    layer = compile_layer("rgat", GRAPH, width=16, out=16).double()
    seeds = {"0": torch.arange(5), "2": torch.arange(3)}
    blocks, ids = NeighbourSampler(GRAPH, [-1])(seeds)
    rows = torch.cat([ids[name].long() + GRAPH.schema.source_offsets[t] for t, name in enumerate("012")])
    expected = layer(h[rows], graph=blocks[0])
    expect_close(layer.cuda()(h[rows].cuda(), graph=blocks[0].to("cuda")), expected, torch.float64)


@pytest.mark.parametrize("name", ["rgcn", "rgat", "hgt"])
def test_block_after_block_with_gradients_equals_the_cpu(name: str) -> None:
    """Kernels that were compiled for one block run on the next ones."""
    torch.manual_seed(0)
    layer = compile_layer(name, GRAPH, width=16, out=16).cuda()
    plain = compile_layer(name, GRAPH, width=16, out=16).double()
    plain.load_state_dict(layer.state_dict())
    sampler = NeighbourSampler(GRAPH, [3], generator=torch.Generator().manual_seed(0))
    for count in (40, 60, 41):
        (block,), ids = sampler({kind: torch.randperm(300)[:count] for kind in GRAPH.node_types})
        h = torch.randn(sum(len(x) for x in ids.values()), 16)
        here, there = h.double().requires_grad_(), h.cuda().requires_grad_()
        expected, found = plain(here, graph=block), layer(there, graph=block.to("cuda"))
        expect_close(found, expected, torch.float32)
        for out in (expected, found):
            out.square().mean().backward()
        for a, b in zip((there, *layer.parameters()), (here, *plain.parameters()), strict=True):
            expect_close(a.grad, b.grad, torch.float32)
            a.grad = b.grad = None
