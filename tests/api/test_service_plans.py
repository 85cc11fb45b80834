"""Plans over HTTP: submit, look, list, result, log, cancel, purge, frontiers; in process, a worker driven by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fake_planner import OPTIMUM, problem
from fastapi import FastAPI
from private_postgresql import each_database_url

from loadmaster.api.server.resources import frontier_points
from loadmaster.api.worker.worker import Worker

database_url = each_database_url


async def submit(http: httpx.AsyncClient, document: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Submit, expect it to be accepted, give the plan."""
    headers = more.pop("headers", {})
    answer = await http.post("/v1/plans", json={"problem": document, **more}, headers=headers)
    assert answer.status_code in (200, 202), answer.text
    return dict(answer.json())


async def test_a_submission_is_accepted_and_tells_where_to_look(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/plans", json={"problem": problem(name="mine"), "options": {"gap": 0.1}})
    plan = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/plans/{plan['id']}" == plan["links"]["self"]
    assert int(answer.headers["retry-after"]) >= 1
    assert (plan["state"], plan["name"], plan["kind"]) == ("queued", "mine", "fake")
    assert plan["options"] == {"gap": 0.1, "time_limit_s": 60.0}
    assert (await http.get(answer.headers["location"])).json() == plan


async def test_a_result_comes_when_the_plan_is_done(http: httpx.AsyncClient, worker: Worker) -> None:
    plan = await submit(http, problem())
    early = await http.get(f"/v1/plans/{plan['id']}/result")
    assert (early.status_code, early.json()["type"]) == (409, "urn:loadmaster:problem:not-ready")
    assert worker.work_once()
    done = (await http.get(f"/v1/plans/{plan['id']}")).json()
    assert (done["state"], done["status"], done["objective"], done["gap"]) == ("succeeded", "optimal", OPTIMUM, 0.0)
    result = await http.get(done["links"]["result"])
    assert (result.status_code, result.json()["objective"]) == (200, OPTIMUM)
    assert (await http.get(f"/v1/plans/{plan['id']}/problem")).json() == problem()
    assert "cancel" not in done["links"]


@pytest.mark.parametrize(
    ("behaviour", "state", "gap"), [("loose", "succeeded", 1 - 1 / 1.1), ("infeasible", "infeasible", None)]
)
async def test_limits_and_infeasibility_are_answers(
    http: httpx.AsyncClient, worker: Worker, behaviour: str, state: str, gap: float | None
) -> None:
    plan = await submit(http, problem(behaviour))
    worker.work_once()
    done = (await http.get(plan["links"]["self"])).json()
    assert done["state"] == state
    assert done["gap"] == (None if gap is None else pytest.approx(gap))
    assert (await http.get(done["links"]["result"])).status_code == 200


@pytest.mark.parametrize(
    ("behaviour", "error"), [("solver_error", "SolverError"), ("limit", "LimitReachedError"), ("crash", "SolverError")]
)
async def test_a_failure_says_why(
    http: httpx.AsyncClient, worker: Worker, process_worker: Worker, behaviour: str, error: str
) -> None:
    worker = process_worker if behaviour == "crash" else worker
    plan = await submit(http, problem(behaviour))
    while worker.work_once():
        pass
    done = (await http.get(plan["links"]["self"])).json()
    assert (done["state"], done["error"]["type"]) == ("failed", error)
    if behaviour == "crash":
        assert done["attempts"] == 2
        assert "2 times" in done["error"]["detail"]
        assert "SIGSEGV" in done["error"]["detail"]
    result = await http.get(f"/v1/plans/{plan['id']}/result")
    assert (result.status_code, result.json()["type"]) == (409, "urn:loadmaster:problem:no-plan")
    assert done["error"]["detail"] in result.json()["detail"]


async def test_a_crash_is_retried_once(http: httpx.AsyncClient, process_worker: Worker, tmp_path: Any) -> None:
    worker = process_worker
    plan = await submit(http, problem("crash_once", marker=str(tmp_path / "starts")))
    assert worker.work_once()
    again = (await http.get(plan["links"]["self"])).json()
    assert (again["state"], again["attempts"]) == ("queued", 1)
    assert worker.work_once()
    assert (await http.get(plan["links"]["self"])).json()["state"] == "succeeded"


async def test_proved_answers_are_reused(http: httpx.AsyncClient, worker: Worker) -> None:
    first = await submit(http, problem())
    second = await submit(http, problem())
    assert second["id"] != first["id"]
    assert worker.work_once()
    assert worker.work_once(), "the second waited for the first, and takes its plan"
    done = (await http.get(second["links"]["self"])).json()
    assert (done["state"], done["cached"], done["objective"], done["gap"]) == ("succeeded", True, OPTIMUM, 0.0)
    answer = await http.post("/v1/plans", json={"problem": problem(), "labels": {"a": "b"}})
    third = answer.json()
    assert (answer.status_code, third["state"], third["cached"], third["labels"]) == (
        200,
        "succeeded",
        True,
        {"a": "b"},
    )
    assert (await http.get(third["links"]["result"])).json()["objective"] == OPTIMUM
    assert "loadmaster_cache_hits_total 2.0" in (await http.get("/metrics")).text
    assert not worker.work_once()


async def test_unproved_answers_are_not_reused(http: httpx.AsyncClient, worker: Worker) -> None:
    await submit(http, problem("loose"))
    worker.work_once()
    assert (await submit(http, problem("loose")))["state"] == "queued"


async def test_infeasible_answers_are_reused(http: httpx.AsyncClient, worker: Worker) -> None:
    await submit(http, problem("infeasible"))
    worker.work_once()
    second = await submit(http, problem("infeasible"))
    assert (second["state"], second["cached"]) == ("infeasible", True)


async def test_an_idempotency_key_makes_one_plan(http: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "k1"}
    plans = await asyncio.gather(*(submit(http, problem(), headers=headers) for _ in range(8)))
    assert len({plan["id"] for plan in plans}) == 1
    other = await http.post("/v1/plans", json={"problem": problem("slow")}, headers=headers)
    assert (other.status_code, other.json()["errors"][0]["field"]) == (422, "Idempotency-Key")
    assert (await submit(http, problem(), headers={"Idempotency-Key": "k2"}))["id"] != plans[0]["id"]


async def test_a_dry_run_validates_and_sizes_and_makes_nothing(http: httpx.AsyncClient) -> None:
    document = problem(forward=[1, 2, 3], backward=[1])
    answer = await http.post("/v1/plans", params={"dry_run": "true"}, json={"problem": document})
    assert answer.status_code == 200
    assert (answer.json()["sizes"], answer.json()["cached"]) == ({"forward": 3, "backward": 1}, False)
    bad = await http.post("/v1/plans", params={"dry_run": "true"}, json={"problem": problem("unheard of")})
    assert bad.status_code == 422
    assert (await http.get("/v1/plans")).json()["plans"] == []


async def test_lists_are_filtered_and_paged(http: httpx.AsyncClient) -> None:
    ids = [
        (await submit(http, problem(name=str(i)), labels={"parity": "even" if i % 2 == 0 else "odd"}))["id"]
        for i in range(7)
    ]
    await http.post(f"/v1/plans/{ids[0]}:cancel")

    async def pages(address: str) -> list[list[str]]:
        found = []
        following: str | None = address
        while following is not None:
            page = (await http.get(following)).json()
            found.append([plan["id"] for plan in page["plans"]])
            following = page["next"]
        return found

    newest_first = ids[::-1]
    assert await pages("/v1/plans") == [newest_first]
    assert await pages("/v1/plans?limit=3") == [newest_first[:3], newest_first[3:6], newest_first[6:]]
    assert await pages("/v1/plans?limit=2&label=parity:even") == [[ids[6], ids[4]], [ids[2], ids[0]]]
    assert await pages("/v1/plans?state=cancelled") == [[ids[0]]]
    assert await pages("/v1/plans?kind=fake&state=queued&limit=200") == [newest_first[:-1]]
    assert await pages("/v1/plans?kind=other") == [[]]


async def test_etags_spare_what_is_known(http: httpx.AsyncClient, worker: Worker) -> None:
    plan = await submit(http, problem())
    first = await http.get(plan["links"]["self"])
    tag = {"If-None-Match": first.headers["etag"]}
    assert (await http.get(plan["links"]["self"], headers=tag)).status_code == 304
    worker.work_once()
    changed = await http.get(plan["links"]["self"], headers=tag)
    assert (changed.status_code, changed.json()["state"]) == (200, "succeeded")


async def test_a_long_poll_ends_with_the_plan_or_the_wait(http: httpx.AsyncClient, worker: Worker) -> None:
    plan = await submit(http, problem())
    assert (await http.get(plan["links"]["self"], params={"wait": 0.1})).json()["state"] == "queued"
    polling = asyncio.create_task(http.get(plan["links"]["self"], params={"wait": 30}))
    await asyncio.to_thread(worker.work_once)
    assert (await polling).json()["state"] == "succeeded"
    # With a tag it ends with the next change, whatever that is.
    other = await submit(http, problem("slow"))
    tag = (await http.get(other["links"]["self"])).headers["etag"]
    polling = asyncio.create_task(http.get(other["links"]["self"], params={"wait": 30}, headers={"If-None-Match": tag}))
    await http.post(other["links"]["cancel"])
    assert (await polling).json()["state"] == "cancelled"


async def test_cancel_is_idempotent_and_final_states_stay(http: httpx.AsyncClient, worker: Worker) -> None:
    plan = await submit(http, problem())
    for _ in range(2):
        answer = await http.post(plan["links"]["cancel"])
        assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
    assert not worker.work_once()
    done = await submit(http, problem())
    worker.work_once()
    assert (await http.post(f"/v1/plans/{done['id']}:cancel")).json()["state"] == "succeeded"
    result = await http.get(f"/v1/plans/{plan['id']}/result")
    assert (result.status_code, result.json()["type"]) == (409, "urn:loadmaster:problem:no-plan")


async def test_purge_removes_what_no_other_plan_needs(http: httpx.AsyncClient, worker: Worker) -> None:
    first, second = await submit(http, problem()), await submit(http, problem())
    early = await http.delete(first["links"]["self"])
    assert (early.status_code, early.json()["type"]) == (409, "urn:loadmaster:problem:not-final")
    while worker.work_once():
        pass
    assert (await http.delete(first["links"]["self"])).status_code == 204
    for path in ("", "/result", "/events", "/log", "/problem"):
        assert (await http.get(first["links"]["self"] + path)).status_code == 404
    assert (await http.delete(first["links"]["self"])).status_code == 404
    assert (await http.get(f"{second['links']['self']}/result")).json()["objective"] == OPTIMUM


async def test_the_log_goes_on_from_an_offset(http: httpx.AsyncClient, worker: Worker) -> None:
    plan = await submit(http, problem())
    worker.work_once()
    whole = await http.get(plan["links"]["log"])
    assert "two incumbents follow" in whole.text
    half = len(whole.content) // 2
    rest = await http.get(plan["links"]["log"], params={"offset": half})
    assert whole.content[half:] == rest.content
    assert rest.headers["log-offset"] == whole.headers["log-offset"] == str(len(whole.content))


async def test_a_frontier_is_monotone_by_construction(http: httpx.AsyncClient, worker: Worker) -> None:
    budgets = [50, 10, 30, 10]
    document = problem(worse_by={"10": 8.0, "30": 20.0, "50": 1.0})
    body = {"problem": document, "budgets_bytes": budgets, "options": {"gap": 0.5}}
    answer = await http.post("/v1/frontiers", json=body, headers={"Idempotency-Key": "f"})
    assert answer.status_code == 202
    same = await http.post("/v1/frontiers", json=body, headers={"Idempotency-Key": "f"})
    assert same.json()["id"] == answer.json()["id"]
    while worker.work_once():
        pass
    frontier = (await http.get(answer.headers["location"])).json()
    assert frontier["state"] == "succeeded"
    points = frontier["points"]
    assert [p["budget_bytes"] for p in points] == [10, 30, 50]
    # The plan for 10 bytes fits 30 bytes as well, and is better than what was found for 30.
    assert [p["objective"] for p in points] == [108.0, 108.0, 101.0]
    assert [p["plan"] for p in points] == [points[0]["job"], points[0]["job"], points[2]["job"]]
    child = (await http.get(f"/v1/plans/{points[0]['job']}")).json()
    assert child["links"]["frontier"] == frontier["links"]["self"]
    for point in points:
        assert (await http.delete(f"/v1/plans/{point['job']}")).status_code == 204
    assert (await http.get(answer.headers["location"])).status_code == 404


async def test_a_frontier_is_cancelled_as_a_whole(http: httpx.AsyncClient) -> None:
    body = {"problem": problem(), "budgets_bytes": [1, 2]}
    frontier = (await http.post("/v1/frontiers", json=body)).json()
    cancelled = await http.post(frontier["links"]["cancel"])
    assert (cancelled.status_code, cancelled.json()["state"]) == (202, "cancelled")


async def test_bounds_of_larger_budgets_hold_for_smaller_ones(http: httpx.AsyncClient, app: FastAPI) -> None:
    from dataclasses import replace

    jobs = app.state.service.jobs
    plan = await submit(http, problem())
    job = jobs.get(plan["id"])
    small = replace(job, id="a", limit=1, bound=5.0, objective=20.0, plan_sha256="x")
    large = replace(job, id="b", limit=2, bound=9.0, objective=10.0, plan_sha256="y")
    assert [p.bound for p in frontier_points((small, large))] == [9.0, 9.0]
    assert [p.gap for p in frontier_points((small, large))] == [pytest.approx(11 / 20), pytest.approx(0.1)]


async def test_the_catalogues(http: httpx.AsyncClient) -> None:
    solvers = (await http.get("/v1/solvers")).json()["solvers"]
    assert "highs" in {solver["name"] for solver in solvers}
    devices = (await http.get("/v1/hardware")).json()["hardware"]
    assert devices
    assert all(device["memory_bytes"] > 0 for device in devices)


@pytest.mark.slow
async def test_the_page_lists_plans_and_escapes_their_names(http: httpx.AsyncClient, worker: Worker) -> None:
    assert "No plans yet" in (await http.get("/")).text
    plan = await submit(http, problem(name="<script>alert(1)</script>"))
    worker.work_once()
    page = await http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert plan["id"] in page.text
    assert "succeeded" in page.text
    assert "&lt;script&gt;" in page.text
    assert "<script>" not in page.text
