"""The registry: an implementation of one's own, opting out, and clear refusals."""

from __future__ import annotations

import pytest
import torch
from joint_graphs import arguments, flat, joint_graph, substitute
from torch import nn

from loadmaster.errors import InputError
from loadmaster.executor.memory.implementations import registry
from loadmaster.executor.memory.implementations.emitting import aten, call, calls, source
from loadmaster.executor.memory.implementations.passes import run_passes

BUILT_IN = (
    *("relu_input", "relu_mask", "hardtanh_input", "hardtanh_mask", "max_pool_offsets"),
    *("leaky_relu_output", "elu_output", "softplus_output", "norm_output"),
)


class TanhFromHalf:
    """Tanh backward from the output in half the bytes: what a user might write."""

    name = "tanh_float32"

    def sites(self, joint):
        found = calls(joint, aten.tanh_backward.default)
        return [registry.Site(node, parent=source(node.args[1])) for node in found]

    def encode(self, graph, site, value):
        return call(graph, torch.ops.prims.convert_element_type.default, value(site.parent), torch.float32)

    def emit(self, graph, site, value, encoded):
        output = call(graph, torch.ops.prims.convert_element_type.default, encoded, torch.float64)
        return call(graph, aten.tanh_backward.default, value(site.backward.args[0]), output)


@pytest.fixture
def own():
    alternative = TanhFromHalf()
    registry.register(alternative)
    yield alternative
    registry.unregister(alternative.name)


def test_built_in_ones_are_there_and_can_be_left_out():
    names = tuple(a.name for a in registry.alternatives())
    assert set(BUILT_IN) <= set(names)
    left = tuple(a.name for a in registry.alternatives(exclude=["relu_mask"]))
    assert left == tuple(n for n in names if n != "relu_mask")


def test_an_implementation_of_ones_own(own):
    assert own in registry.alternatives()
    module = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double()
    x = torch.randn(3, 5, dtype=torch.float64)
    joint = joint_graph(module, x)
    changed, sites = substitute(joint, own)
    assert sites == 1
    encoded = next(n for n in changed.graph.nodes if "convert_element_type" in n.name)
    assert encoded.meta["val"].dtype == torch.float32
    args = arguments(module, [x], [torch.randn(3, 2, dtype=torch.float64)])
    for got, want in zip(flat(changed(*args)), flat(joint(*args)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_refusals(own):
    with pytest.raises(InputError, match=r"alternative.name: .*already registered"):
        registry.register(own)
    with pytest.raises(InputError, match=r"alternative: .*methods sites, encode and emit"):
        registry.register(object())
    with pytest.raises(InputError, match=r"exclude: .*relu_mask"):
        registry.alternatives(exclude=["nonsense"])
    with pytest.raises(InputError, match="name: "):
        registry.unregister("nonsense")


def test_prepare_is_deterministic_and_leaves_its_argument_alone():
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3), nn.Dropout(0.1))
    joint = joint_graph(module, torch.randn(2, 4))
    before = str(joint.graph)
    once, again = run_passes(joint), run_passes(joint)
    assert str(joint.graph) == before
    assert str(once.graph) == str(again.graph) != before
    assert str(run_passes(once).graph) == str(once.graph)
    assert all("val" in n.meta for n in once.graph.nodes if n.op == "call_function")
