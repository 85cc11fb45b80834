"""Max-pool backward from 8-bit offsets inside the window: neither the input nor its 64-bit indices are kept.

Source: Gist's max-pool encoding and MONeT's intermediate-activated operators, [Shah23], section 4.4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx

from loadmaster.executor.costs.fills import below, zeros
from loadmaster.executor.costs.limits import register_limits
from loadmaster.executor.costs.workspace import register_workspace
from loadmaster.executor.memory.implementations.emitting import as_integers, aten, call, calls, source, with_strides_of
from loadmaster.executor.memory.implementations.kernels import has_kernels, kernels
from loadmaster.executor.memory.implementations.registry import Site, Value
from loadmaster.executor.steps.layouts import dense_bytes
from loadmaster.executor.torch_private.operators import overload_of, suggest_memory_format

BACKWARD = aten.max_pool2d_with_indices_backward.default
WINDOW_LIMIT = 256  # offsets are one byte


def _corners(pooled: Tensor, stride: Sequence[int], padding: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Rows [OH, 1] and columns [OW] of the input where the windows of results [..., OH, OW] begin."""
    top, left = (torch.arange(pooled.shape[d], device=pooled.device) * stride[d] - padding[d] for d in (-2, -1))
    return top.unsqueeze(1), left


@torch.library.custom_op("loadmaster::pool_offsets", mutates_args=(), tags=(torch.Tag.flexible_layout,))
def pool_offsets(
    indices: Tensor,
    width: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Position of each maximum inside its window, uint8 like ``indices``: row * kernel width + column.

    Args:
        indices: int64 [..., OH, OW], positions in the flattened [H, W] input plane, as max_pool2d returns them.
        width: W.
        kernel, stride, padding, dilation: (height, width) each; kernel height times width at most 256.
    """
    if has_kernels(indices.device):
        offsets: Tensor = kernels().pool_offsets(indices, width, kernel, stride, padding, dilation)
        return offsets
    top, left = _corners(indices, stride, padding)
    row = (indices // width).sub_(top).floor_divide_(dilation[0]).mul_(kernel[1])
    row += (indices % width).sub_(left).floor_divide_(dilation[1])
    return row.to(torch.uint8)


@pool_offsets.register_fake
def _(indices: Tensor, *_: object) -> Tensor:
    return torch.empty_like(indices, dtype=torch.uint8)


def pool_indices(offsets: Tensor, width: int, *window: Sequence[int]) -> Tensor:
    """The int64 indices that :func:`pool_offsets` was made from, with the same arguments."""
    kernel, stride, padding, dilation = window
    top, left = _corners(offsets, stride, padding)
    # A maximum is never in the padding; offsets made up for measuring may be, and must not become negative indices,
    # which the operator that takes them does not check.
    row = (offsets // kernel[1]).to(torch.int64).mul_(dilation[0]).add_(top).clamp_(min=0)
    return row.mul_(width).add_((offsets % kernel[1]).to(torch.int64).mul_(dilation[1]).add_(left).clamp_(min=0))


@torch.library.custom_op("loadmaster::pool_offset_backward", mutates_args=(), tags=(torch.Tag.flexible_layout,))
def pool_offset_backward(
    gradient: Tensor,
    offsets: Tensor,
    height: int,
    width: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Tensor:
    """Gradient of max_pool2d's input [..., H, W], from that of its result [..., OH, OW] and the uint8 [..., OH, OW] of
    :func:`pool_offsets`. It is channels last where the gradient is, else row-major."""
    if has_kernels(gradient.device):
        result = _input_gradient(gradient, offsets, height, width)
        kernels().pool_offset_backward(gradient, offsets, result, kernel, stride, padding, dilation)
        return result
    indices = pool_indices(offsets, width, kernel, stride, padding, dilation).contiguous()
    # The operator reads the input's shape, never its values: one element stands for all of them.
    stand_in = gradient.new_zeros(()).expand(*gradient.shape[:-2], height, width)
    made: Tensor = aten.max_pool2d_with_indices_backward(
        gradient.contiguous(), stand_in, kernel, stride, padding, dilation, ceil_mode, indices
    )
    return made.contiguous(memory_format=suggest_memory_format(gradient))


def _input_gradient(gradient: Tensor, offsets: Tensor, height: int, width: int, *_: object) -> Tensor:
    shape = (*gradient.shape[:-2], height, width)
    layout = suggest_memory_format(gradient)
    return torch.empty(shape, dtype=gradient.dtype, device=gradient.device, memory_format=layout)


def _backward_workspace(gradient: Tensor, offsets: Tensor, height: int, width: int, *_: object) -> int:
    if has_kernels(gradient.device):
        return 0
    indices = 2 * offsets.numel() * torch.int64.itemsize
    if gradient.is_contiguous():
        return indices
    # The operator's own result is row-major, and so must its gradient be.
    result = gradient.shape[:-2].numel() * height * width
    return indices + max(result, gradient.numel()) * gradient.element_size()


pool_offset_backward.register_fake(_input_gradient)
register_workspace(
    overload_of(pool_offsets),
    lambda indices, *_: dense_bytes(indices) if has_kernels(indices.device) else 2 * indices.nbytes,
)
register_workspace(overload_of(pool_offset_backward), _backward_workspace)
register_limits(overload_of(pool_offsets), lambda a: {"indices": below(int(a["width"]))})
register_limits(overload_of(pool_offset_backward), lambda _: {"offsets": zeros})  # a window's corner


class MaxPoolFromOffsets:
    """Max-pool backward that reads 8-bit offsets: 1/8 of the indices, and no input. Bit-equal."""

    name = "max_pool_offsets"

    def sites(self, joint: fx.GraphModule) -> Sequence[Site]:
        """Backward nodes of max_pool2d with a window of at most 256 elements."""
        found = []
        for backward in calls(joint, BACKWARD):
            parent = source(backward.args[7])
            kernel = _window(backward)[0]
            if parent is not None and kernel[0] * kernel[1] <= WINDOW_LIMIT and "val" in parent.meta:
                found.append(Site(backward, parent=parent))
        return found

    def encode(self, graph: fx.Graph, site: Site, value: Value) -> fx.Node:
        assert site.parent is not None
        width = int(site.backward.meta["val"].shape[-1])
        return call(graph, overload_of(pool_offsets), value(site.parent), width, *_window(site.backward))

    def emit(self, graph: fx.Graph, site: Site, value: Value, encoded: fx.Node | None) -> fx.Node:
        backward = site.backward
        plane = map(int, backward.meta["val"].shape[-2:])
        arguments = (value(site.gradient), encoded, *plane, *_window(backward), backward.args[6])
        return with_strides_of(graph, call(graph, overload_of(pool_offset_backward), *arguments), backward)


def _window(backward: fx.Node) -> list[list[int]]:
    """Kernel, stride, padding and dilation as [height, width]; a missing stride is the kernel, as in PyTorch."""
    kernel, stride, padding, dilation = (as_integers(argument, 2) for argument in backward.args[2:6])
    return [kernel, stride or kernel, padding, dilation]
