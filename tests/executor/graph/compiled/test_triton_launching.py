"""Launches: the first through Triton, those after it straight to what that compiled; what cannot be read is refused."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from loadmaster.errors import InputError
from loadmaster.executor.graph.compiled.triton import TritonKernel
from loadmaster.executor.graph.compiled.triton.launching import BoundLaunch
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel
from tests.executor.graph.compiled.triton_runs import random_held, random_indices


class Recorder:
    """Stands for a kernel of Triton, and for what it compiles to."""

    function, packed_metadata = "function", "metadata"

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            self.calls.append((grid, arguments, options))
            return self

        return launch

    def run(self, *arguments):
        self.calls.append(arguments)


def test_a_second_launch_gets_the_same_arguments_as_addresses():
    table, x, y, other = (torch.zeros(4) for _ in range(4))
    kernel = Recorder()
    launch = BoundLaunch(kernel, (7, 2, 1), [None, table, 5, None], [(0, 1), (3, 0)], {"num_warps": 4}, {})
    assert not launch.is_compiled
    launch.first([x, y])
    assert launch.is_compiled
    launch.again(99, [x.data_ptr(), other.data_ptr()])
    (grid, arguments, options), straight = kernel.calls
    assert grid == (7, 2, 1) and options == {"num_warps": 4}
    assert [a if isinstance(a, int) else a.data_ptr() for a in arguments] == [
        y.data_ptr(),
        table.data_ptr(),
        5,
        x.data_ptr(),
    ]
    hooks = (None, None, None)
    addresses = (other.data_ptr(), table.data_ptr(), 5, x.data_ptr())
    assert straight == (7, 2, 1, 99, "function", "metadata", *hooks, *addresses)


def test_what_one_graph_compiled_serves_another_with_tensors_of_the_same_types():
    x, compiled = torch.zeros(4), {}
    tables = torch.zeros(8, dtype=torch.int32), torch.zeros(9, dtype=torch.int32), torch.zeros(8)
    kernel = Recorder()
    first, same, other = (BoundLaunch(kernel, (1, 1, 1), [None, t, 5], [(0, 0)], {}, compiled) for t in tables)
    wide, apart = (
        BoundLaunch(kernel, (1, 1, 1), [None, t, count], [(0, 0)], {}, compiled)
        for t, count in ((tables[0], 1 << 40), (tables[1][1:], 5))
    )
    first.first([x])
    assert same.is_compiled
    assert not any(launch.is_compiled for launch in (other, wide, apart))
    same.again(99, [x.data_ptr()])
    assert kernel.calls[-1][-3:] == (x.data_ptr(), tables[1].data_ptr(), 5)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton (the triton extra)")
@pytest.mark.parametrize(
    "spoil", [lambda x: x.half(), lambda x: x[:-1], lambda x: x.repeat(1, 2)[:, ::2], lambda x: x.unsqueeze(0)]
)
def test_what_a_kernel_was_not_generated_for_is_refused(spoil, tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_KERNEL_CACHE", str(tmp_path))
    program: Program = layer("rgcn", 8, 8, 1)
    (linear, *_) = (n for n, value in enumerate(program.values) if value.op == "linear")
    indices = random_indices(6, 20, 3)
    runner = TritonKernel(program, Kernel("gemm", "source_pair", (linear,)), frozenset({linear}), torch.float32).on(
        indices
    )
    held = random_held(program, indices, torch.float32)
    (h,) = program.given("feature").values()
    with pytest.raises(InputError) as refused:
        runner(held | {h: spoil(held[h])})
    assert refused.value.field == f"held[{h}]"
