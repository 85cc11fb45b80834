"""Rewrites of operators that do several things at once into operators that can be split one by one.

``addmm``, ``baddbmm``     a product and a sum: a share of the product's sum must not add the shift
``convolution``            its shift is added after it, for the same reason
``convolution_backward``   one call for each gradient, so that each is split in its own way
means, mean losses         a sum, then a quotient: a share's mean is not the mean of shares
batch norms in training    sums over the batch, and what is done element by element: the statistics are those of the
                           whole batch, as on one device
batch norms as they run    what is done element by element with running statistics
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from loadmaster.executor.partition.checkpoints import inherit_checkpoint
from loadmaster.executor.steps.places import inherit
from loadmaster.executor.torch_private.operators import OpOverload, schema_of
from loadmaster.executor.torch_private.tracing import make_fx

aten = torch.ops.aten
_MEAN, _SUM = 1, 2
Rewrite = Callable[..., Any]


def rewritten(module: fx.GraphModule) -> fx.GraphModule:
    """Replace these operators in the joint graph, in place."""
    for node in list(module.graph.nodes):
        rewrite = REWRITES.get(node.target) if node.op == "call_function" else None
        function = None if rewrite is None else rewrite(node)
        if function is not None:
            _replace(node, function)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _replace(node: fx.Node, function: Callable[..., Any]) -> None:
    """Replace a node by the operators that a function of its arguments runs."""
    nodes = [*dict.fromkeys(node.all_input_nodes)]
    values = [n.meta["val"] for n in nodes]

    def called(*given: Tensor) -> Any:
        known = dict(zip(nodes, given, strict=True))
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
        return function(*args, **kwargs)

    with values[0].fake_mode, torch.no_grad():
        traced = make_fx(called, tracing_mode="real")(*values)
    graph = node.graph
    with graph.inserting_before(node):
        copies = dict(zip(traced.graph.find_nodes(op="placeholder"), nodes, strict=True))
        for inner in traced.graph.nodes:
            if inner.op == "call_function":
                copies[inner] = graph.node_copy(inner, copies.__getitem__)
                inherit(copies[inner], node)
                inherit_checkpoint(copies[inner], node)
    made: Any = fx.node.map_arg(traced.graph.output_node().args[0], copies.__getitem__)
    if isinstance(made, fx.Node):
        node.replace_all_uses_with(made)
    else:
        for user in list(node.users):
            assert user.target is operator.getitem
            user.replace_all_uses_with(made[int(user.args[1])])  # type: ignore[arg-type]
            graph.erase_node(user)
    graph.erase_node(node)


def _product(of: Callable[..., Tensor]) -> Rewrite:
    def product(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        found = of(a, b)
        found = found if alpha == 1 else found * alpha
        return found + (bias if beta == 1 else bias * beta)

    return product


def _convolution(node: fx.Node) -> Rewrite | None:
    if node.args[2] is None:
        return None

    def convolved(data: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
        spread = bias.view(-1, *[1] * (data.dim() - 2))
        found: Tensor = aten.convolution(data, weight, None, *rest)
        return found + spread

    return convolved


def _convolution_backward(node: fx.Node) -> Rewrite | None:
    asked = node.args[-1]
    if sum(asked) < 2 and not asked[2]:  # type: ignore[arg-type, index]
        return None

    def gradients(gradient: Tensor, data: Tensor, weight: Tensor, *rest: Any) -> list[Tensor | None]:
        _, *others, mask = rest
        found: list[Tensor | None] = [None, None, None]
        for n in range(2):
            if mask[n]:
                found[n] = aten.convolution_backward(gradient, data, weight, None, *others, [m == n for m in range(3)])[
                    n
                ]
        if mask[2]:
            found[2] = gradient.sum([d for d in range(gradient.dim()) if d != 1])
        return found

    return gradients


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    dims = [*range(x.dim())] if not dim and dim != 0 else dim if isinstance(dim, (list, tuple)) else [dim]
    total: Tensor = aten.sum.dim_IntList(x, dims, keepdim, dtype=dtype)
    mean: Tensor = total / math.prod(x.shape[d] for d in dims)
    return mean


def _mean_loss(node: fx.Node) -> Rewrite | None:
    """Rewrite a loss as its elements, their sum, and a quotient if it is a mean."""
    target, at = node.target, _place_of_reduction(node)
    if at is None:
        return None

    def loss(*args: Any) -> Tensor:
        each = target(*args[:at], 0, *args[at + 1 :])  # type: ignore[operator]
        total: Tensor = each.sum()
        return total / each.numel() if args[at] == _MEAN else total

    return loss


def _mean_loss_backward(node: fx.Node) -> Rewrite | None:
    target, at = node.target, _place_of_reduction(node)
    if at is None or node.args[at] != _MEAN:
        return None

    def gradient(given: Tensor, x: Tensor, *args: Any) -> Any:
        rest = [x, *args]
        rest[at - 1] = _SUM
        return target(given / x.numel(), *rest)  # type: ignore[operator]

    return gradient


def _place_of_reduction(node: fx.Node) -> int | None:
    """Place of the argument ``reduction``, after defaults are written out; None where no reduction is asked for."""
    assert isinstance(node.target, OpOverload)
    names = [argument.name for argument in schema_of(node.target).arguments]
    at = names.index("reduction")
    if len(node.args) > at:
        return at if node.args[at] in (_MEAN, _SUM) else None
    if node.kwargs:
        return None
    node.args = (
        *node.args,
        *[argument.default_value for argument in schema_of(node.target).arguments][len(node.args) :],
    )
    return at


def _likelihood(node: fx.Node) -> Rewrite | None:
    if node.args[3] != _MEAN:
        return None

    def loss(rows: Tensor, classes: Tensor, weight: Tensor | None, _reduction: int, ignored: int) -> Any:
        total, weights = node.target(rows, classes, weight, _SUM, ignored)  # type: ignore[operator]
        return [total / weights, weights]

    return loss


def _batch_norm(node: fx.Node) -> Rewrite | None:
    if not node.args[5]:
        return None

    def normalized(
        x: Tensor, w: Tensor | None, b: Tensor | None, mean: Tensor, var: Tensor, _t: bool, momentum: float, eps: float
    ) -> list[Tensor]:
        dims, n = [d for d in range(x.dim()) if d != 1], x.numel() // x.shape[1]
        image = [-1, *[1] * (x.dim() - 2)]
        own = x.sum(dims, keepdim=True) / n
        centered = x - own
        spread = (centered * centered).sum(dims, keepdim=True) / n
        deviation = (spread + eps).rsqrt()
        out = centered * deviation
        out = out if w is None else out * w.view(image)
        out = out if b is None else out + b.view(image)
        new_mean = mean * (1 - momentum) + own.view(-1) * momentum
        new_var = var * (1 - momentum) + spread.view(-1) * (momentum * n / max(n - 1, 1))
        return [out, own.view(-1), deviation.view(-1), new_mean, new_var]

    return normalized


def _batch_norm_as_it_runs(
    x: Tensor, w: Tensor | None, b: Tensor | None, mean: Tensor, var: Tensor, _momentum: float, eps: float
) -> list[Tensor]:
    """Batch norm with running statistics. The kernel also returns empty tensors, which its backward pass reads."""
    image = [-1, *[1] * (x.dim() - 2)]
    out = (x - mean.view(image)) * (var + eps).rsqrt().view(image)
    out = out if w is None else out * w.view(image)
    out = out if b is None else out + b.view(image)
    return [out, mean, var]


def _batch_norm_as_it_runs_backward(
    g: Tensor, x: Tensor, w: Tensor | None, mean: Tensor, var: Tensor, _m: Any, _v: Any, _t: bool, eps: float, *_: Any
) -> list[Tensor | None]:
    dims, image = [d for d in range(x.dim()) if d != 1], [-1, *[1] * (x.dim() - 2)]
    deviation = (var + eps).rsqrt()
    of_scale = None if w is None else (g * (x - mean.view(image)) * deviation.view(image)).sum(dims)
    factor = deviation if w is None else deviation * w
    return [g * factor.view(image), of_scale, g.sum(dims)]


def _batch_norm_backward(node: fx.Node) -> Rewrite | None:
    if not node.args[7]:
        return _batch_norm_as_it_runs_backward

    def gradients(
        g: Tensor, x: Tensor, w: Tensor | None, _m: Any, _v: Any, mean: Tensor, deviation: Tensor, *_: Any
    ) -> list[Tensor | None]:
        dims, n = [d for d in range(x.dim()) if d != 1], x.numel() // x.shape[1]
        image = [-1, *[1] * (x.dim() - 2)]
        normal = (x - mean.view(image)) * deviation.view(image)
        of_shift, of_scale = g.sum(dims), (g * normal).sum(dims)
        factor = deviation if w is None else deviation * w
        rest = g - (of_shift.view(image) + normal * of_scale.view(image)) / n
        return [rest * factor.view(image), None if w is None else of_scale, of_shift]

    return gradients


def _always(function: Rewrite) -> Callable[[fx.Node], Rewrite | None]:
    return lambda _: function


_LOSSES = "mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss"
REWRITES: dict[Any, Callable[[fx.Node], Rewrite | None]] = {
    aten.addmm.default: _always(_product(aten.mm.default)),
    aten.baddbmm.default: _always(_product(aten.bmm.default)),
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.mean.default: _always(_mean),
    aten.mean.dim: _always(_mean),
    aten.nll_loss_forward.default: _likelihood,
    aten.nll_loss2d_forward.default: _likelihood,
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten._native_batch_norm_legit_no_training.default: _always(_batch_norm_as_it_runs),
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    **{getattr(aten, name).default: _mean_loss for name in _LOSSES.split()},
    **{
        getattr(aten, f"{name}_backward").default: _mean_loss_backward
        for name in _LOSSES.split()
        if hasattr(aten, f"{name}_backward")
    },
}
