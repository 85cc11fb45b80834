"""What users hand to compiled layers beside the usual: tiny graphs, wide ids, shared graphs, objects of other sorts."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch

from loadmaster.errors import InputError
from loadmaster.executor.graph.compiled.capture import capture
from loadmaster.executor.graph.compiled.compiling import compile as compile_layer
from loadmaster.executor.graph.compiled.compiling import tune
from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.graph.structure.sampling import NeighbourSampler
from loadmaster.models.graph.device import graph_hardware
from loadmaster.models.graph.library import layer
from loadmaster.planner import PlanOptions
from loadmaster.planner import plan as planned
from tests.executor.graph.compiled.layer_cases import expect_same
from tests.executor.graph.compiled.plain_layers import PLAIN, PlainGraph
from tests.executor.graph.compiled.random_layers import drawn, graph_of

NONE = torch.empty(0, dtype=torch.int64)
ZERO = torch.tensor([0])
EDGELESS, ALONE, LOOP, NOBODY = (
    PlainGraph(NONE, NONE, NONE, torch.tensor([0, 0, 1])),
    PlainGraph(NONE, NONE, NONE, ZERO),
    PlainGraph(ZERO, ZERO, ZERO, ZERO),
    PlainGraph(NONE, NONE, NONE, NONE),
)


@pytest.mark.parametrize("plain", [EDGELESS, ALONE, LOOP, NOBODY], ids=["edgeless", "alone", "loop", "nobody"])
@pytest.mark.parametrize("name", [*PLAIN])
def test_the_smallest_graphs_are_graphs(name: str, plain: PlainGraph) -> None:
    forward = layer(name, 4, 4, 2 if name != "rgcn" else 1)
    values = drawn(plain, forward, 1)
    expected = PLAIN[name](plain, values["h"], {key: x for key, x in values.items() if key != "h"})
    expect_same(compile_layer(forward, graph_of(plain)), plain, values, [expected])


def test_ids_of_64_bits_and_features_that_are_not_contiguous_change_nothing() -> None:
    ends, wide = ([0, 1, 2, 2], [1, 2, 0, 1]), torch.randn(4, 3, dtype=torch.float64)
    first, second = (
        compile_layer("gat", Graph(*ends, id_dtype=d), width=4, out=4).double() for d in (None, torch.int64)
    )
    second.load_state_dict(first.state_dict())
    assert not wide.t().is_contiguous()
    torch.testing.assert_close(second(wide.t()), first(wide.t().contiguous()))


def test_a_frozen_layer_has_a_result_without_gradient_and_gives_features_theirs() -> None:
    module = compile_layer("rgcn", Graph([0, 1], [1, 2]), width=4, out=4).requires_grad_(False)
    assert not module(torch.randn(3, 4)).requires_grad
    h = torch.randn(3, 4, requires_grad=True)
    module(h).sum().backward()
    assert h.grad is not None and module.W.grad is None


def test_a_layer_that_is_evaluated_first_can_be_trained() -> None:
    module = compile_layer("gat", Graph([0, 1], [1, 2]), width=4, out=4)
    h = torch.randn(3, 4)
    with torch.inference_mode():
        expected = module(h)
    found = module(h)
    found.sum().backward()
    assert torch.equal(found, expected) and module.W.grad is not None


def test_layers_share_the_indices_of_their_graph_and_so_do_their_copies() -> None:
    graph = Graph([0, 1], [1, 2])
    layers = torch.nn.Sequential(*(compile_layer("rgcn", graph, width=4, out=4) for _ in range(2)))
    assert layers[0].graph is layers[1].graph
    other = copy.deepcopy(layers)
    assert other[0].graph is other[1].graph
    assert Indices.of(other[0].graph) is not Indices.of(graph)
    h = torch.randn(3, 4)
    assert torch.equal(other(h), layers(h))


def test_a_graph_that_is_copied_or_pickled_is_whole_and_apart() -> None:
    graph = Graph([0, 1, 1], [1, 2, 0], relation=[1, 0, 1], relations=2)
    graph.ndata["h"] = torch.arange(6.0).view(3, 2)
    graph.csc()
    for other in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert other.schema == graph.schema and other.edge_order.tolist() == graph.edge_order.tolist()
        assert other.source.tolist() == graph.source.tolist() and other.in_degrees().tolist() == [1, 1, 1]
        other.ndata["h"].zero_()
    assert graph.ndata["h"].sum() == 15


def test_the_layers_own_graph_may_be_named_and_runs_as_if_it_were_not() -> None:
    graph = Graph([0, 1], [1, 2])
    module = compile_layer("rgcn", graph, width=4, out=4)
    h = torch.randn(3, 4)
    assert torch.equal(module(h, graph=graph), module(h))
    (runs,) = module._runs.values()
    assert len(runs) == 1


@pytest.mark.slow
def test_what_is_made_of_a_block_serves_it_again_and_goes_with_it() -> None:
    graph = Graph([0, 1, 2, 3], [1, 2, 0, 0])
    module = compile_layer("gat", graph, width=4, out=4)
    block = NeighbourSampler(graph, [2])(torch.tensor([0, 1])).blocks[0]
    h = torch.randn(block.num_src_nodes(), 4)
    assert torch.equal(module(h, graph=block), module(h, graph=block))
    made, indices = (
        weakref.ref(module._runs[block][next(iter(module._runs[block]))].args[0]),
        weakref.ref(Indices.of(block)),
    )
    del block
    gc.collect()
    assert made() is None and indices() is None
    assert module(torch.randn(4, 4)).shape == (4, 4)


class Other:
    """Neither a layer, nor a graph, nor a plan."""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.nn.Linear(4, 4), Graph([0], [0])), "layer: is no program .*executor.graph.traced"),
        ((lambda nodes, edges, weights: nodes.h, Graph([0], [0])), "layer: is no program"),
        ((layer("gat", 4, 4), Other()), "graph: is no graph .*found 'Other'.*from_pyg"),
        ((layer("gat", 4, 4), Graph([0], [0]), Other()), "plan: is no plan of a graph layer"),
    ],
)
def test_what_is_no_layer_no_graph_or_no_plan_is_refused(args: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compile_layer(*args)


@pytest.mark.parametrize(
    ("args", "hardware", "message"),
    [
        ((layer("gat", 4, 4), Other()), graph_hardware("h100"), "graph: is no graph"),
        (("gat", Graph([0], [0])), graph_hardware("h100"), "layer: is no program"),
        ((layer("gat", 4, 4), Graph([0], [0])), "h100", "hardware: is no GPU's"),
        ((layer("gat", 4, 4), Graph([], [], node_count=2)), graph_hardware("h100"), "edges are too few"),
    ],
)
def test_no_problem_is_captured_of_what_is_none(args: Any, hardware: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        capture(*args, hardware=hardware)


@pytest.mark.parametrize("features", [(), (None,)])
def test_tuning_needs_features(features: Any) -> None:
    graph = Graph([0], [0])
    problem = capture(layer("gat", 4, 4), graph, hardware=graph_hardware("h100"))
    plan = planned(problem, PlanOptions(method="vanilla"))
    with pytest.raises(InputError, match=r"features: are no tensors .*Give: h"):
        tune(problem, plan, graph, *features)


@pytest.mark.parametrize("h", [None, [[1.0] * 4], torch.ones(1, 4).numpy()], ids=["none", "list", "array"])
def test_features_that_are_no_tensors_are_refused(h: Any) -> None:
    with pytest.raises(InputError, match="h: is no tensor"):
        compile_layer("gat", Graph([0], [0]), width=4, out=4)(h)


def test_weights_of_another_dtype_than_the_features_are_named() -> None:
    module = compile_layer("gat", Graph([0], [0]), width=4, out=4).double()
    with pytest.raises(InputError, match=r"W: has another dtype than h, torch\.float32"):
        module(torch.ones(1, 4))


def test_a_layer_without_attention_has_no_heads() -> None:
    with pytest.raises(InputError, match="heads: are none that this layer has"):
        compile_layer("rgcn", Graph([0], [0]), width=4, out=4, heads=2)


@pytest.mark.parametrize(("field", "width", "out"), [("width", 0, 4), ("out", 4, 0), ("out", 4, -4)])
def test_vectors_of_a_layer_have_numbers(field: str, width: int, out: int) -> None:
    with pytest.raises(InputError, match=f"{field}: is no number of numbers"):
        compile_layer("gat", Graph([0], [0]), width=width, out=out)
