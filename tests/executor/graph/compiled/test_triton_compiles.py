"""Generated kernels compile for a Hopper GPU: on any machine with Triton, whose wheel brings the assembler."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from loadmaster.executor.graph.compiled.triton import TritonKernel, building
from loadmaster.models.graph.autodiff import with_backward
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.lowering import greedy_schedule
from tests.executor.graph.compiled.triton_runs import random_held, random_indices

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton (the triton extra)"),
]
SHARED_BYTES = 227 << 10  # of a Hopper multiprocessor, that one program can have
NAMES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int32: "*i32"}


class Compiled:
    """Compiles instead of launching; all tensors lie on multiples of 16 bytes, as they do on a GPU."""

    shared_bytes: list[int]

    def __init__(self, kernel, grid, arguments, places, options, compiled) -> None:
        self.kernel, self.arguments, self.places, self.options = kernel, list(arguments), places, options

    def first(self, tensors) -> None:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        for at, which in self.places:
            self.arguments[at] = tensors[which]
        names = [parameter.name for parameter in self.kernel.params]
        signature = {
            name: "i32" if isinstance(a, int) else NAMES[a.dtype] for name, a in zip(names, self.arguments, strict=True)
        }
        aligned = {
            (at,): [["tt.divisibility", 16]] for at, a in enumerate(self.arguments) if isinstance(a, torch.Tensor)
        }
        source = ASTSource(self.kernel, signature, {}, aligned)
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=self.options)
        self.shared_bytes.append(compiled.metadata.shared)


@pytest.mark.parametrize(
    ("name", "heads", "width", "dtype"), [("rgat", 2, 64, torch.bfloat16), ("hgt", 1, 256, torch.float32)]
)
def test_every_kernel_of_a_layer_compiles_within_shared_memory(name, heads, width, dtype, tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_KERNEL_CACHE", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setattr(building, "BoundLaunch", Compiled)
    monkeypatch.setattr(Compiled, "shared_bytes", [], raising=False)
    program = with_backward(layer(name, width, width, heads))
    schedule = greedy_schedule(program)
    indices = random_indices(300, 3_000, 5, hub_edges=900)
    held = random_held(program, indices, dtype)
    for kernel in schedule.kernels:
        runner = TritonKernel(program, kernel, frozenset(schedule.kept), dtype).on(indices)
        assert runner is not None
        held.update(zip(kernel.stores, runner(held), strict=True))
    assert len(Compiled.shared_bytes) >= len(schedule.kernels)
    assert max(Compiled.shared_bytes) <= SHARED_BYTES
