"""Finds linear layer -> cross-entropy in a joint graph and puts the chunked operators in its place.

Forward: mm or addmm -> (views, a cast) -> log_softmax -> nll_loss. Backward: nll_loss_backward ->
log_softmax_backward -> (a cast, views) -> the products that give the gradients of hidden, weight and bias. The
pattern is left alone if anything else reads what would no longer exist, and where chunks would save nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import fx

from loadmaster.executor.memory.implementations.cross_entropy import (
    chunk_rows,
    default_chunks,
    linear_cross_entropy,
    linear_cross_entropy_backward,
)
from loadmaster.executor.memory.implementations.emitting import ALIASES, aten, call, source

MEAN, SUM = 1, 2  # PyTorch's numbers for the reductions
PRODUCTS = (aten.mm.default, aten.addmm.default)
TRANSPOSE = aten.t.default
PASSED_THROUGH = ALIASES | {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._to_copy.default,
}
"""What may stand between the linear layer and the loss without changing any number but its precision."""


@dataclass
class Match:
    """One occurrence. ``gradients`` are the backward products to be replaced, by what they compute."""

    product: fx.Node
    log_probabilities: fx.Node
    loss: fx.Node
    loss_backward: fx.Node
    between: list[fx.Node] = field(default_factory=list)
    hidden_gradients: list[fx.Node] = field(default_factory=list)
    weight_gradients: list[fx.Node] = field(default_factory=list)
    bias_gradients: list[fx.Node] = field(default_factory=list)

    @property
    def operands(self) -> tuple[fx.Node, fx.Node, fx.Node | None]:
        """Hidden [rows, width], weight [width, classes], bias."""
        args = self.product.args
        bias, hidden, weight = args if self.product.target is aten.addmm.default else (None, *args)
        assert isinstance(hidden, fx.Node)
        assert isinstance(weight, fx.Node)
        assert bias is None or isinstance(bias, fx.Node)
        return hidden, weight, bias


def chunk_cross_entropy(graph: fx.Graph) -> None:
    """Replace every occurrence whose logits outweigh their chunks."""
    for node in list(graph.nodes):
        if node.target is aten.nll_loss_backward.default:
            match = _match(node)
            if match is not None and _is_worthwhile(match):
                _replace(graph, match)


def _is_worthwhile(match: Match) -> bool:
    rows, classes = match.product.meta["val"].shape
    width = match.operands[0].meta["val"].shape[1]
    return bool(classes > width and rows > chunk_rows(width))


def _match(loss_backward: fx.Node) -> Match | None:
    _, probabilities, targets, class_weights, reduction, ignored, _ = loss_backward.args
    log_probabilities = source(probabilities)
    if class_weights is not None or reduction not in (MEAN, SUM) or log_probabilities is None:
        return None
    if log_probabilities.target is not aten._log_softmax.default or log_probabilities.meta["val"].dim() != 2:
        return None
    product = _product_behind(log_probabilities)
    losses = [
        user
        for user in log_probabilities.users
        if user.target is aten.nll_loss_forward.default
        and user.args == (log_probabilities, targets, None, reduction, ignored)
    ]
    if product is None or len(losses) != 1 or log_probabilities.args[1] not in (1, -1):
        return None
    match = Match(product, log_probabilities, losses[0], loss_backward)
    softmax_backward = list(loss_backward.users)
    if len(softmax_backward) != 1 or softmax_backward[0].target is not aten._log_softmax_backward_data.default:
        return None
    allowed = {losses[0], loss_backward, softmax_backward[0]}
    if any(user not in allowed for user in _readers(log_probabilities, ALIASES, match.between)):
        return None
    match.between.append(softmax_backward[0])
    readers = list(_readers(softmax_backward[0], PASSED_THROUGH, match.between))
    return match if all(_classify(match, read, user) for read, user in _pairs(readers, match)) else None


def _product_behind(log_probabilities: fx.Node) -> fx.Node | None:
    """The linear layer whose result, perhaps viewed and widened, is normalized; None if others read it too."""
    node = log_probabilities.args[0]
    while isinstance(node, fx.Node) and len(node.users) == 1:
        if node.target in PRODUCTS:
            plain = set(node.kwargs.values()) <= {1}  # alpha and beta of addmm
            return node if plain and node.meta["val"].shape == log_probabilities.meta["val"].shape else None
        if node.target not in PASSED_THROUGH:
            return None
        node = node.args[0]
    return None


def _readers(node: fx.Node, through: frozenset[object], passed: list[fx.Node]) -> Iterator[fx.Node]:
    """Everything that reads the value, looking through these operators, which are noted in ``passed``."""
    for user in node.users:
        if user.target in through:
            passed.append(user)
            yield from _readers(user, through, passed)
        else:
            yield user


def _pairs(readers: list[fx.Node], match: Match) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Each reader with the logits' gradient that it reads."""
    gradients = set(match.between)
    for reader in dict.fromkeys(readers):
        for read in reader.all_input_nodes:
            if read in gradients:
                yield read, reader


