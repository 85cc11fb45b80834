"""The pages as a browser gets them: what they say, where their links lead, and what they may load and run."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import httpx
import pytest
from fake_planner import problem
from fastapi import FastAPI

from loadmaster.api.packed import pack
from loadmaster.api.server.pages.frame import STATIC
from loadmaster.api.store.jobs import Frontier, NewJob, search
from loadmaster.api.store.records import Job, State
from loadmaster.api.worker.worker import Worker
from loadmaster.models.hardware import catalogue
from loadmaster.models.kinds import read_problem, write_plan
from loadmaster.models.memory.plan import MemoryInfeasibility
from loadmaster.models.memory.presets import chain
from loadmaster.planner import PlanOptions
from tests.api.cli.plans_by_hand import MEGABYTE, no_plan
from tests.api.cli.plans_by_hand import plan_by_hand as memory_by_hand
from tests.api.collective_by_hand import plan_by_hand, ring_document

SCRIPT = "<script>alert(1)</script>"


async def submit(http: httpx.AsyncClient, *args: Any, labels: dict[str, str] | None = None, **more: Any) -> str:
    body = {"problem": problem(*args, **more), "labels": labels or {}}
    return str((await http.post("/v1/plans", json=body)).json()["id"])


def new_job(document: dict[str, Any], limit: int | None) -> NewJob:
    return NewJob(document["kind"], document["name"], {}, 0.02, 60.0, limit, f"{limit}".rjust(64, "k"), "us")


def end(app: FastAPI, plan: Any) -> None:
    """Finish the oldest job that waits with a plan."""
    queue = app.state.service.queue
    job = queue.claim("w")
    state = State.INFEASIBLE if plan.status == "infeasible" else State.SUCCEEDED
    queue.finish(job.id, "w", state, plan=write_plan(plan))


def planned(app: FastAPI, document: dict[str, Any], plan: Any, limit: int | None = None) -> str:
    """A job with a plan that was made by hand."""
    job: Job = app.state.service.jobs.submit(new_job(document, limit), pack(document), {}, request_sha256="r" * 64)
    end(app, plan)
    return job.id


def planned_chain(app: FastAPI, megabytes: int) -> str:
    document = chain(6, MEGABYTE)
    limit = megabytes * MEGABYTE
    return planned(app, document, memory_by_hand(document, limit), limit)


def planned_ring(app: FastAPI, name: str = "ring") -> str:
    document = ring_document(name=name)
    return planned(app, document, plan_by_hand(read_problem(document), PlanOptions()))


def frontier_of(app: FastAPI, *megabytes: int) -> Frontier:
    document = chain(6, MEGABYTE)
    points = [new_job(document, m * MEGABYTE) for m in megabytes]
    found: Frontier = app.state.service.jobs.submit_frontier(points, pack(document), {}, request_sha256="r" * 64)
    return found


def links(page: httpx.Response) -> list[str]:
    """Where a page leads to, but for what it offers to save."""
    found = re.findall(r"<a [^>]*?href=\"([^\"]+)\"([^>]*)>", page.text)
    return [unescape(href) for href, rest in found if not href.startswith("#") and "download" not in rest]


def expect_page(page: httpx.Response, status: int = 200) -> None:
    assert page.status_code == status
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(maxsplit=1) for part in page.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "form-action")} == {"'self'"}
    assert page.headers["x-content-type-options"] == "nosniff"
    # Nor is there anything that the policy forbids: styles, scripts and handlers in the markup, other servers.
    assert not re.search(r"<style|<script(?! src=\"/static/)|\sstyle=|\son[a-z]+=|javascript:", page.text)
    assert not re.search(r"(src|href|action)=\"(https?:)?//", page.text)


async def test_every_page_may_load_and_run_its_own_alone_and_leads_to_pages(
    http: httpx.AsyncClient, app: FastAPI, worker: Worker
) -> None:
    """From the front page through every link there is."""
    planned_chain(app, 8), planned_chain(app, 9), planned_ring(app, SCRIPT)
    frontier_of(app, 7, 8)
    await submit(http, name=SCRIPT)
    left, seen = ["/"], set[str]()
    while left:
        address = left.pop()
        if address in seen:
            continue
        seen.add(address)
        page = await http.get(address)
        expect_page(page)
        assert SCRIPT not in page.text
        exports = [link for link in links(page) if "/export/" in link]
        left += [link for link in links(page) if link not in exports and link != "/openapi.json"]
    sorts = {re.sub(r"(plan|frontier)_\w+", "ID", address.split("?")[0]) for address in seen}
    assert sorts >= {"/", "/jobs/ID", "/plans/ID", "/frontiers/ID", "/compare", "/hardware", "/docs"}
    assert not any(address.startswith("/v1") for address in seen)


async def test_the_list_is_filtered_and_turned(http: httpx.AsyncClient) -> None:
    ids = [await submit(http, name=f"job {n}", labels={"parity": ["even", "odd"][n % 2]}) for n in range(60)]
    await http.post(f"/v1/plans/{ids[0]}:cancel")

    async def listed(address: str) -> list[str]:
        page = await http.get(address)
        found = re.findall(r'<tr id="row-(\w+)">', page.text)
        older = re.findall(r'href="([^"]+)" rel="next"', page.text)
        return found + (await listed(unescape(older[0])) if older else [])

    assert await listed("/") == ids[::-1]
    assert await listed("/?state=&kind=&label=") == ids[::-1]
    assert await listed("/?state=cancelled") == ids[:1]
    assert await listed("/?label=parity:odd&state=queued") == ids[::-2]
    assert await listed("/?kind=memory") == []
    assert "No plan is like that" in (await http.get("/?kind=memory")).text
    page = await http.get("/")
    (odd,) = {link for link in links(page) if "odd" in link}
    assert await listed(odd) == ids[::-2]
    expect_page(await http.get("/?label=odd"), 422)
    assert "has no colon" in (await http.get("/?label=odd")).text


async def test_the_filter_is_still_there_on_the_next_page(http: httpx.AsyncClient) -> None:
    for n in range(51):
        await submit(http, name=f"job {n}", labels={"a": "b c"})
    page = await http.get("/?label=a:b c")
    assert 'value="a:b c"' in page.text
    (older,) = [link for link in links(page) if "cursor" in link]
    assert "label=a%3Ab+c" in older


async def test_a_job_says_what_it_is_doing(http: httpx.AsyncClient, app: FastAPI) -> None:
    job_id = await submit(http, name="mine", labels={"team": "blue"})
    queued = (await http.get(f"/jobs/{job_id}")).text
    assert "waits for a worker" in queued and "team:blue" in queued
    assert 'hx-trigger="every 1s"' in queued and "<svg" not in queued
    queue = app.state.service.queue
    queue.claim("w")
    queue.record(
        job_id, "w", [("log", {"line": "looking <b>"}), ("progress", {"objective": None, "bound": 50.0, "gap": None})]
    )
    assert "proved bound" in (await http.get(f"/jobs/{job_id}/live")).text
    queue.record(job_id, "w", [("incumbent", {"objective": 80.0, "bound": 60.0, "gap": 0.25})])
    running = (await http.get(f"/jobs/{job_id}/live")).text
    assert "<html" not in running, "only the part that changes"
    for words in ("best plan so far", "no plan is below 60", "25.00 %", "looking &lt;b&gt;", "best plan found"):
        assert words in running


async def test_of_a_long_search_incumbents_and_some_reports_are_read(http: httpx.AsyncClient, app: FastAPI) -> None:
    job_id = await submit(http)
    service = app.state.service
    service.queue.claim("w")
    reports = [("progress", {"objective": None, "bound": float(n)}) for n in range(1000)]
    service.queue.record(job_id, "w", [*reports, ("incumbent", {"objective": 2000.0, "bound": 999.0})])
    found = search(service.database, job_id, 100)
    assert 80 <= len(found) <= 120 and found[-1].type == "incumbent"
    assert [event.seq for event in found] == sorted(event.seq for event in found)
    assert len(search(service.database, job_id, 5000)) == 1001


async def test_a_final_job_is_not_asked_for_again(http: httpx.AsyncClient, worker: Worker) -> None:
    job_id = await submit(http, "solver_error")
    worker.work_once()
    page = (await http.get(f"/jobs/{job_id}")).text
    assert "the solver broke" in page and "failed" in page
    assert "hx-trigger" not in page and "Cancel" not in page and "Open the plan" not in page


async def test_a_form_cancels(http: httpx.AsyncClient) -> None:
    job_id = await submit(http)
    asked = f"/jobs/{job_id}/cancel"
    assert asked in links(await http.get(f"/jobs/{job_id}"))
    page = (await http.get(asked)).text
    (action,) = re.findall(r'<form class="row" action="([^"]+)" method="post">', page)
    refused = await http.post(action, headers={"Origin": "https://attacker.example"})
    assert refused.status_code == 403
    answer = await http.post(action, headers={"Origin": "http://localhost"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{job_id}")
    assert "cancelled" in (await http.get(f"/jobs/{job_id}")).text
    expect_page(await http.post("/jobs/nothing/cancel"), 404)


async def test_browsers_say_that_a_form_is_ours(http: httpx.AsyncClient) -> None:
    """Under no-referrer, their Origin would be null, and the form refused."""
    assert (await http.get("/")).headers["referrer-policy"] == "same-origin"


async def test_the_whole_log_is_a_page(http: httpx.AsyncClient, app: FastAPI) -> None:
    job_id = await submit(http)
    queue = app.state.service.queue
    queue.claim("w")
    queue.record(job_id, "w", [("log", {"line": f"line {n}."}) for n in range(300)])
    page = await http.get(f"/jobs/{job_id}")
    assert "line 299." in page.text and "line 9." not in page.text
    assert f"/jobs/{job_id}/log" in links(page)
    whole = await http.get(f"/jobs/{job_id}/log")
    expect_page(whole)
    assert "line 9." in whole.text and "line 299." in whole.text


async def test_a_plan_is_shown_as_its_report_is(http: httpx.AsyncClient, app: FastAPI) -> None:
    job_id = planned_chain(app, 8)
    page = (await http.get(f"/plans/{job_id}")).text
    report = (await http.get(f"/v1/plans/{job_id}/export/html")).text
    for heading in re.findall(r"<h2>[^<]+</h2>", report):
        assert heading in page
    for drawn in re.findall(r"<svg viewBox=\"0 0 960.*?</svg>", report, re.S):
        assert drawn in page
    assert f"/v1/plans/{job_id}/export/trace" in page


async def test_a_plan_that_does_not_exist_yet_or_at_all(http: httpx.AsyncClient, worker: Worker) -> None:
    job_id = await submit(http)
    early = await http.get(f"/plans/{job_id}")
    expect_page(early, 409)
    assert "its result comes when it is done" in early.text
    worker.work_once()
    # A kind that is not known here: its figures are all there is.
    done = await http.get(f"/plans/{job_id}")
    expect_page(done)
    assert "no plan is below 100" in done.text
    for address in ("/plans/nothing", "/jobs/nothing", "/frontiers/nothing", "/compare?plan=nothing"):
        expect_page(await http.get(address), 404)


async def test_an_infeasible_plan_says_why(http: httpx.AsyncClient, app: FastAPI) -> None:
    document = chain(6, MEGABYTE)
    found = no_plan(document, 1000, MemoryInfeasibility(5000, 4000, "backward 1", ()))
    page = await http.get(f"/plans/{planned(app, document, found, 1000)}")
    expect_page(page)
    assert "5000 bytes" in page.text and "Compare" not in page.text


async def test_two_plans_are_compared(http: httpx.AsyncClient, app: FastAPI) -> None:
    large, small = planned_chain(app, 9), planned_chain(app, 8)
    page = await http.get("/compare", params={"plan": [large, small]})
    expect_page(page)
    assert "-11.11 %" in page.text, "the budget"
    assert page.text.count("Memory over the step</h2>") == 3, "of each plan, and of both"
    assert page.text.count("line: the other plan") == 1
    alone = await http.get("/compare", params={"plan": large})
    assert f'value="{small}"' in alone.text and f'<option value="{large}"' not in alone.text
    ring = planned_ring(app)
    for chosen in ([], [large, small, ring], [large, ring]):
        expect_page(await http.get("/compare", params={"plan": chosen}), 422)


async def test_points_of_a_frontier_lead_to_their_plans(http: httpx.AsyncClient, app: FastAPI) -> None:
    frontier = frontier_of(app, 7, 8)
    address = f"/frontiers/{frontier.id}"
    assert (await http.get(f"/v1/plans/{frontier.jobs[0].id}")).json()["unit"] == "us"
    early = await http.get(address)
    assert "0 of 2 points are done" in early.text and "<svg" not in early.text
    document = chain(6, MEGABYTE)
    end(app, memory_by_hand(document, 7 * MEGABYTE))
    page = await http.get(address)
    expect_page(page)
    linked = re.findall(r'<a class="point" href="/plans/(\w+)"', page.text)
    assert frontier.jobs[0].id in linked
    assert 'hx-trigger="every 2s"' in page.text
    answer = await http.post(f"{address}/cancel")
    assert (answer.status_code, answer.headers["location"]) == (303, address)
    done = (await http.get(address)).text
    assert "2 of 2 points are done" in done and "hx-trigger" not in done


async def test_all_hardware_is_listed(http: httpx.AsyncClient) -> None:
    page = await http.get("/hardware")
    assert all(device.title in page.text and device.name in page.text for device in catalogue())
    assert "highs" in page.text


async def test_what_pages_load_is_here_with_its_licence(http: httpx.AsyncClient) -> None:
    for address in ("/", "/docs"):
        loaded = re.findall(r'(?:src|href)="(/static/[^"]+)"', (await http.get(address)).text)
        assert len(loaded) >= 5
        for asset in loaded:
            answer = await http.get(asset)
            assert answer.status_code == 200 and answer.content
            assert answer.headers["content-type"].split(";")[0] in ("text/css", "text/javascript", "image/svg+xml")
    folders = [path for path in (STATIC / "vendor").iterdir() if path.is_dir()]
    assert folders and all((folder / "LICENSE").is_file() for folder in folders)
    told = (STATIC / "vendor" / "README.md").read_text("utf-8")
    assert all(f"| `{folder.name}` |" in told for folder in folders)


@pytest.mark.parametrize("path", ["/static/../frame.py", "/static/%2e%2e/frame.py", "/static/nothing"])
async def test_nothing_else_is_served(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(path)).status_code == 404
