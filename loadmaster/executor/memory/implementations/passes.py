"""Graph passes run on a joint graph before planning and, identically, before a plan is applied.

They put operators in place that hold less. Every pass is deterministic, so that a plan made on one process's graph fits
another's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from torch import fx

from loadmaster.executor.costs.traffic import value_bytes, value_of
from loadmaster.executor.memory.implementations.activations import clamp_from_output
from loadmaster.executor.memory.implementations.attention import seed_attention
from loadmaster.executor.memory.implementations.cross_entropy_pass import chunk_cross_entropy
from loadmaster.executor.memory.implementations.dropout import seed_dropout
from loadmaster.executor.memory.implementations.emitting import as_integers, aten, call, with_strides_of
from loadmaster.executor.memory.implementations.joined_slices import join_slices
from loadmaster.executor.steps.drawn_once import EACH_DRAW_ITS_OWN
from loadmaster.executor.steps.one_graph.replaced_attributes import patched
from loadmaster.executor.steps.step_graph import is_random
from loadmaster.executor.torch_private.inductor import eliminate_common_subexpressions
from loadmaster.executor.torch_private.operators import reduction_number, schema_of
from loadmaster.executor.torch_private.tracing import codegen_of

CONVOLUTION_BACKWARD = aten.convolution_backward.default
DRAWN_FIRST = "loadmaster_drawn_first"
"""Metadata key of what :func:`draw_first` moved. It is kept: computed again, it would be computed in each block."""
MOST_BYTES = 1 << 16
"""Largest result that is moved: what is drawn early stays in memory until it is read."""
NONE, MEAN = reduction_number("none"), reduction_number("mean")
# The argument that says how each is reduced.
REDUCTION = {aten.mse_loss.default: 2, aten.smooth_l1_loss.default: 2, aten.binary_cross_entropy.default: 3}


def reduce_losses(graph: fx.Graph) -> None:
    """Replace each loss whose scalar holds its elements by the elements and their reduction, to the same bits. PyTorch
    computes the mean or sum of some losses into the tensor that had every element's loss: the scalar keeps all of that
    storage until the backward pass is over. As two operators, the elements go as soon as they are summed."""
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


def draw_first(graph: fx.Graph) -> None:
    """Move small random tensors, and what is made from them and constants alone, to the beginning of a joint graph.

    With stochastic depth each block of a network draws one number an image, with a probability of its own. Without that
    code, blocks are equal, and compiled once (:mod:`loadmaster.executor.memory.run.segments`).

        empty -> bernoulli(0.9) -> div(0.9) -> mul(x) -> ...     all but mul, and what follows it, come first
    """
    for node in graph.find_nodes(op="call_function", target=aten.new_empty.default):
        # x.new_empty(shape) as an empty that does not read x, whose type and device are known.
        made = value_of(node)
        node.target, node.args = aten.empty.memory_format, (list(made.shape),)
        node.kwargs = {"dtype": made.dtype, "device": made.device}
    hangs_on: dict[fx.Node, set[fx.Node]] = {}  # of what reads nothing but constants: all that it is made from
    for node in graph.nodes:
        sources = node.all_input_nodes
        is_small = node.op == "call_function" and value_bytes(value_of(node)) <= MOST_BYTES
        if is_small and all(source in hangs_on for source in sources):
            hangs_on[node] = {node}.union(*(hangs_on[source] for source in sources))
    moved = set().union(*(made_from for made_from in hangs_on.values() if any(map(is_random, made_from))))
    last = next(node for node in reversed(graph.nodes) if node.op == "placeholder")
    for node in [node for node in graph.nodes if node in moved]:
        last.append(node)
        last = node
        node.meta[DRAWN_FIRST] = True


def split_convolution_backward(graph: fx.Graph) -> None:
    """Split the backward of convolutions in two: the gradient of the parameters, then that of the input.

    PyTorch's one operator computes both with a kernel each, but holds the saved input until the second is done, which
    never looks at it: a convolution's input gradient is the transposed convolution of its output gradient (and that of
    a transposed one a convolution). As two operators the saved input is free before the gradient of its own size is
    allocated. Source: MONeT's parameter gradients first, [Shah23], section 4.4.

    Depthwise convolutions stay whole: PyTorch has kernels of its own for them and none for their transposition. So do
    all but those whose input is at least half as large as the largest: it is these that set the least memory a step can
    run in (VGG's first layers), and another kernel can take longer.
    """
    nodes = graph.find_nodes(op="call_function", target=CONVOLUTION_BACKWARD)
    largest = max((_input_bytes(node) for node in nodes), default=0)
    for node in nodes:
        if 2 * _input_bytes(node) >= largest:
            _split(graph, node)


def _input_bytes(node: fx.Node) -> int:
    x = node.args[1]
    assert isinstance(x, fx.Node)
    return int(x.meta["val"].nbytes)


def _split(graph: fx.Graph, node: fx.Node) -> None:
    gradient, x, weight, _, stride, padding, dilation, transposed, output_padding, groups, wanted = node.args
    assert isinstance(gradient, fx.Node) and isinstance(x, fx.Node) and isinstance(weight, fx.Node)
    assert isinstance(wanted, list | tuple)
    shape, kernel = list(x.meta["val"].shape), list(weight.meta["val"].shape[2:])
    steps, pads, gaps = (as_integers(v, len(kernel)) for v in (stride, padding, dilation))
    depthwise = groups != 1 and groups in (shape[1], weight.meta["val"].shape[0])
    results = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    if list(wanted[:2]) != [True, True] or depthwise or 0 not in results or 1 not in results:
        return
    if transposed:
        missing = [0] * len(kernel)
        fits = all(extra < step for extra, step in zip(as_integers(output_padding, len(kernel)), steps, strict=True))
    else:
        # Rows of the input that no window reaches: as many as the division by the stride drops.
        sizes = zip(shape[2:], gradient.meta["val"].shape[2:], steps, pads, gaps, kernel, strict=True)
        missing = [s - ((o - 1) * step - 2 * p + d * (k - 1) + 1) for s, o, step, p, d, k in sizes]
        fits = all(0 <= m < step for m, step in zip(missing, steps, strict=True))
    if not fits:
        return
    with graph.inserting_before(node):
        rest = call(graph, CONVOLUTION_BACKWARD, *node.args[:10], [False, *wanted[1:]])
        for i, old in results.items():
            if i:
                old.replace_all_uses_with(call(graph, operator.getitem, rest, i))
        arguments = (gradient, weight, None, steps, pads, gaps, not transposed, missing, groups)
        of_input = call(graph, aten.convolution.default, *arguments)
        results[0].replace_all_uses_with(with_strides_of(graph, of_input, results[0]))
    for old in (*results.values(), node):
        graph.erase_node(old)


# In the order they run. Each changes the graph in place.
_PASSES: tuple[Callable[[fx.Graph], None], ...] = (
    clamp_from_output,
    seed_dropout,
    seed_attention,
    chunk_cross_entropy,
    split_convolution_backward,
    reduce_losses,
    join_slices,
    draw_first,
)


def run_passes(joint: fx.GraphModule) -> fx.GraphModule:
    """The joint graph with every pass applied. The argument is left as it is."""
    prepared = fx.GraphModule(joint, _without_repetitions(joint.graph))
    for change in _PASSES:
        change(prepared.graph)
    prepared.graph.lint()
    prepared.recompile()
    return prepared


def _without_repetitions(graph: fx.Graph) -> fx.Graph:
    """A copy in which nothing is computed twice from the same values, as in torch.compile's partition. Autocast, for
    one, casts what three linear layers read three times."""
    with patched(EACH_DRAW_ITS_OWN):
        copied = eliminate_common_subexpressions(graph)
    copied.output_node().meta = dict(graph.output_node().meta)
    copied.set_codegen(codegen_of(graph))
    return copied
