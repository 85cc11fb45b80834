"""Losses whose scalar holds no more than itself.

PyTorch computes the mean or sum of some losses into the tensor that had every element's loss: the scalar keeps all of
that storage, until the backward pass is over. Their elements and the reduction as two operators give the same bits, and
the elements go as soon as they are summed.
"""

from __future__ import annotations

from torch import fx

from loadmaster.executor.memory.implementations.emitting import aten, call
from loadmaster.executor.torch_private.operators import reduction_number, schema_of

NONE, MEAN = reduction_number("none"), reduction_number("mean")
# The argument that says how each is reduced.
REDUCTION = {
    aten.mse_loss.default: 2,
    aten.smooth_l1_loss.default: 2,
    aten.binary_cross_entropy.default: 3,
}


def reduce_losses(graph: fx.Graph) -> None:
    """Replace each loss whose scalar holds its elements by the elements and their reduction."""
    for node in list(graph.nodes):
        place = REDUCTION.get(node.target) if node.op == "call_function" else None
        if place is None:
            continue
        reduction = node.args[place] if len(node.args) > place else MEAN
        if reduction == NONE:
            continue
        defaults = [argument.default_value for argument in schema_of(node.target).arguments[len(node.args) :]]
        arguments = [*node.args, *defaults]
        arguments[place] = NONE
        with graph.inserting_before(node):
            elements = call(graph, node.target, *arguments)
            reduced = call(graph, aten.mean.default if reduction == MEAN else aten.sum.default, elements)
        node.replace_all_uses_with(reduced)
        graph.erase_node(node)