def _classify(match: Match, read: fx.Node, user: fx.Node) -> bool:
    """Note what a reader of the logits' gradient computes; False if it is none of the three gradients."""
    hidden, weight, bias = match.operands
    if read.meta["val"].shape != match.product.meta["val"].shape:
        return False
    if user.target is aten.mm.default and user.args[0] is read:
        if _untransposed(user.args[1]) != _untransposed(weight, 1):
            return False
        match.hidden_gradients.append(user)
    elif user.target is TRANSPOSE:
        match.between.append(user)
        for product in user.users:
            if product.target is not aten.mm.default or product.args != (user, hidden):
                return False
            match.weight_gradients.append(product)
    elif user.target is aten.sum.dim_IntList and bias is not None and user.args[1] == [0]:
        match.bias_gradients.append(user)
    else:
        return False
    return True


def _untransposed(node: object, transposes: int = 0) -> tuple[object, bool]:
    """The node before all transposes, and whether their number, with those given, is odd."""
    while isinstance(node, fx.Node) and node.target is TRANSPOSE:
        node, transposes = node.args[0], transposes + 1
    return node, transposes % 2 == 1


def _replace(graph: fx.Graph, match: Match) -> None:
    hidden, weight, bias = match.operands
    targets, _, reduction, ignored = match.loss.args[1:5]
    chunks = default_chunks(*hidden.meta["val"].shape)
    mean = reduction == MEAN
    dtype = match.log_probabilities.meta["val"].dtype
    with graph.inserting_before(match.loss):
        forward = call(
            graph, linear_cross_entropy._opoverload, hidden, weight, bias, targets, chunks, ignored, mean, dtype
        )
        loss, normalizer, total = (call(graph, operator.getitem, forward, i) for i in range(3))
    results = {0: loss, 1: total}
    for result in list(match.loss.users):
        index = result.args[1]
        assert isinstance(index, int)
        result.replace_all_uses_with(results[index])
        graph.erase_node(result)
    with graph.inserting_before(match.loss_backward):
        backward = call(
            graph,
            linear_cross_entropy_backward._opoverload,
            match.loss_backward.args[0],
            hidden,
            weight,
            bias,
            targets,
            normalizer,
            total,
            chunks,
            ignored,
            mean,
        )
        of_hidden, of_weight, of_bias = (call(graph, operator.getitem, backward, i) for i in range(3))
    for old in match.hidden_gradients:
        old.replace_all_uses_with(of_hidden)
    for old in match.weight_gradients:
        old.replace_all_uses_with(of_weight)
    for old in match.bias_gradients:
        with graph.inserting_before(old):
            old.replace_all_uses_with(call(graph, aten.view.default, of_bias, list(old.meta["val"].shape)))
    _erase(graph, match)


def _erase(graph: fx.Graph, match: Match) -> None:
    """Take out the old operators, readers first, and the gradients that nobody asked for."""
    gone = {match.product, match.log_probabilities, match.loss, match.loss_backward, *match.between}
    gone |= {*match.hidden_gradients, *match.weight_gradients, *match.bias_gradients}
    for node in reversed(graph.nodes):
        unread = not node.users
        passed = node.target in PASSED_THROUGH or node.target in (TRANSPOSE, operator.getitem)
        if unread and (node in gone or passed):
            graph.erase_node(node)
