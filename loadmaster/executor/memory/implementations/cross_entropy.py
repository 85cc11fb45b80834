"""Linear layer and cross-entropy in one, in chunks of rows: the full logits never exist.

The forward pass keeps one number per row (the logsumexp of its logits); the backward pass computes each chunk's
logits again. The chunks are as long as the layer is wide, or a little more, so that one chunk's logits take about as
much memory as the weight's gradient, which has to exist anyway.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from loadmaster.errors import InputError
from loadmaster.executor.costs.workspace import register_workspace
from loadmaster.executor.memory.implementations.kernels import has_kernels, kernels

MIN_ROWS = 256  # fewer would starve the matrix product
REDUCTIONS = ("mean", "sum")


def chunk_rows(width: int) -> int:
    """Rows whose 16-bit logits take as much as the float32 gradient of the weight."""
    return max(MIN_ROWS, 2 * width)


def default_chunks(rows: int, width: int) -> int:
    """How many chunks these rows are cut into."""
    return max(1, -(-rows // chunk_rows(width)))


def _slices(rows: int, chunks: int) -> Iterator[slice]:
    step = max(1, -(-rows // chunks))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, chunks: int) -> Iterator[tuple[slice, Tensor]]:
    """The rows of each chunk and their logits, all in one buffer: a chunk's logits are gone with the next one."""
    buffer: Tensor | None = None
    for rows in _slices(hidden.shape[0], chunks):
        if buffer is None:
            buffer = hidden.new_empty((rows.stop, weight.shape[1]))
        logits = buffer[: rows.stop - rows.start]
        if bias is None:
            torch.mm(hidden[rows], weight, out=logits)
        else:
            torch.addmm(bias, hidden[rows], weight, out=logits)
        yield rows, logits


