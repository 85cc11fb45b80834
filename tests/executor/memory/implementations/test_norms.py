"""Norms backward from their output, and LayerNorm and RMSNorm computed again from their statistics."""

from __future__ import annotations

import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from joint_graphs import arguments, flat, joint_graph, recomputed, substitute
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from loadmaster.errors import InputError
from loadmaster.executor.memory.implementations.emitting import call
from loadmaster.executor.memory.implementations.norm_output import NormFromOutput
from loadmaster.executor.memory.implementations.norms import layer_norm_apply, norm_input, recompute_node
from loadmaster.executor.memory.implementations.registry import alternatives

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 4e-2}
aten = torch.ops.aten
BACKWARD = aten._fused_rms_norm_backward.default


def fused_rms_norm(x, weight):
    """Forward and backward of RMSNorm as the one operator each that they are on CUDA: result, gradients."""
    graph, mode = fx.Graph(), FakeTensorMode()
    nodes = []
    for name, value in (("x", x), ("gradient", x), ("weight", weight)):
        nodes.append(graph.placeholder(name))
        nodes[-1].meta["val"] = mode.from_tensor(torch.empty(3) if value is None else value)
    read, gradient, scale = nodes[0], nodes[1], None if weight is None else nodes[2]
    with mode:
        norm = call(graph, aten._fused_rms_norm.default, read, [x.shape[-1]], scale, 1e-6)
        output, rstd = (call(graph, operator.getitem, norm, i) for i in range(2))
        backward = call(
            graph,
            *(BACKWARD, gradient, read, [x.shape[-1]], rstd, scale),
            [True, weight is not None],
        )
        results = [call(graph, operator.getitem, backward, i) for i in range(1 if weight is None else 2)]
    graph.output((output, *results))
    return fx.GraphModule(nn.Module(), graph)


def with_weights_away_from_zero(norm):
    """Of both signs."""
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
        with torch.no_grad():
            parameter.view(-1)[::2] *= -1
    return norm


NORMS = {
    "batch": lambda affine: nn.BatchNorm2d(4, affine=affine),
    "layer": lambda affine: nn.LayerNorm([6, 5], elementwise_affine=affine),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind", list(NORMS))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_backward_from_the_output(dtype, kind, affine, layout):
    torch.manual_seed(0)
    norm = with_weights_away_from_zero(NORMS[kind](affine))
    module = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Conv2d(4, 2, 1)).to(dtype).to(memory_format=layout)
    x = torch.randn(3, 3, 8, 7, dtype=dtype).to(memory_format=layout)
    alternative = NormFromOutput(0.25 if affine else None)
    joint = joint_graph(module, x)
    assert not NormFromOutput(None if affine else 0.25).sites(joint)
    changed, sites = substitute(joint, alternative)
    assert sites == 1
    args = arguments(module, [x], [torch.randn(3, 2, 6, 5, dtype=dtype).to(memory_format=layout)])
    for got, expected in zip(flat(changed(*args)), flat(joint(*args)), strict=True):
        torch.testing.assert_close(got, expected, rtol=TOLERANCE[dtype], atol=5 * TOLERANCE[dtype])
        assert got.stride() == expected.stride()
    backward = next(n for n in changed.graph.nodes if "norm" in n.name and "backward" in n.name)
    assert "norm_input" in str(backward.args[1].target) or "norm_input" in str(backward.args[1].args)


def test_running_statistics_are_updated_once():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.Conv2d(4, 2, 1)).double()
    x = torch.randn(3, 3, 8, 7, dtype=torch.float64)
    joint = joint_graph(module, x)
    changed, _ = substitute(joint, NormFromOutput())
    args = arguments(module, [x], [torch.randn(3, 2, 6, 5, dtype=torch.float64)])
    updates = [n for n in changed.graph.nodes if "legit_functional" in str(n.target)]
    assert len(updates) == 1
    for got, expected in zip(flat(changed(*args)), flat(joint(*args)), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_norms_with_a_weight_are_offered_only_when_asked_for():
    names = [a.name for a in alternatives()]
    assert "norm_output" in names
    assert "norm_output_weighted" not in names
    evaluating = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)).eval()
    assert not NormFromOutput().sites(joint_graph(evaluating, torch.randn(2, 3, 6, 6)))


