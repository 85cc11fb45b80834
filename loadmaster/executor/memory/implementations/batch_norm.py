"""BatchNorm computed again from the statistics of the forward pass.

The operator itself must run once: it also updates the running statistics. What is recomputed is only the
normalization, from the small saved mean and reciprocal deviation, which reads the input once instead of twice.
Source: MONeT's recomputation cost of BatchNorm, 003_283bdbbccdcfdb68.txt, section 4.2.
"""

from __future__ import annotations

import operator

import torch
from torch import Tensor, fx

from loadmaster.executor.memory.implementations.emitting import aten, call, with_strides_of
from loadmaster.executor.memory.implementations.registry import Recompute, Value

# Position of the "training" argument: without training the saved statistics are empty.
TRAINING = {
    aten._native_batch_norm_legit_functional.default: 5,
    aten._native_batch_norm_legit.default: 5,
    aten._native_batch_norm_legit.no_stats: 3,
    aten.native_batch_norm.default: 5,
    aten.cudnn_batch_norm.default: 5,
}


@torch.library.custom_op("loadmaster::batch_norm_apply", mutates_args=())
def batch_norm_apply(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """``(x - mean) * rstd * weight + bias`` per channel.

    Args:
        x: [N, C, ...].
        mean, rstd: [C], as the forward pass saved them.
        weight, bias: [C] or None.

    Returns:
        A new tensor like ``x``. Computed in float32 for 16-bit inputs.
    """
    exact = torch.promote_types(x.dtype, torch.float32)
    scale = rstd.to(exact) if weight is None else rstd.to(exact) * weight.to(exact)
    shift = -mean.to(exact) * scale if bias is None else bias.to(exact) - mean.to(exact) * scale
    per_channel = (1, -1, *(1,) * (x.dim() - 2))
    result = torch.empty_like(x)
    if x.dtype == exact:
        return torch.addcmul(shift.view(per_channel), x, scale.view(per_channel), out=result)
    return result.copy_(torch.addcmul(shift.view(per_channel), x.to(exact), scale.view(per_channel)))


@batch_norm_apply.register_fake
def _(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return torch.empty_like(x)


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
        return with_strides_of(graph, call(graph, batch_norm_apply._opoverload, *emitted), node)

    return Recompute("batch_norm_apply", node, tuple(n for n in read if isinstance(n, fx.Node)), emit)
