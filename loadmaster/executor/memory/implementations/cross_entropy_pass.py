"""Graph pass that puts the chunked linear + cross-entropy in the place of a linear layer and its loss."""

from __future__ import annotations

import operator

from torch import fx

from loadmaster.executor.memory.implementations.cross_entropy import (
    MIN_ROWS,
    default_chunks,
    linear_cross_entropy,
    scaled,
)
from loadmaster.executor.memory.implementations.cross_entropy_match import FORWARD_OF, MEAN, TRANSPOSE, Match, find
from loadmaster.executor.memory.implementations.emitting import aten, call
from loadmaster.executor.memory.implementations.kernels import exact
from loadmaster.executor.memory.implementations.logit_path import BACKWARD_STEPS, STEPS, by_tensor, laid_out
from loadmaster.executor.memory.implementations.loss_reduction import number, row_weights, without_dropped
from loadmaster.executor.memory.implementations.z_loss import ZLoss
from loadmaster.executor.torch_private.operators import overload_of


def chunk_cross_entropy(graph: fx.Graph) -> None:
    """Replace every linear layer with its cross-entropy whose logits take more than the weight's gradient."""
    for node in list(graph.nodes):
        if node.target in FORWARD_OF:
            match = find(node)
            if match is None:
                continue
            rows, classes = match.product.meta["val"].shape
            width = match.operands[0].meta["val"].shape[1]
            if classes > width and rows > max(MIN_ROWS, 2 * width):
                _replace(graph, match)


def _replace(graph: fx.Graph, match: Match) -> None:
    hidden, weight, bias = match.operands
    behind, chain = match.behind, match.chain
    _, targets, class_weights, _, ignored = match.loss_forward.args
    assert isinstance(targets, fx.Node) and isinstance(ignored, int)
    of_layer = match.weight_gradients or match.bias_gradients or (match.scale_gradient is not None and bias is not None)
    dtype, precise = chain.value.meta["val"].dtype, exact(hidden.meta["val"].dtype)
    with graph.inserting_before(chain.value):
        if behind.added is not None:
            bias = _bias(graph, behind.added, hidden)
        by = None if behind.maps.by is None else _factor(graph, behind.maps.by)
        read, added = (one if None in (one, by) else call(graph, aten.mul.Tensor, one, by) for one in (hidden, bias))
        weights = row_weights(graph, chain, targets.meta["val"].shape, precise)
        scale = number(graph, chain, precise)
        targets = without_dropped(graph, chain, targets, ignored)
        arguments = (
            *(read, weight, added, laid_out(graph, targets, behind.steps, ignored), class_weights),
            None if weights is None else laid_out(graph, weights, behind.steps, 0.0),
            None if match.z_loss is None else _z_weights(graph, match.z_loss, hidden, chain.factor, scale),
            *(default_chunks(*hidden.meta["val"].shape), ignored, match.reduction == MEAN, match.smoothing),
            *(behind.maps.scale, behind.maps.cap, dtype, "all" if of_layer else "hidden"),
        )
        forward = call(graph, overload_of(linear_cross_entropy), *arguments)
        loss, factor, of_hidden, of_weight, of_bias = (call(graph, operator.getitem, forward, i) for i in range(5))
        if chain.factor != 1:
            loss, factor = (call(graph, aten.mul.Scalar, one, chain.factor) for one in (loss, factor))
        if scale is not None:
            loss, factor = (call(graph, aten.mul.Tensor, one, scale) for one in (loss, factor))
        if loss.meta["val"].dtype != dtype:
            loss = call(graph, aten._to_copy.default, loss, dtype=dtype)
    chain.value.replace_all_uses_with(loss)
    with graph.inserting_before(match.loss_backward):
        upstream = call(graph, aten.mul.Tensor, chain.gradient, factor)
        scaled_by = upstream if by is None else call(graph, aten.mul.Tensor, upstream, by)
    for olds, gradient, times in (
        (match.hidden_gradients, of_hidden, scaled_by),
        (match.weight_gradients, of_weight, upstream),
        (match.bias_gradients, of_bias, scaled_by),
    ):
        for old in olds:
            with graph.inserting_before(old):
                value = old.meta["val"]
                new = call(graph, overload_of(scaled), gradient, times, value.dtype)
                if new.meta["val"].shape != value.shape:  # a bias summed with keepdim
                    new = call(graph, aten.view.default, new, list(value.shape))
            old.replace_all_uses_with(new)
    if match.scale_gradient is not None:
        with graph.inserting_before(match.scale_gradient):
            pairs = [(hidden, of_hidden), *([] if bias is None else [(bias, of_bias)])]
            new = _scale_gradient(graph, match, pairs, upstream)
        match.scale_gradient.replace_all_uses_with(new)
    _erase(graph, match)


