"""API keys: who is let in, to what, and what a stranger learns (nothing)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_planner import problem
from fastapi import FastAPI
from sqlalchemy.exc import OperationalError

from loadmaster.api.serve import make_server
from loadmaster.api.server.app import create_app
from loadmaster.api.settings import Settings
from loadmaster.api.store.database import Database
from loadmaster.api.store.keys import Keys, Scope
from loadmaster.errors import InputError

GOOD = {"problem": problem()}
# What anybody may ask.
OPEN = {"/livez", "/readyz"}


@pytest.fixture
def app(make_settings: Callable[..., Settings]) -> FastAPI:
    """A service that asks for keys; there is none yet."""
    return create_app(make_settings(keys="required"))


@pytest.fixture
def keys(app: FastAPI) -> Keys:
    """The keys of that service."""
    return Keys(app.state.service.database)


@pytest.fixture
def secrets(keys: Keys) -> dict[Scope, str]:
    """A key of every scope."""
    return {scope: keys.add(f"a-{scope}", scope) for scope in Scope}


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def expect_refusal(answer: httpx.Response, status: int, name: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == f"urn:loadmaster:problem:{name}"


def calls(app: FastAPI) -> list[tuple[str, str]]:
    """Every method and path that the app describes, with ids that are not known."""
    return [
        (method.upper(), re.sub(r"\{\w+\}", "plan_0", path))
        for path, operations in app.openapi()["paths"].items()
        for method in operations
    ]


async def test_nothing_but_health_is_told_to_strangers(http: httpx.AsyncClient, app: FastAPI) -> None:
    described = calls(app)
    assert {("POST", "/v1/plans"), ("GET", "/metrics"), ("GET", "/livez")} <= set(described)
    others = [("GET", "/"), ("HEAD", "/"), ("GET", "/openapi.json"), ("GET", "/nowhere"), ("OPTIONS", "/v1/plans")]
    asked = [*described, *others, ("PUT", "/v1/plans"), ("GET", "/livez/"), ("GET", "/static")]
    for method, path in asked:
        answer = await http.request(method, path)
        if path in OPEN:
            assert answer.status_code == 200
        else:
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"].startswith("Bearer realm=")


async def test_files_of_the_package_are_open(http: httpx.AsyncClient) -> None:
    assert (await http.get("/static/nothing.css")).status_code == 404


@pytest.mark.parametrize("path", ["/static/../v1/plans", "/static/%2e%2e/v1/plans", "//static/", "/STATIC/x"])
async def test_no_path_leads_round_the_check(http: httpx.AsyncClient, path: str) -> None:
    request = http.build_request("GET", "/")
    request.url = request.url.copy_with(raw_path=path.encode())
    assert (await http.send(request)).status_code in (401, 404)


async def test_a_plan_that_exists_looks_to_strangers_like_one_that_does_not(
    http: httpx.AsyncClient, secrets: dict[Scope, str]
) -> None:
    made = (await http.post("/v1/plans", json=GOOD, headers=bearer(secrets[Scope.SUBMIT]))).json()
    there, not_there = [await http.get(f"/v1/plans/{plan_id}") for plan_id in (made["id"], "plan_0")]
    expect_refusal(there, 401, "key-needed")
    assert {**there.json(), "instance": ""} == {**not_there.json(), "instance": ""}
    assert made["id"] not in (await http.get("/v1/plans")).text


@pytest.mark.parametrize(
    "header",
    [
        *("", "Bearer", "Bearer ", "Bearer x", "Basic YTpi", "lm_x", "Bearer lm_" + 43 * "A", "Bearer " + 5000 * "x"),
        b"Bearer \xff\xfe",
        "Bearer ' OR 1=1 --",
    ],
)
async def test_a_wrong_key_opens_nothing(
    http: httpx.AsyncClient, secrets: dict[Scope, str], header: str | bytes
) -> None:
    for answer in (
        await http.get("/v1/plans", headers={b"Authorization": header}),  # type: ignore[dict-item]
        await http.post("/v1/plans", json=GOOD, headers={b"Authorization": header}),  # type: ignore[dict-item]
    ):
        expect_refusal(answer, 401, "key-needed")


async def test_the_hash_that_is_kept_is_no_key(http: httpx.AsyncClient, app: FastAPI, keys: Keys) -> None:
    secret = keys.add("ann", Scope.ADMIN)
    with app.state.service.database.read() as connection:
        (kept,) = connection.exec_driver_sql("SELECT secret_sha256 FROM api_key").scalars()
    assert secret not in kept
    assert (await http.get("/v1/plans", headers=bearer(kept))).status_code == 401
    assert (await http.get("/v1/plans", headers=bearer(secret))).status_code == 200


async def test_what_each_scope_may(http: httpx.AsyncClient, secrets: dict[Scope, str]) -> None:
    submitted = await http.post("/v1/plans", json=GOOD, headers=bearer(secrets[Scope.SUBMIT]))
    assert submitted.status_code == 202
    plan = submitted.headers["location"]
    for scope, secret in secrets.items():
        for path in ("/", "/v1/plans", plan, f"{plan}/problem", f"{plan}/log", "/metrics", "/openapi.json"):
            assert (await http.get(path, headers=bearer(secret))).status_code == 200, (scope, path)
        may = 202 if scope is not Scope.READ else 403
        assert (await http.post("/v1/plans", json=GOOD, headers=bearer(secret))).status_code == may
        sweep = {**GOOD, "budgets_bytes": [1, 2]}
        assert (await http.post("/v1/frontiers", json=sweep, headers=bearer(secret))).status_code == may
        blob = f"/v1/blobs/{hashlib.sha256(scope.encode()).hexdigest()}"
        sent = await http.put(blob, content=scope.encode(), headers=bearer(secret))
        assert sent.status_code == (201 if scope is not Scope.READ else 403)
        assert (await http.get(blob, headers=bearer(secrets[Scope.READ]))).status_code == (404 if may == 403 else 200)


async def test_a_missing_scope_is_named(http: httpx.AsyncClient, secrets: dict[Scope, str]) -> None:
    for method, path in (("POST", "/v1/plans"), ("DELETE", "/v1/plans/plan_0"), ("POST", "/v1/plans/plan_0:cancel")):
        answer = await http.request(method, path, headers=bearer(secrets[Scope.READ]))
        expect_refusal(answer, 403, "scope-missing")
        assert "submit" in answer.json()["detail"]
        assert 'error="insufficient_scope", scope="submit"' in answer.headers["www-authenticate"]


async def test_a_body_without_a_key_is_not_read(app: FastAPI) -> None:
    read: list[bytes] = []

    async def body() -> Any:
        for piece in (b'{"problem":', b"{}}"):
            read.append(piece)
            yield piece

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.post("/v1/plans", content=body(), headers={"Content-Type": "application/json"})
    expect_refusal(answer, 401, "key-needed")
    assert read == []


async def test_a_revoked_key_opens_nothing_from_then_on(http: httpx.AsyncClient, keys: Keys) -> None:
    secrets = {name: keys.add(name, Scope.SUBMIT) for name in ("ann", "bob")}
    assert (await http.get("/v1/plans", headers=bearer(secrets["ann"]))).status_code == 200
    keys.revoke("ann")
    expect_refusal(await http.get("/v1/plans", headers=bearer(secrets["ann"])), 401, "key-needed")
    assert (await http.get("/v1/plans", headers=bearer(secrets["bob"]))).status_code == 200
    again = keys.add("ann", Scope.READ)
    assert again != secrets["ann"]
    assert (await http.get("/v1/plans", headers=bearer(secrets["ann"]))).status_code == 401
    assert (await http.get("/v1/plans", headers=bearer(again))).status_code == 200
    assert (await http.post("/v1/plans", json=GOOD, headers=bearer(again))).status_code == 403


async def test_a_store_that_does_not_answer_lets_nobody_in(
    http: httpx.AsyncClient, secrets: dict[Scope, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Keys, secret: str) -> None:
        raise OperationalError("SELECT", {}, sqlite3.OperationalError("locked"))

    monkeypatch.setattr(Keys, "find", fail)
    answer = await http.get("/v1/plans", headers=bearer(secrets[Scope.ADMIN]))
    expect_refusal(answer, 503, "unavailable")
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.slow
async def test_secrets_are_in_no_log_and_no_answer(
    http: httpx.AsyncClient, secrets: dict[Scope, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said = []
    for secret in (*secrets.values(), "lm_of-a-stranger"):
        for path in ("/v1/plans", "/", "/metrics", "/openapi.json", "/nowhere"):
            said.append((await http.get(path, headers=bearer(secret))).text)
        said.append((await http.post("/v1/plans", json=GOOD, headers=bearer(secret))).text)
    for secret in (*secrets.values(), "lm_of-a-stranger"):
        assert secret not in "".join(said)
        assert secret not in caplog.text


def test_secrets_are_long_and_never_the_same(tmp_path: Path) -> None:
    keys = Keys(Database(f"sqlite:///{tmp_path / 'service.db'}"))
    made = [keys.add(f"k{n}", Scope.READ) for n in range(20)]
    assert len(set(made)) == 20
    # 256 bits in base 64.
    assert min(len(secret.removeprefix("lm_")) for secret in made) >= 43


@pytest.mark.parametrize("name", ["", " ", "a b", "a\n", "-a", "a/b", "é", "a" * 65, "x\x1b[31m"])
def test_names_that_are_none_are_refused(tmp_path: Path, name: str) -> None:
    keys = Keys(Database(f"sqlite:///{tmp_path / 'service.db'}"))
    with pytest.raises(InputError, match="name: "):
        keys.add(name, Scope.READ)
    with pytest.raises(InputError, match="name: "):
        keys.revoke(name)
    assert keys.all() == []


@pytest.mark.parametrize("quota", [0, -1, 2**40])
@pytest.mark.parametrize("which", ["max_queued", "max_running"])
def test_quotas_that_are_none_are_refused(tmp_path: Path, quota: int, which: str) -> None:
    keys = Keys(Database(f"sqlite:///{tmp_path / 'service.db'}"))
    with pytest.raises(InputError, match=which):
        keys.add("ann", Scope.SUBMIT, **{which: quota})


def test_a_name_has_one_key(tmp_path: Path) -> None:
    keys = Keys(Database(f"sqlite:///{tmp_path / 'service.db'}"))
    secret = keys.add("ann", Scope.READ)
    with pytest.raises(InputError, match="Revoke that one first"):
        keys.add("ann", Scope.ADMIN)
    found = keys.find(secret)
    assert found is not None
    assert (found.name, found.scope) == ("ann", Scope.READ)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "planner.lan"])
def test_without_keys_it_listens_on_this_machine_alone(make_settings: Callable[..., Settings], host: str) -> None:
    with pytest.raises(InputError, match=r"keys: .*--keys required.*127\.0\.0\.1"):
        make_server(make_settings(host=host))
    make_server(make_settings(host=host, keys="required"))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.10"])
def test_on_this_machine_keys_may_be_off(make_settings: Callable[..., Settings], host: str) -> None:
    make_server(make_settings(host=host))


async def test_the_description_tells_of_keys_where_they_are_asked_for(
    http: httpx.AsyncClient, secrets: dict[Scope, str], make_settings: Callable[..., Settings]
) -> None:
    described = (await http.get("/openapi.json", headers=bearer(secrets[Scope.READ]))).json()
    (scheme,) = described["components"]["securitySchemes"].values()
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    assert [list(asked) for asked in described["security"]] == [list(described["components"]["securitySchemes"])]
    for path, operations in described["paths"].items():
        for operation in operations.values():
            assert (operation.get("security") == []) == (path in OPEN)
            assert ({"401", "403"} <= set(operation["responses"])) == (path not in OPEN)
    without = create_app(make_settings()).openapi()
    assert "security" not in without and "securitySchemes" not in without["components"]


@pytest.mark.parametrize("again", [False, True], ids=["revoked", "revoked and made again"])
async def test_an_open_stream_ends_when_its_key_is_revoked(
    app: FastAPI, keys: Keys, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    for module in ("keys", "events"):
        monkeypatch.setattr(f"loadmaster.api.server.{module}.LOOK_EVERY_S", 0.05)
    ann, bob = (bearer(keys.add(name, Scope.SUBMIT)) for name in ("ann", "bob"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        plan = (await http.post("/v1/plans", json=GOOD, headers=bob)).json()["links"]
        anns, bobs = (asyncio.create_task(http.get(plan["events"], headers=who)) for who in (ann, bob))
        await asyncio.sleep(0.3)
        assert not anns.done()
        keys.revoke("ann")
        if again:
            keys.add("ann", Scope.SUBMIT)
        cut = await asyncio.wait_for(anns, 60)
        assert ("event: state" in cut.text, "event: done" in cut.text) == (True, False)
        assert not bobs.done()
        await http.post(plan["cancel"], headers=bob)
        assert "event: done" in (await asyncio.wait_for(bobs, 60)).text
        assert (await http.get(plan["events"], headers=ann)).status_code == 401
