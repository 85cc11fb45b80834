"""Normalizations computed again from the statistics that their forward pass saved, and their inputs from their outputs.

BatchNorm, LayerNorm and RMSNorm are elementwise with their statistics, which the backward pass reads anyway. RMSNorm is
meant where it is one operator (``aten._fused_rms_norm``); where PyTorch spells it out, its statistics are results of
their own in the graph.
Sources: MONeT's recomputation cost of BatchNorm and its output-activated BatchNorm, [Shah23], sections 4.2 and 4.4;
In-Place Activated BatchNorm (Rota Bulo and others, 2018).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from loadmaster.errors import InputError
from loadmaster.executor.costs.workspace import register_workspace
from loadmaster.executor.memory.implementations.emitting import aten, call, with_strides_of
from loadmaster.executor.memory.implementations.kernels import (
    CHUNK,
    exact,
    has_kernels,
    kernels,
    like_first,
    row_major_bytes,
)
from loadmaster.executor.memory.implementations.registry import Value
from loadmaster.executor.steps.layouts import dense_bytes
from loadmaster.executor.torch_private.operators import assert_async, overload_of

# Position of the "training" argument: without training the saved statistics are empty.
TRAINING = {
    aten._native_batch_norm_legit_functional.default: 5,
    aten._native_batch_norm_legit.default: 5,
    aten._native_batch_norm_legit.no_stats: 3,
    aten.native_batch_norm.default: 5,
    aten.cudnn_batch_norm.default: 5,
}
_FUSED_RMS_NORM = aten._fused_rms_norm.default if hasattr(aten, "_fused_rms_norm") else None
MESSAGE = "a normalization's weight is too close to zero to recover its input: plan without norm_output_weighted"


@torch.library.custom_op("loadmaster::batch_norm_apply", mutates_args=(), tags=(torch.Tag.flexible_layout,))
def batch_norm_apply(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """``(x - mean) * rstd * weight + bias`` per channel, as a new tensor like ``x`` [N, C, ...]. ``mean`` and ``rstd``
    [C] are as the forward pass saved them; ``weight`` and ``bias`` are [C] or None. The result is bit-equal to the
    forward pass of PyTorch's own (not cuDNN's) kernels."""
    precise = exact(x.dtype)
    if has_kernels(x.device):
        normalized: Tensor = kernels().batch_norm_apply(x, mean, rstd, weight, bias)
        return normalized
    # Scale and shift are formed, and combined with fused multiply-adds, exactly as in PyTorch's own CPU kernel.
    mean, rstd = mean.to(precise), rstd.to(precise)
    scale = rstd if weight is None else rstd * weight.to(precise)
    shift = torch.addcmul(torch.zeros_like(mean) if bias is None else bias.to(precise), mean, scale, value=-1)
    per_channel = (-1, *(1,) * (x.dim() - 2))
    scale, shift = scale.view(per_channel), shift.view(per_channel)
    result = torch.empty_like(x)
    if x.dtype == precise:
        return torch.addcmul(shift, x, scale, out=result)
    for sample, normalized in zip(x, result, strict=True):
        normalized.copy_(torch.addcmul(shift, sample.to(precise), scale))
    return result


def _batch_norm_workspace(x: Tensor, *_: object) -> int:
    if has_kernels(x.device):
        return dense_bytes(x)
    if x.dtype.itemsize >= torch.float32.itemsize or not len(x):
        return 0
    return 2 * x.numel() // len(x) * torch.float32.itemsize


batch_norm_apply.register_fake(like_first)
register_workspace(overload_of(batch_norm_apply), _batch_norm_workspace)


@torch.library.custom_op("loadmaster::layer_norm_apply", mutates_args=(), tags=(torch.Tag.flexible_layout,))
def layer_norm_apply(
    x: Tensor, mean: Tensor | None, rstd: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """``(x - mean) * rstd * weight + bias`` per row, as a new contiguous tensor of the shape and dtype of ``x``.

    The result is the forward pass to within its rounding.

    Args:
        x: [..., *normalized].
        mean, rstd: [..., 1...], as the forward pass saved them; mean None for RMSNorm.
        weight, bias: [*normalized] or None.
    """
    result = x.new_empty(x.shape)
    x = x.contiguous()
    if has_kernels(x.device):
        kernels().layer_norm_apply(x, mean, rstd, weight, bias, result)
        return result
    rows = max(1, rstd.numel())
    width = x.numel() // rows
    parts = [None if t is None else t.reshape(-1, 1) for t in (mean, rstd)]
    columns = [None if t is None else t.reshape(1, -1) for t in (weight, bias)]
    flat, written, step = x.view(rows, width), result.view(rows, width), max(1, CHUNK // max(1, width))
    for start in range(0, rows if width else 0, step):
        some = slice(start, start + step)
        of_rows = [None if t is None else t[some] for t in parts]
        written[some] = normalize(flat[some], *of_rows, *columns)
    return result


def normalize(
    x: Tensor, mean: Tensor | None, rstd: Tensor | None, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Normalize with given statistics, in float32 or better."""
    assert rstd is not None
    precise = exact(x.dtype)
    value = x.to(precise) if mean is None else x.to(precise) - mean.to(precise)
    value = value * rstd.to(precise)
    if weight is not None:
        value = value * weight.to(precise)
    return value if bias is None else value + bias.to(precise)


