"""The whole path, for real: HTTP on a loopback port, worker processes, job processes."""

from __future__ import annotations

from fake_planner import OPTIMUM, problem

from loadmaster.api.client import Client


def test_submit_solve_result(client: Client) -> None:
    handle = client.submit(problem(), labels={"team": "a"})
    plan = handle.document(timeout_s=60)
    assert plan["objective"] == OPTIMUM
    state = handle.state()
    assert (state.state, state.gap, state.labels, state.attempts) == ("succeeded", 0.0, {"team": "a"}, 1)
    assert "two incumbents follow" in handle.log()
    assert [e.type for e in handle.events()][-2:] == ["state", "done"]
