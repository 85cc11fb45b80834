"""The Triton kernels in Triton's interpreter, on a CPU, against the PyTorch forms of the same operators.

A program of its own, for two reasons: Triton decides at its import whether to interpret, and the interpreter checks no
bounds, so that a store out of range may end the process. What kernels allocate lies between guards here, which must be
whole afterwards. Prints {name of the case: what went wrong, or nothing} as one line of JSON.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

import torch
from torch import Tensor

from loadmaster.executor.memory.implementations import cross_entropy, dropout, masks, norms, pooling
from tests.executor.interpreted_cases import Cases, Guarded

MODULES = (cross_entropy, dropout, masks, norms, pooling)
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
# A few roundings of a result of the size of one.
TOLERANCE = {torch.float64: 1e-14, torch.float32: 2e-6, torch.bfloat16: 1.6e-2}
LAST = torch.channels_last
case = Cases()


@contextlib.contextmanager
def kernels_run() -> Iterator[None]:
    """Operators take their kernels."""
    guarded = Guarded(torch.empty_like)
    with contextlib.ExitStack() as stack:
        for module in MODULES:
            stack.enter_context(mock.patch.object(module, "has_kernels", lambda device: True))
        stack.enter_context(mock.patch.object(torch, "empty_like", guarded))
        yield
    guarded.expect_whole()


def close(got: Tensor, want: Tensor, dtype: torch.dtype, scale: float = 1.0) -> None:
    torch.testing.assert_close(got, want, rtol=TOLERANCE[dtype], atol=scale * TOLERANCE[dtype])


def same(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    """Bit for bit; the interpreter cuts what a GPU rounds to bfloat16."""
    if dtype == torch.bfloat16:
        torch.testing.assert_close(got, want, rtol=torch.finfo(dtype).eps, atol=0)
    else:
        assert torch.equal(got, want)


def both(function: Callable[..., Tensor], *args: object) -> tuple[Tensor, Tensor]:
    want = function(*args)
    with kernels_run():
        got = function(*args)
    assert got.stride() == want.stride() and got.dtype == want.dtype
    return got, want


@case
def pack_inside_and_masked_gradient() -> None:
    for shape, layouts in (((), (None,)), ((13,), (None,)), ((2, 13, 3, 5), (None, LAST))):
        for dtype in DTYPES:
            for layout in layouts:
                x, gradient = torch.randn(2, *shape, dtype=dtype).unbind()
                if layout is not None:
                    x = x.to(memory_format=layout)
                x.reshape(-1)[::5] = float("nan")
                x.masked_fill_(torch.rand(x.shape) < 0.2, 0.0)  # the very limit
                x.masked_fill_(torch.rand(x.shape) < 0.2, 0.5)
                for high in (None, 0.5):
                    got, want = both(masks.pack_inside, x, 0.0, high)
                    assert torch.equal(got, want)
                    got, want = both(masks.masked_gradient, gradient, want)
                    assert torch.equal(got, want)


@case
def pool_offsets_and_their_backward() -> None:
    for kernel in (([3, 3], [2, 2], [1, 1], [1, 1]), ([2, 3], [1, 2], [0, 1], [2, 1])):
        for dtype in DTYPES:
            for layout in (torch.contiguous_format, LAST):
                x = torch.randn(2, 3, 9, 8).to(dtype).to(memory_format=layout)
                output, indices = torch.ops.aten.max_pool2d_with_indices(x, *kernel, False)
                got, want = both(pooling.pool_offsets, indices, 8, *kernel)
                assert torch.equal(got, want)
                gradient = torch.randn(output.shape).to(dtype)
                got, want = both(pooling.pool_offset_backward, gradient, want, 9, 8, *kernel, False)
                close(got, want, dtype, 4.0)


@case
def seeded_dropout() -> None:
    for dtype in DTYPES:
        x = torch.randn(3, 5, 4, 6).to(dtype)
        for order in ((0, 1, 2, 3), (0, 2, 3, 1), (2, 0, 3, 1)):
            laid_out = x.permute(order).contiguous().permute(sorted(range(4), key=order.__getitem__))
            for seed, p in ((0, 0.0), (2**63 - 2, 0.3), (123_456_789_012_345_678, 1.0)):
                got, want = both(dropout.seeded_dropout, laid_out, torch.tensor(seed), p)
                assert torch.equal(got == 0, want == 0)
                same(got, want, dtype)


@case
def batch_norm_apply() -> None:
    for dtype in DTYPES:
        for layout in (torch.contiguous_format, LAST):
            x = (3 * torch.randn(2, 5, 4, 3) + 1).to(dtype).to(memory_format=layout)
            exact = torch.promote_types(dtype, torch.float32)
            mean, rstd, weight, bias = torch.randn(4, 5, dtype=exact).unbind()
            for affine in ((weight, bias), (None, None), (weight, None)):
                got, want = both(norms.batch_norm_apply, x, mean, rstd.abs(), *affine)
                close(got, want, dtype, 8.0)


@case
def layer_norm_apply() -> None:
    for dtype in DTYPES:
        x = (3 * torch.randn(3, 2, 37) + 1).to(dtype)
        mean, rstd = torch.randn(2, 3, 2, 1, dtype=torch.promote_types(dtype, torch.float32)).unbind()
        weight, bias = torch.randn(2, 37).to(dtype).unbind()
        for centre, *affine in ((mean, weight, bias), (None, weight, None), (mean, None, None)):
            got, want = both(norms.layer_norm_apply, x, centre, rstd, *affine)
            close(got, want, dtype, 8.0)


@case
def norm_input() -> None:
    """With weights of both signs; per row, and per channel in either layout."""
    for dtype in DTYPES:
        exact = torch.promote_types(dtype, torch.float32)
        signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
        weight, bias = (torch.rand(5) + 0.5) * signs, torch.randn(5)
        for shape, where in (((4, 5), (4, 1)), ((2, 5, 3, 2), (1, 5, 1, 1))):
            output = torch.randn(shape).to(dtype)
            mean, rstd = torch.randn(where, dtype=exact), torch.rand(where, dtype=exact) + 0.5
            per_channel = (1, 5, *(1,) * (len(shape) - 2))
            placed = [t.to(dtype).view(per_channel) for t in (weight, bias)]
            layouts = (output, output.to(memory_format=LAST)) if len(shape) == 4 else (output,)
            for value in layouts:
                got, want = both(norms.norm_input, value, mean, rstd, *placed, 0.1)
                close(got, want, dtype, 16.0)
                got, want = both(norms.norm_input, value, None, rstd, None, None, 0.1)
                close(got, want, dtype, 16.0)


@case
def cross_entropy_rows_and_their_gradients() -> None:
    """Rows in a buffer that is wider than they are, as chunks of logits lie; more classes than a program loads."""
    for dtype, classes in ((torch.float64, 11), (torch.float32, 2051), (torch.bfloat16, 11)):
        exact = torch.promote_types(dtype, torch.float32)
        weights, of_rows = torch.rand(classes, dtype=exact), torch.rand(5, dtype=exact)
        # Rows that have no target: one has a z-loss, the other nothing.
        of_squares = torch.tensor([0.1, 0.0, 0.2, 0.3, 0.0], dtype=exact)
        for smoothing, class_weights, row_weights, z_weights, scale, cap in (
            (0.0, None, None, None, 1.0, 0.0),
            (0.1, weights, None, None, 1.0, 0.0),
            (0.1, None, of_rows, None, -0.5, 0.0),
            (0.0, weights, None, of_squares, 0.5, 2.0),
            (0.1, weights, of_rows, of_squares, -1.0, 2.0),
        ):
            expect_rows(dtype, classes, class_weights, (row_weights, z_weights), smoothing, scale, cap)


def expect_rows(
    dtype: torch.dtype,
    classes: int,
    class_weights: Tensor | None,
    weights: tuple[Tensor | None, ...],
    smoothing: float,
    scale: float,
    cap: float,
) -> None:
    exact = torch.promote_types(dtype, torch.float32)
    buffer = torch.full((5, classes + 9), -7.0, dtype=dtype)
    targets = torch.tensor([0, classes - 1, -100, 3, -100])
    scores = (3 * torch.randn(5, classes)).to(dtype)
    scores[4] = float("inf")
    results = []
    for kernel in (False, True):
        buffer.fill_(-7.0)[:, :classes] = scores
        losses = torch.full((7,), -7.0, dtype=exact)
        with kernels_run() if kernel else contextlib.nullcontext():
            of = cross_entropy.RowLoss(class_weights, -100, smoothing, scale, cap)
            cross_entropy.cross_entropy_rows(*(buffer[:, :classes], targets, *weights, losses[1:6], of), gradients=True)
        assert bool((buffer[:, classes:] == -7.0).all()) and float(losses[0]) == float(losses[6]) == -7.0
        results.append((losses[1:6].clone(), buffer[:, :classes].clone()))
    close(results[1][0], results[0][0], exact, 16.0)
    close(results[1][1], results[0][1], dtype)


@case
def scaled() -> None:
    for dtype, result in ((torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16), (torch.float64,) * 2):
        x, scale = torch.randn(3, 1030).to(dtype), torch.tensor(0.37, dtype=torch.promote_types(dtype, torch.float32))
        got, want = both(cross_entropy.scaled, x, scale, result)
        same(got, want, result)


if __name__ == "__main__":
    case.run()
