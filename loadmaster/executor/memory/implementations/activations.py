"""Backward of activations from less than PyTorch keeps: from the input, the output, or one bit per element.

PyTorch's joint graph has ReLU's backward from the output and those of hardtanh (ReLU6), leaky ReLU, ELU (SELU, CELU)
and softplus from the input, a BatchNorm's result that nobody else needs. Where the output says which input it came
from, the derivative follows from it, and the layer behind mostly keeps it anyway. Sigmoid, tanh, softmax and
log-softmax are from the output already; from the input those are what computing the output again gives, which every
plan can choose, and which a compiler fuses. GELU, SiLU, Mish and hardswish fall before they rise: two inputs with
different derivatives share an output, so that only the input will do.
Source: Gist's binarized ReLU and MONeT's output-activated operators, [Shah23], section 4.4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import fx

from loadmaster.executor.memory.implementations.emitting import aten, call, calls, source, with_strides_of
from loadmaster.executor.memory.implementations.masks import masked_gradient, pack_inside
from loadmaster.executor.memory.implementations.registry import NothingEncoded, Site, Value
from loadmaster.executor.torch_private.operators import overload_of

HARDTANH_BACKWARD = aten.hardtanh_backward.default


class ReluFromInput(NothingEncoded):
    """ReLU backward that reads the input of the ReLU instead of its output: same operator, bit-equal."""

    name = "relu_input"
    forward, backward = aten.relu.default, aten.threshold_backward.default

    def sites(self, joint: fx.GraphModule) -> Sequence[Site]:
        found = []
        for backward in calls(joint, self.backward):
            output = source(backward.args[1])
            if output is not None and output.target is self.forward and self._fits(backward):
                found.append(Site(backward, sources=tuple(output.all_input_nodes)))
        return found

    def _fits(self, backward: fx.Node) -> bool:
        return bool(backward.args[2] == 0)

    def emit(self, graph: fx.Graph, site: Site, value: Value, encoded: fx.Node | None) -> fx.Node:
        read = (value(site.gradient), value(site.sources[0]))
        return _like(graph, site, call(graph, self.backward, *read, *site.backward.args[2:]))


class HardtanhFromInput(ReluFromInput):
    """Hardtanh backward that reads the input of the hardtanh instead of its output: same operator, bit-equal."""

    name = "hardtanh_input"
    forward, backward = aten.hardtanh.default, HARDTANH_BACKWARD

    def _fits(self, backward: fx.Node) -> bool:
        return True


class ReluFromMask:
    """ReLU backward that reads one bit per element: 1/16 (bf16) to 1/64 (float64) of the activation, bit-equal."""

    name = "relu_mask"
    backward = aten.threshold_backward.default

    def sites(self, joint: fx.GraphModule) -> Sequence[Site]:
        """Every backward whose limits are exact in its dtype, whether it reads input or output."""
        found = []
        for backward in calls(joint, self.backward):
            parent = source(backward.args[1])
            if parent is not None and _exact(parent, _limits(backward)):
                found.append(Site(backward, parent=parent))
        return found

    def encode(self, graph: fx.Graph, site: Site, value: Value) -> fx.Node:
        """Bits of the elements above the threshold, or strictly between the limits."""
        assert site.parent is not None
        return call(graph, overload_of(pack_inside), value(site.parent), *_limits(site.backward))

    def emit(self, graph: fx.Graph, site: Site, value: Value, encoded: fx.Node | None) -> fx.Node:
        return _like(graph, site, call(graph, overload_of(masked_gradient), value(site.gradient), encoded))


class HardtanhFromMask(ReluFromMask):
    """Hardtanh backward that reads one bit per element, bit-equal."""

    name = "hardtanh_mask"
    backward = HARDTANH_BACKWARD


class LeakyReluFromOutput(NothingEncoded):
    """Leaky ReLU backward from the output: it asks for the sign alone, which the output has; bit-equal."""

    name = "leaky_relu_output"

    def sites(self, joint: fx.GraphModule) -> Sequence[Site]:
        """Leaky ReLU backwards whose slope is not negative: a negative one maps both signs to the same."""
        found = []
        for backward in calls(joint, aten.leaky_relu_backward.default):
            slope = backward.args[2]
            output = _made_by(backward.args[1], aten.leaky_relu.default, (slope,), (0.01,))
            if output is not None and backward.args[3] is False and _number(slope) >= 0:
                found.append(Site(backward, sources=(output,)))
        return found

    def emit(self, graph: fx.Graph, site: Site, value: Value, encoded: fx.Node | None) -> fx.Node:
        read = (value(site.gradient), value(site.sources[0]))
        return _like(graph, site, call(graph, aten.leaky_relu_backward.default, *read, site.backward.args[2], True))


class EluFromOutput(NothingEncoded):
    """ELU backward from the output, in PyTorch's own form for results. Below zero the derivative is
    ``output + alpha * scale`` (times the input's scale), which is as exact as the output is compared with alpha *
    scale: within that times the dtype's precision of what the input gives."""

    name = "elu_output"

    def sites(self, joint: fx.GraphModule) -> Sequence[Site]:
        """Backwards of ELU, SELU and CELU whose alpha is not negative."""
        found = []
        for backward in calls(joint, aten.elu_backward.default):
            _, alpha, scale, input_scale, is_result, read = backward.args
            output = _made_by(read, aten.elu.default, (alpha, scale, input_scale), (1.0, 1.0, 1.0))
            if output is None and _number(scale) == 1 and _number(alpha) * _number(input_scale) == 1:
                output = _made_by(read, aten.celu.default, (alpha,), (1.0,))
            positive = _number(alpha) >= 0 and _number(scale) > 0 and _number(input_scale) > 0
            if output is not None and is_result is False and positive:
                found.append(Site(backward, sources=(output,)))
        return found

    def emit(self, graph: fx.Graph, site: Site, value: Value, encoded: fx.Node | None) -> fx.Node:
        _, *scales, _, _ = site.backward.args
        read = value(site.sources[0])
        return _like(graph, site, call(graph, aten.elu_backward.default, value(site.gradient), *scales, True, read))


class SoftplusFromOutput(NothingEncoded):
    """Softplus backward from the output: the derivative is ``1 - exp(-beta * output)``. It is as exact as the output,
    which has full relative precision where it is small, and enters little where it is large."""

    name = "softplus_output"

    def sites(self, joint: fx.GraphModule) -> Sequence[Site]:
        """Softplus backwards whose jump at PyTorch's threshold is below the dtype's precision, so that none is seen."""
        found = []
        for backward in calls(joint, aten.softplus_backward.default):
            _, read, beta, threshold = backward.args
            output = _made_by(read, aten.softplus.default, (beta, threshold), (1.0, 20.0))
            if output is None or _number(beta) <= 0:
                continue
            if math.exp(-_number(threshold)) <= torch.finfo(output.meta["val"].dtype).eps:
                found.append(Site(backward, sources=(output,)))
        return found

    def emit(self, graph: fx.Graph, site: Site, value: Value, encoded: fx.Node | None) -> fx.Node:
        """The gradient times ``1 - exp(-beta * output)``, in four elementwise operators."""
        exponent = call(graph, aten.mul.Scalar, value(site.sources[0]), -_number(site.backward.args[2]))
        derivative = call(graph, aten.neg.default, call(graph, aten.expm1.default, exponent))
        return _like(graph, site, call(graph, aten.mul.Tensor, value(site.gradient), derivative))


def _like(graph: fx.Graph, site: Site, node: fx.Node) -> fx.Node:
    return with_strides_of(graph, node, site.backward)


def _number(argument: object) -> float:
    assert isinstance(argument, int | float)
    return float(argument)


def _made_by(argument: object, op: object, plain: tuple[object, ...], defaults: tuple[float, ...]) -> fx.Node | None:
    """The result of this operator, with these plain arguments, on the node; None if there is none."""
    read = source(argument)
    for user in read.users if read is not None else ():
        if user.target is op and (*user.args[1:], *defaults[len(user.args) - 1 :]) == plain:
            return user
    return None


def clamp_from_output(graph: fx.Graph) -> None:
    """Let every hardtanh backward whose limits are exact in its dtype read the output, to the same bits: a pass. A
    limit that the dtype rounds inwards would leave clamped outputs inside the interval: such ones stay."""
    for backward in graph.find_nodes(op="call_function", target=HARDTANH_BACKWARD):
        read, limits = backward.args[1], _limits(backward)
        output = _made_by(read, aten.hardtanh.default, limits, (-1.0, 1.0))
        if output is not None and _exact(output, limits):
            backward.replace_input_with(read, output)


def _limits(backward: fx.Node) -> tuple[float, ...]:
    """The threshold of a ReLU's backward, both limits of a hardtanh's."""
    return tuple(map(_number, backward.args[2:]))


def _exact(node: fx.Node, limits: tuple[float, ...]) -> bool:
    """Return whether the node's dtype holds these numbers as they are: kernels differ in when they round them."""
    value = node.meta.get("val")
    return value is not None and all(torch.tensor(x, dtype=value.dtype).item() == x for x in limits)
