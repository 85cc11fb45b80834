"""LayerNorm and RMSNorm computed again from the statistics of the forward pass.

The statistics are one or two numbers a row, and the backward pass reads them anyway; with them the normalization is
elementwise, and a compiler can fuse it. RMSNorm is meant where it is one operator (``aten._fused_rms_norm``); where
PyTorch spells it out, its statistics are results of their own in the graph and are reused without being asked for.
"""

from __future__ import annotations

import operator

import torch
from torch import Tensor, fx

from loadmaster.executor.costs.workspace import register_workspace
from loadmaster.executor.memory.implementations.chunks import CHUNK, row_major_bytes
from loadmaster.executor.memory.implementations.emitting import aten, call, with_strides_of
from loadmaster.executor.memory.implementations.kernels import has_kernels, kernels
from loadmaster.executor.memory.implementations.registry import Recompute, Value
from loadmaster.executor.torch_private.operators import overload_of

_FUSED_RMS_NORM = aten._fused_rms_norm.default if hasattr(aten, "_fused_rms_norm") else None


@torch.library.custom_op("loadmaster::layer_norm_apply", mutates_args=(), tags=(torch.Tag.flexible_layout,))
def layer_norm_apply(
    x: Tensor, mean: Tensor | None, rstd: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """``(x - mean) * rstd * weight + bias`` per row.

    Args:
        x: [..., *normalized].
        mean, rstd: [..., 1...], as the forward pass saved them; mean None for RMSNorm.
        weight, bias: [*normalized] or None.

    Returns:
        A new contiguous tensor of the shape and dtype of ``x``: the forward pass to within its rounding.
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
    exact = torch.promote_types(x.dtype, torch.float32)
    value = x.to(exact) if mean is None else x.to(exact) - mean.to(exact)
    value = value * rstd.to(exact)
    if weight is not None:
        value = value * weight.to(exact)
    return value if bias is None else value + bias.to(exact)


@layer_norm_apply.register_fake
def _(x: Tensor, mean: Tensor | None, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return x.new_empty(x.shape)


def _workspace(x: Tensor, mean: Tensor | None, rstd: Tensor, *_: object) -> int:
    if has_kernels(x.device):
        return row_major_bytes(x)
    width = x.numel() // max(1, rstd.numel())
    return row_major_bytes(x) + 3 * min(x.numel(), max(CHUNK, width)) * max(x.element_size(), torch.float32.itemsize)


register_workspace(overload_of(layer_norm_apply), _workspace)


def reuse_row_statistics(node: fx.Node) -> Recompute | None:
    """The recomputation of a LayerNorm's or a fused RMSNorm's result; None for every other node."""
    if node.target is not operator.getitem or node.args[1] != 0:
        return None
    norm = node.args[0]
    assert isinstance(norm, fx.Node)
    saved = {user.args[1]: user for user in norm.users if user.target is operator.getitem}
    if norm.target is aten.native_layer_norm.default:
        x, _, weight, bias, _ = norm.args
        read = (x, saved.get(1), saved.get(2), weight, bias)
    elif norm.target is _FUSED_RMS_NORM:
        x, _, weight, _ = norm.args
        read = (x, None, saved.get(1), weight, None)
    else:
        return None
    if read[2] is None or 1 not in saved:
        return None

    def emit(graph: fx.Graph, value: Value) -> fx.Node:
        emitted = [value(n) if isinstance(n, fx.Node) else None for n in read]
        return with_strides_of(graph, call(graph, overload_of(layer_norm_apply), *emitted), node)

    return Recompute("layer_norm_apply", node, tuple(n for n in read if isinstance(n, fx.Node)), emit)
