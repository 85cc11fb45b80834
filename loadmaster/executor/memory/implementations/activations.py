"""ReLU and hardtanh (ReLU6) backward from the input, the output, or one bit per element.

PyTorch's joint graph has ReLU's backward from the output and hardtanh's from the input, a BatchNorm's result that
nobody else needs. A pass lets it read the output too where that tells the same, which the next operator reads anyway.
Source: Gist's binarized ReLU and MONeT's output-activated operators, [Shah23], section 4.4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from loadmaster.executor.memory.implementations.emitting import aten, call, calls, source, with_strides_of
from loadmaster.executor.memory.implementations.masks import masked_gradient, pack_inside
from loadmaster.executor.memory.implementations.nothing_encoded import NothingEncoded
from loadmaster.executor.memory.implementations.registry import Site, Value
from loadmaster.executor.torch_private.operators import overload_of

RELU_BACKWARD = aten.threshold_backward.default
HARDTANH_BACKWARD = aten.hardtanh_backward.default
HARDTANH_DEFAULTS = (-1.0, 1.0)


class ReluFromInput(NothingEncoded):
    """ReLU backward that reads the input of the ReLU instead of its output: same operator, bit-equal."""

    name = "relu_input"

    def sites(self, joint: fx.GraphModule) -> Sequence[Site]:
        """Backward nodes of a ReLU that read its output."""
        found = []
        for backward in calls(joint, RELU_BACKWARD):
            output = source(backward.args[1])
            if output is not None and output.target is aten.relu.default and backward.args[2] == 0:
                found.append(Site(backward, sources=tuple(output.all_input_nodes)))
        return found

    def emit(self, graph: fx.Graph, site: Site, value: Value, encoded: fx.Node | None) -> fx.Node:
        """ReLU's backward operator, on the input."""
        return _rerun(graph, site, value)


class ReluFromMask:
    """ReLU backward that reads one bit per element: 1/16 (bf16) to 1/64 (float64) of the activation, bit-equal."""

    name = "relu_mask"

    def sites(self, joint: fx.GraphModule) -> Sequence[Site]:
        """Every threshold backward whose threshold is exact in its dtype, whether it reads input or output."""
        found = []
        for backward in calls(joint, RELU_BACKWARD):
            parent = source(backward.args[1])
            if parent is not None and _exact(parent, (_number(backward.args[2]),)):
                found.append(Site(backward, parent=parent))
        return found

    def encode(self, graph: fx.Graph, site: Site, value: Value) -> fx.Node:
        """Bits of the elements above the threshold."""
        assert site.parent is not None
        return _packed(graph, site.parent, value, site.backward.args[2])

    def emit(self, graph: fx.Graph, site: Site, value: Value, encoded: fx.Node | None) -> fx.Node:
        """The gradient where the bit is set."""
        return _masked(graph, site, value, encoded)


class HardtanhFromInput(NothingEncoded):
    """Hardtanh backward that reads the input of the hardtanh instead of its output: same operator, bit-equal."""

    name = "hardtanh_input"

    def sites(self, joint: fx.GraphModule) -> Sequence[Site]:
        """Backward nodes of a hardtanh that read its output."""
        found = []
        for backward in calls(joint, HARDTANH_BACKWARD):
            output = source(backward.args[1])
            if output is not None and output.target is aten.hardtanh.default:
                found.append(Site(backward, sources=tuple(output.all_input_nodes)))
        return found

    def emit(self, graph: fx.Graph, site: Site, value: Value, encoded: fx.Node | None) -> fx.Node:
        """Hardtanh's backward operator, on the input."""
        return _rerun(graph, site, value)


class HardtanhFromMask:
    """Hardtanh backward that reads one bit per element, bit-equal."""

    name = "hardtanh_mask"

    def sites(self, joint: fx.GraphModule) -> Sequence[Site]:
        """Every hardtanh backward whose limits are exact in its dtype."""
        found = []
        for backward in calls(joint, HARDTANH_BACKWARD):
            parent = source(backward.args[1])
            if parent is not None and _exact(parent, _limits(backward)):
                found.append(Site(backward, parent=parent))
        return found

    def encode(self, graph: fx.Graph, site: Site, value: Value) -> fx.Node:
        """Bits of the elements strictly between the limits."""
        assert site.parent is not None
        return _packed(graph, site.parent, value, *_limits(site.backward))

    def emit(self, graph: fx.Graph, site: Site, value: Value, encoded: fx.Node | None) -> fx.Node:
        """The gradient where the bit is set."""
        return _masked(graph, site, value, encoded)


def clamp_from_output(graph: fx.Graph) -> None:
    """Let every hardtanh backward whose limits are exact in its dtype read the output, to the same bits: a pass.

    A limit that the dtype rounds inwards would leave clamped outputs inside the interval: such ones stay.
    """
    for backward in graph.find_nodes(op="call_function", target=HARDTANH_BACKWARD):
        read = backward.args[1]
        output = _hardtanh_of(source(read), backward)
        if output is not None and _exact(output, _limits(backward)):
            backward.replace_input_with(read, output)


def _rerun(graph: fx.Graph, site: Site, value: Value) -> fx.Node:
    gradient, _, *rest = site.backward.args
    assert isinstance(gradient, fx.Node)
    assert callable(site.backward.target)
    node = call(graph, site.backward.target, value(gradient), value(site.sources[0]), *rest)
    return with_strides_of(graph, node, site.backward)


def _packed(graph: fx.Graph, parent: fx.Node, value: Value, *limits: object) -> fx.Node:
    return call(graph, overload_of(pack_inside), value(parent), *limits)


def _masked(graph: fx.Graph, site: Site, value: Value, encoded: fx.Node | None) -> fx.Node:
    gradient = site.backward.args[0]
    assert isinstance(gradient, fx.Node)
    node = call(graph, overload_of(masked_gradient), value(gradient), encoded)
    return with_strides_of(graph, node, site.backward)


def _number(argument: object) -> float:
    assert isinstance(argument, int | float)
    return float(argument)


def _limits(backward: fx.Node) -> tuple[float, float]:
    return _number(backward.args[2]), _number(backward.args[3])


def _hardtanh_of(read: fx.Node | None, backward: fx.Node) -> fx.Node | None:
    for user in read.users if read is not None else ():
        if user.target is aten.hardtanh.default:
            limits = (*user.args[1:], *HARDTANH_DEFAULTS[len(user.args) - 1 :])
            if limits == _limits(backward):
                return user
    return None


def _exact(node: fx.Node, limits: tuple[float, ...]) -> bool:
    """Return whether the node's dtype holds these numbers as they are: kernels differ in when they round them."""
    value = node.meta.get("val")
    return value is not None and all(torch.tensor(x, dtype=value.dtype).item() == x for x in limits)
