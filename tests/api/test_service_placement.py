"""A placement problem through the service, the same way as any other kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from running_service import RunningService

from loadmaster.api.client import Client
from loadmaster.models.kinds import check_plan
from loadmaster.models.placement.limits import least_bytes
from loadmaster.models.placement.plan import PlacementPlan
from tests.models.placement.tiny import KB, trace

pytestmark = pytest.mark.slow  # the real planner

PROBLEM = trace([("A", "A"), ("B", ""), ("C", "C")], [4, 3, 2], times=5.0)


def test_a_placement_goes_all_the_way(start_service: Callable[..., RunningService]) -> None:
    url = start_service(planner="loadmaster.api.planning:FloorPlanner", workers=1).url
    with Client(url) as client:
        handle = client.submit(PROBLEM, {"budget_bytes": 6 * KB, "time_limit_s": 20.0})
        plan = handle.result(timeout_s=120)
        assert isinstance(plan, PlacementPlan)
        verdict = check_plan(PROBLEM, plan)
        assert verdict.ok and plan.objective == pytest.approx(verdict.objective)
        assert handle.state().kind == "placement"
        assert b"Memory over the step" in handle.export("html")
        assert b"traceEvents" in handle.export("trace")
        none = client.submit(PROBLEM, {"budget_bytes": least_bytes(PROBLEM)[0] - 1}).result(timeout_s=120)
        assert none.status == "infeasible"
