"""What a picture says of results that travel."""

from __future__ import annotations

from dataclasses import replace

from loadmaster import planner
from loadmaster.api.report.memory.plan_page import plan_page
from loadmaster.api.report.memory.view import view
from loadmaster.api.report.memory.views import details
from loadmaster.api.report.memory.words import summary
from loadmaster.models.memory.documents import read_problem
from tests.models.memory.test_checked_journeys import LINK, travelling
from tests.models.memory.test_memory_checker import PLENTY, a_plan, three_operators


def test_a_result_that_is_sent_is_there_until_it_is_gone_and_from_the_issue_of_its_fetch_on() -> None:
    problem = three_operators(host_link=LINK)
    # Forward 0 runs from 0 to 5 us and is read until 12; the loss runs until 13, or from 16 on if it has to wait.
    for gone_before, end_us in (((), 13.0), ((2,), 12.0)):
        for issued_at in (2, 1):
            seen = view(problem, a_plan(problem, travelling(issued_at, gone_before), PLENTY))
            sent = seen.tensors[0]
            assert sent.fate == "offloaded"
            starts = {e.operator: e.start_us for e in seen.events if e.what == "backward"}
            read = next(e for e in seen.events if e.what == "backward" and e.operator == 2)
            back = (starts[issued_at], read.start_us + read.duration_us)
            # Issued when the backward pass starts, it has hardly been gone.
            assert sent.resident in (((0.0, end_us), back), ((0.0, back[1]),))
            assert (len(sent.resident) == 1) == (issued_at == 1 and not gone_before)


def test_what_cuts_cost_is_shown_where_there_are_any() -> None:
    for cut_us in (0.0, 6.0):
        problem = three_operators(host_link=replace(LINK, cut_us=cut_us))
        seen = view(problem, a_plan(problem, travelling(1), PLENTY))
        page, words = plan_page(seen), summary(replace(seen.plan, check=seen.check.summary()))
        assert ("cutting the graph" in page) == ("6.000 us cutting the graph" in words) == (cut_us > 0)


def test_a_step_that_takes_no_bytes_is_shown() -> None:
    nothing = {"output_bytes": 0, "live_bytes": 0, "fixed_bytes": 0}
    once = {"time_us": 1.0, "workspace_bytes": 0}
    forward = {"id": 0, "op": "f", "inputs": [], "live_inputs": [], **nothing}
    problem = read_problem(
        {
            "schema": "loadmaster/problem/1",
            "kind": "memory",
            "name": "empty",
            "forward": [{**forward, "implementations": [once], "recompute_implementations": [once]}],
            "backward": [{"id": 1, "op": "b", **nothing, "implementations": [{**once, "needs": [0]}]}],
        }
    )
    plan = replace(planner.plan(problem, budget_bytes=1), budget_bytes=0)  # 100 % of nothing
    seen = view(problem, plan)
    assert plan.check["peak_bytes"] == 0
    assert "what fills the peak" not in details(seen)
    assert "all of the budget" in plan_page(seen)
