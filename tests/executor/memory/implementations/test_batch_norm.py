"""BatchNorm's normalized result computed again from its statistics: equal, and without touching the running ones."""

from __future__ import annotations

import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from joint_graphs import arguments, flat, joint_graph, recomputed
from torch import nn

from loadmaster.executor.memory.implementations.norms import batch_norm_apply, recompute_node

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2}


@settings(max_examples=25, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(2, 5), st.integers(1, 4)),
    affine=st.booleans(),
    channels_last=st.booleans(),
    dtype=st.sampled_from(list(TOLERANCE)),
)
def test_apply_is_the_forward_pass(shape, affine, channels_last, dtype):
    x = (3 * torch.randn(shape) + 1).to(dtype)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    weight, bias = (torch.randn(shape[1], dtype=dtype) if affine else None for _ in range(2))
    expected, mean, rstd = torch.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
    got = batch_norm_apply(x, mean, rstd, weight, bias)
    assert got.stride() == torch.empty_like(x).stride()
    torch.testing.assert_close(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False)])
def test_backward_from_the_recomputed_result_and_running_statistics_updated_once(norm):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Sigmoid(), nn.Conv2d(4, 2, 1)).double()
    x = torch.randn(5, 3, 6, 6, dtype=torch.float64)
    joint = joint_graph(module, x)
    found = [r for n in joint.graph.nodes if (r := recompute_node(n)) is not None]
    assert len(found) == 1
    recompute = found[0]
    assert recompute.node.target is operator.getitem

    changed = recomputed(joint, recompute)
    assert any("batch_norm_apply" in str(n.target) for n in changed.graph.nodes)

    args = arguments(module, [x], [torch.randn(5, 2, 4, 4, dtype=torch.float64)])
    for got, expected in zip(flat(changed(*args)), flat(joint(*args)), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_no_recomputation_without_training_or_of_other_nodes():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    joint = joint_graph(module, torch.randn(2, 3, 6, 6))
    assert all(recompute_node(n) is None for n in joint.graph.nodes)


def test_operator_passes_the_framework_checks():
    x, c = torch.randn(2, 3, 4), torch.rand(3)
    torch.library.opcheck(batch_norm_apply, (x, c, c, c, None))
