"""Layers written as functions: what no program can say is refused, with the name of what is wrong."""

from __future__ import annotations

import math
from typing import Any

import pytest

from loadmaster.errors import InputError
from loadmaster.models.graph.tracing import Edges, Nodes, per_relation, shared, traced


def summed(nodes: Nodes, edges: Edges, weights: Any) -> Any:
    return edges.sum(edges.source(nodes.h))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda nodes, edges, weights: math.sin(nodes.h), "layer: cannot be captured: .*loadmaster.executor.graph"),
        (lambda nodes, edges, weights: nodes.h.relu(), "layer: cannot be captured: .*has no attribute 'relu'"),
        (lambda nodes, edges, weights: None, "layer: is no value of nodes .*found 'NoneType'"),
        (lambda nodes, edges, weights: [], "layer: is no value of nodes .*found 'list'"),
        (lambda nodes, edges, weights: [nodes.h, 1.0], "layer: is no value of nodes .*found 'float'"),
        (lambda nodes, edges, weights: edges.source(nodes.h), "layer: is no value of nodes .*found 'source'"),
        (lambda nodes, edges, weights: nodes.h if nodes.h else -nodes.h, "program: depends on a value"),
        (lambda nodes, edges, weights: nodes.h @ weights.W, "program: mixes values of nodes with values of edges"),
        (lambda nodes, edges, weights: nodes.h @ weights.V[edges.relation], "program: is no weight for each relation"),
        (lambda nodes, edges, weights: nodes.h @ weights.V[0], "program: is no index of a weight"),
        (lambda nodes, edges, weights: nodes.x, "program: is not among the features of nodes"),
        (lambda nodes, edges, weights: edges.sum(nodes.h), "program: is no value of edges"),
    ],
)
def test_what_no_program_can_say_is_refused(layer: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        traced(layer, nodes={"h": 4}, weights={"W": per_relation(4, 4), "V": shared(4, 4)})


@pytest.mark.parametrize("inputs", [{"weights": {"h": shared(4)}}, {"edges": {"h": 4}}])
def test_inputs_have_names_of_their_own(inputs: Any) -> None:
    with pytest.raises(InputError, match=r"layer: is the name of several inputs .*found 'h'"):
        traced(summed, nodes={"h": 4}, **inputs)


@pytest.mark.parametrize("shape", [0, -1, (2, 0), 1.5, (2.0,)])
def test_rows_have_numbers(shape: Any) -> None:
    with pytest.raises(InputError, match="h: is no shape of a row"):
        traced(summed, nodes={"h": shape})


def test_a_name_that_is_made_up_is_no_inputs_name() -> None:
    def layer(nodes: Nodes, edges: Edges, weights: Any) -> Any:
        return summed(nodes, edges, weights) + nodes.source1

    program = traced(layer, nodes={"h": 4, "source1": 4})
    names = [value.name for value in program.values]
    assert len(set(names)) == len(names)
