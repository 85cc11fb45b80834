"""Memory layouts of the values of a compiled pass: results as they were traced, the rest as the compiler likes.

Convolutions like channels last. The forward pass saves its values in that layout, and the backward pass is compiled for
it. A gradient may begin in another layout, at the mean over pixels for example, and keeps it along a residual stream:
every convolution there would turn it again. It is turned once, where a convolution first reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from loadmaster.executor.torch_private.fake_tensors import FakeTensorMode

aten = torch.ops.aten
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def keep_strides(module: fx.GraphModule, results: int) -> None:
    """Mark the results that keep their traced strides: the first ones, and inputs that are returned, not to copy them.

    Args:
        results: number of the pass's results that are for others than the backward pass.
    """
    output: Any = module.graph.output_node()
    kept = [n for n, made in enumerate(output.args[0]) if n < results or made.op == "placeholder"]
    output.meta["user_visible_output_idxs"] = kept


def as_made(backward: fx.GraphModule, strides: Sequence[Sequence[int] | None], mode: FakeTensorMode) -> list[Tensor]:
    """Inputs of the backward pass, with the strides that the forward pass gives them.

    Args:
        strides: of the saved tensors; None: as traced. The tangent comes after them, as traced.
    """
    given: list[Tensor] = [node.meta["val"] for node in backward.graph.find_nodes(op="placeholder")]
    with mode:
        made = [
            one if found is None else one.as_strided(one.shape, found)
            for one, found in zip(given, strides, strict=False)
        ]
    return [*made, given[-1]]


def turn_gradients(backward: fx.GraphModule, given: Sequence[Tensor], mode: FakeTensorMode) -> None:
    """Put gradients in the layout of the tensors that the convolutions reading them have saved."""
    with mode:
        _Turning(backward, garbage_collect_values=False).run(*given)
    backward.recompile()


class _Turning(fx.Interpreter):
    """Interpreter that follows strides through the pass and inserts the turns of gradients."""

    def run_node(self, n: fx.Node) -> Any:
        if n.target is aten.view.default:
            n.target = aten.reshape.default  # in another layout there may be no view
        if n.target is aten.convolution_backward.default:
            gradient, saved = n.args[:2]
            assert isinstance(gradient, fx.Node) and isinstance(saved, fx.Node)
            layout = _CHANNELS_LAST.get(self.env[saved].dim())
            if layout is not None and _is_only(self.env[saved], layout) and not _is_only(self.env[gradient], layout):
                self._turn(gradient, layout, n)
        return super().run_node(n)

    def _turn(self, gradient: fx.Node, layout: torch.memory_format, first: fx.Node) -> None:
        place = {node: at for at, node in enumerate(first.graph.nodes)}
        with first.graph.inserting_before(first):
            turned = first.graph.call_function(aten.clone.default, (gradient,), {"memory_format": layout})
        self.env[turned] = self.env[gradient].clone(memory_format=layout)
        turned.meta["val"] = self.env[turned]
        gradient.replace_all_uses_with(turned, lambda user: user is not turned and place[user] >= place[first])


def _is_only(value: Tensor, layout: torch.memory_format) -> bool:
    """Return whether a value has that layout and is not row-major as well, as with one channel or one pixel."""
    return value.is_contiguous(memory_format=layout) and not value.is_contiguous()
