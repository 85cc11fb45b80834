"""The decompositions for compilers compute what the operators compute, with the same strides."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from loadmaster.executor.memory.implementations.cross_entropy import scaled
from loadmaster.executor.memory.implementations.decompositions import decompositions
from loadmaster.executor.memory.implementations.dropout import seeded_dropout
from loadmaster.executor.memory.implementations.masks import masked_gradient, pack_inside
from loadmaster.executor.memory.implementations.norms import batch_norm_apply, layer_norm_apply, norm_input
from loadmaster.executor.memory.implementations.pooling import pool_offsets

aten = torch.ops.aten
RANDOM = {
    "bernoulli_ of stochastic depth": lambda x: aten.bernoulli.p(x, 0.8),
    "bernoulli": lambda x: aten.bernoulli.default(x),
    "rand_like": lambda x: aten.rand_like.default(x),
    "uniform": lambda x: aten.uniform.default(x, 0.0, 1.0),
    "exponential": lambda x: aten.exponential.default(x),
    "randint_like": lambda x: aten.randint_like.default(x, 4),
    "dropout": lambda x: aten.native_dropout.default(x, 0.1, True)[0],
}
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def decomposed(op, *args):
    graph = make_fx(lambda *a: op(*a), decomposition_table=decompositions(), tracing_mode="fake")(*args)
    return graph(*args), [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(16,), (3, 5, 7), (2, 24, 5, 3), (2, 13, 3, 3), (4, 2, 2, 1, 1), (0,), ()])
@pytest.mark.parametrize("reverse", [False, True])
def test_masks(reverse, shape, dtype):
    x, gradient = (torch.randn(shape).to(dtype) for _ in range(2))
    if reverse and shape:
        x = x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim())))
    for limits in ((0.0,), (-0.5, 0.5)):
        mask, targets = decomposed(lambda a, limits=limits: pack_inside(a, *limits), x)
        expected = pack_inside(x, *limits)
        assert torch.equal(mask, expected)
        assert (mask.dtype, mask.stride()) == (torch.uint8, expected.stride())
        got, more = decomposed(masked_gradient, gradient, mask)
        assert torch.equal(got, masked_gradient(gradient, mask))
        assert got.stride() == gradient.stride()
        assert not any("loadmaster" in t for t in (*targets, *more))
        # Only where mask and gradient lie in memory in different orders is anything laid out anew.
        assert reverse or not any("aten.copy" in t for t in (*targets, *more))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_pool_offsets(layout):
    window = ([3, 2], [2, 1], [1, 1], [1, 2])
    x = torch.randn(2, 3, 13, 11).to(memory_format=layout)
    _, indices = torch.ops.aten.max_pool2d_with_indices(x, *window)
    got, targets = decomposed(lambda i: pool_offsets(i, 11, *window), indices)
    assert torch.equal(got, pool_offsets(indices, 11, *window))
    assert not any("loadmaster" in t for t in targets)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("transposed", [False, True])
def test_seeded_dropout(transposed, p, dtype):
    x, seed = torch.randn(13, 9).to(dtype), torch.tensor(2**62 + 12345)
    x = x.t() if transposed else x
    got, targets = decomposed(lambda a, b: seeded_dropout(a, b, p), x, seed)
    assert torch.equal(got, seeded_dropout(x, seed, p))
    assert got.stride() == x.stride()
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_row_norms_and_scaling(dtype):
    x, tolerance = torch.randn(3, 5, 8).to(dtype), {torch.bfloat16: 2e-2}.get(dtype, 1e-6)
    rows, columns = torch.rand(3, 5, 1) + 0.5, torch.rand(8) + 0.5
    for run in (
        lambda x, r, c: layer_norm_apply(x, r, r, c, c),
        lambda x, r, c: layer_norm_apply(x, None, r, c, None),
        lambda x, r, c: norm_input(x, r, r, c.view(1, 1, 8), c.view(1, 1, 8), 0.1),
        lambda x, r, c: norm_input(x, None, r, None, None, 0.1),
        lambda x, r, c: scaled(x, r.sum(), torch.bfloat16),
    ):
        got, targets = decomposed(run, x, rows, columns)
        expected = run(x, rows, columns)
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
        assert (got.dtype, got.stride()) == (expected.dtype, expected.stride())
        assert not any("loadmaster" in t for t in targets)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", [0, 1, 2], ids=["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(7,), (5, 7), (3, 7, 4, 2)])
def test_gradients_of_likelihoods(shape, reduction, weighted):
    loss, gradient_of = (
        (aten.nll_loss2d_forward, aten.nll_loss2d_backward)
        if len(shape) == 4
        else (aten.nll_loss_forward, aten.nll_loss_backward)
    )
    scores = torch.randn(shape, dtype=torch.float64)
    target = torch.randint(7, shape[:1] + shape[2:] if len(shape) > 1 else ())
    rest = (torch.rand(7, dtype=torch.float64) if weighted else None, reduction, 2)
    made, total = loss.default(scores, target, *rest)
    arguments = (torch.randn_like(made), scores, target, *rest, total)
    got, targets = decomposed(gradient_of.default, *arguments)
    torch.testing.assert_close(got, gradient_of.default(*arguments))
    assert not any("nll_loss" in t or "scatter" in t for t in targets)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_of_the_type_that_was_asked_for(name, device, dtype):
    """Also on a GPU, where compilers draw them by other ways."""
    draw = RANDOM[name]
    with FakeTensorMode():
        x = torch.empty(4, 8, dtype=dtype, device=device)
        expected = draw(x).dtype
        graph = make_fx(draw, decomposition_table={**select_decomp_table(), **decompositions()})(x)
        assert graph(x).dtype == expected == dtype
