"""What a plan measured, on the service: sent, shown on its page and in its report, refused, and purged."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from test_service_pages import end, new_job, planned, planned_ring, submit

from loadmaster.api.client import AsyncClient
from loadmaster.api.packed import pack, unpack
from loadmaster.api.server.app import create_app
from loadmaster.api.settings import Settings
from loadmaster.api.store.keys import Keys, Scope
from loadmaster.errors import InputError
from loadmaster.models.documents import LARGEST_MEASUREMENT_BYTES
from loadmaster.models.memory.measurement import MemoryMeasurement, measured, write_measurement
from loadmaster.models.memory.presets import chain
from loadmaster.models.units import show_bytes
from tests.api.cli.plans_by_hand import MEGABYTE, plan_by_hand

DOCUMENT = chain(6, MEGABYTE)
PLAN = plan_by_hand(DOCUMENT, 8 * MEGABYTE)


def measurement(peak_bytes: int = 5 * MEGABYTE) -> MemoryMeasurement:
    return measured(PLAN, "cpu", peak_bytes, 60.0, [(0.0, MEGABYTE), (30.0, peak_bytes), (60.0, MEGABYTE)])


async def test_it_is_kept_and_drawn_over_the_plan(http: httpx.AsyncClient, app: FastAPI) -> None:
    job_id = planned(app, DOCUMENT, PLAN, PLAN.budget_bytes)
    address = f"/v1/plans/{job_id}/measurement"
    assert (await http.get(address)).status_code == 404
    pages = (f"/plans/{job_id}", f"/v1/plans/{job_id}/export/html")
    for page in pages:
        assert "line: measured" not in (await http.get(page)).text
    for peak_bytes in (5 * MEGABYTE, 6 * MEGABYTE):  # the latest one counts
        answer = await http.put(address, json=write_measurement(measurement(peak_bytes)))
        assert (answer.status_code, answer.content) == (204, b"")
        assert (await http.get(address)).json()["peak_bytes"] == peak_bytes
    for page in pages:
        assert f"line: measured, {show_bytes(6 * MEGABYTE)} at its peak" in (await http.get(page)).text
    assert address in (await http.get(f"/plans/{job_id}")).text
    assert (await http.delete(f"/v1/plans/{job_id}")).status_code == 204
    assert app.state.service.measurements.get(job_id) is None


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"schedule_sha256": "0" * 64}, 422, "schedule_sha256"),
        ({"times_us": [0.0, 1.0]}, 422, "allocated_bytes"),
    ],
)
async def test_what_is_of_no_use_is_refused(
    http: httpx.AsyncClient, app: FastAPI, body: dict[str, Any], status: int, says: str
) -> None:
    job_id = planned(app, DOCUMENT, PLAN, PLAN.budget_bytes)
    answer = await http.put(f"/v1/plans/{job_id}/measurement", json={**write_measurement(measurement()), **body})
    assert (answer.status_code, says in answer.text) == (status, True)
    assert app.state.service.measurements.get(job_id) is None


async def test_plans_that_have_none(http: httpx.AsyncClient, app: FastAPI) -> None:
    document = write_measurement(measurement())
    waiting = await submit(http)
    assert (await http.put(f"/v1/plans/{waiting}/measurement", json=document)).status_code == 409
    assert (await http.put("/v1/plans/nothing/measurement", json=document)).status_code == 404
    app.state.service.jobs.cancel(waiting)
    answer = await http.put(f"/v1/plans/{planned_ring(app)}/measurement", json=document)
    assert (answer.status_code, "no measurement" in answer.text) == (422, True)


async def test_one_that_is_too_large_is_not_read(make_settings: Callable[..., Settings]) -> None:
    app = create_app(make_settings())
    job_id = planned(app, DOCUMENT, PLAN, PLAN.budget_bytes)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        body = b" " * LARGEST_MEASUREMENT_BYTES + json.dumps(write_measurement(measurement())).encode()
        headers = {"Content-Type": "application/json"}
        answer = await http.put(f"/v1/plans/{job_id}/measurement", content=body, headers=headers)
    assert answer.status_code == 413 and str(LARGEST_MEASUREMENT_BYTES) in answer.json()["detail"]


async def test_only_the_owner_sends_it(make_settings: Callable[..., Settings]) -> None:
    app = create_app(make_settings(keys="required"))
    keys = Keys(app.state.service.database)
    job = app.state.service.jobs.submit(
        new_job(DOCUMENT, PLAN.budget_bytes), pack(DOCUMENT), {}, request_sha256="r" * 64, owner="ann"
    )
    end(app, PLAN)
    found = []
    for name, scope in (("bob", Scope.SUBMIT), ("eye", Scope.READ), ("ann", Scope.SUBMIT)):
        headers = {"Authorization": f"Bearer {keys.add(name, scope)}"}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
            sent = await http.put(f"/v1/plans/{job.id}/measurement", json=write_measurement(measurement()))
            found.append(sent.status_code)
    assert found == [403, 403, 204]


async def test_the_client_sends_it(app: FastAPI) -> None:
    job_id = planned(app, DOCUMENT, PLAN, PLAN.budget_bytes)
    async with AsyncClient("http://localhost", transport=httpx.ASGITransport(app)) as client:
        await client.plan(job_id).send_measurement(measurement())
        kept = app.state.service.measurements.get(job_id)
        assert json.loads(unpack(kept)) == json.loads(json.dumps(write_measurement(measurement())))
        with pytest.raises(InputError, match="problem_sha256"):
            await client.plan(job_id).send_measurement({**write_measurement(measurement()), "problem_sha256": "0" * 64})
