"""Ties between what repeats: who is tied, who is not, and that nothing is lost by it."""

from __future__ import annotations

import re
from dataclasses import replace

import loadmaster
from loadmaster.models.hardware import hardware
from loadmaster.models.partition.meshes import mesh
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.models.partition.repeats import tied
from loadmaster.models.partition.tables.builder import Graph

LAYERS = 12


def layers(count: int) -> PartitionProblem:
    g = Graph(4, hardware("h100"))
    x = g.tensor("x", (4096, 1024), "input")
    for n in range(count):
        x = g.elementwise(f"relu{n}", g.product("product", "nk,km->nm", x, g.parameter(f"w{n}", (1024, 1024))))
    g.reached(x, g.tensor("given", (4096, 1024), "input"))
    g.backward()
    g.optimizer(1, 4)
    made = g.problem("layers", "", mesh("2x2"))
    plain = [replace(operator, op=re.sub(r"\d+", "", operator.op)) for operator in made.operators]
    return replace(made, operators=tuple(plain))


def test_layers_in_the_middle_are_tied_and_the_ends_are_not() -> None:
    problem = tied(layers(LAYERS))
    weights = [tensor.tie for tensor in problem.tensors if tensor.role == "parameter"]
    middle = set(weights[4:-4])
    assert len(middle) == 1
    assert None not in middle
    assert weights[0] is None
    assert len({tie for tie in weights if tie is not None}) < LAYERS / 2


def test_different_widths_are_not_tied() -> None:
    problem = layers(2)
    wide = [replace(t, shape=(1024, 2048)) if t.name == "w0" else t for t in problem.tensors]
    ties = [t.tie for t in tied(replace(problem, tensors=tuple(wide))).tensors if t.name in ("w0", "w1")]
    assert ties == [None, None]


def test_the_best_plan_of_equal_layers_ties_them() -> None:
    problem = layers(LAYERS)
    plans = [loadmaster.plan(p, budget_bytes="10GiB", gap=0.0) for p in (problem, tied(problem))]
    assert [plan.status for plan in plans] == ["optimal", "optimal"]
    assert plans[0].objective is not None
    assert plans[1].objective is not None
    assert abs(plans[1].objective / plans[0].objective - 1) < 1e-9


def test_what_does_not_repeat_is_as_it_was() -> None:
    problem = layers(1)
    assert tied(problem) == problem
