"""What web pages of others can do to a service without keys: nothing. And what its own pages may do."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable

import httpx
import pytest
from fake_planner import problem
from fastapi import FastAPI

from loadmaster.api.packed import pack
from loadmaster.api.server.app import create_app
from loadmaster.api.settings import Settings
from loadmaster.api.store.jobs import NewJob
from loadmaster.api.store.records import State
from loadmaster.models.kinds import read_problem, write_plan
from loadmaster.planner import PlanOptions
from tests.api.collective_by_hand import plan_by_hand, ring_document

GOOD = {"problem": problem()}


def client_of(app: FastAPI, host: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{host}")


def expect_refusal(answer: httpx.Response, name: str, *words: str) -> None:
    assert answer.status_code == 403
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert found["type"] == f"urn:loadmaster:problem:{name}"
    assert all(word in found["detail"] for word in words)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8642", "127.0.0.1:8642", "127.8.9.10", "[::1]:8642", "192.168.1.7", "box.lan:80"]
)
async def test_its_own_names_and_all_addresses_are_answered(make_settings: Callable[..., Settings], host: str) -> None:
    app = create_app(make_settings(host="box.lan"))
    async with client_of(app, host) as client:
        assert (await client.get("/v1/plans")).status_code == 200
        assert (await client.post("/v1/plans", json=GOOD)).status_code == 202


@pytest.mark.parametrize(
    "host", ["attacker.example", "localhost.attacker.example", "127.0.0.1.attacker.example", "notlocalhost", "1.2.3"]
)
@pytest.mark.parametrize("path", ["/", "/v1/plans", "/livez", "/openapi.json", "/nowhere"])
async def test_a_name_that_was_pointed_here_is_refused(app: FastAPI, host: str, path: str) -> None:
    async with client_of(app, host) as client:
        expect_refusal(await client.get(path), "host-refused", host, "--allowed-host", "LOADMASTER_ALLOWED_HOSTS")
        expect_refusal(await client.post("/v1/plans", json=GOOD), "host-refused")
    assert app.state.service.jobs.latest() == []


@pytest.mark.parametrize("host", [b"localhost:x", b"[::1", b"", b"a b", b"\xff", b"user@attacker.example"])
async def test_hosts_that_are_none_are_refused(app: FastAPI, host: bytes) -> None:
    async with client_of(app, "localhost") as client:
        expect_refusal(await client.get("/v1/plans", headers={b"Host": host}), "host-refused")


async def test_names_that_were_given_are_answered(make_settings: Callable[..., Settings]) -> None:
    app = create_app(make_settings(allowed_hosts="planner.lan, Plans.Example.org"))
    for host, status in [("planner.lan:9000", 200), ("plans.example.org", 200), ("lan", 403), ("x.planner.lan", 403)]:
        async with client_of(app, host) as client:
            assert (await client.get("/v1/plans")).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 202),
        ("http://localhost:8642", 202),
        ("https://planner.lan", 202),  # its own pages behind a proxy that ends TLS and rewrites Host
        ("http://localhost:3000", 403),
        ("http://localhost", 403),
        ("http://127.0.0.1:8642", 403),
        ("https://attacker.example", 403),
        ("http://attacker.example:8642", 403),
        ("https://planner.lan.attacker.example", 403),
        ("null", 403),
        ("", 403),
        ("http://localhost:x", 403),
    ],
)
async def test_pages_of_other_origins_change_nothing(
    make_settings: Callable[..., Settings], origin: str | None, status: int
) -> None:
    app = create_app(make_settings(allowed_hosts="planner.lan"))
    headers = {} if origin is None else {"Origin": origin}
    async with client_of(app, "localhost:8642") as client:
        known = (await client.post("/v1/plans", json={"problem": problem(name="mine")})).json()["links"]["self"]
        answer = await client.post("/v1/plans", json=GOOD, headers=headers)
        assert answer.status_code == status
        if status == 403:
            expect_refusal(answer, "origin-refused", "curl", "--allowed-host")
        # These two need no body, so that a browser would send them without asking first.
        assert (await client.post(f"{known}:cancel", headers=headers)).status_code == (202 if status == 202 else 403)
        assert (await client.delete(known, headers=headers)).status_code == (204 if status == 202 else 403)
        # To read is harmless: the browser keeps the answer from the page.
        assert (await client.get("/v1/plans", headers=headers)).status_code == 200


async def test_the_usual_port_need_not_be_named(make_settings: Callable[..., Settings]) -> None:
    async with client_of(create_app(make_settings()), "localhost:80") as client:
        ours = {"Host": "localhost:80", "Origin": "http://localhost"}
        assert (await client.post("/v1/plans", json=GOOD, headers=ours)).status_code == 202


async def test_a_request_without_a_host_comes_from_no_browser(app: FastAPI) -> None:
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/livez",
        "query_string": b"",
        "headers": [],
        "http_version": "1.0",
    }
    await app({**scope, "scheme": "http", "server": ("localhost", 80), "root_path": ""}, receive, send)
    assert sent[0]["status"] == 200


def directives(answer: httpx.Response) -> dict[str, list[str]]:
    """The content security policy, by directive."""
    parts = (part.split() for part in answer.headers["content-security-policy"].split(";"))
    return {name: values for name, *values in parts}


def digest(text: str) -> str:
    """As a policy names what it lets through."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def expect_that_it_loads_nothing_and_runs_its_own_alone(page: httpx.Response) -> None:
    policy = directives(page)
    assert policy["default-src"] == ["'none'"]
    assert "connect-src" not in policy
    # Its one style sheet and its one script are let through by what is in them, and nothing else is.
    (sheet,) = re.findall(r"<style>(.*?)</style>", page.text, re.S)
    (script,) = re.findall(r"<script[^>]*>(.*?)</script>", page.text, re.S)
    assert (policy["style-src"], policy["script-src"]) == ([digest(sheet)], [digest(script)])
    assert not re.search(r"<[^>]*\sstyle=", page.text)
    assert policy["img-src"] == ["data:"]
    for name in ("base-uri", "form-action", "frame-ancestors"):
        assert policy[name] == ["'none'"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["content-type"].startswith("text/html")
    # Nor does it ask for anything that its policy forbids.
    assert not re.findall(r"\ssrc=|@import|url\((?!data:)", page.text)


async def test_a_report_may_load_nothing_and_run_its_own_alone(http: httpx.AsyncClient, app: FastAPI) -> None:
    document = ring_document(name="<script>alert(1)</script>")
    plan = plan_by_hand(read_problem(document), PlanOptions())
    service = app.state.service
    new = NewJob("collective", document["name"], {}, 0.02, 60.0, None, "k" * 64)
    job = service.jobs.submit(new, pack(document), {}, request_sha256="r" * 64)
    service.queue.claim("w")
    service.queue.finish(job.id, "w", State.SUCCEEDED, plan=write_plan(plan))
    page = await http.get(f"/v1/plans/{job.id}/export/html")
    assert page.status_code == 200
    expect_that_it_loads_nothing_and_runs_its_own_alone(page)
    assert "&lt;script&gt;" in page.text
    assert re.fullmatch(r'inline; filename="[A-Za-z0-9._-]+"', page.headers["content-disposition"])


async def test_answers_say_what_they_are(http: httpx.AsyncClient) -> None:
    """JSON with a problem's text in it is never taken for a page."""
    await http.post("/v1/plans", json={"problem": problem(name="<b>")})
    answer = await http.get("/v1/plans")
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.text)["plans"][0]["name"] == "<b>"
