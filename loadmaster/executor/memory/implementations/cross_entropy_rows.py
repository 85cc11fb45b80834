"""Cross-entropy of some rows of logits: the losses, and the gradients in the logits' place.

With classes c, target y, weights w, smoothing s over C classes, and logsumexp L of a row's logits z:

    loss = (1 - s) w_y (L - z_y) + s / C * sum_c w_c (L - z_c)
    d loss / d z_c = softmax_c ((1 - s) w_y + s / C * sum w) - (1 - s) w_y [c = y] - s / C * w_c

Source: torch.nn.CrossEntropyLoss, its reduction left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loadmaster.executor.memory.implementations.chunks import chunks
from loadmaster.executor.memory.implementations.kernels import has_kernels, kernels


def cross_entropy_rows(
    logits: Tensor,
    targets: Tensor,
    class_weights: Tensor | None,
    losses: Tensor,
    ignore_index: int,
    smoothing: float,
    gradients: bool,
) -> None:
    """Write the rows' losses to ``losses`` and, if asked for, their gradients over the logits.

    Args:
        logits: [rows, classes], each row contiguous.
        targets: int64 [rows]; rows that hold ``ignore_index`` have no loss and no gradient.
        class_weights: [classes] or None.
        losses: [rows], float32 or float64: what everything is computed in.
    """
    if has_kernels(logits.device):
        kernels().cross_entropy_rows(logits, targets, class_weights, losses, ignore_index, smoothing, gradients)
        return
    scores = logits.to(losses.dtype)
    spread = smoothing / logits.shape[1]
    counts = targets != ignore_index
    classes = targets.where(counts, 0)
    weights = None if class_weights is None else class_weights.to(losses.dtype)
    picked = torch.full_like(losses, 1 - smoothing) if weights is None else weights[classes] * (1 - smoothing)
    normalizer = scores.logsumexp(1)
    loss = picked * (normalizer - scores.gather(1, classes.unsqueeze(1)).squeeze(1))
    factor = picked
    if smoothing:
        whole = logits.shape[1] if weights is None else weights.sum()
        sums = scores.sum(1) if weights is None else scores @ weights
        loss = loss + spread * (whole * normalizer - sums)
        factor = picked + spread * whole
    losses.copy_(loss.where(counts, 0))
    if gradients:
        errors = scores.sub_(normalizer.unsqueeze(1)).exp_().mul_(factor.unsqueeze(1))
        errors[torch.arange(len(classes)), classes] -= picked
        if smoothing:
            errors -= spread if weights is None else spread * weights
        logits.copy_(errors.masked_fill_(~counts.unsqueeze(1), 0))


@torch.library.custom_op("loadmaster::scaled", mutates_args=())
def scaled(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """``x * scale``, rounded once.

    Args:
        x: any shape.
        scale: [] in the precision to compute in.
        dtype: of the result.

    Returns:
        A new contiguous tensor of the shape of ``x``.
    """
    result = x.new_empty(x.shape, dtype=dtype)
    if has_kernels(x.device):
        kernels().scaled(x.contiguous(), scale, result)
        return result
    flat, written = x.reshape(-1), result.view(-1)
    for part in chunks(x.numel()):
        written[part] = flat[part].to(scale.dtype) * scale
    return result


@scaled.register_fake
def _(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)
