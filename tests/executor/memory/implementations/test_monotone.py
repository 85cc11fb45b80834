"""Backward of monotone activations from their output against plain PyTorch, and no offer where there is none."""

from __future__ import annotations

import pytest
import torch
from joint_graphs import arguments, flat, joint_graph, substitute
from torch import nn

from loadmaster.executor.memory.implementations.registry import alternatives

BY_NAME = {a.name: a for a in alternatives()}
EXACT = 0.0
# Of the gradient, beside 1: one rounding of the output in the dtype, and of what is computed from it.
ROUNDING = {torch.float64: 1e-15, torch.float32: 5e-7, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def both(name, activation, dtype):
    """Gradients of the input with the alternative and without, at inputs of all sizes and signs."""
    x = torch.cat([torch.randn(501, 3).mul(10.0**e) for e in (-6, -3, -1, 0, 1)]).to(dtype)
    module = nn.Sequential(nn.Identity(), activation)
    x.requires_grad_()
    joint = joint_graph(module, x)
    changed, sites = substitute(joint, BY_NAME[name])
    assert sites == 1
    args = arguments(module, [x], [torch.ones_like(x)])
    return flat(changed(*args))[-1], flat(joint(*args))[-1]


@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize("slope", [0.0, 0.01, 1.0, 2.5])
def test_leaky_relu_is_bit_equal(slope, dtype):
    got, expected = both("leaky_relu_output", nn.LeakyReLU(slope), dtype)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize("activation", [nn.ELU(), nn.ELU(0.3), nn.SELU(), nn.CELU(), nn.CELU(0.5), nn.ELU(0.0)])
def test_elu(activation, dtype):
    got, expected = both("elu_output", activation, dtype)
    torch.testing.assert_close(got, expected, rtol=0, atol=4 * ROUNDING[dtype])


@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize("beta", [1.0, 0.25, 3.0])
def test_softplus(beta, dtype):
    threshold = 40.0 if dtype == torch.float64 else 20.0
    got, expected = both("softplus_output", nn.Softplus(beta, threshold), dtype)
    torch.testing.assert_close(got, expected, rtol=4 * ROUNDING[dtype], atol=ROUNDING[dtype])


@pytest.mark.parametrize(
    ("name", "activation", "dtype"),
    [
        ("leaky_relu_output", nn.LeakyReLU(-0.1), torch.float32),
        ("elu_output", nn.ELU(-0.5), torch.float32),
        ("softplus_output", nn.Softplus(1.0, 2.0), torch.float32),
        ("softplus_output", nn.Softplus(), torch.float64),
        *(
            (name, activation, torch.float32)
            for name in ("leaky_relu_output", "elu_output", "softplus_output")
            for activation in (nn.GELU(), nn.SiLU(), nn.Mish(), nn.Hardswish(), nn.Sigmoid())
        ),
    ],
)
def test_no_site_where_the_output_does_not_say_enough(name, activation, dtype):
    module = nn.Sequential(nn.Linear(3, 3), activation).to(dtype)
    assert not BY_NAME[name].sites(joint_graph(module, torch.randn(4, 3, dtype=dtype)))


def test_channels_last_keeps_its_strides():
    module = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Softplus(), nn.Conv2d(5, 2, 3)).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 9, 7).to(memory_format=torch.channels_last)
    joint = joint_graph(module, x)
    changed, _ = substitute(joint, BY_NAME["softplus_output"])
    args = arguments(module, [x], [torch.randn(2, 2, 5, 3).to(memory_format=torch.channels_last)])
    for got, expected in zip(flat(changed(*args)), flat(joint(*args)), strict=True):
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()
    assert not any("copy" in n.name for n in changed.graph.nodes)
