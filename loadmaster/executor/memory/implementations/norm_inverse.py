"""The input of a normalization recovered from its output, for backward passes that need not keep it.

``input = (output - bias) / weight / rstd + mean``, from the statistics that the forward pass saved.
Source: MONeT's output-activated BatchNorm, [Shah23], section 4.4; In-Place Activated BatchNorm (Rota Bulo
and others, 2018).
"""

from __future__ import annotations

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.costs.workspace import register_workspace
from loadmaster.executor.memory.implementations.kernels import has_kernels, kernels
from loadmaster.executor.steps.layouts import dense_bytes
from loadmaster.executor.torch_private.operators import assert_async, overload_of

MESSAGE = "a normalization's weight is too close to zero to recover its input: plan without norm_output_weighted"


@torch.library.custom_op("loadmaster::norm_input", mutates_args=(), tags=(torch.Tag.flexible_layout,))
def norm_input(
    output: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    smallest_weight: float,
) -> Tensor:
    """Recover the input of a normalization from its output.

    Args:
        output: what it returned.
        mean, rstd: float, of as many dimensions as ``output``, 1 where they are shared; mean None for RMSNorm.
        weight, bias: likewise, or None.
        smallest_weight: refuse weights whose magnitude is below this.

    Returns:
        A new tensor like ``output``. Apart from the rounding of the output itself, which grows by |bias / weight|, it
        is rounded once.

    Raises:
        InputError: a weight is too small (on CUDA the device reports it, as for every wrong value there).
    """
    if weight is not None:
        enough = (weight.abs() >= smallest_weight).all()
        if weight.device.type == "cuda":
            assert_async(enough, MESSAGE)
        elif not bool(enough):
            smallest = weight.abs().min().item()
            remedy = "Plan without norm_output_weighted, or keep weights away from zero."
            raise InputError("weight", smallest, f"is below {smallest_weight}: it hides the normalized value", remedy)
    if has_kernels(output.device):
        recovered: Tensor = kernels().norm_input(output, mean, rstd, weight, bias)
        return recovered
    result = torch.empty_like(output)
    for i in range(len(output)):
        parts = (None if t is None else t[i if len(t) > 1 else 0] for t in (mean, rstd, weight, bias))
        result[i] = invert(output[i], *parts)
    return result


def invert(
    output: Tensor, mean: Tensor | None, rstd: Tensor | None, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Invert a normalization with given statistics, in float32 or better."""
    assert rstd is not None
    exact = torch.promote_types(output.dtype, torch.float32)
    value = output.to(exact)
    if bias is not None:
        value = value - bias.to(exact)
    if weight is not None:
        value = value / weight.to(exact)
    value = value / rstd.to(exact)
    return value if mean is None else value + mean.to(exact)


@norm_input.register_fake
def _(
    output: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    smallest_weight: float,
) -> Tensor:
    return torch.empty_like(output)


def _workspace(output: Tensor, *_: object) -> int:
    if has_kernels(output.device):
        return dense_bytes(output)
    exact = torch.promote_types(output.dtype, torch.float32)
    return 2 * output.numel() // max(1, len(output)) * exact.itemsize if len(output) else 0


register_workspace(overload_of(norm_input), _workspace)
