"""Every order of a program computes what the program computes, and its backward pass the same gradients."""

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
from loadmaster.models.graph.lowering import greedy_schedule
from loadmaster.models.graph.orders import MOST_ORDERS, orders
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule_rules import broken_rules
from loadmaster.models.graph.tracing import Edges, Nodes, Traced, concat, dot, leaky_relu, per_relation, shared, traced
from tests.models.graph import tiny
from tests.models.graph.interpreter import TinyGraph, results
from tests.models.graph.random_programs import random_program

LAYERS = [("rgcn", 1), ("rgat", 1), ("rgat", 2), ("hgt", 1), ("hgt", 2), ("gat", 1), ("gat", 2), ("simple-hgn", 1)]


def assert_all_agree(program: Program, graph: TinyGraph, seed: int, most: int = MOST_ORDERS) -> None:
    whole = with_backward(program)
    given = tiny.given(whole, graph, seed)
    outputs, gradients = results(whole, graph, given)
    known = [*whole.given("gradient")]
    for order in orders(program, most):
        made = with_backward(order.program)
        # Gradients of outputs are called after these; values are called otherwise in other orders.
        renamed = {name: given[of] for name, of in zip(made.given("gradient"), known, strict=True)}
        found, of = results(made, graph, {**given, **renamed})
        for x, y in zip(found, outputs, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9, err_msg=str(order.choices))
        assert of.keys() == gradients.keys()
        for key in gradients:
            np.testing.assert_allclose(of[key], gradients[key], rtol=1e-9, atol=1e-9, err_msg=f"{key} {order.choices}")


@pytest.mark.parametrize(("name", "heads"), LAYERS)
def test_orders_of_the_library_agree(name: str, heads: int) -> None:
    assert_all_agree(layer(name, 4, 4, heads), tiny.graph(1), 1)


def _concatenated(nodes: Nodes, edges: Edges, weights: Any) -> Traced:
    both = concat(edges.source(nodes.h) @ weights.W[edges.relation], edges.target(nodes.h) @ weights.W[edges.relation])
    found: Traced = edges.sum(
        edges.softmax(leaky_relu(dot(both, weights.a[edges.relation]), 0.2)) * edges.source(nodes.h)
    )
    return found


def _chained(nodes: Nodes, edges: Edges, weights: Any) -> Traced:
    deep = edges.source((nodes.h @ weights.A) @ weights.B) @ weights.W[edges.relation]
    return edges.sum(-(deep * 0.5) / edges.in_degree()) + edges.sum(edges.w * (edges.source(nodes.h) @ weights.A))


def _put_together(nodes: Nodes, edges: Edges, weights: Any) -> Traced:
    """Rows of edges, of both ends and of nothing but a weight, through weights by relation and through one for all."""
    inner = concat(edges.source(nodes.h @ weights.A), edges.target(nodes.h))
    ends = concat(edges.source(nodes.h), edges.target(nodes.h))
    found: Traced = edges.sum(concat(inner, weights.v[edges.relation]) @ weights.Q[edges.relation])
    return found + edges.sum(edges.w * leaky_relu(ends @ weights.P, 0.2))


def _put_together_of_heads(nodes: Nodes, edges: Edges, weights: Any) -> Traced:
    ends = concat(edges.source(nodes.h @ weights.D).heads(2), edges.target(nodes.h @ weights.D).heads(2))
    found: Traced = edges.sum((ends @ weights.E[edges.relation]).joined())
    return found


OTHERS: list[Callable[..., Traced]] = [_concatenated, _chained, _put_together, _put_together_of_heads]


def other(function: Callable[..., Traced]) -> Program:
    square = {"A": shared(3, 3), "B": shared(3, 3), "W": per_relation(3, 3), "a": per_relation(6)}
    long = {"P": shared(6, 3), "Q": per_relation(8, 3), "v": per_relation(2)}
    of_heads = {"D": shared(3, 4), "E": per_relation(2, 4, 3)}
    return traced(function, nodes={"h": 3}, edges={"w": ()}, weights={**square, **long, **of_heads})


@pytest.mark.parametrize("function", OTHERS)
def test_orders_of_chains_and_vectors_put_together_agree(function: Callable[..., Traced]) -> None:
    assert_all_agree(other(function), tiny.graph(2), 2)


