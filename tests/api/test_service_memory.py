"""A memory problem through the real service and the real planner, judged by the checker in this process."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from running_service import RunningService

from loadmaster.api.client import Client
from loadmaster.api.errors import UnknownPlanError
from loadmaster.api.report.memory.plan_page import plan_page
from loadmaster.api.report.memory.snapshot import snapshot_bytes
from loadmaster.api.report.memory.view import view
from loadmaster.api.report.memory.views import chrome_trace
from loadmaster.models.kinds import check_plan, read_problem
from loadmaster.models.memory.presets import chain

pytestmark = pytest.mark.slow  # the real planner

MEGABYTE = 1_000_000


def test_a_memory_problem_goes_all_the_way(start_service: Callable[..., RunningService]) -> None:
    service = start_service(planner="loadmaster.api.planning:FloorPlanner", workers=1)
    document = chain(5, MEGABYTE)
    problem = read_problem(document)
    with Client(service.url) as client:
        sizing = client.dry_run(document, {"budget_bytes": 6 * MEGABYTE})
        assert sizing.sizes["forward"] == len(problem.forward)
        handle = client.submit(problem, {"budget_bytes": 6 * MEGABYTE, "time_limit_s": 30.0})
        plan = handle.result(timeout_s=120)
        verdict = check_plan(problem.with_budget(6 * MEGABYTE), plan)
        state = handle.state()
        assert plan.objective is not None
        assert plan.bound is not None
        assert plan.bound <= plan.objective
        assert (state.state, state.objective, state.gap) == ("succeeded", plan.objective, plan.gap)
        assert verdict.ok
        assert verdict.peak_bytes <= 6 * MEGABYTE
        seen = view(problem, plan)
        assert handle.export("html") == plan_page(seen).encode()
        assert handle.export("png").startswith(b"\x89PNG")
        assert json.loads(handle.export("trace")) == json.loads(json.dumps(chrome_trace(seen)))
        assert handle.export("snapshot") == snapshot_bytes(seen)
        assert set(state.links) >= {f"export/{name}" for name in ("html", "png", "trace", "snapshot")}
        with pytest.raises(UnknownPlanError, match="no export 'msccl' of this plan; there are html, png, trace, mps"):
            handle.export("msccl")
        too_small = client.submit(document, {"budget_bytes": 1}).result(timeout_s=120)
        assert (too_small.status, too_small.schedule) == ("infeasible", None)
        assert too_small.infeasibility is not None
        assert too_small.infeasibility.short_bytes > 0
        linked = {**document, "host_link": {"to_host_gbps": 100.0, "from_host_gbps": 100.0}}
        travels = client.submit(linked, {"budget_bytes": 4 * MEGABYTE, "time_limit_s": 30.0}).result(timeout_s=120)
        assert travels.schedule is not None and travels.schedule.offload
        assert len(travels.schedule.gone_before) == len(travels.schedule.offload)
        assert check_plan(read_problem(linked), travels).ok
        again = client.submit({**document, "name": "under another name"}, {"budget_bytes": 1})
        assert again.state().cached
        assert again.result().name == "under another name"
