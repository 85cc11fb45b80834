"""The CUDA kernels compute what the PyTorch forms of the same operators compute on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from loadmaster.executor.memory.implementations.dropout import seeded_dropout
from loadmaster.executor.memory.implementations.masks import masked_gradient, pack_inside
from loadmaster.executor.memory.implementations.norms import batch_norm_apply, layer_norm_apply, norm_input
from loadmaster.executor.memory.implementations.pooling import pool_offset_backward, pool_offsets
from tests.executor.memory.implementations.chunked_loss import chunked_linear_cross_entropy

pytestmark = pytest.mark.gpu
aten = torch.ops.aten
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0,), (1,), (8,), (5, 7, 3), (4, 6, 9, 5), (100_003,)])
@pytest.mark.parametrize("high", [None, 0.5])
def test_masks(shape, dtype, high):
    x = torch.randn(shape, dtype=dtype, device="cuda")
    x.view(-1)[::5] = float("nan")
    gradient = torch.randn(shape, dtype=dtype, device="cuda")
    mask = pack_inside(x, 0.0, high)
    assert torch.equal(mask.cpu(), pack_inside(x.cpu(), 0.0, high))
    if high is None:
        expected = aten.threshold_backward(gradient, x, 0.0)
    else:
        expected = aten.hardtanh_backward(gradient, x, 0.0, high)
    assert torch.equal(masked_gradient(gradient, mask), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("orders", [((0, 2, 3, 1),) * 2, ((0, 2, 3, 1), (0, 1, 2, 3)), ((3, 1, 0, 2), (1, 3, 2, 0))])
@pytest.mark.parametrize("shape", [(2, 64, 7, 9), (4, 24, 5, 3), (3, 13, 6, 5)])
def test_masks_in_every_pair_of_layouts(shape, orders, dtype):
    x, gradient = (laid_out(torch.randn(shape, dtype=dtype, device="cuda"), order) for order in orders)
    mask = pack_inside(x, 0.0)
    expected = pack_inside(x.cpu(), 0.0)
    assert torch.equal(mask.cpu(), expected)
    assert mask.stride() == expected.stride()
    got = masked_gradient(gradient, mask)
    assert torch.equal(got, aten.threshold_backward(gradient, x, 0.0))
    assert got.stride() == gradient.stride()


def laid_out(tensor, order):
    """The same values with the dimensions in this order of memory."""
    return tensor.permute(order).contiguous().permute(sorted(range(len(order)), key=order.__getitem__))


def test_nothing_is_copied_in_channels_last():
    x = torch.randn(8, 64, 56, 56, device="cuda").to(memory_format=torch.channels_last)
    window = ([3, 3], [2, 2], [1, 1], [1, 1])
    output, indices = aten.max_pool2d_with_indices(x, *window)
    mask, offsets, seed = pack_inside(x, 0.0), pool_offsets(indices, 56, *window), torch.tensor(1, device="cuda")
    channel = torch.rand(64, device="cuda")
    for run in (
        lambda: pack_inside(x, 0.0),
        lambda: masked_gradient(x, mask),
        lambda: pool_offsets(indices, 56, *window),
        lambda: pool_offset_backward(output, offsets, 56, 56, *window, False),
        lambda: seeded_dropout(x, seed, 0.1),
        lambda: batch_norm_apply(x, channel, channel, channel, channel),
    ):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = run()
        assert result.is_contiguous(memory_format=torch.channels_last)
        assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() > before
        del result


@pytest.mark.parametrize("strided", ["gradient", "offsets", "both"])
def test_pooling_of_channels_last(strided):
    """A compiled graph may hand over either of them in another layout: the stem of a ResNet trained wrongly once."""
    window = ([3, 3], [2, 2], [1, 1], [1, 1])
    x = torch.randn(2, 8, 12, 12, device="cuda").relu()
    output, indices = aten.max_pool2d_with_indices(x, *window)
    gradient = torch.randn_like(output)
    expected = aten.max_pool2d_with_indices_backward(gradient, x, *window, False, indices)
    offsets = pool_offsets(indices, 12, *window)
    if strided in ("gradient", "both"):
        gradient = gradient.to(memory_format=torch.channels_last)
    if strided in ("offsets", "both"):
        offsets = offsets.to(memory_format=torch.channels_last)
    torch.testing.assert_close(pool_offset_backward(gradient, offsets, 12, 12, *window, False), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_dropout_mask_is_the_cpu_one(p, dtype):
    x = torch.randn(3003, dtype=dtype)
    for seed in (0, 1, 2**63 - 2, 123_456_789_012_345_678):
        seed = torch.tensor(seed)
        for order in ((0, 1, 2, 3), (0, 2, 3, 1), (2, 0, 3, 1)):
            y = laid_out(x.view(3, 7, 11, 13), order)
            got = seeded_dropout(y.cuda(), seed.cuda(), p)
            assert torch.equal(got.cpu(), seeded_dropout(y, seed, p))
            assert got.stride() == y.stride()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", [([3, 3], [2, 2], [1, 1], [1, 1]), ([2, 3], [1, 2], [0, 1], [2, 1])])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_pooling(kernel, ceil_mode, dtype):
    x = torch.randn(2, 3, 13, 11, device="cuda").to(dtype)
    output, indices = aten.max_pool2d_with_indices(x, *kernel, ceil_mode)
    gradient = torch.randn_like(output)
    offsets = pool_offsets(indices, 11, *kernel)
    got = pool_offset_backward(gradient, offsets, 13, 11, *kernel, ceil_mode)
    expected = aten.max_pool2d_with_indices_backward(gradient, x, *kernel, ceil_mode, indices)
    if dtype == torch.bfloat16:
        torch.testing.assert_close(got, expected)
    else:
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_batch_norm_apply_is_bit_equal(dtype, affine, layout):
    x = (3 * torch.randn(4, 5, 16, 17, device="cuda") + 1).to(dtype).to(memory_format=layout)
    exact = torch.promote_types(dtype, torch.float32)
    weight, bias = torch.randn(2, 5, device="cuda", dtype=exact).unbind() if affine else (None, None)
    expected, mean, rstd = torch.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
    got = batch_norm_apply(x, mean, rstd, weight, bias)
    assert torch.equal(got, expected)
    assert got.stride() == x.stride()


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 7, 1000), (5, 33), (2, 4, 6, 64)])
def test_row_norms_and_their_inverse(shape, dtype, affine):
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 4e-2}[dtype]
    x = (3 * torch.randn(shape, device="cuda") + 1).to(dtype)
    width, leading = shape[-1], [1] * (len(shape) - 1)
    weight, bias = ((torch.rand(width, device="cuda") + 0.5).to(dtype) if affine else None for _ in range(2))
    expected, mean, rstd = torch.native_layer_norm(x, [width], weight, bias, 1e-5)
    torch.testing.assert_close(layer_norm_apply(x, mean, rstd, weight, bias), expected, rtol=tolerance, atol=tolerance)
    placed = [None if t is None else t.view(*leading, width) for t in (weight, bias)]
    recovered = norm_input(expected, mean, rstd, *placed, 0.1)
    torch.testing.assert_close(recovered, x, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_batch_norm_input(dtype, layout):
    x = (3 * torch.randn(4, 5, 16, 17, device="cuda") + 1).to(dtype).to(memory_format=layout)
    weight, bias = torch.rand(2, 5, device="cuda", dtype=dtype).add(0.5).unbind()
    output, mean, rstd = torch.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
    recovered = norm_input(output, *(t.view(1, 5, 1, 1) for t in (mean, rstd, weight, bias)), 0.1)
    torch.testing.assert_close(recovered, x, rtol=1e-5, atol=1e-5)
    assert recovered.stride() == x.stride()


@pytest.mark.skipif(not hasattr(aten, "_fused_rms_norm_backward"), reason="this PyTorch has no fused RMSNorm")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_rms_norm_backward_on_the_recovered_input(dtype):
    x, gradient = (torch.randn(64, 256, device="cuda").to(dtype) for _ in range(2))
    weight = (torch.rand(256, device="cuda") + 0.5).to(dtype)
    with torch.no_grad():
        output, rstd = aten._fused_rms_norm(x, [256], weight, 1e-6)
        tolerance = 4e-2 if dtype == torch.bfloat16 else 1e-5
        again = layer_norm_apply(x, None, rstd, weight, None)
        torch.testing.assert_close(again, output, rtol=tolerance, atol=tolerance)
        recovered = norm_input(output, None, rstd, weight.view(1, 256), None, 0.1)
        results = [
            aten._fused_rms_norm_backward(gradient, read, [256], rstd, weight, [True, True]) for read in (recovered, x)
        ]
    for got, expected in zip(*results, strict=True):
        assert (got.double() - expected.double()).norm() <= tolerance * expected.double().norm()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", [(300, 17, 5003), (7, 64, 3), (1, 8, 4096)])
def test_cross_entropy(shape, biased, smoothing, weighted, reduction):
    rows, width, classes = shape
    torch.manual_seed(0)
    hidden = torch.randn(rows, width, dtype=torch.float64, device="cuda", requires_grad=True)
    weight = torch.randn(classes, width, dtype=torch.float64, device="cuda", requires_grad=True)
    bias = torch.randn(classes, dtype=torch.float64, device="cuda", requires_grad=True) if biased else None
    leaves = [t for t in (hidden, weight, bias) if t is not None]
    targets = torch.randint(classes, (rows,), device="cuda")
    targets[1::4] = -100
    class_weights = torch.rand(classes, dtype=torch.float64, device="cuda") if weighted else None
    options = {"reduction": reduction, "label_smoothing": smoothing}
    plain = F.cross_entropy(F.linear(hidden, weight, bias), targets, class_weights, **options)
    chunked = chunked_linear_cross_entropy(
        hidden, weight, targets, bias, class_weights=class_weights, chunks=3, **options
    )
    for got, want in zip(
        (chunked, *torch.autograd.grad(chunked, leaves)), (plain, *torch.autograd.grad(plain, leaves)), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("scale", "cap"), [(0.5, 0.0), (-2.0, 3.0), (1.0, 0.0)])
def test_weighted_rows_of_mapped_logits_with_a_z_loss(scale, cap, smoothing):
    torch.manual_seed(0)
    hidden = torch.randn(300, 17, dtype=torch.float64, device="cuda", requires_grad=True)
    weight = torch.randn(5003, 17, dtype=torch.float64, device="cuda", requires_grad=True)
    targets = torch.randint(5003, (300,), device="cuda")
    targets[1::4] = -100
    row_weights, z_weights = torch.rand(2, 300, dtype=torch.float64, device="cuda").unbind()
    z_weights[::3] = 0
    logits = scale * F.linear(hidden, weight)
    logits = cap * (logits / cap).tanh() if cap else logits
    losses = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    plain = (losses * row_weights).sum() + (z_weights * logits.logsumexp(1).square()).sum()
    weights = {"row_weights": row_weights, "z_weights": z_weights, "scale": scale, "cap": cap}
    options = {"label_smoothing": smoothing, "reduction": "sum", **weights}
    chunked = chunked_linear_cross_entropy(hidden, weight, targets, chunks=3, **options)
    for got, want in zip(
        (chunked, *torch.autograd.grad(chunked, (hidden, weight))),
        (plain, *torch.autograd.grad(plain, (hidden, weight))),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_cross_entropy_under_autocast_is_as_precise_as_plain():
    torch.manual_seed(0)
    hidden = torch.randn(2000, 64, device="cuda", requires_grad=True)
    weight = (0.1 * torch.randn(5000, 64, device="cuda")).requires_grad_()
    targets = torch.randint(5000, (2000,), device="cuda")
    leaves = (hidden, weight)

    def both(loss):
        return [loss.detach(), *torch.autograd.grad(loss, leaves)]

    truth = both(F.cross_entropy(F.linear(hidden, weight), targets))
    with torch.autocast("cuda", torch.bfloat16):
        plain = both(F.cross_entropy(F.linear(hidden, weight).float(), targets))
        chunked = both(chunked_linear_cross_entropy(hidden, weight, targets, chunks=7))
    for got, other, want in zip(chunked, plain, truth, strict=True):
        assert (got - want).norm() <= 1.2 * (other - want).norm() + 1e-4 * want.norm()
