"""Linear layer and cross-entropy in one, in chunks of rows: the full logits never exist.

Each chunk's logits are turned into their gradients in place, while they are still there, and multiplied into
the gradients of the layer's input and weight: three products in all, as without chunks, and none of them twice. What
comes later, the gradient of the loss itself, is one number, and so scales both at the end. A chunk's logits take about
as much memory as the weight's gradient, which has to exist anyway.

With classes c, target y, class weights w, smoothing s over C classes, row weight r, weight q of the z-loss, and
logsumexp L of a row's mapped logits z = f(logits):

    loss = r ((1 - s) w_y (L - z_y) + s / C * sum_c w_c (L - z_c)) + q L^2
    d loss / d z_c = softmax_c (r (1 - s) w_y + r s / C * sum w + 2 q L) - r (1 - s) w_y [c = y] - r s / C * w_c
    f(x) = scale x, or cap tanh(scale x / cap); f'(x) = scale, or scale (1 - (f(x) / cap)^2)

Source: torch.nn.CrossEntropyLoss, its reduction left out; for the z-loss PaLM (Chowdhery and others, 2022), section 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from loadmaster.errors import InputError
from loadmaster.executor.costs.fills import below
from loadmaster.executor.costs.limits import register_limits
from loadmaster.executor.costs.workspace import register_workspace
from loadmaster.executor.memory.implementations.kernels import chunks, exact, has_kernels, kernels
from loadmaster.executor.torch_private.operators import assert_async, overload_of

MIN_ROWS = 256  # fewer would starve the matrix product
# Rows of logits start at multiples of the first, and classes take a multiple of the second. Other matrix products get
# kernels several times slower.
# Source: NVIDIA, Matrix Multiplication Background, on tensor cores.
ROW_BYTES = 128
ALIGNED_BYTES = 16


def default_chunks(rows: int, width: int) -> int:
    """Number of chunks of rows whose 16-bit logits take twice as much as the float32 gradient of the weight. Half as
    many rows cost the matrix products more time than the memory is worth: they read and write that gradient once a
    chunk (measured on an H200 with GPT-2-medium's head)."""
    return max(1, -(-rows // max(MIN_ROWS, 4 * width)))


def row_stride(classes: int, element_bytes: int) -> int:
    """Elements from one row of a chunk's logits to the next."""
    each = ROW_BYTES // element_bytes
    return -(-classes // each) * each


def padded_classes(classes: int, element_bytes: int) -> int:
    """Number of classes that logits are computed for: those beyond ``classes`` are zero."""
    return classes if classes * element_bytes % ALIGNED_BYTES == 0 else row_stride(classes, element_bytes)


@dataclass(frozen=True)
class RowLoss:
    """Loss of each row of logits: what is the same for all rows. ``class_weights`` are [classes] or None; rows whose
    target is ``ignore_index`` have no cross-entropy; ``cap`` is 0 for none."""

    class_weights: Tensor | None
    ignore_index: int
    smoothing: float
    scale: float
    cap: float


def cross_entropy_rows(
    logits: Tensor,
    targets: Tensor,
    row_weights: Tensor | None,
    z_weights: Tensor | None,
    losses: Tensor,
    of: RowLoss,
    *,
    gradients: bool,
) -> None:
    """Write the rows' losses to ``losses`` and, if asked for, their gradients over the logits.

    Args:
        logits, targets: [rows, classes], each row contiguous; int64 [rows].
        row_weights, z_weights: [rows] or None, in the dtype of ``losses``.
        losses: [rows], float32 or float64: what everything is computed in.
    """
    if has_kernels(logits.device):
        weights = (of.class_weights, row_weights, z_weights)
        constants = (of.ignore_index, of.smoothing, of.scale, of.cap, gradients)
        kernels().cross_entropy_rows(logits, targets, weights, losses, *constants)
        return
    smoothing, scale, cap = of.smoothing, of.scale, of.cap
    scores = _mapped(logits, losses.dtype, scale, cap)
    spread = smoothing / logits.shape[1]
    counts = targets != of.ignore_index
    classes = targets.where(counts, 0)
    per_class = None if of.class_weights is None else of.class_weights.to(losses.dtype)
    of_row = torch.ones_like(losses) if row_weights is None else row_weights
    picked = of_row * (1 - smoothing) if per_class is None else of_row * per_class[classes] * (1 - smoothing)
    picked, share = picked.where(counts, 0), (of_row * spread).where(counts, 0)
    normalizer = scores.logsumexp(1)
    loss = picked * (normalizer - scores.gather(1, classes.unsqueeze(1)).squeeze(1))
    factor = picked
    if smoothing:
        whole = logits.shape[1] if per_class is None else per_class.sum()
        sums = scores.sum(1) if per_class is None else scores @ per_class
        loss = loss + share * (whole * normalizer - sums)
        factor = factor + share * whole
    # Zero, not zero times what may be infinite: a row that does not count may hold anything.
    loss = loss.where(counts, 0)
    if z_weights is not None:
        loss = loss + (z_weights * normalizer.square()).where(z_weights != 0, 0)
        factor = factor + 2 * z_weights * normalizer
        counts = counts | (z_weights != 0)
    losses.copy_(loss)
    if gradients:
        errors = scores.sub_(normalizer.unsqueeze(1)).exp_().mul_(factor.unsqueeze(1))
        errors[torch.arange(len(classes)), classes] -= picked
        if smoothing:
            errors = errors.sub_(share.unsqueeze(1)) if per_class is None else errors.addr_(share, per_class, alpha=-1)
        if cap:
            errors *= _mapped(logits, losses.dtype, scale / cap, 1.0).square_().neg_().add_(1).mul_(scale)
        elif scale != 1:
            errors *= scale
        logits.copy_(errors.masked_fill_(~counts.unsqueeze(1), 0))


def _mapped(logits: Tensor, dtype: torch.dtype, scale: float, cap: float) -> Tensor:
    """Logits in this dtype, scaled and capped; themselves where that changes nothing."""
    if scale == 1 and not cap:
        return logits.to(dtype)
    scores = logits.to(dtype, copy=True).mul_(scale / cap if cap else scale)
    return scores.tanh_().mul_(cap) if cap else scores


@torch.library.custom_op("loadmaster::linear_cross_entropy", mutates_args=())
def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    class_weights: Tensor | None,
    row_weights: Tensor | None,
    z_weights: Tensor | None,
    chunks: int,
    ignore_index: int,
    mean: bool,
    smoothing: float,
    scale: float,
    cap: float,
    dtype: torch.dtype,
    differentiate: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Cross-entropy of ``hidden @ weight + bias``, mapped, and its gradients but for one factor.

    Args:
        hidden, weight, bias: [rows, width]; [width, classes]; [classes] or None.
        targets: int64 [rows], class of each row, or ``ignore_index``.
        class_weights: [classes] or None, what a row of each class counts.
        row_weights: [rows] or None, what the loss of each row is multiplied with; rows count as much as without.
        z_weights: [rows] or None, of the squared logsumexp of each row's logits, added to the loss (also of rows that
            hold ``ignore_index``). These and ``row_weights`` in float32 or float64.
        mean: divide by what the rows count together; the sum otherwise.
        smoothing: share of each target that is spread evenly over all classes, 0 to 1.
        scale, cap: each logit is multiplied by ``scale``, and, with a ``cap`` above 0, is ``cap * tanh(logit / cap)``
            then.
        dtype: of the loss. Logits are rounded to the dtype of ``hidden``, then reduced in float32 or better.
        differentiate: "all", only "hidden", or "nothing".

    Returns:
        The loss []; the factor [] that the gradients of the loss lack (one over what the rows count, 1 for the sum), in
        float32 or float64; the gradients of hidden [rows, width] in its dtype, of the transposed weight [classes,
        width] and of the bias [classes] in float32 or float64. [0] for what there is not or was not asked for.

    Raises:
        InputError: a target is not a class (on CUDA the device reports it, as PyTorch's own does).
    """
    _expect_classes(targets, weight.shape[1], ignore_index)
    precise = exact(hidden.dtype)
    losses = hidden.new_empty(hidden.shape[0], dtype=precise)
    with_hidden, with_weight = differentiate != "nothing", differentiate == "all"
    hidden_gradient, weight_gradient, bias_gradient = _gradients(hidden, weight, bias, differentiate)
    weight_gradient.zero_()
    bias_gradient.zero_()
    total = _total(targets, class_weights, ignore_index, precise) if mean else losses.new_ones(())
    # Where no row counts the mean is NaN, as PyTorch has it, and every gradient of it zero.
    divisor = total.where(total != 0, 1)
    squares = None if z_weights is None else z_weights * divisor
    classes = weight.shape[1]
    padded_weight, padded_bias = _padded(weight, bias)
    for rows, padded_logits in _logits(hidden, padded_weight, padded_bias, chunks):
        logits = padded_logits[:, :classes]
        cross_entropy_rows(
            logits,
            targets[rows],
            None if row_weights is None else row_weights[rows],
            None if squares is None else squares[rows],
            losses[rows],
            RowLoss(class_weights, ignore_index, smoothing, scale, cap),
            gradients=with_hidden,
        )
        if with_hidden:
            padded_logits[:, classes:] = 0  # a row that does not count may have held anything
            torch.mm(padded_logits, padded_weight.t(), out=hidden_gradient[rows])
        if with_weight:
            _accumulate(weight_gradient, logits.t(), hidden[rows])
            if bias is not None:
                bias_gradient += logits.sum(0, dtype=precise)
    loss = (losses.sum() / divisor).where(total != 0, torch.nan)
    return loss.to(dtype), divisor.reciprocal(), hidden_gradient, weight_gradient, bias_gradient


def _total(targets: Tensor, class_weights: Tensor | None, ignore_index: int, dtype: torch.dtype) -> Tensor:
    """Sum of what each row counts: 1 or its class's weight, 0 for ``ignore_index``."""
    counts = targets != ignore_index
    if class_weights is None:
        return counts.sum().to(dtype)
    return class_weights.to(dtype)[targets.where(counts, 0)].where(counts, 0).sum()


@linear_cross_entropy.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    dtype, differentiate = rest[-2:]
    loss, factor = hidden.new_empty((), dtype=dtype), hidden.new_empty((), dtype=exact(hidden.dtype))
    return loss, factor, *_gradients(hidden, weight, bias, differentiate)


def _gradients(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, differentiate: str
) -> tuple[Tensor, Tensor, Tensor]:
    precise = exact(hidden.dtype)
    width, classes = weight.shape
    return (
        hidden.new_empty(hidden.shape if differentiate != "nothing" else (0,)),
        hidden.new_empty((classes, width) if differentiate == "all" else (0,), dtype=precise),
        hidden.new_empty((classes,) if differentiate == "all" and bias is not None else (0,), dtype=precise),
    )


def _padded(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Weight and bias with classes of zeros behind the others, where products of so many are slow."""
    width, classes = weight.shape
    padded = padded_classes(classes, weight.element_size())
    if padded == classes:
        return weight, bias
    rows = weight.new_empty((padded, width))
    rows[:classes], rows[classes:] = weight.t(), 0
    return rows.t(), None if bias is None else torch.nn.functional.pad(bias, (0, padded - classes))


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, chunks: int) -> Iterator[tuple[slice, Tensor]]:
    """The rows of each chunk and their logits, all in one buffer: a chunk's logits are gone with the next one."""
    count = hidden.shape[0]
    step = max(1, -(-count // chunks))
    classes = weight.shape[1]
    buffer = hidden.new_empty((min(step, count), row_stride(classes, hidden.element_size())))
    for start in range(0, count, step):
        rows = slice(start, min(start + step, count))
        logits = buffer[: rows.stop - start, :classes]
        if bias is None:
            torch.mm(hidden[rows], weight, out=logits)
        else:
            torch.addmm(bias, hidden[rows], weight, out=logits)
        yield rows, logits


def _accumulate(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype == right.dtype:
        total.addmm_(left, right)
    elif total.device.type == "cuda":
        # 16-bit factors, float32 sum: cuBLAS adds the product in without rounding it first.
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += left @ right


def _expect_classes(targets: Tensor, classes: int, ignore_index: int) -> None:
    fitting = ((targets >= 0) & (targets < classes)) | (targets == ignore_index)
    if targets.device.type == "cuda":
        assert_async(fitting.all(), f"cross-entropy: a target is neither in 0..{classes - 1} nor {ignore_index}")
    elif not bool(fitting.all()):
        remedy = f"Pass classes 0 to {classes - 1}, or ignore_index ({ignore_index}) for rows that do not count."
        raise InputError("targets", int(targets[~fitting][0]), f"is none of the {classes} classes", remedy)


@register_flop_formula(torch.ops.loadmaster.linear_cross_entropy)
def _(hidden: tuple[int, ...], weight: tuple[int, ...], *args: object, **_kwargs: object) -> int:
    products = {"all": 3, "hidden": 2, "nothing": 1}[str(args[-1])]
    return products * 2 * hidden[0] * weight[0] * weight[1]


def _workspace(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *rest: Any) -> int:
    _, _, z_weights, chunks, _, _, _, scale, cap, _, differentiate = rest
    precise, rows, classes = exact(hidden.dtype), -(-hidden.shape[0] // chunks), weight.shape[1]
    per_row = row_stride(classes, hidden.element_size()) * hidden.element_size()
    padded = padded_classes(classes, hidden.element_size())
    copied = 0 if padded == classes else padded * (weight.shape[0] + (bias is not None)) * weight.element_size()
    product = 0
    if not has_kernels(hidden.device):
        # Widened or mapped logits, one temporary next to them, and each chunk's share of a 16-bit weight's gradient.
        per_row += classes * precise.itemsize * (2 if hidden.dtype != precise or scale != 1 or cap else 1)
        narrow = differentiate == "all" and hidden.dtype != precise
        product = weight.numel() * hidden.element_size() if narrow else 0
    # Losses, and what is compared and counted of the targets.
    per_target = precise.itemsize * (1 if z_weights is None else 2)
    per_target += 3 * torch.bool.itemsize + 2 * targets.element_size()
    return int(max(rows * per_row, product) + hidden.shape[0] * per_target + product + copied)


register_workspace(overload_of(linear_cross_entropy), _workspace)
register_limits(overload_of(linear_cross_entropy), lambda a: {"targets": below(int(a["weight"].shape[1]))})


@torch.library.custom_op("loadmaster::scaled", mutates_args=())
def scaled(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """``x * scale``, rounded once: a new contiguous tensor of the shape of ``x``, in ``dtype``. ``scale`` is [] in the
    precision to compute in."""
    result = x.new_empty(x.shape, dtype=dtype)
    if has_kernels(x.device):
        kernels().scaled(x.contiguous(), scale, result)
        return result
    flat, written = x.reshape(-1), result.view(-1)
    for part in chunks(x.numel()):
        written[part] = flat[part].to(scale.dtype) * scale
    return result


scaled.register_fake(lambda x, _scale, dtype: x.new_empty(x.shape, dtype=dtype))
