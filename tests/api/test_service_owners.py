"""Whose a plan is: shown, listed by, and changed by its owner alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from fake_planner import problem
from fastapi import FastAPI

from loadmaster.api.server.app import create_app
from loadmaster.api.settings import Settings
from loadmaster.api.store.keys import Keys, Scope
from loadmaster.api.worker.worker import Worker

SWEEP = {"problem": problem(), "budgets_bytes": [1, 2]}


@pytest.fixture
def app(make_settings: Callable[..., Settings]) -> FastAPI:
    """A service that asks for keys."""
    return create_app(make_settings(keys="required"))


@pytest.fixture
async def callers(app: FastAPI) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """Two who submit, one who looks, one who may do all."""
    keys = Keys(app.state.service.database)
    scopes = {"ann": Scope.SUBMIT, "bob": Scope.SUBMIT, "eye": Scope.READ, "root": Scope.ADMIN}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    made = {
        name: httpx.AsyncClient(
            transport=transport,
            base_url="http://localhost",
            headers={"Authorization": f"Bearer {keys.add(name, scope)}"},
        )
        for name, scope in scopes.items()
    }
    yield made
    for client in made.values():
        await client.aclose()


async def submit(client: httpx.AsyncClient, name: str = "a problem", **more: object) -> str:
    """The address of a plan that was submitted."""
    answer = await client.post("/v1/plans", json={"problem": problem(name=name), **more})
    assert answer.status_code in (200, 202), answer.text
    return str(answer.headers["location"])


async def test_every_plan_says_whose_it_is(callers: dict[str, httpx.AsyncClient]) -> None:
    plan = await submit(callers["ann"])
    assert (await callers["eye"].get(plan)).json()["owner"] == "ann"
    frontier = (await callers["bob"].post("/v1/frontiers", json=SWEEP)).json()
    assert frontier["owner"] == "bob"
    for point in frontier["points"]:
        assert (await callers["ann"].get(f"/v1/plans/{point['job']}")).json()["owner"] == "bob"


async def test_lists_can_be_of_one_owner(callers: dict[str, httpx.AsyncClient]) -> None:
    for number in range(3):
        await submit(callers["ann"], f"of ann {number}")
        await submit(callers["bob"], f"of bob {number}")
    everything = (await callers["eye"].get("/v1/plans")).json()["plans"]
    assert {plan["owner"] for plan in everything} == {"ann", "bob"}
    page = (await callers["eye"].get("/v1/plans", params={"owner": "ann", "limit": 2})).json()
    assert [plan["name"] for plan in page["plans"]] == ["of ann 2", "of ann 1"]
    rest = (await callers["eye"].get(page["next"])).json()
    assert [plan["name"] for plan in rest["plans"]] == ["of ann 0"]
    assert (await callers["eye"].get("/v1/plans", params={"owner": "nobody"})).json()["plans"] == []


async def test_another_ones_plan_is_left_alone(callers: dict[str, httpx.AsyncClient]) -> None:
    plan = await submit(callers["ann"])
    for answer in (await callers["bob"].post(f"{plan}:cancel"), await callers["bob"].delete(plan)):
        assert answer.status_code == 403
        assert answer.json()["type"] == "urn:loadmaster:problem:not-owner"
        assert "ann" in answer.json()["detail"] and "admin" in answer.json()["detail"]
    assert (await callers["bob"].get(plan)).json()["state"] == "queued"
    assert (await callers["bob"].delete("/v1/plans/plan_0")).status_code == 404
    assert (await callers["ann"].post(f"{plan}:cancel")).json()["state"] == "cancelled"
    assert (await callers["bob"].delete(plan)).status_code == 403
    assert (await callers["ann"].delete(plan)).status_code == 204


async def test_another_ones_frontier_is_left_alone(callers: dict[str, httpx.AsyncClient]) -> None:
    frontier = (await callers["ann"].post("/v1/frontiers", json=SWEEP)).headers["location"]
    answer = await callers["bob"].post(f"{frontier}:cancel")
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:loadmaster:problem:not-owner")
    assert (await callers["bob"].get(frontier)).json()["state"] == "queued"
    assert (await callers["ann"].post(f"{frontier}:cancel")).json()["state"] == "cancelled"


async def test_an_admin_changes_all(callers: dict[str, httpx.AsyncClient]) -> None:
    plan = await submit(callers["ann"])
    assert (await callers["root"].post(f"{plan}:cancel")).status_code == 202
    assert (await callers["root"].delete(plan)).status_code == 204


async def test_a_plan_from_before_there_were_keys_is_nobodys(
    app: FastAPI, callers: dict[str, httpx.AsyncClient]
) -> None:
    open_app = create_app(Settings(**{**vars(app.state.service.settings), "keys": "off"}))
    transport = httpx.ASGITransport(open_app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as anybody:
        plan = await submit(anybody)
        assert (await anybody.get(plan)).json()["owner"] is None
        owned = await submit(callers["ann"], "of ann")
        # Where no keys are asked for, anybody may change anything.
        assert (await anybody.post(f"{owned}:cancel")).status_code == 202
    answer = await callers["ann"].post(f"{plan}:cancel")
    assert answer.status_code == 403
    assert "without a key" in answer.json()["detail"]
    assert (await callers["root"].post(f"{plan}:cancel")).status_code == 202


async def test_the_same_idempotency_key_of_two_owners_makes_two_plans(callers: dict[str, httpx.AsyncClient]) -> None:
    plans, frontiers = set(), set()
    for name in ("ann", "bob", "ann", "bob"):
        headers = {"Idempotency-Key": "first"}
        plans.add((await callers[name].post("/v1/plans", json={"problem": problem()}, headers=headers)).json()["id"])
        frontiers.add((await callers[name].post("/v1/frontiers", json=SWEEP, headers=headers)).json()["id"])
    assert (len(plans), len(frontiers)) == (2, 2)
    again = await callers["ann"].post(
        "/v1/plans", json={"problem": problem(name="another")}, headers={"Idempotency-Key": "first"}
    )
    assert again.status_code == 422
    assert again.json()["errors"][0]["value"] == "'first'"


async def test_what_was_planned_for_one_answers_all(
    app: FastAPI, callers: dict[str, httpx.AsyncClient], worker: Worker
) -> None:
    first = await submit(callers["ann"])
    worker.work_once()
    second = (await callers["bob"].post("/v1/plans", json={"problem": problem()})).json()
    assert (second["state"], second["cached"], second["owner"]) == ("succeeded", True, "bob")
    # And stays with him when she removes hers.
    assert (await callers["ann"].delete(first)).status_code == 204
    assert (await callers["bob"].get(second["links"]["result"])).status_code == 200


async def test_a_new_key_of_the_same_name_owns_the_same_plans(
    app: FastAPI, callers: dict[str, httpx.AsyncClient]
) -> None:
    plan = await submit(callers["ann"])
    keys = Keys(app.state.service.database)
    keys.revoke("ann")
    assert (await callers["ann"].post(f"{plan}:cancel")).status_code == 401
    callers["ann"].headers["Authorization"] = f"Bearer {keys.add('ann', Scope.SUBMIT)}"
    assert (await callers["ann"].post(f"{plan}:cancel")).status_code == 202


async def test_pages_show_owners_and_leave_others_plans_alone(callers: dict[str, httpx.AsyncClient]) -> None:
    plan_id = (await submit(callers["ann"], "of ann")).rpartition("/")[2]
    await submit(callers["bob"], "of bob")
    frontier_id = (await callers["ann"].post("/v1/frontiers", json=SWEEP)).json()["id"]
    listed = (await callers["eye"].get("/?owner=bob")).text
    assert "of bob" in listed and "of ann" not in listed
    assert "?owner=ann" in (await callers["eye"].get(f"/jobs/{plan_id}")).text
    for page in (f"/jobs/{plan_id}", f"/frontiers/{frontier_id}"):
        for name in ("bob", "eye"):
            assert (await callers[name].post(f"{page}/cancel")).status_code == 403
    assert (await callers["ann"].get(f"/v1/plans/{plan_id}")).json()["state"] == "queued"
    assert (await callers["ann"].get(f"/v1/frontiers/{frontier_id}")).json()["state"] == "queued"
    for page in (f"/jobs/{plan_id}", f"/frontiers/{frontier_id}"):
        assert (await callers["ann"].post(f"{page}/cancel")).status_code == 303
    assert (await callers["ann"].get(f"/v1/plans/{plan_id}")).json()["state"] == "cancelled"
