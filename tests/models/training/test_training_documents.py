"""Problem and plan documents of the kind ``training``: what is read comes back, what is wrong is refused by name."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.training.documents import read_plan, read_problem, write_plan, write_problem
from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import GroupPlan, Schedule, Stay, TrainingInfeasibility
from tests.models.training.steps import KB, group, plan_of, problems, schedules, step_of

Document = dict[str, Any]
PROBLEM: Document = {
    "schema": "loadmaster/problem/1",
    "kind": "training",
    "name": "small",
    "layers": [{"name": "first", "layer_class": 0}, {"name": "second", "layer_class": 0}],
    "classes": [
        {
            "name": "block",
            "points": [
                {"name": "keep", "forward_us": 10.0, "backward_us": 20.0, "kept_bytes": 3000, "backward_bytes": 500},
                {"name": "again", "forward_us": 10.0, "backward_us": 30.0, "kept_bytes": 1000},
            ],
        }
    ],
    "groups": [
        {
            "name": "w",
            "layers": [0, 1],
            "weight_bytes": 4000,
            "copy_bytes": 2000,
            "gradient_bytes": 4000,
            "copy_gradient_bytes": 2000,
            "state_bytes": 8000,
            "update_us": 3.0,
            "host_update_us": 5.0,
        },
        {"name": "f", "layers": [1], "weight_bytes": 100, "copy_bytes": 100},
    ],
    "host": {"name": "DRAM", "to_gbps": 20.0, "from_gbps": 25.0},
    "micro_batches": 2,
    "clip_grad_norm": True,
}
TYPED = step_of(2, group("a", 0), group("b", 1))
SCHEDULE = Schedule(
    (0, 0),
    (
        GroupPlan("streamed", "host", "host", stays=(Stay(0, 1), Stay(3, 4)), gradient_gone_at=5),
        GroupPlan(state="host", update_after=2, update_stay=Stay(1, 5)),
    ),
)
PLAN: Document = write_plan(plan_of(TYPED, SCHEDULE, 40 * KB, 50.0))
LACKING = {"minimum_budget_bytes": 4, "short_bytes": 1, "where": "forward of l0"}


def place(document: Document, path: tuple[str | int, ...]) -> tuple[Document, Any]:
    found = copy.deepcopy(document)
    at: Any = found
    for step in path[:-1]:
        at = at[step]
    return found, at


def changed(document: Document, *path: str | int, to: Any) -> Document:
    """With one value replaced, or added."""
    found, at = place(document, path)
    at[path[-1]] = to
    return found


def without(document: Document, *path: str | int) -> Document:
    found, at = place(document, path)
    del at[path[-1]]
    return found


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_problem_and_any_schedule_come_back(data: st.DataObject) -> None:
    drawn = data.draw(problems())
    problem = replace(drawn, budget_bytes=5, title="t", captured_with={"torch": "2.13"})
    again = read_problem(json.loads(json.dumps(write_problem(problem))))
    assert again == problem
    assert again.sha256 == problem.sha256 == drawn.sha256
    plan = plan_of(problem, data.draw(schedules(problem)), 7, 1.0)
    assert read_plan(json.loads(json.dumps(write_plan(plan)))) == plan


def test_the_small_document_says_what_it_says() -> None:
    problem = read_problem(PROBLEM)
    assert problem.host.store_us(1000) == 1000 / 20e3
    assert [point.name for point in problem.points(1)] == ["keep", "again"]
    assert [of.is_trained for of in problem.groups] == [True, False]
    assert (problem.unit, problem.sizes) == ("us", {"layers": 2, "groups": 2})
    assert write_problem(problem)["groups"] == PROBLEM["groups"]
    phases = Phases(problem)
    assert len(phases) == 8
    assert phases.uses == ((0, 1, 2, 3, 4, 5, 6, 7), (1, 2, 5, 6))
    shared = problem.groups[0]
    assert (phases.first_gradient(shared), phases.last_gradient(shared), phases.next_use(shared)) == (2, 7, 8)
    assert [phases.words(p) for p in (0, 3, 5)] == ["forward of first", "backward of first", "forward of second"]
    # Where updates wait for the norm of all gradients, they wait for the last phase.
    frozen = problem.groups[1]
    assert (phases.last_gradient(frozen), phases.update_from(frozen)) == (6, 7)


def test_names_are_no_part_of_the_identity_and_all_else_is() -> None:
    sha256 = read_problem(PROBLEM).sha256
    names: list[tuple[str | int, ...]] = [("name",), ("host", "name"), ("classes", 0, "points", 0, "name")]
    names += [(part, 0, "name") for part in ("layers", "classes", "groups")]
    for path in names:
        assert read_problem(changed(PROBLEM, *path, to="other")).sha256 == sha256
    others: list[tuple[tuple[str | int, ...], object]] = [
        (("classes", 0, "points", 0, "forward_us"), 11.0),
        (("groups", 0, "layers"), [0]),
        (("groups", 0, "state_bytes"), 1),
        (("host", "to_gbps"), 21.0),
        (("micro_batches",), 1),
        (("clip_grad_norm",), False),
        (("fixed_bytes",), 1),
    ]
    for path, value in others:
        assert read_problem(changed(PROBLEM, *path, to=value)).sha256 != sha256


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (changed(PROBLEM, "schema", to="loadmaster/problem/2"), "schema"),
        (changed(PROBLEM, "kind", to="memory"), "kind"),
        (changed(PROBLEM, "colour", to="red"), "colour"),
        (changed(PROBLEM, "layers", to=[]), "layers"),
        (changed(PROBLEM, "classes", to=[]), "classes"),
        (changed(PROBLEM, "groups", to=[]), "groups"),
        (without(PROBLEM, "host"), "host"),
        (changed(PROBLEM, "host", "to_gbps", to=0.0), "host.to_gbps"),
        (changed(PROBLEM, "layers", 0, "layer_class", to=1), "layers[0].layer_class"),
        (changed(PROBLEM, "classes", 0, "points", to=[]), "classes[0].points"),
        (changed(PROBLEM, "classes", 0, "points", 1, "backward_us", to=-1.0), "classes[0].points[1].backward_us"),
        (changed(PROBLEM, "classes", 0, "points", 1, "kept_bytes", to=1.5), "classes[0].points[1].kept_bytes"),
        (changed(PROBLEM, "groups", 0, "layers", to=[]), "groups[0].layers"),
        (changed(PROBLEM, "groups", 0, "layers", to=[2]), "groups[0].layers"),
        (changed(PROBLEM, "groups", 0, "weight_bytes", to=0), "groups[0].weight_bytes"),
        (changed(PROBLEM, "groups", 1, "state_bytes", to=8), "groups[1].state_bytes"),
        (changed(PROBLEM, "groups", 1, "copy_gradient_bytes", to=8), "groups[1].copy_gradient_bytes"),
        (changed(PROBLEM, "micro_batches", to=0), "micro_batches"),
        (changed(PROBLEM, "budget_bytes", to="5GiB"), "budget_bytes"),
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
    assert typed.schedule == SCHEDULE
    nothing = {"status": "infeasible", "objective": None, "bound": None, "gap": None, "schedule": None}
    none = replace(typed, infeasibility=TrainingInfeasibility(4, 1, "forward of l0"), **nothing)  # type: ignore[arg-type]
    assert read_plan(json.loads(json.dumps(write_plan(none)))) == none


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (changed(PLAN, "schema", to="loadmaster/problem/1"), "schema"),
        (changed(PLAN, "moves", to={}), "moves"),
        (without(PLAN, "budget_bytes"), "budget_bytes"),
        (without(PLAN, "plain_us"), "plain_us"),
        (without(PLAN, "schedule"), "schedule"),
        (without(PLAN, "objective"), "objective"),
        (changed(PLAN, "status", to="infeasible"), "objective"),
        (changed(PLAN, "check", "peak_bytes", to=-1), "check.peak_bytes"),
        (changed(PLAN, "schedule", "points", 0, to=-1), "schedule.points[0]"),
        (changed(PLAN, "schedule", "groups", 0, "weights", to="disk"), "schedule.groups[0].weights"),
        (changed(PLAN, "schedule", "groups", 0, "stays", 1, "load_at", to=-1), "schedule.groups[0].stays[1].load_at"),
        (without(PLAN, "schedule", "groups", 1, "update_stay", "gone_at"), "schedule.groups[1].update_stay.gone_at"),
        (changed(PLAN, "infeasibility", to=LACKING | {"short_bytes": -1}), "infeasibility.short_bytes"),
    ],
)
def test_a_plan_that_means_nothing_is_refused_by_its_field(document: Document, field: str) -> None:
    with pytest.raises(InputError) as caught:
        read_plan(document)
    assert caught.value.field == field
