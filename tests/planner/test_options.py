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
    ("budget_bytes", "8 gigs"),
    ("budget_bytes", 1.5),
    ("limit", 8.5),
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
    assert set(PlanOptions(limit=0, budget_bytes=0, memory_limit_bytes=1 << 30, prices=True).to_document()) == {
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


def memory_to_spare() -> int:
    """By hand: when the loss of four operators goes backward, their results and the gradient that it makes."""
    return 4 * 100 + 100


def test_limits_as_people_write_them() -> None:
    """Sizes at once, shares when the problem is there, and the same plan by any of them."""
    assert PlanOptions(budget_bytes="6GiB").budget_bytes == PlanOptions(budget_bytes=" 6 GiB ").budget_bytes == 6 << 30
    assert PlanOptions(memory_limit_bytes="1GB").solver_memory_bytes == 10**9
    problem = read_problem(chain(4, 100))
    for given in ("80%", "80 %", 400, "400", "400B"):
        for name in ("budget_bytes", "limit"):
            options = planner.settled(problem, PlanOptions(**{name: given}))
            assert (options.budget_bytes, options.limit) == (0.8 * memory_to_spare(), None)
    plans = [planner.plan(problem, budget_bytes=given, method="plain") for given in ("100%", memory_to_spare())]
    assert plans[0].options == plans[1].options
    assert planner.cache_key(problem, PlanOptions(limit="100%")) == planner.cache_key(
        problem, PlanOptions(budget_bytes=memory_to_spare())
    )


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("budget_bytes", "6gib", "Write 6GiB"),
        ("budget_bytes", "6 gigs", "as in 5GiB"),
        ("budget_bytes", "half%", "Write it as 50%"),
        ("budget_bytes", "0%", "Give more than 0%"),
        ("limit", "6 gigs", "as in 5GiB"),
        ("memory_limit_bytes", "50%", "nothing here to take it of"),
        ("memory_limit_bytes", "1KiB", f"is outside {1 << 28}..{1 << 60}"),
    ],
)
def test_limits_that_are_none_name_the_option_and_the_remedy(name: str, value: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        planner.plan(read_problem(chain(4, 100)), **{name: value})
    assert caught.value.field == f"options.{name}"
    assert says in str(caught.value)


def test_a_frontier_takes_sizes_and_shares() -> None:
    problem = read_problem(chain(4, 100))
    options = PlanOptions(method="plain")
    found = planner.frontier(problem, options, budgets_bytes=["100%", "1KiB", 500])
    assert [point.budget_bytes for point in found.points] == [500, 1024]
    with pytest.raises(InputError) as caught:
        planner.frontier(problem, budgets_bytes=[500, "5 gigs"])
    assert caught.value.field == "budgets_bytes[1]"
