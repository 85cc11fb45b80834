"""The best plan of a job while it runs: kept, replaced by better ones, looked at, and gone when there is a result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fake_planner import OPTIMUM, problem
from fastapi import FastAPI
from private_postgresql import each_database_url
from running_service import wait_until

from loadmaster.api.client import AsyncClient, Client
from loadmaster.api.errors import NoPlanError, NotReadyError
from loadmaster.api.packed import pack
from loadmaster.api.server.app import create_app
from loadmaster.api.settings import Settings
from loadmaster.api.store import schema
from loadmaster.api.store.jobs import NewJob
from loadmaster.api.store.keys import Keys, Scope
from loadmaster.api.store.records import State
from loadmaster.api.worker import best_plans
from loadmaster.api.worker.process import Message
from loadmaster.api.worker.worker import Worker
from loadmaster.models.kinds import write_plan
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.presets import chain
from tests.api.cli.plans_by_hand import MEGABYTE, plan_by_hand

database_url = each_database_url

BUDGET = 8 * MEGABYTE
PLAN = {"kind": "fake", "status": "optimal", "objective": OPTIMUM, "bound": OPTIMUM, "gap": 0.0, "unit": "us"}


def best(objective: float) -> dict[str, Any]:
    """The document of a plan so far."""
    return {
        **PLAN,
        "status": "feasible",
        "objective": objective,
        "gap": 1 - OPTIMUM / objective,
        "stopped_by": "nothing",
    }


class Run:
    """A job that is claimed by hand, as worker ``w``."""

    def __init__(self, app: FastAPI, document: dict[str, Any], id_: str = "") -> None:
        self.service = app.state.service
        new = NewJob(document["kind"], document["name"], {}, 0.02, 60.0, BUDGET, "k" * 64, "us")
        self.id = id_ or self.service.jobs.submit(new, pack(document), {}, request_sha256="r" * 64).id
        assert self.service.queue.claim("w").id == self.id

    @property
    def address(self) -> str:
        return f"/v1/plans/{self.id}"

    @property
    def latest(self) -> str:
        return f"{self.address}/result?incumbent=latest"

    def keep(self, document: dict[str, Any], worker: str = "w") -> bool:
        return bool(self.service.queue.keep(self.id, worker, document["objective"], pack(document)))

    def finish(self, state: State, **outcome: Any) -> None:
        assert self.service.queue.finish(self.id, "w", state, **outcome)

    def rows(self) -> int:
        """Plans that are kept of any job."""
        with self.service.database.read() as connection:
            return int(connection.execute(sa.select(sa.func.count()).select_from(schema.incumbent)).scalar_one())


@pytest.fixture
def run(app: FastAPI) -> Run:
    return Run(app, problem())


async def test_the_best_so_far_is_there_when_it_is_kept(http: httpx.AsyncClient, run: Run) -> None:
    early = await http.get(run.latest)
    assert (early.status_code, early.json()["type"]) == (409, "urn:loadmaster:problem:not-ready")
    assert "none was found yet" in early.json()["detail"] and int(early.headers["retry-after"]) >= 1
    before = await http.get(run.address)
    assert "incumbent" not in before.json()["links"]
    assert run.keep(best(120.0))
    after = await http.get(run.address, headers={"If-None-Match": before.headers["etag"]})
    assert (after.status_code, after.json()["links"]["incumbent"]) == (200, run.latest)
    assert after.json()["state"] == "running" and "result" not in after.json()["links"]
    found = await http.get(run.latest)
    assert (found.status_code, found.json()) == (200, best(120.0))
    tag = {"If-None-Match": found.headers["etag"]}
    assert (await http.get(run.latest, headers=tag)).status_code == 304
    assert not run.keep(best(110.0), "another"), "its lease is lost"
    assert run.keep(best(130.0)), "no better"
    assert (await http.get(run.latest, headers=tag)).status_code == 304
    assert run.keep(best(110.0))
    better = await http.get(run.latest, headers=tag)
    assert (better.status_code, better.json()["objective"], run.rows()) == (200, 110.0, 1)
    result = await http.get(f"{run.address}/result")
    assert (result.status_code, result.json()["type"]) == (409, "urn:loadmaster:problem:not-ready")
    assert run.latest in result.json()["detail"]
    log = (await http.get(f"{run.address}/log")).text.splitlines()
    assert log == [f"a plan of {objective} can be looked at" for objective in (120, 110)]


async def test_a_result_takes_its_place(http: httpx.AsyncClient, run: Run) -> None:
    run.keep(best(120.0))
    run.finish(State.SUCCEEDED, plan=PLAN)
    done = (await http.get(run.address)).json()
    assert "incumbent" not in done["links"] and run.rows() == 0
    latest, result = (await http.get(run.latest)), (await http.get(done["links"]["result"]))
    assert latest.json() == result.json() == PLAN
    assert latest.headers["etag"] == result.headers["etag"]
    assert (await http.get(run.latest, headers={"If-None-Match": result.headers["etag"]})).status_code == 304


async def test_a_cancelled_job_that_hands_nothing_over_ends_with_it(http: httpx.AsyncClient, run: Run) -> None:
    run.keep(best(120.0))
    await http.post(f"{run.address}:cancel")
    run.finish(State.CANCELLED)
    done = (await http.get(run.address)).json()
    assert (done["state"], done["objective"], done["status"], run.rows()) == ("cancelled", 120.0, "feasible", 0)
    result = (await http.get(done["links"]["result"])).json()
    assert result == {**best(120.0), "stopped_by": "cancel"}


async def test_what_a_job_hands_over_when_it_is_cancelled_is_its_plan(http: httpx.AsyncClient, run: Run) -> None:
    run.keep(best(120.0))
    run.finish(State.CANCELLED, plan=best(105.0))
    assert ((await http.get(run.latest)).json()["objective"], run.rows()) == (105.0, 0)


async def test_it_outlives_attempts_and_failures_and_goes_with_the_job(
    http: httpx.AsyncClient, app: FastAPI, run: Run
) -> None:
    run.keep(best(110.0))
    run.service.queue.give_up(run.id, "w", "it died")
    again = (await http.get(run.address)).json()
    assert (again["state"], again["objective"], again["links"]["incumbent"]) == ("queued", None, run.latest)
    again_run = Run(app, problem(), run.id)
    assert again_run.keep(best(120.0)), "no better than that of the attempt before"
    assert (await http.get(run.latest)).json()["objective"] == 110.0
    run.service.queue.give_up(run.id, "w", "it died")
    failed = await http.get(f"{run.address}/result")
    assert (failed.status_code, failed.json()["type"]) == (409, "urn:loadmaster:problem:no-plan")
    assert "started 2 times" in failed.json()["detail"] and run.latest in failed.json()["detail"]
    assert (await http.get(run.latest)).json() == best(110.0)
    page = (await http.get(f"/plans/{run.id}?incumbent=latest")).text
    assert "The job failed: this is the best that it had found." in page
    assert (await http.delete(run.address)).status_code == 204
    assert run.rows() == 0
    assert (await http.get(run.latest)).status_code == 404


async def test_a_job_that_ended_without_a_plan_has_none(http: httpx.AsyncClient, run: Run) -> None:
    run.finish(State.FAILED, error={"type": "SolverError", "detail": "the solver broke"})
    refused = await http.get(run.latest)
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:loadmaster:problem:no-plan")
    assert "the solver broke" in refused.json()["detail"]


@pytest.mark.parametrize("path", ["result", "export/html"])
async def test_no_other_word_is_taken(http: httpx.AsyncClient, run: Run, path: str) -> None:
    refused = await http.get(f"{run.address}/{path}?incumbent=first")
    (error,) = refused.json()["errors"]
    assert (refused.status_code, error["field"], error["value"]) == (422, "query.incumbent", "'first'")
    assert "'latest'" in error["problem"]


async def test_it_is_read_with_a_key_as_any_result(make_settings: Callable[..., Settings]) -> None:
    app = create_app(make_settings(keys="required"))
    run = Run(app, problem())
    run.keep(best(120.0))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as nobody:
        assert (await nobody.get(run.latest)).status_code == 401
        key = {"Authorization": f"Bearer {Keys(run.service.database).add('eye', Scope.READ)}"}
        assert (await nobody.get(run.latest, headers=key)).json()["objective"] == 120.0


# -- pages, exports, clients -----------------------------------------------------------------------------------------


@pytest.fixture
def chain_run(app: FastAPI) -> Run:
    """A chain whose job has a plan so far."""
    found = Run(app, chain(6, MEGABYTE))
    found.keep(write_plan(plan_so_far()))
    return found


def plan_so_far() -> MemoryPlan:
    return plan_by_hand(chain(6, MEGABYTE), BUDGET, stopped_by="nothing")


async def test_pages_lead_to_it_and_show_it(http: httpx.AsyncClient, chain_run: Run) -> None:
    address = f"/plans/{chain_run.id}?incumbent=latest"
    for page in ("/", f"/jobs/{chain_run.id}", f"/jobs/{chain_run.id}/live"):
        assert f'href="{address}"' in (await http.get(page)).text
    assert (await http.get(f"/plans/{chain_run.id}")).status_code == 409
    shown = await http.get(address)
    assert shown.status_code == 200
    assert "The search goes on" in shown.text and "stopped by nothing" in shown.text and "<svg" in shown.text
    assert f'href="{chain_run.latest}"' in shown.text and "/compare?" not in shown.text
    chain_run.finish(State.SUCCEEDED, plan=write_plan(plan_by_hand(chain(6, MEGABYTE), BUDGET)))
    done = (await http.get(address)).text
    assert "The search goes on" not in done and f'href="{chain_run.address}/result"' in done
    assert "incumbent" not in (await http.get(f"/jobs/{chain_run.id}")).text


async def test_it_can_be_had_as_what_plans_can_be_had_as(http: httpx.AsyncClient, chain_run: Run) -> None:
    links = (await http.get(chain_run.address)).json()["links"]
    assert (await http.get(links["export/html"])).text.startswith("<!doctype html>")
    assert (await http.get(links["export/trace"])).json()["traceEvents"]
    assert (await http.get(f"{chain_run.address}/export/html")).status_code == 409


async def test_clients_read_it(app: FastAPI, chain_run: Run) -> None:
    async with AsyncClient("http://localhost", transport=httpx.ASGITransport(app)) as client:
        handle = client.plan(chain_run.id)
        assert await handle.incumbent() == plan_so_far()
        assert (await handle.export("html", incumbent=True)).startswith(b"<!doctype html>")
        chain_run.finish(State.FAILED, error={"type": "SolverError", "detail": "the solver broke"})
        assert await handle.incumbent() == plan_so_far()


def test_the_twin_asks_for_the_same() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path.decode())
        return httpx.Response(200, json=write_plan(plan_so_far()))

    with Client("http://service", transport=httpx.MockTransport(answer)) as client:
        assert client.plan("plan_1").incumbent() == plan_so_far()
        client.plan("plan_1").export("html", incumbent=True)
        client.plan("plan_1").export("msccl", instances=2)
    assert asked == [
        *("/v1/plans/plan_1/result?incumbent=latest", "/v1/plans/plan_1/export/html?incumbent=latest"),
        "/v1/plans/plan_1/export/msccl?instances=2",
    ]


async def test_clients_say_that_there_is_none(app: FastAPI, run: Run) -> None:
    async with AsyncClient("http://localhost", transport=httpx.ASGITransport(app)) as client:
        with pytest.raises(NotReadyError, match="none was found yet"):
            await client.plan(run.id).incumbent()
        run.finish(State.CANCELLED)
        with pytest.raises(NoPlanError, match="cancelled before any plan"):
            await client.plan(run.id).incumbent()


# -- from the planner to the store -----------------------------------------------------------------------------------


async def test_a_worker_keeps_what_the_search_hands_out(
    http: httpx.AsyncClient, app: FastAPI, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """120, then 110, then 130: the last is no better."""
    monkeypatch.setattr(best_plans, "FIRST_AFTER_S", 0.0)
    monkeypatch.setattr(best_plans, "EVERY_S", 0.0)
    monkeypatch.setattr(best_plans, "SHARE", 1e9)
    answer = await http.post("/v1/plans", json={"problem": problem("slow", hands_out=True)})
    address = answer.json()["links"]["self"]
    working = threading.Thread(target=worker.work_once, daemon=True)
    working.start()

    def log() -> list[str]:
        events = app.state.service.jobs.events(answer.json()["id"], type_="log")
        return [event.data["line"] for event in events if "looked at" in event.data["line"]]

    await asyncio.to_thread(wait_until, lambda: len(log()) == 2)
    found = (await http.get(f"{address}/result?incumbent=latest")).json()
    assert (found["objective"], found["stopped_by"], found["status"]) == (1.1 * OPTIMUM, "nothing", "feasible")
    await http.post(f"{address}:cancel")
    await asyncio.to_thread(working.join)
    assert (await http.get(f"{address}/result")).json()["stopped_by"] == "cancel"
    assert log() == [f"a plan of {objective} can be looked at" for objective in (120, 110)]


def test_a_deaf_job_is_cancelled_with_the_plan_that_it_had_handed_out(app: FastAPI) -> None:
    service = app.state.service
    new = NewJob("fake", "a name", {}, 0.02, 60.0, None, "k" * 64, "us")
    job_id = service.jobs.submit(new, pack(problem()), {}, request_sha256="r" * 64).id

    class Deaf:
        waiting = False

        def __init__(self) -> None:
            self.messages: list[list[Message]] = [[("log", "looking"), ("best_plan", (120.0, pack(best(120.0))))]]

        def listen(self, timeout_s: float) -> list[Message]:
            if self.messages:
                return self.messages.pop()
            service.jobs.cancel(job_id)
            return []

        def cancel(self) -> None: ...

        def kill(self) -> None: ...

    assert Worker(service.settings, launch=lambda *_: Deaf()).work_once()
    job = service.jobs.get(job_id)
    assert (job.state, job.objective, job.incumbent_objective) == (State.CANCELLED, 120.0, None)
