"""BatchNorm computed again from the statistics of the forward pass.

The operator itself must run once: it also updates the running statistics. What is recomputed is only the
normalization, from the small saved mean and reciprocal deviation, which reads the input once instead of twice.
Source: MONeT's recomputation cost of BatchNorm, [Shah23], section 4.2.
"""

from __future__ import annotations

import operator

import torch
from torch import Tensor, fx

from loadmaster.executor.costs.workspace import register_workspace
from loadmaster.executor.memory.implementations.emitting import aten, call, with_strides_of
from loadmaster.executor.memory.implementations.kernels import has_kernels, kernels
from loadmaster.executor.memory.implementations.registry import Recompute, Value
from loadmaster.executor.steps.layouts import dense_bytes
from loadmaster.executor.torch_private.operators import overload_of

# Position of the "training" argument: without training the saved statistics are empty.
TRAINING = {
    aten._native_batch_norm_legit_functional.default: 5,
    aten._native_batch_norm_legit.default: 5,
    aten._native_batch_norm_legit.no_stats: 3,
    aten.native_batch_norm.default: 5,
    aten.cudnn_batch_norm.default: 5,
}


@torch.library.custom_op("loadmaster::batch_norm_apply", mutates_args=(), tags=(torch.Tag.flexible_layout,))
def batch_norm_apply(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """``(x - mean) * rstd * weight + bias`` per channel.

    Args:
        x: [N, C, ...].
        mean, rstd: [C], as the forward pass saved them.
        weight, bias: [C] or None.

    Returns:
        A new tensor like ``x``, bit-equal to the forward pass of PyTorch's own (not cuDNN's) kernels.
    """
    exact = torch.promote_types(x.dtype, torch.float32)
    if has_kernels(x.device):
        normalized: Tensor = kernels().batch_norm_apply(x, mean, rstd, weight, bias)
        return normalized
    # Scale and shift are formed, and combined with fused multiply-adds, exactly as in PyTorch's own CPU kernel.
    mean, rstd = mean.to(exact), rstd.to(exact)
    scale = rstd if weight is None else rstd * weight.to(exact)
    shift = torch.addcmul(torch.zeros_like(mean) if bias is None else bias.to(exact), mean, scale, value=-1)
    per_channel = (-1, *(1,) * (x.dim() - 2))
    scale, shift = scale.view(per_channel), shift.view(per_channel)
    result = torch.empty_like(x)
    if x.dtype == exact:
        return torch.addcmul(shift, x, scale, out=result)
    for sample, normalized in zip(x, result, strict=True):
        normalized.copy_(torch.addcmul(shift, sample.to(exact), scale))
    return result


@batch_norm_apply.register_fake
def _(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return torch.empty_like(x)


def _workspace(x: Tensor, *_: object) -> int:
    if has_kernels(x.device):
        return dense_bytes(x)
    if x.dtype.itemsize >= torch.float32.itemsize or not len(x):
        return 0
    return 2 * x.numel() // len(x) * torch.float32.itemsize


register_workspace(overload_of(batch_norm_apply), _workspace)


def reuse_statistics(node: fx.Node) -> Recompute | None:
    """The recomputation of a training BatchNorm's normalized result; None for every other node."""
    if node.target is not operator.getitem or node.args[1] != 0:
        return None
    norm = node.args[0]
    assert isinstance(norm, fx.Node)
    training = TRAINING.get(norm.target)  # type: ignore[call-overload]
    if training is None or norm.args[training] is not True:
        return None
    saved = {user.args[1]: user for user in norm.users if user.target is operator.getitem}
    if 1 not in saved or 2 not in saved:
        return None
    x, weight, bias = norm.args[:3]
    read = (x, saved[1], saved[2], weight, bias)

    def emit(graph: fx.Graph, value: Value) -> fx.Node:
        emitted = [value(n) if isinstance(n, fx.Node) else None for n in read]
        return with_strides_of(graph, call(graph, overload_of(batch_norm_apply), *emitted), node)

    return Recompute("batch_norm_apply", node, tuple(n for n in read if isinstance(n, fx.Node)), emit)
