"""The service under requests that nobody would write: no error of the server, and refusals that name a place.

In small; ``python -m benchmarks.service_fuzz`` is the full run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_planner import problem
from running_service import RunningService

pytest.importorskip("schemathesis", reason="schemathesis is not installed")

from tests.api.fuzzing import Spoiler, preset_problems, send_described, send_spoilt


@pytest.fixture
def service(start_service: Callable[..., RunningService]) -> RunningService:
    """A service with the real planner, which asks for no keys and has no workers."""
    return start_service(planner="loadmaster.api.planning:FloorPlanner")


@pytest.mark.slow
def test_requests_from_the_description(service: RunningService, tmp_path: Path) -> None:
    found = send_described(service.url, preset_problems(tmp_path)[0], examples=20, at=0)
    assert {name: outcome.wrong for name, outcome in found.items() if outcome.wrong} == {}
    asked = {name for name, outcome in found.items() if outcome.asked}
    assert {"POST /v1/plans (positive)", "POST /v1/plans (negative)", "PUT /v1/blobs/{sha256} (positive)"} <= asked
    # They get past the first look at what they ask for.
    assert found["GET /v1/plans/{plan_id} (positive)"].statuses[200] > 0


@pytest.mark.slow
def test_spoilt_problems_of_every_kind(service: RunningService, tmp_path: Path) -> None:
    outcome = send_spoilt(service.url, preset_problems(tmp_path), count=240, seed=0)
    assert outcome.wrong == []
    assert outcome.asked == sum(outcome.statuses.values()) == 240
    assert set(outcome.statuses) == {200, 422}


def test_the_same_seed_spoils_in_the_same_way() -> None:
    document = problem(data=[1, 2, {"a": "b"}])
    first, second, other = ([spoiler.spoil(document) for _ in range(50)] for spoiler in map(Spoiler, (1, 1, 2)))
    assert first == second != other
    assert document == problem(data=[1, 2, {"a": "b"}])
    changed = [one for one in first if one != json.dumps({"problem": document, "options": {}}).encode()]
    assert len(changed) > 40
