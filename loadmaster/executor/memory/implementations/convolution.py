"""Convolution backward in two: the gradient of the parameters, then that of the input.

PyTorch's one operator computes both with a kernel each, but holds the saved input until the second is done, which
never looks at it: a convolution's input gradient is the transposed convolution of its output gradient (and that of a
transposed one a convolution). As two operators the saved input is free before the gradient of its own size is
allocated. Source: MONeT's parameter gradients first, [Shah23], section 4.4.

Depthwise convolutions stay whole: PyTorch has kernels of its own for them and none for their transposition. So do all
but those with the largest inputs: it is these that set the least memory a step can run in (VGG's first layers), and
another kernel can take longer.
"""

from __future__ import annotations

import operator

from torch import fx

from loadmaster.executor.memory.implementations.emitting import aten, call, with_strides_of

BACKWARD = aten.convolution_backward.default


def split_convolution_backward(graph: fx.Graph) -> None:
    """Split the backward of convolutions whose input is at least half as large as the largest, where both gradients
    are computed."""
    nodes = graph.find_nodes(op="call_function", target=BACKWARD)
    largest = max((_input_bytes(node) for node in nodes), default=0)
    for node in nodes:
        if 2 * _input_bytes(node) >= largest:
            _split(graph, node)


def _input_bytes(node: fx.Node) -> int:
    x = node.args[1]
    assert isinstance(x, fx.Node)
    size: int = x.meta["val"].nbytes
    return size


def _split(graph: fx.Graph, node: fx.Node) -> None:
    gradient, x, weight, _, stride, padding, dilation, transposed, output_padding, groups, wanted = node.args
    assert isinstance(gradient, fx.Node) and isinstance(x, fx.Node) and isinstance(weight, fx.Node)
    assert isinstance(wanted, list | tuple)
    shape, kernel = list(x.meta["val"].shape), list(weight.meta["val"].shape[2:])
    steps, pads, gaps = (_per_dimension(v, len(kernel)) for v in (stride, padding, dilation))
    depthwise = groups != 1 and groups in (shape[1], weight.meta["val"].shape[0])
    results = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    if list(wanted[:2]) != [True, True] or depthwise or 0 not in results or 1 not in results:
        return
    if transposed:
        missing = [0] * len(kernel)
        fits = all(extra < step for extra, step in zip(_per_dimension(output_padding, len(kernel)), steps, strict=True))
    else:
        # Rows of the input that no window reaches: as many as the division by the stride drops.
        sizes = zip(shape[2:], gradient.meta["val"].shape[2:], steps, pads, gaps, kernel, strict=True)
        missing = [s - ((o - 1) * step - 2 * p + d * (k - 1) + 1) for s, o, step, p, d, k in sizes]
        fits = all(0 <= m < step for m, step in zip(missing, steps, strict=True))
    if not fits:
        return
    with graph.inserting_before(node):
        rest = call(graph, BACKWARD, *node.args[:10], [False, *wanted[1:]])
        for i, old in results.items():
            if i:
                old.replace_all_uses_with(call(graph, operator.getitem, rest, i))
        of_input = call(
            graph,
            aten.convolution.default,
            *(gradient, weight, None, steps, pads, gaps, not transposed, missing, groups),
        )
        results[0].replace_all_uses_with(with_strides_of(graph, of_input, results[0]))
    for old in (*results.values(), node):
        graph.erase_node(old)


def _per_dimension(values: object, count: int) -> list[int]:
    assert isinstance(values, list | tuple)
    return [int(v) for v in values] * (count if len(values) == 1 else 1)
