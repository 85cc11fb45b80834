"""What the implementations say they take while they run, against what the CPU allocator saw."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile

from loadmaster.executor.costs.roofline import roofline
from loadmaster.executor.costs.workspace import workspace_formula_bytes
from loadmaster.executor.memory.implementations.cross_entropy import linear_cross_entropy
from loadmaster.executor.memory.implementations.dropout import seeded_dropout
from loadmaster.executor.memory.implementations.masks import masked_gradient, pack_inside
from loadmaster.executor.memory.implementations.norms import batch_norm_apply, layer_norm_apply, norm_input
from loadmaster.executor.memory.implementations.pooling import pool_offset_backward, pool_offsets

SLACK_BYTES = 64 * 1024  # small tensors: counts, scales, constants


def peak_bytes(op, args) -> int:
    """Highest total of what the operator allocated, results included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        results = op(*args)
    total = peak = 0
    for event in prof.profiler.kineto_results.events():
        if event.name() == "[memory]":
            total += event.nbytes()
            peak = max(peak, total)
    del results
    return peak


def called(op, args) -> tuple[FakeTensorMode, fx.Node]:
    """The operator's node in a graph of fake tensors."""
    mode = FakeTensorMode()
    graph = fx.Graph()
    nodes = []
    for arg in args:
        node = graph.placeholder("x") if isinstance(arg, torch.Tensor) else arg
        if isinstance(arg, torch.Tensor):
            node.meta["val"] = mode.from_tensor(arg)
        nodes.append(node)
    return mode, graph.call_function(op._opoverload, tuple(nodes))


def stated_bytes(op, args) -> int:
    """Results and workspace, from fake tensors alone."""
    mode, call = called(op, args)
    with mode:
        results = op(*fx.node.map_arg(call.args, lambda n: n.meta["val"]))
    leaves = torch.utils._pytree.tree_leaves(results)
    return workspace_formula_bytes(call) + sum(t.numel() * t.element_size() for t in leaves)


def cases():
    torch.manual_seed(0)
    x = torch.randn(8, 16, 64, 64)
    last = x.to(memory_format=torch.channels_last)
    statistics = (torch.randn(16), torch.rand(16), torch.randn(16), None)
    window = ([3, 3], [2, 2], [1, 1], [1, 1])
    pooled, indices = torch.ops.aten.max_pool2d_with_indices(x, *window)
    offsets = pool_offsets(indices, 64, *window)
    yield "pack", pack_inside, (x, 0.0)
    yield "pack channels last", pack_inside, (last, 0.0, 1.0)
    yield "masked", masked_gradient, (x, pack_inside(x, 0.0))
    yield "masked channels last", masked_gradient, (last, pack_inside(x, 0.0))
    yield (
        "pool backward channels last",
        pool_offset_backward,
        (
            torch.randn_like(pooled).to(memory_format=torch.channels_last),
            *(offsets, 64, 64, *window, False),
        ),
    )
    yield "dropout", seeded_dropout, (x, torch.tensor(3), 0.1)
    yield "dropout bfloat16", seeded_dropout, (x.bfloat16(), torch.tensor(3), 0.1)
    yield "norm", batch_norm_apply, (x, *statistics)
    yield "norm bfloat16", batch_norm_apply, (x.bfloat16(), *statistics)
    rows, columns = torch.rand(8, 16, 1, 1), torch.rand(64, 64)
    for dtype in (torch.float32, torch.bfloat16):
        yield f"layer norm {dtype}", layer_norm_apply, (x.to(dtype), rows, rows, columns, columns)
        yield f"norm input {dtype}", norm_input, (x.to(dtype), rows, rows, columns.view(1, 1, 64, 64), None, 0.0)
    yield "offsets", pool_offsets, (indices, 64, *window)
    yield "pool backward", pool_offset_backward, (torch.randn_like(pooled), offsets, 64, 64, *window, False)
    for dtype in (torch.float32, torch.bfloat16):
        hidden, weight, bias = (torch.randn(s).to(dtype) for s in ((1024, 64), (64, 2000), (2000,)))
        targets = torch.randint(2000, (1024,))
        for differentiate in ("all", "hidden", "nothing"):
            args = (hidden, weight, bias, targets, None, None, None, 4, -100, True, 0.0, 1.0, 0.0)
            yield f"loss {dtype} {differentiate}", linear_cross_entropy, (*args, torch.float32, differentiate)
        of_rows = torch.rand(1024)
        args = (hidden, weight, bias, targets, None, of_rows, of_rows, 4, -100, True, 0.0, 0.5, 30.0, torch.float32)
        yield f"capped loss {dtype} with a z-loss", linear_cross_entropy, (*args, "all")


@pytest.mark.parametrize(("op", "args"), [pytest.param(op, args, id=name) for name, op, args in cases()])
def test_stated_workspace_is_enough_and_not_much_more(op, args):
    op(*args)
    peak, stated = peak_bytes(op, args), stated_bytes(op, args)
    assert peak <= stated + SLACK_BYTES
    assert stated <= 1.5 * peak + SLACK_BYTES


def test_a_gpus_kernels_widen_no_logits():
    """By hand: 256 rows of 2,000 16-bit logits at a time, which a CPU turns into float32 and has one more beside."""
    hidden, weight = torch.empty(1024, 64, dtype=torch.bfloat16), torch.empty(64, 2000, dtype=torch.bfloat16)
    targets = torch.zeros(1024, dtype=torch.int64)
    args = (hidden, weight, None, targets, None, None, None, 4, -100, True, 0.0, 1.0, 0.0, torch.float32, "hidden")
    _, call = called(linear_cross_entropy, args)
    on_cpu, on_gpu = (roofline(name).workspace_bytes(call) for name in ("cpu", "h200"))
    assert on_cpu - on_gpu == 256 * 2000 * (4 + 4)
