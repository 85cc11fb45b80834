"""The chunked linear + cross-entropy as a function, to hold against plain PyTorch: plans put it into graphs instead."""

from __future__ import annotations

import torch
from torch import Tensor

from loadmaster.executor.memory.implementations.cross_entropy import default_chunks, linear_cross_entropy, scaled
from loadmaster.executor.memory.implementations.kernels import exact


def _save(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, ...]) -> None:
    hidden, _weight, bias = inputs[:3]
    ctx.save_for_backward(*output[1:])
    ctx.narrow = (hidden.dtype, bias is not None, inputs[-1])
    ctx.mark_non_differentiable(*output[1:])


def _backward(
    ctx: torch.autograd.function.FunctionCtx, gradient: Tensor, *_unused: Tensor
) -> tuple[Tensor | None, ...]:
    factor, hidden, weight, bias = ctx.saved_tensors
    dtype, biased, differentiate = ctx.narrow
    scale = gradient.to(factor.dtype) * factor
    whole = differentiate == "all"
    return (
        scaled(hidden, scale, dtype),
        scaled(weight, scale, dtype).t() if whole else None,
        scaled(bias, scale, dtype) if whole and biased else None,
        *(None,) * 12,
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
    row_weights: Tensor | None = None,
    z_weights: Tensor | None = None,
    scale: float = 1.0,
    cap: float = 0.0,
) -> Tensor:
    """``cross_entropy(linear(hidden, weight, bias), targets)``, under autocast where there is one."""
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
        row_weights,
        z_weights,
        default_chunks(rows.shape[0], rows.shape[1]) if chunks is None else chunks,
        ignore_index,
        reduction == "mean",
        label_smoothing,
        scale,
        cap,
        exact(hidden.dtype),
        wanted if torch.is_grad_enabled() else "nothing",
    )[0]
    return loss
