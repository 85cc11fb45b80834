"""What the service makes of a submission before it asks the planner floor."""

from __future__ import annotations

import contextlib
import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadmaster import planner
from loadmaster.api.planning import FloorPlanner
from loadmaster.errors import InputError
from loadmaster.models.memory.presets import chain
from loadmaster.planner import PlanOptions

MEGABYTE = 1_000_000


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Notes what identifies each request."""
    seen: list[tuple[Any, Any]] = []

    def cache_key(problem: Any, options: Any) -> str:
        seen.append((problem.sha256, options))
        return "k" * 64

    monkeypatch.setattr(planner, "cache_key", cache_key)
    return seen


def test_a_budget_counts_wherever_it_is_given(keyed: list[tuple[Any, Any]]) -> None:
    inside = {**chain(4, MEGABYTE), "budget_bytes": 5 * MEGABYTE}
    without = chain(4, MEGABYTE)
    for problem, options in [
        (inside, {}),
        (without, {"budget_bytes": 5 * MEGABYTE}),
        ({**without, "budget_bytes": 9 * MEGABYTE}, {"budget_bytes": 5 * MEGABYTE}),
    ]:
        request = FloorPlanner().read(problem, options)
        assert (request.limit, request.options["budget_bytes"]) == (5 * MEGABYTE, 5 * MEGABYTE)
    assert keyed[0] == keyed[1] == keyed[2]
    FloorPlanner().read({**inside, "budget_bytes": 6 * MEGABYTE}, {})
    assert keyed[3] != keyed[0], "another budget is another request"


def test_more_than_the_problem_states_is_refused_at_submission() -> None:
    """``check`` would refuse the plan."""
    stated = {**chain(4, MEGABYTE), "budget_bytes": 5 * MEGABYTE}
    for options in ({"budget_bytes": 6 * MEGABYTE}, {"limit": "6MB"}):
        with pytest.raises(InputError, match=r"5\.72 MiB is more than the 4\.77 MiB that the problem states") as caught:
            FloorPlanner().read(stated, options)
        assert caught.value.field == f"options.{next(iter(options))}"
        assert "Give at most 5000000" in caught.value.remedy
    assert FloorPlanner().read(stated, {"limit": "4MB"}).limit == 4 * MEGABYTE


def test_sizes_count_the_lists_of_the_problem(keyed: list[tuple[Any, Any]]) -> None:
    request = FloorPlanner().read(chain(4, MEGABYTE), {"budget_bytes": 1})  # four operators and a loss
    assert request.sizes == {"forward": 5, "backward": 5}
    assert request.unit == "us", "so that incumbents have one before there is a plan"
    assert (request.kind, request.gap, request.time_limit_s) == ("memory", 0.01, 60.0)


@pytest.mark.parametrize(
    ("change", "options", "field"),
    [
        ({}, {}, "problem.budget_bytes"),
        ({"kind": "cargo"}, {"budget_bytes": 1}, "problem.kind"),
        ({"schema": "loadmaster/problem/9"}, {"budget_bytes": 1}, "problem.schema"),
        ({"forward": [{}]}, {"budget_bytes": 1}, "problem.forward[0]."),
        ({}, {"budget_bytes": -1}, "options.budget_bytes"),
        ({}, {"budget_bytes": 1, "gap": "small"}, "options.gap"),
        ({}, {"budget_bytes": 1, "solver": "abacus"}, "options.solver"),
        ({}, {"budget_bytes": 1, "solver": "pulp:"}, "options.solver"),
        ({}, {"budget_bytes": 1, "sede": 1}, "options.sede"),
    ],
)
def test_refusals_name_the_place_in_the_request(change: dict[str, Any], options: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refusal:
        FloorPlanner().read({**chain(4, MEGABYTE), **change}, options)
    assert refusal.value.field.startswith(field)


def test_a_solver_that_is_not_installed_is_refused_at_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="not installed here"):
        FloorPlanner().read(chain(4, MEGABYTE), {"budget_bytes": 1, "solver": "cpsat"})


values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.lists(st.integers(-3, 8), max_size=3)
    | st.just({})
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_problem_with_any_value_anywhere_is_read_or_refused(
    keyed: list[tuple[Any, Any]], data: st.DataObject
) -> None:
    document: Any = {**chain(3, MEGABYTE), "budget_bytes": 5 * MEGABYTE}
    document = json.loads(json.dumps(document))
    for _ in range(data.draw(st.integers(1, 3))):
        node = document
        while True:
            places = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not places:
                break
            place = data.draw(st.sampled_from(places))
            if not isinstance(node[place], dict | list) or data.draw(st.integers(0, 4)) == 0:
                node[place] = data.draw(values)
                break
            node = node[place]
    options = data.draw(st.dictionaries(st.sampled_from([f.name for f in fields(PlanOptions)]), values, max_size=2))
    with contextlib.suppress(InputError):
        FloorPlanner().read(document, options)
