"""The chunked linear + cross-entropy as a function to call from a model's own code."""

from __future__ import annotations

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.memory.implementations.cross_entropy import default_chunks, exact, linear_cross_entropy
from loadmaster.executor.memory.implementations.cross_entropy_rows import scaled

REDUCTIONS = ("mean", "sum")


def _save(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, ...]) -> None:
    hidden, _weight, bias = inputs[:3]
    assert isinstance(hidden, Tensor)
    ctx.save_for_backward(*output[1:])
    ctx.narrow = (hidden.dtype, bias is not None, inputs[-1])  # type: ignore[attr-defined]
    ctx.mark_non_differentiable(*output[1:])


def _backward(
    ctx: torch.autograd.function.FunctionCtx, gradient: Tensor, *_unused: Tensor
) -> tuple[Tensor | None, ...]:
    factor, hidden, weight, bias = ctx.saved_tensors  # type: ignore[attr-defined]
    dtype, biased, differentiate = ctx.narrow  # type: ignore[attr-defined]
    scale = gradient.to(factor.dtype) * factor
    whole = differentiate == "all"
    return (
        scaled(hidden, scale, dtype),
        scaled(weight, scale, dtype).t() if whole else None,
        scaled(bias, scale, dtype) if whole and biased else None,
        *(None,) * 8,
    )


linear_cross_entropy.register_autograd(_backward, setup_context=_save)


def chunked_linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    class_weights: Tensor | None = None,
    chunks: int | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """``cross_entropy(linear(hidden, weight, bias), targets)`` without ever holding all the logits.

    Args:
        hidden: [..., width].
        weight: [classes, width], as nn.Linear holds it.
        targets: int64 [...], class of each row, or ``ignore_index``.
        bias: [classes] or None.
        class_weights: [classes] or None: what a row of each class counts, without a gradient of its own.
        chunks: how many chunks the rows are cut into; by default as many as keep a chunk's logits about as small as
            the weight's gradient.
        label_smoothing: share of each target that is spread evenly over all classes, 0 to 1.
        reduction: "mean" over what the rows count, or "sum".

    Returns:
        The loss, a scalar: float32 for 16-bit inputs, else in the dtype of ``hidden``. Follows autocast.

    Raises:
        InputError: shapes that do not fit together, another reduction, fewer than one chunk, a smoothing outside 0 to
            1, a target that is no class.
    """
    _expect_fitting(hidden, weight, targets, bias, class_weights)
    if chunks is not None and chunks < 1:
        raise InputError("chunks", chunks, "is below 1", "Pass how many chunks the rows are cut into.")
    if reduction not in REDUCTIONS:
        raise InputError("reduction", reduction, "is not known here", f"Choose one of: {', '.join(REDUCTIONS)}.")
    if not 0 <= label_smoothing <= 1:
        raise InputError("label_smoothing", label_smoothing, "is outside 0 to 1", "Pass a share of the target.")
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    rows = hidden.reshape(-1, hidden.shape[-1])
    of_layer = weight.requires_grad or (bias is not None and bias.requires_grad)
    wanted = "all" if of_layer else "hidden" if hidden.requires_grad else "nothing"
    loss: Tensor = linear_cross_entropy(
        rows,
        weight.t(),
        bias,
        targets.reshape(-1),
        class_weights,
        default_chunks(rows.shape[0], rows.shape[1]) if chunks is None else chunks,
        ignore_index,
        reduction == "mean",
        label_smoothing,
        exact(hidden.dtype),
        wanted if torch.is_grad_enabled() else "nothing",
    )[0]
    return loss


def _expect_fitting(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, class_weights: Tensor | None
) -> None:
    if weight.dim() != 2 or hidden.dim() < 1 or hidden.shape[-1] != weight.shape[-1]:
        shapes = (tuple(hidden.shape), tuple(weight.shape))
        raise InputError("weight", shapes, "does not fit hidden", "Pass [..., width] and [classes, width].")
    if targets.dtype != torch.int64 or targets.shape != hidden.shape[:-1]:
        found = (tuple(targets.shape), str(targets.dtype))
        shape = tuple(hidden.shape[:-1])
        raise InputError("targets", found, "does not fit hidden", f"Pass int64 targets of shape {shape}.")
    for name, values in (("bias", bias), ("class_weights", class_weights)):
        if values is not None and values.shape != weight.shape[:1]:
            raise InputError(name, tuple(values.shape), "does not fit weight", f"Pass [{weight.shape[0]}].")
