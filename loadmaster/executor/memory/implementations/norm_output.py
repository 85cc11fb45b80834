"""BatchNorm, LayerNorm and RMSNorm backward from their output instead of their input.

The input is recovered in front of PyTorch's own backward operator, which divides by the weight. Norms without a weight
are offered as they are. With a weight it is a choice of your own, since nobody can promise at capture that training
keeps every weight away from zero (some models start there): register :class:`NormFromOutput` with the smallest weight
that you accept. The step then checks it every time and refuses to go on with wrong gradients; precision falls with
|bias / weight|, as :func:`~loadmaster.executor.memory.implementations.norms.norm_input` says.

RMSNorm is meant where it is one operator (``aten._fused_rms_norm``). Where PyTorch spells it out, its backward is many
nodes, none of which could be replaced alone; the plan keeps or recomputes what they read instead.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from torch import fx

from loadmaster.errors import InputError
from loadmaster.executor.memory.implementations.emitting import aten, call, source, with_strides_of
from loadmaster.executor.memory.implementations.norms import norm_input
from loadmaster.executor.memory.implementations.registry import NothingEncoded, Site, Value
from loadmaster.executor.torch_private.operators import overload_of

# Backward operator: positions of input, mean, rstd, weight among its arguments, and whether statistics are per channel.
_BACKWARD: dict[object, tuple[int, int | None, int, int, bool]] = {
    aten.native_batch_norm_backward.default: (1, 5, 6, 2, True),
    aten.native_layer_norm_backward.default: (1, 3, 4, 5, False),
}
# Forward operator: position of the bias, None where it has none.
_FORWARD: dict[object, int | None] = {
    aten._native_batch_norm_legit_functional.default: 2,
    aten._native_batch_norm_legit.default: 2,
    aten._native_batch_norm_legit.no_stats: 2,
    aten.native_batch_norm.default: 2,
    aten.native_layer_norm.default: 3,
}
if hasattr(aten, "_fused_rms_norm_backward"):
    _BACKWARD[aten._fused_rms_norm_backward.default] = (1, None, 3, 4, False)
    _FORWARD[aten._fused_rms_norm.default] = None
_BATCH_NORM_TRAINING = 7


class NormFromOutput(NothingEncoded):
    """Backward of normalizations from their output: those without a weight, or, with a ``smallest_weight``, those whose
    weights never fall below it in magnitude, which the step checks. InputError: the smallest weight is not above
    zero."""

    def __init__(self, smallest_weight: float | None = None) -> None:
        if smallest_weight is not None and not smallest_weight > 0:
            raise InputError("smallest_weight", smallest_weight, "is not above 0", "Pass a bound such as 0.01.")
        self.smallest_weight = smallest_weight

    @property
    def name(self) -> str:
        """Name of the alternative, another one for norms with a weight: both can be registered."""
        return "norm_output" if self.smallest_weight is None else "norm_output_weighted"

    def sites(self, joint: fx.GraphModule) -> Sequence[Site]:
        """Backward nodes of training norms whose forward is in the graph."""
        found = []
        for backward in joint.graph.nodes:
            if backward.op != "call_function" or backward.target not in _BACKWARD:
                continue
            x, _, _, weight, per_channel = _BACKWARD[backward.target]
            if (backward.args[weight] is None) != (self.smallest_weight is None):
                continue
            if per_channel and backward.args[_BATCH_NORM_TRAINING] is not True:
                continue
            output = _output(source(backward.args[x]), backward)
            if output is not None:
                found.append(Site(backward, sources=(output,)))
        return found

    def emit(self, graph: fx.Graph, site: Site, value: Value, encoded: fx.Node | None) -> fx.Node:
        backward = site.backward
        x, *positions, weight, per_channel = _BACKWARD[backward.target]
        output = site.sources[0]
        norm = output.args[0]
        assert isinstance(norm, fx.Node)
        bias_at = _FORWARD[norm.target]
        bias = None if bias_at is None or self.smallest_weight is None else norm.args[bias_at]
        dims = output.meta["val"].dim()

        def placed(argument: object) -> fx.Node | None:
            """View an argument with as many dimensions as the output."""
            if not isinstance(argument, fx.Node):
                return None
            shape = argument.meta["val"].shape
            if len(shape) == dims:
                return value(argument)
            ones = [1] * (dims - len(shape))
            target = [1, shape[0], *ones[1:]] if per_channel else [*ones, *shape]
            return call(graph, aten.view.default, value(argument), target)

        mean, rstd = (None if p is None else placed(backward.args[p]) for p in positions)
        read = (value(output), mean, rstd, placed(backward.args[weight]), placed(bias))
        recovered = call(graph, overload_of(norm_input), *read, self.smallest_weight or 0.0)
        original = backward.args[x]
        assert isinstance(original, fx.Node)
        recovered = with_strides_of(graph, recovered, original)
        assert callable(backward.target)
        arguments = list(fx.node.map_arg(backward.args, lambda n: recovered if n is original else value(n)))
        return call(graph, backward.target, *arguments)


def _output(x: fx.Node | None, backward: fx.Node) -> fx.Node | None:
    """The normalized result of the norm that this is the backward of."""
    if x is None:
        return None
    read = {source(n) for n in backward.all_input_nodes}
    for norm in x.users:
        if norm.target in _FORWARD and norm.args[0] is x:
            results = {user.args[1]: user for user in norm.users if user.target is operator.getitem}
            statistics = [node for i, node in results.items() if i and node in read]
            if 0 in results and statistics and results[0].meta["val"].dtype == x.meta["val"].dtype:
                return results[0]
    return None
