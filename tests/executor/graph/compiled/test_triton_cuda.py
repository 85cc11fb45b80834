"""Generated kernels on a GPU compute what plain PyTorch computes in float64, and the same in every run."""

from __future__ import annotations

import pytest
import torch

from loadmaster.executor.graph.compiled.triton import TritonKernel, building
from loadmaster.models.graph.autodiff import with_backward
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.lowering import greedy_schedule
from tests.executor.graph.compiled.triton_runs import expect_as_plain, random_held, random_indices

pytestmark = pytest.mark.gpu
# Of the greatest number of a value. The inputs of a kernel are those of its oracle, so that errors do not add up.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-2}
LAYERS = [("rgcn", 1), ("rgat", 1), ("rgat", 4), ("hgt", 1), ("hgt", 4), ("gat", 1), ("gat", 4), ("simple-hgn", 2)]


def trained(name, width, out, heads):
    program = with_backward(layer(name, width, out, heads))
    return program, greedy_schedule(program)


@pytest.fixture(scope="module")
def indices():
    return random_indices(3_000, 60_000, 30, hub_edges=9_000, device="cuda")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("name", "heads"), LAYERS)
def test_layers_and_their_gradients(indices, name, heads, dtype):
    expect_as_plain(*trained(name, 64, 64, heads), indices, dtype, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "out"), [(48, 40), (200, 128), (512, 256), (1024, 1024)])
@pytest.mark.parametrize(("name", "heads"), [("rgcn", 1), ("rgat", 1), ("hgt", 2)])
def test_rows_of_other_widths(name, heads, width, out, dtype):
    indices = random_indices(300, 3_000, 5, hub_edges=500, device="cuda")
    expect_as_plain(*trained(name, width, out, heads), indices, dtype, 4 * TOLERANCE[dtype])


@pytest.mark.parametrize("edges", [0, 1, 100])
def test_small_graphs(edges):
    indices = random_indices(20, edges, 4, device="cuda")
    for name, heads in LAYERS:
        expect_as_plain(*trained(name, 16, 16, heads), indices, torch.float32, TOLERANCE[torch.float32])


def test_offsets_of_64_bits(indices, monkeypatch):
    monkeypatch.setattr(building, "NARROW_NUMBERS", 0)
    for name, heads in (("rgat", 2), ("hgt", 1)):
        expect_as_plain(*trained(name, 32, 32, heads), indices, torch.float32, TOLERANCE[torch.float32])


def test_tf32_where_pytorch_allows_it(indices):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        expect_as_plain(*trained("rgat", 64, 64, 1), indices, torch.float32, 2e-3)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernel_gives_the_same_bits_in_every_run(indices, dtype):
    """The first run goes through Triton, the second one straight to the compiled kernel; then in a CUDA graph."""
    program, schedule = trained("hgt", 64, 64, 2)
    held = random_held(program, indices, dtype)
    kept = frozenset(schedule.kept)
    for kernel in schedule.kernels:
        runner = TritonKernel(program, kernel, kept, dtype).on(indices)
        assert runner is not None
        first, second = runner(held), runner(held)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            third = runner(held)
        graph.replay()
        for a, b, c in zip(first, second, third, strict=True):
            assert torch.equal(a, b)
            assert torch.equal(a, c)
        held.update(zip(kernel.stores, first, strict=True))


def test_values_that_are_not_aligned(indices):
    program, schedule = trained("rgat", 64, 64, 1)
    held = random_held(program, indices, torch.float32)
    for n, x in held.items():
        apart = torch.empty(x.numel() + 1, device="cuda")[1:].view(x.shape)
        held[n] = apart.copy_(x)
    expect_as_plain(program, schedule, indices, torch.float32, TOLERANCE[torch.float32], held)