@layer_norm_apply.register_fake
def _(x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)


def _layer_norm_workspace(x: Tensor, mean: Tensor | None, rstd: Tensor, *_: object) -> int:
    if has_kernels(x.device):
        return row_major_bytes(x)
    width = x.numel() // max(1, rstd.numel())
    return row_major_bytes(x) + 3 * min(x.numel(), max(CHUNK, width)) * max(x.element_size(), torch.float32.itemsize)


register_workspace(overload_of(layer_norm_apply), _layer_norm_workspace)


@torch.library.custom_op("loadmaster::norm_input", mutates_args=(), tags=(torch.Tag.flexible_layout,))
def norm_input(
    output: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    smallest_weight: float,
) -> Tensor:
    """Recover the input of a normalization from its output: ``(output - bias) / weight / rstd + mean``.

    Args:
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
    precise = exact(output.dtype)
    value = output.to(precise)
    if bias is not None:
        value = value - bias.to(precise)
    if weight is not None:
        value = value / weight.to(precise)
    value = value / rstd.to(precise)
    return value if mean is None else value + mean.to(precise)


def _norm_input_workspace(output: Tensor, *_: object) -> int:
    if has_kernels(output.device):
        return dense_bytes(output)
    return 2 * output.numel() // len(output) * exact(output.dtype).itemsize if len(output) else 0


norm_input.register_fake(like_first)
register_workspace(overload_of(norm_input), _norm_input_workspace)


@dataclass(frozen=True)
class Recompute:
    """A cheaper way to compute ``node`` a second time: ``emit`` emits the nodes that do, and returns the last of them.
    It reads the forward nodes ``sources``. Those that are not inputs of the original operator (saved statistics, a
    seed) are small and must be kept from the forward pass, never recomputed."""

    node: fx.Node
    sources: tuple[fx.Node, ...]
    emit: Callable[[fx.Graph, Value], fx.Node]


def recompute_node(node: fx.Node) -> Recompute | None:
    """Find a cheaper way to compute this forward node a second time; None: run the node itself again. There is one for
    the results of a training BatchNorm, a LayerNorm and a fused RMSNorm. Such a node must only be computed again
    through it: running the operator itself again would repeat its side effects (BatchNorm's running statistics)."""
    if node.target is not operator.getitem or node.args[1] != 0:
        return None
    norm = node.args[0]
    assert isinstance(norm, fx.Node)
    saved = {user.args[1]: user for user in norm.users if user.target is operator.getitem}
    training = TRAINING.get(norm.target)  # type: ignore[call-overload]
    apply: Any = layer_norm_apply
    mean, rstd, bias = saved.get(1), saved.get(2), None
    if training is not None and norm.args[training] is True:
        apply = batch_norm_apply
        x, weight, bias = norm.args[:3]
    elif norm.target is aten.native_layer_norm.default:
        x, _, weight, bias, _ = norm.args
    elif norm.target is _FUSED_RMS_NORM:
        x, _, weight, _ = norm.args
        mean, rstd = None, saved.get(1)
    else:
        return None
    if rstd is None or 1 not in saved:
        return None
    read = (x, mean, rstd, weight, bias)

    def emit(graph: fx.Graph, value: Value) -> fx.Node:
        emitted = [value(n) if isinstance(n, fx.Node) else None for n in read]
        return with_strides_of(graph, call(graph, overload_of(apply), *emitted), node)

    return Recompute(node, tuple(n for n in read if isinstance(n, fx.Node)), emit)
