"""Problem and plan documents of the kind ``placement``: what is read comes back, what is wrong is refused by name."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from loadmaster.errors import InputError
from loadmaster.models.placement.documents import read_plan, read_problem, write_plan, write_problem
from loadmaster.models.placement.plan import Absence, Moves, PlacementInfeasibility, Store
from loadmaster.models.placement.problem import PlacementProblem
from tests.models.placement.tiny import KB, plan_of, problems, trace

Document = dict[str, Any]
PROBLEM = {
    "schema": "loadmaster/problem/1",
    "kind": "placement",
    "name": "small",
    "operators": [
        {"op": "write", "time_us": 10.0, "writes": [0], "workspace_bytes": 64, "module": "a", "source": "a.py:1"},
        {"op": "read", "time_us": 5.0, "reads": [0, 1]},
    ],
    "blocks": [{"name": "x", "size_bytes": 1000}, {"name": "w", "size_bytes": 500, "role": "parameter"}],
    "tiers": [
        {"name": "host", "to_gbps": 50.0, "from_gbps": 55.0, "latency_us": 2.0, "capacity_bytes": 10**9},
        {"name": "disk", "to_gbps": 2.0, "from_gbps": 3.0, "endurance_bytes": 10**15},
    ],
}
TYPED = trace([("A", "A"), ("", "")], [4])
PLAN = write_plan(plan_of(TYPED, Moves((Store(0, 0, 1),), (Absence(0, 0, 1, 2),)), 4 * KB, 28.0))
LACKING = {"minimum_budget_bytes": 4, "short_bytes": 1, "where": "operator 0"}


def changed(document: Document, *path: str | int, to: Any) -> Document:
    """With one value replaced, or added."""
    found = copy.deepcopy(document)
    place: Any = found
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return found


def without(document: Document, *path: str | int) -> Document:
    found = copy.deepcopy(document)
    place: Any = found
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    return found


@settings(max_examples=40)
@given(drawn=problems())
def test_any_problem_comes_back(drawn: tuple[PlacementProblem, int]) -> None:
    problem = replace(drawn[0], budget_bytes=drawn[1], title="t", captured_with={"torch": "2.13"})
    again = read_problem(json.loads(json.dumps(write_problem(problem))))
    assert again == problem
    assert again.sha256 == problem.sha256 == drawn[0].sha256


def test_the_small_document_says_what_it_says() -> None:
    problem = read_problem(PROBLEM)
    assert problem.tiers[0].store_us(1000) == 2 + 1000 / 50e3
    assert problem.tiers[0].load_us(1000) == 2 + 1000 / 55e3
    assert problem.operators[0].words == "a, write, a.py:1"
    assert problem.operators[1].blocks == (0, 1)
    assert (problem.compute_us, problem.unit) == (15.0, "us")
    assert problem.sizes == {"operators": 2, "blocks": 2}
    assert write_problem(problem)["blocks"] == PROBLEM["blocks"]


def test_names_and_places_are_no_part_of_the_identity_and_all_else_is() -> None:
    sha256 = read_problem(PROBLEM).sha256
    for path, value in ((("name",), "other"), (("operators", 0, "module"), "b"), (("blocks", 0, "name"), "y")):
        assert read_problem(changed(PROBLEM, *path, to=value)).sha256 == sha256
    for path, value in (
        (("operators", 0, "time_us"), 11.0),
        (("operators", 1, "reads"), [0]),
        (("blocks", 1, "role"), "state"),
        (("tiers", 0, "to_gbps"), 51.0),
        (("operators", 0, "op"), "other"),
    ):
        assert read_problem(changed(PROBLEM, *path, to=value)).sha256 != sha256


def test_blocks_are_read_in_order_each_once() -> None:
    assert read_problem(changed(PROBLEM, "operators", 1, "reads", to=[1, 0, 1])).operators[1].reads == (0, 1)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (changed(PROBLEM, "schema", to="loadmaster/problem/2"), "schema"),
        (changed(PROBLEM, "kind", to="memory"), "kind"),
        (changed(PROBLEM, "colour", to="red"), "colour"),
        (without(PROBLEM, "name"), "name"),
        (changed(PROBLEM, "name", to=""), "name"),
        (changed(PROBLEM, "operators", to=[]), "operators"),
        (changed(PROBLEM, "blocks", to=[]), "blocks"),
        (changed(PROBLEM, "tiers", to=[]), "tiers"),
        (changed(PROBLEM, "tiers", to=[PROBLEM["tiers"][0]] * 9), "tiers"),  # type: ignore[index]
        (changed(PROBLEM, "budget_bytes", to=-1), "budget_bytes"),
        (changed(PROBLEM, "budget_bytes", to="5GiB"), "budget_bytes"),
        (changed(PROBLEM, "operators", 0, "time_us", to=-1.0), "operators[0].time_us"),
        (changed(PROBLEM, "operators", 0, "time_us", to=float("nan")), "operators[0].time_us"),
        (changed(PROBLEM, "operators", 0, "workspace_bytes", to=-1), "operators[0].workspace_bytes"),
        (changed(PROBLEM, "operators", 0, "inputs", to=[]), "operators[0].inputs"),
        (without(PROBLEM, "operators", 0, "op"), "operators[0].op"),
        (changed(PROBLEM, "operators", 1, "reads", to=[-1]), "operators[1].reads[0]"),
        (changed(PROBLEM, "operators", 1, "reads", to=[2]), "operators[1].reads"),
        (changed(PROBLEM, "operators", 0, "writes", to=[0, 7]), "operators[0].writes"),
        (changed(PROBLEM, "blocks", 0, "size_bytes", to=0), "blocks[0].size_bytes"),
        (changed(PROBLEM, "blocks", 0, "size_bytes", to=1.5), "blocks[0].size_bytes"),
        (changed(PROBLEM, "blocks", 0, "role", to="weight"), "blocks[0].role"),
        (changed(PROBLEM, "tiers", 0, "to_gbps", to=0.0), "tiers[0].to_gbps"),
        (without(PROBLEM, "tiers", 0, "from_gbps"), "tiers[0].from_gbps"),
        (changed(PROBLEM, "tiers", 0, "latency_us", to=-0.5), "tiers[0].latency_us"),
        (changed(PROBLEM, "tiers", 0, "capacity_bytes", to=-1), "tiers[0].capacity_bytes"),
        (changed(PROBLEM, "tiers", 1, "endurance_bytes", to=0), "tiers[1].endurance_bytes"),
        (changed(PROBLEM, "tiers", 1, "name", to="host"), "tiers[1].name"),
    ],
)
def test_a_problem_that_means_nothing_is_refused_by_its_field(document: Document, field: str) -> None:
    with pytest.raises(InputError) as caught:
        read_problem(document)
    assert caught.value.field == field
    assert caught.value.remedy


def test_plans_come_back() -> None:
    assert write_plan(read_plan(json.loads(json.dumps(PLAN)))) == PLAN
    typed = read_plan(PLAN)
    assert typed.moves == Moves((Store(0, 0, 1),), (Absence(0, 0, 1, 2),))
    nothing = {"status": "infeasible", "objective": None, "bound": None, "gap": None, "moves": None}
    none = replace(typed, infeasibility=PlacementInfeasibility(4, 1, "operator 0"), **nothing)  # type: ignore[arg-type]
    assert read_plan(json.loads(json.dumps(write_plan(none)))) == none


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (changed(PLAN, "schema", to="loadmaster/problem/1"), "schema"),
        (changed(PLAN, "schedule", to={}), "schedule"),
        (without(PLAN, "budget_bytes"), "budget_bytes"),
        (without(PLAN, "compute_us"), "compute_us"),
        (changed(PLAN, "status", to="fine"), "status"),
        (changed(PLAN, "status", to="infeasible"), "objective"),
        (without(PLAN, "moves"), "moves"),
        (without(PLAN, "objective"), "objective"),
        (changed(PLAN, "problem_sha256", to="beef"), "problem_sha256"),
        (changed(PLAN, "check", "peak_bytes", to=-1), "check.peak_bytes"),
        (changed(PLAN, "moves", "stores", 0, "at", to=-1), "moves.stores[0].at"),
        (without(PLAN, "moves", "stores", 0, "tier"), "moves.stores[0].tier"),
        (changed(PLAN, "moves", "absences", 0, "until", to=3), "moves.absences[0].until"),
        (changed(PLAN, "moves", "absences", 0, "load_at", to=1.5), "moves.absences[0].load_at"),
        (changed(PLAN, "infeasibility", to=LACKING | {"short_bytes": -1}), "infeasibility.short_bytes"),
    ],
)
def test_a_plan_that_means_nothing_is_refused_by_its_field(document: Document, field: str) -> None:
    with pytest.raises(InputError) as caught:
        read_plan(document)
    assert caught.value.field == field
