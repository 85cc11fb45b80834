"""Keeping a graph channels last where a compiler made it so.

Inductor lays out the forward pass of a convolutional network channels last; the backward graph then reads saved
results in that layout and gradients that start out row-major (the gradient of a mean is an expanded scalar). Where
the two meet, PyTorch's rule for the strides of an elementwise result goes by the order of the operands, and a
row-major gradient can run down a whole chain of residual connections: every convolution would copy it. Here channels
last wins wherever both meet. A compiler writes the result in this layout in the first place: no copy is left.

What Inductor would lay out so by itself is laid out here, from the first convolution on (``convolutions``), and every
result keeps that layout: what is saved, what a segment ends with, and the copies on the host (:func:`laid_out`). So the
backward graph can be compiled before the forward graph is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from loadmaster.executor.costs.traffic import tensors
from loadmaster.executor.torch_private.operators import pytree

aten = torch.ops.aten

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})


class ChannelsLast(fx.Interpreter):
    """Runs a graph so that operators which read both layouts return channels-last results. With ``convolutions`` these
    read channels last whatever they are given."""

    def __init__(self, module: fx.GraphModule, *, convolutions: bool = False) -> None:
        super().__init__(module)
        self.convolutions = convolutions

    def run_node(self, n: fx.Node) -> Any:
        """Run one node, so that its results are channels last where an argument of their shape is."""
        if n.op != "call_function":
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if n.target in _VIEWS:  # valid for the row-major strides of the trace alone
            return aten.reshape(*args)
        if self.convolutions and n.target is aten.convolution.default:
            args = (laid_out(args[0]), *args[1:])
        shapes = {t.shape for t in tensors((args, kwargs)) if is_channels_last(t)}
        # A table of biases that is turned looks like channels last. Who asks for rows gives them to attention.
        if not shapes or n.kwargs.get("memory_format") is torch.contiguous_format:
            return super().run_node(n)
        if n.target is aten.convolution_backward.default and args[1].shape in shapes:
            args = (laid_out(args[0]), *args[1:])
        result = self.call_function(n.target, args, kwargs)
        return pytree.tree_map_only(Tensor, lambda t: laid_out(t) if t.shape in shapes else t, result)


def runs_channels_last(module: fx.GraphModule) -> bool:
    """Return whether Inductor will lay out the graph's convolutions channels last."""
    from loadmaster.executor.torch_private.inductor import GraphLowering

    return GraphLowering.decide_layout_opt(module, is_inference=False)


def has_channels_last_gradients(module: fx.GraphModule) -> bool:
    """Return whether a convolution whose gradients the graph computes reads channels last. Inductor decides on a
    graph's layout by forward convolutions, of which the backward pass, or a segment of it, may have none. Left to
    itself PyTorch 2.13 copies what ``convolution_backward`` reads into the order of the weight's strides then, which is
    neither layout for a depthwise one (pytorch#188236 asks for the decision)."""
    backward = module.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    return any(t.dim() == 4 and is_channels_last(t) for t in (node.args[1].meta["val"] for node in backward))


def is_channels_last(tensor: Tensor) -> bool:
    """Return whether the layout is channels last and not row-major as well, as that of a single pixel is."""
    layout = _FORMATS.get(tensor.dim())
    return layout is not None and tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous()


def laid_out(tensor: Tensor) -> Tensor:
    """The tensor itself, or a channels-last copy of a row-major one of four or five dimensions."""
    layout = _FORMATS.get(tensor.dim())
    if layout is None or not tensor.is_contiguous() or tensor.is_contiguous(memory_format=layout):
        return tensor
    return tensor.clone(memory_format=layout)
