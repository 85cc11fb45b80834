"""Documents of graph problems and plans: there and back, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from loadmaster.errors import InputError
from loadmaster.models.graph.autodiff import with_backward
from loadmaster.models.graph.documents import check_problem, read_plan, read_problem, write_plan, write_problem
from loadmaster.models.graph.library import LAYERS, layer
from loadmaster.planner.graph.driver import plan_graph
from loadmaster.planner.options import PlanOptions
from tests.models.graph import problems


@pytest.mark.parametrize("name", LAYERS)
def test_a_problem_is_read_as_it_was_written(name: str) -> None:
    problem = problems.problem(layer(name, 8, 8), 0, training=True)
    assert read_problem(write_problem(problem)) == problem


def test_a_problem_with_features_on_the_host_is_read_as_it_was_written() -> None:
    problem = problems.with_store(0)
    again = read_problem(write_problem(problem))
    assert again == problem
    assert again.sha256 == problem.sha256


def test_neither_names_nor_the_budget_are_the_problems_identity() -> None:
    one, other = problems.rgcn(0), problems.rgcn(0, budget_bytes=5, title="another")
    assert one.sha256 == other.sha256
    assert one.sha256 != problems.rgcn(0, element_bytes=2).sha256
    assert one.sha256 != problems.rgcn(1).sha256


@pytest.mark.parametrize("budget_bytes", [1 << 30, 1_000])
def test_a_plan_is_read_as_it_was_written(budget_bytes: int) -> None:
    plan = plan_graph(problems.rgcn(0, training=True), PlanOptions(budget_bytes=budget_bytes, method="auto"))
    assert plan.status == ("optimal" if budget_bytes > 1_000 else "infeasible")
    assert read_plan(write_plan(plan)) == plan


def _value(n: int, **fields: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["program"]["values"][n].update(fields)

    return change


def _program(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["program"].update(fields)


def _statistics(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["statistics"].update(fields)


# Values of rgcn: 0 h, 1 W, 2 W0, 3 source, 4 linear, 5 degree, 6 div, 7 aggregate, 8 as_node, 9 linear, 10 add.
WRONG: list[tuple[str, Callable[[dict[str, Any]], None]]] = [
    ("program.values[4].op", _value(4, op="convolve")),
    ("program.values[4] (linear4)", _value(4, inputs=[3])),
    ("program", _value(4, inputs=[0, 1])),
    ("program.values[4].inputs", _value(4, inputs=[3, 9])),
    ("program.values[7] (aggregate7)", _value(7, reduce=None)),
    ("program.values[7].reduce", _value(7, reduce="median")),
    # Features and parameters are given by name: of two with one name, one would be lost.
    ("program.values[2].name", _value(2, name="W")),
    ("program.values[10].name", _value(10, name="h")),
    ("title", lambda document: document.update(title="x" * 5_000)),
    ("program.outputs", _program(outputs=[99])),
    ("program.outputs[0]", _program(outputs=[7])),
    ("program.forward_count", _program(forward_count=5)),
    ("program.gradients", _program(gradients=[[0, 99]])),
    ("statistics.edges", _statistics(edges=[0, 0, 0, 0, 0], source_pairs=[0] * 5, target_pairs=[0] * 5)),
    ("statistics.nodes", _statistics(nodes=[0, 0])),
    ("statistics.hits", _statistics(hits=[0.0])),
    ("element_bytes", lambda document: document.update(element_bytes=3)),
    ("colour", lambda document: document.update(colour="red")),
]


@pytest.mark.parametrize(("field", "change"), WRONG)
def test_a_wrong_problem_is_refused_by_its_field(field: str, change: Callable[[dict[str, Any]], None]) -> None:
    document = write_problem(problems.rgcn(0))
    change(document)
    with pytest.raises(InputError) as caught:
        read_problem(document)
    assert caught.value.field == field


def test_a_program_with_a_backward_pass_is_refused() -> None:
    with pytest.raises(InputError, match="leaves values to a backward pass"):
        check_problem(problems.problem(with_backward(layer("rgcn", 4, 4)), 0))


def test_a_program_without_edges_is_refused() -> None:
    from loadmaster.models.graph.tracing import shared, traced

    dense = traced(lambda n, e, w: n.h @ w.W, nodes={"h": 4}, weights={"W": shared(4, 4)})
    with pytest.raises(InputError, match="aggregates nothing over edges"):
        check_problem(problems.problem(dense, 0))


def test_a_plan_without_schedule_is_refused_unless_it_is_infeasible() -> None:
    document = write_plan(plan_graph(problems.rgcn(0), PlanOptions(budget_bytes=1 << 30)))
    del document["schedule"]
    with pytest.raises(InputError) as caught:
        read_plan(document)
    assert caught.value.field == "schedule"
