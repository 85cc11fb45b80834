"""Compiled layers against plain PyTorch in float64: values and gradients, whatever the order and schedule."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from loadmaster.executor.graph.compiled.compiling import compile as compile_layer
from loadmaster.executor.graph.compiled.module import CompiledLayer
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.models.graph.autodiff import with_backward
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.orders import orders
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.tracing import Edges, Nodes, Traced, relu, shared, traced
from tests.executor.graph.compiled.layer_cases import LAYERS, PLAIN_GRAPH, SOURCE, TARGET, TYPES, expect_same, run
from tests.executor.graph.compiled.plain_layers import PLAIN, PlainGraph, evaluated
from tests.executor.graph.compiled.random_layers import TRIPLES, drawn, graph_of, graphs, layers, schedules


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(graphs(), layers(), st.data())
def test_a_random_layer_equals_plain_pytorch_in_every_order_under_every_schedule(
    plain: PlainGraph, forward: Program, data: st.DataObject
) -> None:
    program = with_backward(data.draw(st.sampled_from(orders(forward))).program)
    schedule = data.draw(st.sampled_from([*schedules(program)]))
    values = drawn(plain, forward, data.draw(st.integers(0, 9)))
    expect_same(CompiledLayer(program, schedule, graph_of(plain)), plain, values, evaluated(forward, plain, values))


DEAR = (("rgat", 2), ("hgt", 2))  # they have most orders


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "heads"), [pytest.param(*of, marks=pytest.mark.slow) if of in DEAR else of for of in LAYERS]
)
def test_a_layer_of_the_library_equals_what_is_written_by_hand_in_every_order(name: str, heads: int) -> None:
    forward = layer(name, 4, 4, heads)
    values = drawn(PLAIN_GRAPH, forward, 1)
    weights = {name: x for name, x in values.items() if name != "h"}
    expected = PLAIN[name](PLAIN_GRAPH, values["h"], weights)
    for order in orders(forward):
        program = with_backward(order.program)
        for schedule in schedules(program):
            module = CompiledLayer(program, schedule, graph_of(PLAIN_GRAPH))
            expect_same(module, PLAIN_GRAPH, values, [expected])


def test_gradients_are_those_of_finite_differences() -> None:
    forward = layer("rgat", 3, 3)
    module, values = compile_layer(forward, graph_of(PLAIN_GRAPH)), drawn(PLAIN_GRAPH, forward, 2)

    def of(*xs: Tensor) -> Tensor:
        return run(module, dict(zip(values, xs, strict=True)))[0]

    assert torch.autograd.gradcheck(of, tuple(values.values()))


def two_outputs(nodes: Nodes, edges: Edges, weights: object) -> list[Traced]:
    """One of them twice, and one that is a feature as it was given."""
    found = edges.sum(edges.source(relu(nodes.h)))
    return [found, nodes.h, found]


def test_an_output_that_is_returned_twice_gets_both_gradients() -> None:
    forward = traced(two_outputs, nodes={"h": 4})
    values = drawn(PLAIN_GRAPH, forward, 1)
    expect_same(
        compile_layer(forward, graph_of(PLAIN_GRAPH)), PLAIN_GRAPH, values, evaluated(forward, PLAIN_GRAPH, values)
    )


def test_a_graph_without_edges_gives_zeros_and_the_part_of_the_nodes() -> None:
    empty = torch.empty(0, dtype=torch.int64)
    plain = PlainGraph(empty, empty, empty, TYPES)
    forward = layer("rgcn", 4, 4)
    values = drawn(plain, forward, 1)
    module = compile_layer(forward, graph_of(plain))
    expect_same(module, plain, values, [values["h"] @ values["W0"]])


def test_only_what_needs_a_gradient_gets_one_and_no_kernel_runs_for_the_rest() -> None:
    module = compile_layer("rgat", graph_of(PLAIN_GRAPH), width=4, out=4)
    h = torch.randn(9, 4)
    module(h).sum().backward()
    of_weights = len(next(iter(module._passes.values())).backward.kernels)
    module(h.requires_grad_()).sum().backward()
    with torch.no_grad():
        module(h)
    counts = sorted(len(found.backward.kernels) for found in module._passes.values())
    assert counts[0] == 0 and counts[1] == of_weights < counts[2]


def test_bfloat16_is_close_to_float32_and_sums_into_weights_are_taken_in_float32() -> None:
    torch.manual_seed(0)
    for name in PLAIN:
        module = compile_layer(name, graph_of(PLAIN_GRAPH), width=4, out=4)
        h = torch.randn(9, 4)
        expected = module(h)
        expected.square().sum().backward()
        gradients = {key: x.grad.clone() for key, x in module.named_parameters() if x.grad is not None}
        module.zero_grad()
        found = module.bfloat16()(h.bfloat16())
        found.float().square().sum().backward()
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)
        for key, x in module.named_parameters():
            assert x.grad is not None and x.grad.dtype == torch.bfloat16
            torch.testing.assert_close(x.grad.float(), gradients[key], rtol=0.1, atol=0.15)


def test_autocast_computes_in_its_dtype_and_gives_gradients_in_the_dtype_of_what_they_are_of() -> None:
    module = compile_layer("rgcn", graph_of(PLAIN_GRAPH), width=4, out=4)
    h = torch.randn(9, 4, requires_grad=True)
    expected = module(h)
    with torch.autocast("cpu", torch.bfloat16):
        found = module(h)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)
    found.float().sum().backward()
    assert h.grad is not None and h.grad.dtype == torch.float32
    assert module.W.grad is not None and module.W.grad.dtype == torch.float32


def test_layers_one_after_the_other_learn() -> None:
    torch.manual_seed(0)
    first = compile_layer("hgt", graph_of(PLAIN_GRAPH), width=4, out=8, heads=2)
    second = compile_layer("rgcn", graph_of(PLAIN_GRAPH), width=8, out=2)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.05)
    h, labels = torch.randn(9, 4), torch.tensor([0, 1, 0, 1, 0, 1, 0, 1, 0])
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(second(torch.relu(first(h))), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_features_of_edges_are_in_the_order_in_which_the_edges_were_given() -> None:
    def weighted(nodes: Nodes, edges: Edges, weights: object) -> Traced:
        return edges.sum(edges.source(nodes.h) * edges.w)

    forward = traced(weighted, nodes={"h": 4}, edges={"w": ()})
    values = drawn(PLAIN_GRAPH, forward, 5)
    expected = torch.zeros(9, 4, dtype=torch.float64).index_add(
        0, TARGET, values["h"][SOURCE] * values["w"].unsqueeze(1)
    )
    expect_same(compile_layer(forward, graph_of(PLAIN_GRAPH)), PLAIN_GRAPH, values, [expected])


def test_a_parameter_that_no_output_needs_has_no_gradient() -> None:
    def idle(nodes: Nodes, edges: Edges, weights: object) -> Traced:
        return edges.sum(edges.source(nodes.h))

    module = compile_layer(traced(idle, nodes={"h": 4}, weights={"V": shared(4, 4)}), graph_of(PLAIN_GRAPH))
    module(torch.randn(9, 4, requires_grad=True)).sum().backward()
    assert module.V.grad is None


def test_the_state_of_a_layer_moves_to_another_one_and_copies_are_whole() -> None:
    first, second = (compile_layer("hgt", graph_of(PLAIN_GRAPH), width=4, out=4) for _ in range(2))
    h = torch.randn(9, 4)
    expected = first(h)
    second.load_state_dict(first.state_dict())
    assert sorted(first.state_dict()) == ["A", "K", "M", "O", "Q", "V", "p"]
    torch.testing.assert_close(second(h), expected)
    torch.testing.assert_close(copy.deepcopy(first)(h), expected)
    file = io.BytesIO()
    torch.save(first, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=False)(h), expected)


def test_another_graph_with_the_same_relations_may_be_named_in_a_call() -> None:
    module = compile_layer("rgcn", graph_of(PLAIN_GRAPH), width=4, out=4).double()
    other = PlainGraph(TARGET[1:5], SOURCE[1:5], torch.tensor([0, 0, 0, 0]), torch.zeros(9, dtype=torch.int64))
    graph = Graph(other.source, other.target, node_counts={"a": 9, "b": 0}, relation=other.relation, relations=TRIPLES)
    h = torch.randn(9, 4, dtype=torch.float64)
    torch.testing.assert_close(module(h, graph=graph), PLAIN["rgcn"](other, h, dict(module.named_parameters())))