def _exact(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


@torch.library.custom_op("loadmaster::linear_cross_entropy", mutates_args=())
def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    chunks: int,
    ignore_index: int,
    mean: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy of ``hidden @ weight + bias``.

    Args:
        hidden: [rows, width].
        weight: [width, classes].
        bias: [classes] or None.
        targets: int64 [rows], class of each row, or ``ignore_index``.
        chunks: how many chunks the rows are cut into.
        mean: divide by the number of rows that count; the sum otherwise.
        dtype: of the loss. Logits are rounded to the dtype of ``hidden``, then reduced in float32 or better.

    Returns:
        The loss [], the logsumexp of each row [rows] (float32 or float64), the number of rows that count [].
    """
    exact = _exact(dtype)
    counts = targets != ignore_index
    classes = targets.where(counts, 0)
    normalizer, picked = (hidden.new_empty(hidden.shape[0], dtype=exact) for _ in range(2))
    for rows, logits in _logits(hidden, weight, bias, chunks):
        _normalize(logits, classes[rows], normalizer[rows], picked[rows])
    total = counts.sum().to(exact)
    loss = (normalizer - picked).where(counts, 0).sum()
    return (loss / total if mean else loss).to(dtype), normalizer, total.to(dtype)


@linear_cross_entropy.register_fake
def _(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    chunks: int,
    ignore_index: int,
    mean: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    normalizer = hidden.new_empty(hidden.shape[0], dtype=_exact(dtype))
    return hidden.new_empty((), dtype=dtype), normalizer, hidden.new_empty((), dtype=dtype)


@torch.library.custom_op("loadmaster::linear_cross_entropy_backward", mutates_args=())
def linear_cross_entropy_backward(
    gradient: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    normalizer: Tensor,
    total: Tensor,
    chunks: int,
    ignore_index: int,
    mean: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of :func:`linear_cross_entropy`.

    Args:
        gradient: [] of the loss.
        normalizer, total: what the forward pass returned. The others are as they were there.

    Returns:
        The gradients of hidden [rows, width], of the transposed weight [classes, width] and of the bias [classes]
        ([0] without a bias), in the dtype of ``hidden``; the last two are summed over chunks in float32 or better.
    """
    exact = normalizer.dtype
    scale = gradient.to(exact) / total.to(exact) if mean else gradient.to(exact)
    counts = targets != ignore_index
    scales = scale.expand(counts.shape).where(counts, 0)
    classes = targets.where(counts, 0)
    hidden_gradient = torch.empty_like(hidden, memory_format=torch.contiguous_format)
    weight_gradient = hidden.new_zeros((weight.shape[1], weight.shape[0]), dtype=exact)
    bias_gradient = hidden.new_zeros(0 if bias is None else weight.shape[1], dtype=exact)
    for rows, logits in _logits(hidden, weight, bias, chunks):
        errors = _differentiate(logits, classes[rows], normalizer[rows], scales[rows])
        torch.mm(errors, weight.t(), out=hidden_gradient[rows])
        _accumulate(weight_gradient, errors.t(), hidden[rows])
        if bias is not None:
            bias_gradient += errors.sum(0, dtype=exact)
    return hidden_gradient, weight_gradient.to(hidden.dtype), bias_gradient.to(hidden.dtype)


@linear_cross_entropy_backward.register_fake
def _(
    gradient: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    normalizer: Tensor,
    total: Tensor,
    chunks: int,
    ignore_index: int,
    mean: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        hidden.new_empty(hidden.shape),
        hidden.new_empty((weight.shape[1], weight.shape[0])),
        hidden.new_empty(0 if bias is None else weight.shape[1]),
    )


def _normalize(logits: Tensor, classes: Tensor, normalizer: Tensor, picked: Tensor) -> None:
    """Write each row's logsumexp and the logit of its class."""
    if has_kernels(logits.device):
        kernels().normalize_rows(logits, classes, normalizer, picked)
        return
    scores = logits.to(normalizer.dtype)
    torch.logsumexp(scores, 1, out=normalizer)
    picked.copy_(scores.gather(1, classes.unsqueeze(1)).squeeze(1))


def _differentiate(logits: Tensor, classes: Tensor, normalizer: Tensor, scales: Tensor) -> Tensor:
    """(softmax - one-hot) times the row's scale, in the dtype of the logits, which are overwritten where possible."""
    if has_kernels(logits.device):
        kernels().differentiate_rows(logits, classes, normalizer, scales)
        return logits
    scores = logits.to(normalizer.dtype).sub_(normalizer.unsqueeze(1)).exp_()
    row = torch.arange(scores.shape[0], device=scores.device)
    scores[row, classes] -= 1
    return logits.copy_(scores.mul_(scales.unsqueeze(1)))


def _accumulate(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype == right.dtype:
        total.addmm_(left, right)
    elif total.device.type == "cuda":
        # 16-bit factors, float32 sum: cuBLAS adds the product in without rounding it first.
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += left @ right


def _save(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, ...]) -> None:
    hidden, weight, bias, targets, chunks, ignore_index, mean, _dtype = inputs
    _loss, normalizer, total = output
    ctx.save_for_backward(hidden, weight, bias, targets, normalizer, total)  # type: ignore[arg-type]
    ctx.plain = (chunks, ignore_index, mean)  # type: ignore[attr-defined]


def _backward(
    ctx: torch.autograd.function.FunctionCtx, gradient: Tensor, *_unused: Tensor
) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # type: ignore[attr-defined]
    plain = ctx.plain  # type: ignore[attr-defined]
    hidden, weight, bias = linear_cross_entropy_backward(gradient, *saved, *plain)
    without_bias = saved[2] is None
    return hidden, weight.t(), None if without_bias else bias, None, None, None, None, None


linear_cross_entropy.register_autograd(_backward, setup_context=_save)


def chunked_linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    chunks: int | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """``cross_entropy(linear(hidden, weight, bias), targets)`` without ever holding all the logits.

    Args:
        hidden: [..., width].
        weight: [classes, width], as nn.Linear holds it.
        targets: int64 [...], class of each row, or ``ignore_index``.
        bias: [classes] or None.
        chunks: how many chunks the rows are cut into; by default as many as keep a chunk's logits as small as the
            weight's gradient.
        reduction: "mean" over the rows that count, or "sum".

    Returns:
        The loss, a scalar: float32 for 16-bit inputs, else in the dtype of ``hidden``. Follows autocast.

    Raises:
        InputError: shapes that do not fit together, another reduction, fewer than one chunk.
    """
    _expect_fitting(hidden, weight, targets, bias, chunks, reduction)
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    rows = hidden.reshape(-1, hidden.shape[-1])
    cut = default_chunks(rows.shape[0], rows.shape[1]) if chunks is None else chunks
    loss: Tensor = linear_cross_entropy(
        rows,
        weight.t(),
        bias,
        targets.reshape(-1),
        cut,
        ignore_index,
        reduction == "mean",
        _exact(hidden.dtype),
    )[0]
    return loss


def _expect_fitting(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, chunks: int | None, reduction: str
) -> None:
    if weight.dim() != 2 or hidden.dim() < 1 or hidden.shape[-1] != weight.shape[-1]:
        shapes = (tuple(hidden.shape), tuple(weight.shape))
        raise InputError("weight", shapes, "does not fit hidden", "Pass [..., width] and [classes, width].")
    if targets.dtype != torch.int64 or targets.shape != hidden.shape[:-1]:
        found = (tuple(targets.shape), str(targets.dtype))
        shape = tuple(hidden.shape[:-1])
        raise InputError("targets", found, "does not fit hidden", f"Pass int64 targets of shape {shape}.")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise InputError("bias", tuple(bias.shape), "does not fit weight", f"Pass [{weight.shape[0]}].")
    if chunks is not None and chunks < 1:
        raise InputError("chunks", chunks, "is below 1", "Pass how many chunks the rows are cut into.")
    if reduction not in REDUCTIONS:
        raise InputError("reduction", reduction, "is not known here", f"Choose one of: {', '.join(REDUCTIONS)}.")


@register_flop_formula(torch.ops.loadmaster.linear_cross_entropy)
def _(hidden: tuple[int, ...], weight: tuple[int, ...], *_args: object, **_kwargs: object) -> int:
    return 2 * hidden[0] * weight[0] * weight[1]


@register_flop_formula(torch.ops.loadmaster.linear_cross_entropy_backward)
def _(
    _gradient: tuple[int, ...],
    hidden: tuple[int, ...],
    weight: tuple[int, ...],
    *_args: object,
    **_kwargs: object,
) -> int:
    return 3 * 2 * hidden[0] * weight[0] * weight[1]


def _chunk_bytes(hidden: Tensor, weight: Tensor, chunks: int, exact: torch.dtype, reduced: bool) -> int:
    """One chunk's logits; without the kernels also widened ones, and a temporary where they are reduced."""
    per_logit = hidden.element_size()
    if not has_kernels(hidden.device):
        per_logit += exact.itemsize * ((hidden.dtype != exact) + reduced)
    return -(-hidden.shape[0] // chunks) * weight.shape[1] * per_logit


def _forward_workspace(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    chunks: int,
    ignore_index: int,
    mean: bool,
    dtype: torch.dtype,
) -> int:
    return _chunk_bytes(hidden, weight, chunks, _exact(dtype), True) + 3 * targets.numel() * targets.element_size()


def _backward_workspace(
    gradient: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    normalizer: Tensor,
    total: Tensor,
    chunks: int,
    ignore_index: int,
    mean: bool,
) -> int:
    exact = normalizer.dtype
    # A 16-bit weight gradient is summed in float32 first; without cuBLAS each chunk's product is a tensor too.
    product = 0 if hidden.device.type == "cuda" else weight.numel() * hidden.element_size()
    summed = 0 if hidden.dtype == exact else weight.numel() * exact.itemsize + product
    chunk = _chunk_bytes(hidden, weight, chunks, exact, False)
    return chunk + summed + 3 * targets.numel() * targets.element_size()


register_workspace(linear_cross_entropy._opoverload, _forward_workspace)
register_workspace(linear_cross_entropy_backward._opoverload, _backward_workspace)
