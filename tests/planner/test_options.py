"""Options: every wrong one is refused by name, with its value and what to do."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from loadmaster import planner
from loadmaster.errors import InputError
from loadmaster.models.kinds import KINDS
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.memory.presets import chain
from loadmaster.planner import PlanOptions

WRONG: list[tuple[str, Any]] = [
    ("time_limit_s", 0.0),
    ("time_limit_s", -1.0),
    ("time_limit_s", 1e9),
    ("time_limit_s", float("nan")),
    ("gap", -0.01),
    ("gap", 1.5),
    ("gap", float("nan")),
    ("seed", -1),
    ("seed", 2**31),
    ("solver", "gurobi"),
    ("solver", ""),
    ("method", "magic"),
    ("budget_bytes", -1),
    ("limit", -1),
    ("memory_limit_bytes", 1024),
]
OF_THE_WRONG_TYPE: list[tuple[str, Any]] = [
    ("time_limit_s", "60"),
    ("time_limit_s", True),
    ("time_limit_s", None),
    ("gap", [0.02]),
    ("seed", 1.5),
    ("seed", False),
    ("solver", 1),
    ("method", None),
    ("budget_bytes", "8GiB"),
    ("budget_bytes", 1.5),
    ("limit", "8GiB"),
    ("memory_limit_bytes", {}),
]


def assert_names(error: InputError, name: str, value: Any) -> None:
    assert error.field == f"options.{name}"
    assert error.value is value or error.value == value
    assert error.remedy
    assert name in str(error)


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_values_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        PlanOptions(**{name: value})
    assert_names(caught.value, name, value)
    with pytest.raises(InputError) as caught:
        PlanOptions.from_document({name: value})
    assert_names(caught.value, name, value)


@pytest.mark.parametrize(("name", "value"), OF_THE_WRONG_TYPE)
def test_values_of_the_wrong_type(name: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        PlanOptions.from_document({name: value})
    assert_names(caught.value, name, value)
    with pytest.raises(InputError) as caught:
        PlanOptions(**{name: value})
    assert_names(caught.value, name, value)


def test_unknown_options_are_told_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        PlanOptions.from_document({"time_limit": 10})
    assert_names(caught.value, "time_limit", 10)
    assert "time_limit_s" in caught.value.remedy


@pytest.mark.parametrize("method", sorted({m for kind in KINDS.values() for m in kind.methods}))
@pytest.mark.parametrize("solver", ["auto", "highs", "cpsat", "pulp:PULP_CBC_CMD"])
def test_documents_there_and_back(method: str, solver: str) -> None:
    options = PlanOptions(time_limit_s=10, gap=0.0, seed=7, solver=solver, method=method, budget_bytes=1 << 30)
    document = options.to_document()
    assert "memory_limit_bytes" not in document
    assert PlanOptions.from_document(document) == options
    assert PlanOptions.from_document({}) == PlanOptions()
    assert set(PlanOptions(limit=0, budget_bytes=0, memory_limit_bytes=1 << 30).to_document()) == {
        f.name for f in fields(PlanOptions)
    }


def test_options_by_keyword_are_checked_too() -> None:
    problem = read_problem(chain(2, 1024))
    with pytest.raises(InputError, match="gap"):
        planner.plan(problem, budget_bytes=1 << 30, gap=2.0)
    plan = planner.plan(problem, PlanOptions(method="plain", gap=0.5), budget_bytes=1 << 30)
    assert plan.method == "plain"
    assert plan.options["gap"] == 0.5
    assert plan.options["budget_bytes"] == 1 << 30
