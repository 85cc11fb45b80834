"""The decompositions for compilers compute what the operators compute, with the same strides."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from loadmaster.executor.memory.implementations.batch_norm import batch_norm_apply
from loadmaster.executor.memory.implementations.decompositions import decompositions
from loadmaster.executor.memory.implementations.dropout import seeded_dropout
from loadmaster.executor.memory.implementations.masks import masked_gradient, pack_inside

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def decomposed(op, *args):
    graph = make_fx(lambda *a: op(*a), decomposition_table=decompositions(), tracing_mode="fake")(*args)
    return graph(*args), [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(16,), (3, 5, 7), (0,), ()])
def test_masked_gradient(shape, dtype):
    x, gradient = (torch.randn(shape).to(dtype) for _ in range(2))
    mask = pack_inside(x, 0.0)
    got, targets = decomposed(masked_gradient, gradient, mask)
    assert torch.equal(got, masked_gradient(gradient, mask))
    assert not any("loadmaster" in t for t in targets)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_seeded_dropout(p, dtype):
    x, seed = torch.randn(13, 9).to(dtype), torch.tensor(2**62 + 12345)
    got, targets = decomposed(lambda a, b: seeded_dropout(a, b, p), x, seed)
    assert torch.equal(got, seeded_dropout(x, seed, p))
    assert not any("loadmaster" in t for t in targets)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_norm_apply(layout, affine, dtype):
    x = torch.randn(3, 4, 5, 6).to(dtype).to(memory_format=layout)
    mean, rstd = torch.randn(4), torch.rand(4) + 0.5
    args = (x, mean, rstd, *((torch.randn(4), torch.randn(4)) if affine else (None, None)))
    got, targets = decomposed(batch_norm_apply, *args)
    expected = batch_norm_apply(*args)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    assert got.stride() == expected.stride()
    assert not any("loadmaster" in t for t in targets)


def test_layouts_that_would_need_a_copy_stay_operators():
    x = torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last)
    for op, args in ((masked_gradient, (x, pack_inside(x, 0.0))), (seeded_dropout, (x, torch.tensor(1), 0.5))):
        got, targets = decomposed(op, *args)
        assert any("loadmaster" in t for t in targets)
        assert torch.equal(got, op(*args))
        assert got.stride() == x.stride()