def _factor(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """Emit the number that a node multiplies with, which scales by a tensor."""
    scale = by_tensor(node)
    assert scale is not None
    factor = call(graph, aten.view.default, scale, [])
    return call(graph, aten.reciprocal.default, factor) if node.target is aten.div.Tensor else factor


def _scale_gradient(graph: fx.Graph, match: Match, pairs: list[tuple[fx.Node, fx.Node]], upstream: fx.Node) -> fx.Node:
    """The gradient of a tensor that scales logits, from hidden, and the bias if there is one, each with its gradient.
    Logits are linear in both together, so that the sum of these times their gradients is that of all logits times
    theirs."""
    old, by = match.scale_gradient, match.behind.maps.by
    assert old is not None
    assert by is not None
    total: fx.Node | None = None
    for pair in pairs:
        wide = (call(graph, aten._to_copy.default, one, dtype=upstream.meta["val"].dtype) for one in pair)
        part = call(graph, aten.sum.default, call(graph, aten.mul.Tensor, *wide))
        total = part if total is None else call(graph, aten.add.Tensor, total, part)
    total = call(graph, aten.mul.Tensor, upstream, total)
    if by.target is aten.div.Tensor:
        factor = _factor(graph, by)
        slope = call(graph, aten.neg.default, call(graph, aten.mul.Tensor, factor, factor))
        total = call(graph, aten.mul.Tensor, total, slope)
    value = old.meta["val"]
    total = call(graph, aten.view.default, total, list(value.shape))
    return call(graph, aten._to_copy.default, total, dtype=value.dtype)


def _z_weights(graph: fx.Graph, z: ZLoss, hidden: fx.Node, factor: float, scale: fx.Node | None) -> fx.Node:
    """Weights of all rows' squared logsumexps, as added to a cross-entropy that is still to be multiplied."""
    shape, dtype = z.logsumexp.meta["val"].shape, exact(hidden.meta["val"].dtype)
    weights, by = row_weights(graph, z.chain, shape, dtype), number(graph, z.chain, dtype)
    if weights is None:
        weights = call(graph, aten.new_full.default, hidden, list(shape), 1.0, dtype=dtype)
    if by is not None:
        weights = call(graph, aten.mul.Tensor, weights, by)
    if scale is not None:
        weights = call(graph, aten.div.Tensor, weights, scale)
    weights = call(graph, aten.mul.Scalar, weights, z.chain.factor / factor)
    return laid_out(graph, without_dropped(graph, z.chain, weights, 0.0), z.steps, 0.0)


def _bias(graph: fx.Graph, added: fx.Node, hidden: fx.Node) -> fx.Node:
    """A row that the model adds, as the layer's bias."""
    row = call(graph, aten.view.default, added, [added.meta["val"].numel()])
    dtype = hidden.meta["val"].dtype
    return row if row.meta["val"].dtype == dtype else call(graph, aten._to_copy.default, row, dtype=dtype)


def _erase(graph: fx.Graph, match: Match) -> None:
    """Take out the old operators, readers first, and the gradients that nobody asked for."""
    behind = match.behind
    gone = {match.product, *behind.path, behind.log_probabilities, match.loss_forward, *match.between}
    gone |= {match.chain.value, *match.chain.between, *(match.z_loss.known if match.z_loss else ())}
    gone |= {*match.hidden_gradients, *match.weight_gradients, *match.bias_gradients}
    passed = STEPS | BACKWARD_STEPS | {TRANSPOSE, operator.getitem, aten.add.Tensor}
    # What only smoothing asks for: which rows count, and how many.
    passed |= {aten.eq.Scalar, aten.bitwise_not.default, aten.sum.default}
    for node in reversed(graph.nodes):
        if not node.users and (node in gone or node.target in passed):
            graph.erase_node(node)
