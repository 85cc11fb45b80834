"""Calls of compiled layers: blocks of sampled neighbours, plans, and what is refused before any kernel runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from loadmaster.errors import InputError
from loadmaster.executor.graph.compiled import compiling as tuning
from loadmaster.executor.graph.compiled.compiling import compile as compile_layer
from loadmaster.executor.graph.compiled.module import CompiledLayer
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.graph.structure.sampling import NeighbourSampler
from loadmaster.models.graph.device import graph_hardware
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.statistics import statistics_of
from loadmaster.models.graph.tracing import Edges, Nodes, Traced, shared, traced
from loadmaster.planner import PlanOptions
from loadmaster.planner import plan as planned
from tests.executor.graph.compiled.layer_cases import KINDS, PLAIN_GRAPH, SOURCE, TARGET
from tests.executor.graph.compiled.plain_layers import PLAIN
from tests.executor.graph.compiled.random_layers import TRIPLES, graph_of

GRAPH = graph_of(PLAIN_GRAPH)


@pytest.mark.parametrize("name", [*PLAIN])
def test_a_mini_batch_of_all_neighbours_equals_the_full_graph_at_the_seeds(name: str) -> None:
    first, second = (compile_layer(name, GRAPH, width=4, out=4).double() for _ in range(2))
    h = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    seeds = {"a": torch.tensor([1, 4]), "b": torch.tensor([0])}
    rows = torch.tensor([1, 4, 5])
    expected = second(first(h))[rows]
    upstream = torch.randn_like(expected)
    parameters = [h, *first.parameters(), *second.parameters()]
    expected_gradients = torch.autograd.grad(expected, parameters, upstream)
    blocks, ids = NeighbourSampler(GRAPH, [-1, -1])(seeds)
    inputs = torch.cat([h[ids["a"].long()], h[5 + ids["b"].long()]])
    found = second(first(inputs, graph=blocks[0]), graph=blocks[1])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    for a, b in zip(torch.autograd.grad(found, parameters, upstream), expected_gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def problem(name: str = "rgat", **more: Any) -> GraphProblem:
    statistics = statistics_of(SOURCE.numpy(), TARGET.numpy(), KINDS.numpy(), (5, 4), len(TRIPLES))
    return GraphProblem(name, layer(name, 4, 4), statistics, graph_hardware("h100"), budget_bytes=1 << 30, **more)


@pytest.fixture(scope="module")
def plan() -> Any:
    return planned(problem(), PlanOptions(time_limit_s=20))


def test_a_planned_layer_computes_what_the_greedy_one_does(plan: Any) -> None:
    module, other = (compile_layer("rgat", GRAPH, p, width=4, out=4).double() for p in (plan, None))
    other.load_state_dict(module.state_dict())
    h = torch.randn(9, 4, dtype=torch.float64)
    torch.testing.assert_close(module(h), other(h), rtol=1e-9, atol=1e-9)


def test_tuning_takes_the_schedule_that_is_fastest_when_it_is_tried(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[CompiledLayer] = []

    def step_us(module: CompiledLayer, features: Any) -> float:
        module(*features).sum().backward()
        seen.append(module)
        return 5.0 if len(seen) != 2 else 3.0

    monkeypatch.setattr(tuning, "step_us", step_us)
    h = torch.randn(9, 4)
    best = tuning.tune(problem(), plan, GRAPH, h)
    assert best is seen[1] and 2 <= len(seen) <= 1 + tuning.RIVALS
    other = compile_layer("rgat", GRAPH, plan, width=4, out=4)
    other.load_state_dict(best.state_dict())
    torch.testing.assert_close(best(h), other(h))


def test_tuning_tries_what_runs_without_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[CompiledLayer] = []

    def step_us(module: CompiledLayer, features: Any) -> float:
        seen.append(module)
        return 1.0

    def kernels(module: CompiledLayer) -> list[tuple[str, str]]:
        return sorted((kernel.template, kernel.rows) for kernel in module.schedule.kernels)

    monkeypatch.setattr(tuning, "step_us", step_us)
    monkeypatch.setattr(tuning, "RIVALS", 1)
    found = planned(problem(), PlanOptions(time_limit_s=20, method="unfused"))
    tuning.tune(problem(), found, GRAPH, torch.randn(9, 4))
    assert kernels(seen[-1]) == kernels(compile_layer("rgat", GRAPH, width=4, out=4)) != kernels(seen[0])


def test_a_step_that_is_timed_leaves_no_gradients() -> None:
    module, h = compile_layer("rgcn", GRAPH, width=4, out=4), torch.randn(9, 4, requires_grad=True)
    assert tuning.step_us(module, (h,)) > 0
    assert h.grad is None and module.W.grad is None


def test_a_plan_for_another_graph_is_refused(plan: Any) -> None:
    fewer = Graph(SOURCE[:9], TARGET[:9], node_counts={"a": 5, "b": 4}, relation=KINDS[:9], relations=TRIPLES)
    with pytest.raises(InputError, match="is for another graph"):
        compile_layer("rgat", fewer, plan, width=4, out=4)


def test_a_plan_for_another_layer_is_refused(plan: Any) -> None:
    with pytest.raises(InputError, match="is for another layer"):
        compile_layer("gat", GRAPH, plan, width=4, out=4)
    with pytest.raises(InputError, match="is for another layer"):
        compile_layer("rgat", GRAPH, plan, width=8, out=4)


def test_a_plan_for_training_is_refused_for_inference_and_one_without_schedule_always(plan: Any) -> None:
    with pytest.raises(InputError, match="is not what training=False asks for"):
        compile_layer("rgat", GRAPH, plan, width=4, out=4, training=False)
    with pytest.raises(InputError, match="has no schedule"):
        compile_layer("rgat", GRAPH, replace(plan, program=None, schedule=None), width=4, out=4)


def test_a_plan_without_gradients_of_features_refuses_features_that_need_one() -> None:
    found = planned(problem(feature_gradients=False), PlanOptions(time_limit_s=20, method="hector"))
    module = compile_layer("rgat", GRAPH, found, width=4, out=4)
    module(torch.randn(9, 4)).sum().backward()
    with pytest.raises(InputError, match="h: gets no gradient from this layer"):
        module(torch.randn(9, 4, requires_grad=True))


def test_a_layer_without_a_backward_pass_needs_no_gradients_and_refuses_to_give_one() -> None:
    module = compile_layer("hgt", GRAPH, width=4, out=4, training=False)
    assert not module(torch.randn(9, 4)).requires_grad
    with pytest.raises(InputError, match="gets no gradient from this layer"):
        module(torch.randn(9, 4, requires_grad=True))


def test_a_result_that_is_a_feature_as_it_was_given_is_a_copy() -> None:
    module = compile_layer(traced(lambda nodes, edges, weights: nodes.h, nodes={"h": 4}), GRAPH)
    h = torch.randn(9, 4)
    with torch.no_grad():
        module(h).zero_()
    assert h.any()


def test_a_layer_within_a_compiled_model_runs_as_it_is() -> None:
    layer_ = compile_layer("rgcn", GRAPH, width=4, out=4)
    model = torch.nn.Sequential(layer_, torch.nn.ReLU(inplace=True))
    h = torch.randn(9, 4)
    expected = torch.relu(layer_(h))
    torch.testing.assert_close(torch.compile(model, backend="eager")(h), expected)


def test_a_second_derivative_is_refused() -> None:
    module = compile_layer("rgcn", GRAPH, width=4, out=4)
    h = torch.randn(9, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(h).square().sum(), h, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.sum().backward()


def test_a_weight_that_changes_before_the_backward_pass_is_noticed() -> None:
    module = compile_layer("rgcn", GRAPH, width=4, out=4)
    loss = module(torch.randn(9, 4, requires_grad=True)).sum()
    with torch.no_grad():
        module.W.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def weighted(nodes: Nodes, edges: Edges, weights: object) -> Traced:
    return edges.sum(edges.source(nodes.h) * edges.w)


H, W = torch.randn(9, 4), torch.randn(13)


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((), {"h": H}, "features: is missing"),
        ((H, W, W), {}, "features: are more than 2"),
        ((H,), {"v": W}, "features: is no feature of this layer"),
        ((H,), {"h": H, "w": W}, "features: is given twice"),
        ((H[:8], W), {}, "h: does not have the 9 rows of nodes"),
        ((H, W[1:]), {}, "w: does not have the 13 rows of edges"),
        ((H[:, :3], W), {}, "h: does not have the 9 rows of nodes, or not their shape"),
        ((H, W.double()), {}, "w: has another dtype than h"),
        ((H, W.long()), {}, "w: holds no floating-point numbers"),
        ((H, W.to("meta")), {}, "w: is not on the device of h"),
    ],
)
def test_features_that_do_not_fit_are_refused(args: Any, named: Any, message: str) -> None:
    module = compile_layer(traced(weighted, nodes={"h": 4}, edges={"w": ()}), GRAPH)
    with pytest.raises(InputError, match=message):
        module(*args, **named)


def test_another_graph_must_have_the_same_relations() -> None:
    module = compile_layer("rgcn", GRAPH, width=4, out=4)
    with pytest.raises(InputError, match="graph: has other relations or types of nodes"):
        module(torch.randn(3, 4), graph=Graph([0, 1], [1, 2], node_count=3))


def test_layers_need_a_width_a_known_launch_and_names_that_modules_do_not_use() -> None:
    with pytest.raises(InputError, match="or out is missing"):
        compile_layer("rgat", GRAPH, width=4)
    with pytest.raises(InputError, match="is no way to launch kernels"):
        compile_layer("rgat", GRAPH, width=4, out=4, launch="fast")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is for GPUs"):
        compile_layer("rgat", GRAPH, width=4, out=4, launch="graph")(H)

    def named_graph(nodes: Nodes, edges: Edges, weights: Any) -> Traced:
        return edges.sum(edges.source(nodes.graph))

    with pytest.raises(InputError, match="is what calls name a graph by"):
        compile_layer(traced(named_graph, nodes={"graph": 4}), GRAPH)

    def named_training(nodes: Nodes, edges: Edges, weights: Any) -> Traced:
        return edges.sum(edges.source(nodes.h) @ weights.training)

    with pytest.raises(InputError, match="modules of PyTorch use themselves"):
        compile_layer(traced(named_training, nodes={"h": 4}, weights={"training": shared(4, 4)}), GRAPH)