def test_a_weight_near_zero_is_refused():
    output, rstd = torch.randn(2, 3, 4), torch.rand(1, 3, 1)
    weight = torch.tensor([1.0, 0.001, 2.0]).view(1, 3, 1)
    with pytest.raises(InputError, match=r"weight: is below 0\.01.*found 0\.001.*Plan without"):
        norm_input(output, rstd, rstd, weight, None, 0.01)
    with pytest.raises(InputError, match=r"smallest_weight.*not above 0"):
        NormFromOutput(0.0)


@pytest.mark.parametrize("affine", [True, False])
def test_fused_rms_norm(affine):
    x, gradient = torch.randn(2, 7, 5, dtype=torch.float64)
    weight = torch.rand(5, dtype=torch.float64) + 0.5 if affine else None
    joint = fused_rms_norm(x, weight)
    changed, sites = substitute(joint, NormFromOutput(0.25 if affine else None))
    assert sites == 1
    # The CPU has no kernel for the backward itself: what it reads instead of the input must be the input.
    (recovered,) = (n for n in changed.graph.nodes if "norm_input" in n.name)
    assert recovered in changed.graph.find_nodes(op="call_function", target=BACKWARD)[0].all_input_nodes
    changed.graph.output_node().args = (recovered,)
    changed.graph.eliminate_dead_code()
    got = fx.GraphModule(nn.Module(), changed.graph)(x, gradient, weight)
    torch.testing.assert_close(got, x, rtol=1e-12, atol=1e-12)
    (recompute,) = (r for n in joint.graph.nodes if (r := recompute_node(n)) is not None)
    assert [n.name for n in recompute.sources] == ["x", "getitem_1", *(["weight"] if affine else [])]
    output, rstd = aten._fused_rms_norm(x, [5], weight, 1e-6)
    torch.testing.assert_close(layer_norm_apply(x, None, rstd, weight, None), output, rtol=1e-12, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    width=st.integers(2, 40),
    affine=st.booleans(),
    transposed=st.booleans(),
    dtype=st.sampled_from(list(TOLERANCE)),
    seed=st.integers(0, 1 << 30),
)
def test_apply_is_the_forward_pass_and_its_inverse_the_input(rows, width, affine, transposed, dtype, seed):
    """Within a few roundings of every term: PyTorch saves mean and rstd in the dtype of 16-bit weights, and rows of two
    may lie close together."""
    torch.manual_seed(seed)
    shape = [*rows, width]
    x = (3 * torch.randn(shape[::-1] if transposed else shape) + 1).to(dtype)
    x = x.permute(*reversed(range(x.dim()))) if transposed else x
    signs = torch.randint(2, (2, width)) * 2 - 1
    weight, bias = (((torch.rand(width) + 0.5) * sign).to(dtype) if affine else None for sign in signs)
    expected, mean, rstd = torch.native_layer_norm(x, [width], weight, bias, 1e-5)
    got = layer_norm_apply(x, mean, rstd, weight, bias)
    few = 4 * torch.finfo(dtype).eps
    scale = rstd.double() * (1.0 if weight is None else weight.double().abs())
    shift = 0.0 if bias is None else bias.double().abs()
    terms = x.double().abs() + mean.double().abs()
    assert ((got.double() - expected.double()).abs() <= few * (terms * scale + shift)).all()
    assert got.is_contiguous()
    leading = [1] * len(rows)
    placed = [None if t is None else t.view(*leading, width) for t in (weight, bias)]
    recovered = norm_input(expected, mean, rstd, *placed, 0.1)
    assert ((recovered.double() - x.double()).abs() <= few * (terms + (expected.double().abs() + shift) / scale)).all()


def test_recomputed_layer_norm_in_a_joint_graph():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 2)).double()
    x = torch.randn(7, 5, dtype=torch.float64)
    joint = joint_graph(module, x)
    (recompute,) = (r for n in joint.graph.nodes if (r := recompute_node(n)) is not None)
    changed = recomputed(joint, recompute)
    assert any("layer_norm_apply" in str(n.target) for n in changed.graph.nodes)
    args = arguments(module, [x], [torch.randn(7, 2, dtype=torch.float64)])
    for got, expected in zip(flat(changed(*args)), flat(joint(*args)), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_operators_pass_the_framework_checks():
    x, rows, columns = torch.randn(3, 5), torch.rand(3, 1), torch.rand(5) + 0.5
    torch.library.opcheck(layer_norm_apply, (x, rows, rows, columns, columns))
    torch.library.opcheck(norm_input, (x, None, rows, columns.view(1, 5), None, 0.1))