@settings(max_examples=5, deadline=None)
@drawn(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 12), st.integers(1, 3), st.sampled_from(LAYERS))
def test_orders_agree_on_random_graphs(seed: int, nodes: int, edges: int, relations: int, of: tuple[str, int]) -> None:
    assert_all_agree(layer(of[0], 2, 2, of[1]), tiny.graph(seed, nodes, edges, relations), seed, most=5)


@settings(max_examples=15, deadline=None)
@drawn(st.integers(0, 100_000))
def test_orders_of_random_programs_agree_and_have_schedules(seed: int) -> None:
    program = random_program(seed)
    assert_all_agree(program, tiny.graph(seed), seed, most=6)
    found = orders(program)
    assert len({str(sorted(order.choices.items())) for order in found}) == len(found)
    for order in found[:6]:
        step = with_backward(order.program)
        assert broken_rules(step, greedy_schedule(step)) == [], order.choices


@pytest.mark.parametrize(("name", "heads"), LAYERS)
def test_every_order_has_a_schedule_by_rule(name: str, heads: int) -> None:
    for order in orders(layer(name, 8, 8, heads)):
        for program in (order.program, with_backward(order.program)):
            assert broken_rules(program, greedy_schedule(program)) == [], order.choices


def test_orders_of_attention_are_named_by_what_is_chosen() -> None:
    found = orders(layer("rgat", 4, 4))
    assert {"dot8": "as written", "dot9": "as written", "aggregate16": "as written"}.items() <= found[0].choices.items()
    both = [o for o in found if o.choices.get("dot8") == o.choices.get("dot9") == "weights first"]
    # The scores need no products of rows then: what is left is for messages, on pairs, on edges, or after the sum.
    products = sorted(
        tuple(o.program.types[n].space for n, v in enumerate(o.program.values) if v.op == "linear") for o in both
    )
    assert products == [("edge",), ("source_pair",), ("target_pair",)]


def test_a_sum_over_relations_can_be_taken_before_the_product() -> None:
    (found,) = [o for o in orders(layer("rgcn", 4, 4)) if o.choices.get("aggregate7") == "sum first"]
    spaces = [found.program.types[n].space for n, v in enumerate(found.program.values) if v.op == "linear"]
    assert sorted(spaces) == ["node", "target_pair"]


def test_a_product_of_both_ends_can_be_taken_for_each_of_them() -> None:
    for name, spaces in (("P", ["node", "node"]), ("W", ["source_pair", "target_pair"])):

        def ends(nodes: Nodes, edges: Edges, weights: Any, name: str = name) -> Traced:
            weight = weights.P if name == "P" else weights.W[edges.relation]
            return edges.sum(leaky_relu(concat(edges.source(nodes.h), edges.target(nodes.h)) @ weight, 0.2))  # type: ignore[no-any-return]

        weight = {"P": shared(6, 3)} if name == "P" else {"W": per_relation(6, 3)}
        first, *others = orders(traced(ends, nodes={"h": 3}, weights=weight))
        by_parts = next(o for o in others if "by parts" in o.choices.values())
        of_first, of_parts = (
            sorted(o.program.types[n].space for n, v in enumerate(o.program.values) if v.op == "linear")
            for o in (first, by_parts)
        )
        assert of_first == ["edge"] and of_parts == spaces


def test_a_product_of_parts_that_have_as_many_rows_is_one_product() -> None:
    def beside(nodes: Nodes, edges: Edges, weights: Any) -> Traced:
        return concat(nodes.h, edges.sum(edges.source(nodes.h))) @ weights.P

    (only,) = orders(traced(beside, nodes={"h": 3}, weights={"P": shared(6, 3)}))
    assert "by parts" not in only.choices.values()


def test_orders_are_different_and_not_too_many() -> None:
    for name, heads in LAYERS:
        found = orders(layer(name, 4, 4, heads))
        assert 1 <= len(found) <= MOST_ORDERS
        assert len({str([*o.program.described()]) for o in found}) == len(found)
        assert len({str(sorted(o.choices.items())) for o in found}) == len(found)
    assert len(orders(layer("rgat", 4, 4), most=5)) == 5


def test_a_program_with_a_backward_pass_has_no_orders() -> None:
    with pytest.raises(InputError, match="has a backward pass"):
        orders(with_backward(layer("rgcn", 2, 2)))
