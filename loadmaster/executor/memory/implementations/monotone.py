"""Backward of monotone activations from their output: leaky ReLU, ELU (SELU, CELU) and softplus.

Where the output says which input it came from, the derivative follows from it, and the input need not be kept: the
layer behind mostly keeps the output anyway. PyTorch's joint graph has these from the input, and sigmoid, tanh, softmax
and log-softmax from the output; from the input those are what computing the output again gives, which every plan can
choose, and which a compiler fuses. GELU, SiLU, Mish and hardswish fall before they rise: two inputs with different
derivatives share an output, so that only the input will do. A hardtanh or ReLU is in
:mod:`loadmaster.executor.memory.implementations.activations`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import fx

from loadmaster.executor.memory.implementations.emitting import aten, call, calls, source, with_strides_of
from loadmaster.executor.memory.implementations.nothing_encoded import NothingEncoded
from loadmaster.executor.memory.implementations.registry import Site, Value


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
        """PyTorch's own backward operator, told that it reads the result."""
        gradient, _, slope, _ = site.backward.args
        assert isinstance(gradient, fx.Node)
        read = (value(gradient), value(site.sources[0]))
        return _like(graph, site, call(graph, aten.leaky_relu_backward.default, *read, slope, True))


class EluFromOutput(NothingEncoded):
    """ELU backward from the output, in PyTorch's own form for results.

    Below zero the derivative is ``output + alpha * scale`` (times the input's scale), which is as exact as the output
    is compared with alpha * scale: within that times the dtype's precision of what the input gives.
    """

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
        """PyTorch's own ELU backward, told that it reads the result."""
        gradient, *scales, _, _ = site.backward.args
        assert isinstance(gradient, fx.Node)
        read = value(site.sources[0])
        return _like(graph, site, call(graph, aten.elu_backward.default, value(gradient), *scales, True, read))


class SoftplusFromOutput(NothingEncoded):
    """Softplus backward from the output: the derivative is ``1 - exp(-beta * output)``.

    As exact as the output is: it has full relative precision where it is small, and enters little where it is large.
    """

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
        gradient, _, beta, _ = site.backward.args
        assert isinstance(gradient, fx.Node)
        exponent = call(graph, aten.mul.Scalar, value(site.sources[0]), -_number(beta))
        derivative = call(graph, aten.neg.default, call(graph, aten.expm1.default, exponent))
        return _like(graph, site, call(graph, aten.mul.Tensor, value(gradient), derivative))


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
