"""Backward passes against finite differences, and against PyTorch's autograd of a layer written plainly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.graph.autodiff import with_backward
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.tracing import (
    Edges,
    Nodes,
    Traced,
    concat,
    dot,
    elu,
    gelu,
    log,
    per_node_type,
    per_relation,
    relu,
    shared,
    sigmoid,
    tanh,
    traced,
)
from tests.models.graph import tiny
from tests.models.graph.interpreter import TinyGraph, evaluate, results

LAYERS = [("rgcn", 1), ("rgat", 1), ("rgat", 2), ("hgt", 1), ("hgt", 2), ("gat", 2), ("simple-hgn", 1)]


def slope(program: Program, graph: TinyGraph, given: dict[str, Any], along: dict[str, Any], step: float) -> float:
    """Of the outputs, each weighed by the gradient given for it."""

    def objective(sign: float) -> float:
        moved = {name: x + sign * step * along[name] if name in along else x for name, x in given.items()}
        values = evaluate(program, graph, moved)
        return sum(
            float((values[n] * given[f"d_{program.values[n].name}"]).sum()) for n in dict.fromkeys(program.outputs)
        )

    return (objective(1) - objective(-1)) / (2 * step)


def assert_gradients_agree(forward: Program, graph: TinyGraph, seed: int) -> None:
    """Along a random direction, one name at a time."""
    program = with_backward(forward)
    given = tiny.given(program, graph, seed)
    _, gradients = results(program, graph, given)
    rng = np.random.default_rng(seed + 1)
    for name, gradient in gradients.items():
        along = rng.normal(size=given[name].shape)
        found = float((gradient * along).sum())
        expected = slope(forward, graph, given, {name: along}, 1e-6)
        assert found == pytest.approx(expected, rel=2e-5, abs=2e-6), name


@pytest.mark.parametrize(("name", "heads"), LAYERS)
def test_gradients_of_the_library_are_finite_differences(name: str, heads: int) -> None:
    for seed in range(2):
        assert_gradients_agree(layer(name, 4, 4, heads), tiny.graph(seed), seed)


def _several(nodes: Nodes, edges: Edges, weights: Any) -> Traced:
    a = edges.source(nodes.h) * edges.w
    b = concat(a, edges.target(nodes.h)) @ weights.W[edges.relation]
    mixed = edges.max(tanh(b)) + edges.mean(gelu(b)) - edges.min(elu(b) / (sigmoid(b) + 1.0))
    return relu(mixed) * (nodes.h @ weights.N[nodes.type]) + log(nodes.h * nodes.h + 2.0)


def _two_layers(nodes: Nodes, edges: Edges, weights: Any) -> Traced:
    first = relu(edges.sum(edges.source(nodes.h) @ weights.A[edges.relation]))
    score = dot(edges.source(first), edges.target(first @ weights.B)) / edges.in_degree()
    found: Traced = edges.sum(edges.softmax(score) * edges.source(first))
    return found


WEIGHTS = {"W": per_relation(6, 3), "N": per_node_type(3, 3), "A": per_relation(3, 3), "B": shared(3, 3)}


@pytest.mark.parametrize("function", [_several, _two_layers])
def test_gradients_of_other_operators_are_finite_differences(function: Callable[..., Traced]) -> None:
    program = traced(function, nodes={"h": 3}, edges={"w": ()}, weights=WEIGHTS)
    for seed in range(2):
        assert_gradients_agree(program, tiny.graph(seed), seed)


@settings(max_examples=8, deadline=None)
@drawn(st.integers(0, 10_000), st.integers(1, 7), st.integers(1, 20), st.integers(1, 4))
def test_gradients_on_random_graphs_are_finite_differences(seed: int, nodes: int, edges: int, relations: int) -> None:
    assert_gradients_agree(layer("rgat", 2, 2), tiny.graph(seed, nodes, edges, relations), seed)


def test_a_layer_of_attention_has_the_values_and_gradients_of_plain_pytorch() -> None:
    torch = pytest.importorskip("torch")
    graph = tiny.graph(3)
    program = with_backward(layer("rgat", 4, 3))
    given = tiny.given(program, graph, 0)
    h, weight, s, t = (torch.tensor(given[name], requires_grad=True) for name in ("h", "W", "s", "t"))
    source, target, relation = (torch.tensor(x) for x in (graph.source, graph.target, graph.relation))
    from_source = torch.einsum("ek,ekm->em", h[source], weight[relation])
    from_target = torch.einsum("ek,ekm->em", h[target], weight[relation])
    score = (from_source * s[relation]).sum(1) + (from_target * t[relation]).sum(1)
    score = torch.nn.functional.leaky_relu(score, 0.2).exp()
    total = torch.zeros(len(h), dtype=torch.float64).index_add(0, target, score)
    messages = (score / total[target])[:, None] * from_source
    out = torch.zeros(len(h), 3, dtype=torch.float64).index_add(0, target, messages)
    (name,) = program.given("gradient")
    out.backward(torch.tensor(given[name]))
    (found,), gradients = results(program, graph, given)
    np.testing.assert_allclose(found, out.detach().numpy(), atol=1e-12)
    for key, tensor in (("h", h), ("W", weight), ("s", s), ("t", t)):
        np.testing.assert_allclose(gradients[key], tensor.grad.numpy(), atol=1e-12)


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    forward = layer("rgcn", 2, 2)
    whole, some = with_backward(forward), with_backward(forward, [forward.given("parameter")["W"]])
    assert [some.values[n].name for n, _ in some.gradients] == ["W"]
    assert len(some.values) < len(whole.values)


def test_an_edge_feature_that_adds_the_same_at_every_edge_of_a_node_gets_a_gradient_for_each_edge() -> None:
    program = traced(
        lambda nodes, edges, weights: edges.sum(edges.source(nodes.h) + edges.w), nodes={"h": 3}, edges={"w": 3}
    )
    graph = tiny.graph(0)
    assert_gradients_agree(program, graph, 0)
    whole = with_backward(program)
    _, gradients = results(whole, graph, tiny.given(whole, graph, 0))
    assert gradients["w"].shape == (len(graph.source), 3)


def test_a_second_backward_pass_is_refused() -> None:
    with pytest.raises(InputError, match="has a backward pass already"):
        with_backward(with_backward(layer("rgcn", 2, 2)))


def test_the_gradient_of_something_computed_is_refused() -> None:
    forward = layer("rgcn", 2, 2)
    with pytest.raises(InputError, match="names more than features and parameters"):
        with_backward(forward, [len(forward.values) - 1])
