"""Cross-entropy of some rows of logits: the losses, and the gradients in the logits' place.

With classes c, target y, class weights w, smoothing s over C classes, row weight r, weight q of the z-loss, and
logsumexp L of a row's mapped logits z = f(logits):

    loss = r ((1 - s) w_y (L - z_y) + s / C * sum_c w_c (L - z_c)) + q L^2
    d loss / d z_c = softmax_c (r (1 - s) w_y + r s / C * sum w + 2 q L) - r (1 - s) w_y [c = y] - r s / C * w_c
    f(x) = scale x, or cap tanh(scale x / cap); f'(x) = scale, or scale (1 - (f(x) / cap)^2)

Source: torch.nn.CrossEntropyLoss, its reduction left out; for the z-loss PaLM (Chowdhery and others, 2022), section 5.
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
    row_weights: Tensor | None,
    z_weights: Tensor | None,
    losses: Tensor,
    ignore_index: int,
    smoothing: float,
    scale: float,
    cap: float,
    gradients: bool,
) -> None:
    """Write the rows' losses to ``losses`` and, if asked for, their gradients over the logits.

    Args:
        logits: [rows, classes], each row contiguous.
        targets: int64 [rows]; rows that hold ``ignore_index`` have no cross-entropy.
        class_weights: [classes] or None.
        row_weights, z_weights: [rows] or None, in the dtype of ``losses``.
        losses: [rows], float32 or float64: what everything is computed in.
        cap: 0 for none.
    """
    if has_kernels(logits.device):
        kernels().cross_entropy_rows(
            *(logits, targets, class_weights, row_weights, z_weights, losses, ignore_index, smoothing, scale, cap),
            gradients,
        )
        return
    scores = _mapped(logits, losses.dtype, scale, cap)
    spread = smoothing / logits.shape[1]
    counts = targets != ignore_index
    classes = targets.where(counts, 0)
    weights = None if class_weights is None else class_weights.to(losses.dtype)
    of_row = torch.ones_like(losses) if row_weights is None else row_weights
    picked = of_row * (1 - smoothing) if weights is None else of_row * weights[classes] * (1 - smoothing)
    picked, share = picked.where(counts, 0), (of_row * spread).where(counts, 0)
    normalizer = scores.logsumexp(1)
    loss = picked * (normalizer - scores.gather(1, classes.unsqueeze(1)).squeeze(1))
    factor = picked
    if smoothing:
        whole = logits.shape[1] if weights is None else weights.sum()
        sums = scores.sum(1) if weights is None else scores @ weights
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
            errors = errors.sub_(share.unsqueeze(1)) if weights is None else errors.addr_(share, weights, alpha=-1)
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
