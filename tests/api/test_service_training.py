"""A training problem through the service, the same way as any other kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from running_service import RunningService

from loadmaster.api.client import AsyncClient, Client
from loadmaster.api.documents import FrontierResource
from loadmaster.api.protocol import Call
from loadmaster.models.hardware import hardware
from loadmaster.models.kinds import check_plan
from loadmaster.models.training.limits import least_bytes, peak_bytes
from loadmaster.models.training.plan import TrainingPlan
from loadmaster.models.training.presets import model

pytestmark = pytest.mark.slow  # the real planner

PROBLEM = model("gpt2", hardware("a100-40gb"), batch=1, sequence=128)


def test_a_training_step_goes_all_the_way(start_service: Callable[..., RunningService]) -> None:
    url = start_service(planner="loadmaster.api.planning:FloorPlanner", workers=1).url
    with Client(url) as client:
        options = {"budget_bytes": peak_bytes(PROBLEM) // 2, "time_limit_s": 20.0}
        handle = client.submit(PROBLEM, options)
        plan = handle.result(timeout_s=120)
        assert isinstance(plan, TrainingPlan)
        verdict = check_plan(PROBLEM, plan)
        assert verdict.ok and plan.objective == pytest.approx(verdict.objective)
        assert handle.state().kind == "training"
        assert b"Layer by layer" in handle.export("html")
        assert b"traceEvents" in handle.export("trace")
        assert handle.export("csv").startswith(b"group,layers,")
        half, full, soon = options["budget_bytes"], peak_bytes(PROBLEM), {"time_limit_s": 30.0, "gap": 0.5}
        frontier = client.frontier(PROBLEM, options=soon, budgets_bytes=[half, full], prices=True)
        assert all(point.prices and point.prices[0].more == "1 GiB more of the budget" for point in frontier.points)
        assert all(price.plan_gains >= 0 for point in frontier.points for price in point.prices or ())
        priced = client.plan(frontier.points[0].job).result(timeout_s=60)
        assert isinstance(priced, TrainingPlan) and len(priced.prices or ()) == len(frontier.points[0].prices or ())
        page = client.call(Call("GET", f"/frontiers/{frontier.id}")).text
        assert "What a little more would give" in page and "1 GiB more of the budget" in page
        assert client.frontier(PROBLEM, options=soon, budgets_bytes=[full]).points[0].prices is None
        none = client.submit(PROBLEM, {"budget_bytes": least_bytes(PROBLEM)[0] - 1}).result(timeout_s=120)
        assert none.status == "infeasible"


def test_prices_over_http_with_await(start_service: Callable[..., RunningService]) -> None:
    url = start_service(planner="loadmaster.api.planning:FloorPlanner", workers=1).url

    async def priced() -> FrontierResource:
        async with AsyncClient(url) as client:
            budgets = [peak_bytes(PROBLEM) // 2]
            return await client.frontier(
                PROBLEM, options={"time_limit_s": 30.0, "gap": 0.5}, budgets_bytes=budgets, prices=True
            )

    (point,) = asyncio.run(priced()).points
    assert point.prices and all(price.plan_gains >= 0 for price in point.prices)
