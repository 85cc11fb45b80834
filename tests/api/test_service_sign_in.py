"""The form by which a browser gets the pages of a service that asks for keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser

import httpx
import pytest
from fake_planner import problem
from fastapi import FastAPI

from loadmaster.api.server.app import create_app
from loadmaster.api.settings import Settings
from loadmaster.api.store.keys import Keys, Scope

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture
def app(make_settings: Callable[..., Settings]) -> FastAPI:
    """A service that asks for keys."""
    return create_app(make_settings(keys="required"))


@pytest.fixture
def keys(app: FastAPI) -> Keys:
    """Its keys."""
    return Keys(app.state.service.database)


class Form(HTMLParser):
    """Where a page's form is sent, and what it asks for."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.action, self.fields = "", list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        if tag == "form" and not self.fields:
            self.action = found["action"] or ""
        if tag == "input":
            self.fields.append(found["name"] or "")


async def test_the_way_in_and_out(http: httpx.AsyncClient, keys: Keys) -> None:
    secret = keys.add("ann", Scope.SUBMIT)
    sent_on = await http.get("/v1/plans?state=queued&kind=x%26y", headers=BROWSER)
    assert sent_on.status_code == 303
    shown = await http.get(sent_on.headers["location"], headers=BROWSER)
    assert shown.status_code == 200 and shown.headers["content-type"].startswith("text/html")
    form = Form(shown.text)
    assert form.fields == ["key"]
    signed_in = await http.post(form.action, data={"key": f" {secret}\n"})
    assert signed_in.status_code == 303
    # Back to where it began, to the letter.
    assert signed_in.headers["location"] == "/v1/plans?state=queued&kind=x%26y"
    cookie = signed_in.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=lax" in cookie and "path=/" in cookie
    assert "max-age" not in cookie and "expires" not in cookie
    # The client keeps the cookie, as browsers do.
    assert (await http.get("/", headers=BROWSER)).status_code == 200
    plan = await http.post("/v1/plans", json={"problem": problem()})
    assert (plan.status_code, plan.json()["owner"]) == (202, "ann")
    assert (await http.post("/sign-out")).status_code == 303
    assert (await http.get("/", headers=BROWSER)).status_code == 303


@pytest.mark.parametrize("sent", [{"key": "lm_wrong"}, {"key": ""}, {}, {"key": "\xe9"}, {"other": "x"}])
async def test_a_wrong_key_gets_the_form_again(http: httpx.AsyncClient, keys: Keys, sent: dict[str, str]) -> None:
    keys.add("ann", Scope.READ)
    answer = await http.post("/sign-in?to=/v1/plans", data=sent)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert "lm_wrong" not in answer.text
    assert Form(answer.text).action.endswith("to=%2Fv1%2Fplans")


@pytest.mark.parametrize(
    "to",
    [
        *("https://attacker.example", "//attacker.example", "/\\attacker.example", "attacker.example", ""),
        *("javascript:alert(1)", "/\t/attacker.example", "/\nSet-Cookie: a=b", '/"><script>alert(1)</script>'),
    ],
)
async def test_nobody_is_sent_elsewhere(http: httpx.AsyncClient, keys: Keys, to: str) -> None:
    shown = await http.get("/sign-in", params={"to": to})
    assert "<script>alert" not in shown.text and "attacker" not in shown.text
    answer = await http.post("/sign-in", params={"to": to}, data={"key": keys.add("ann", Scope.READ)})
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/")
    assert httpx.URL("http://localhost").join(answer.headers["location"]).host == "localhost"
    assert "a=b" not in answer.headers["set-cookie"]


async def test_a_revoked_key_is_signed_out_everywhere(http: httpx.AsyncClient, keys: Keys) -> None:
    await http.post("/sign-in", data={"key": keys.add("ann", Scope.READ)})
    assert (await http.get("/", headers=BROWSER)).status_code == 200
    keys.revoke("ann")
    assert (await http.get("/", headers=BROWSER)).status_code == 303
    assert (await http.get("/v1/plans")).status_code == 401


async def test_a_key_in_the_header_counts_alone(http: httpx.AsyncClient, keys: Keys) -> None:
    await http.post("/sign-in", data={"key": keys.add("root", Scope.ADMIN)})
    eye = {"Authorization": f"Bearer {keys.add('eye', Scope.READ)}"}
    assert (await http.post("/v1/plans", json={"problem": problem()}, headers=eye)).status_code == 403
    assert (await http.get("/v1/plans", headers={"Authorization": "Bearer lm_wrong"})).status_code == 401


async def test_pages_of_others_can_neither_sign_in_nor_use_the_cookie(http: httpx.AsyncClient, keys: Keys) -> None:
    secret = keys.add("ann", Scope.SUBMIT)
    elsewhere = {"Origin": "https://attacker.example"}
    assert (await http.post("/sign-in", data={"key": secret}, headers=elsewhere)).status_code == 403
    await http.post("/sign-in", data={"key": secret}, headers={"Origin": "http://localhost"})
    assert (await http.post("/v1/plans", json={"problem": problem()}, headers=elsewhere)).status_code == 403
    assert (await http.post("/sign-out", headers=elsewhere)).status_code == 403


async def test_over_tls_the_cookie_is_for_tls_alone(app: FastAPI, keys: Keys) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://localhost") as http:
        answer = await http.post("/sign-in", data={"key": keys.add("ann", Scope.READ)})
    assert "secure" in answer.headers["set-cookie"].lower()


async def test_strangers_cannot_send_much(http: httpx.AsyncClient) -> None:
    answer = await http.post("/sign-in", data={"key": "x" * 100_000})
    assert answer.status_code == 413


async def test_the_form_is_kept_nowhere_and_all_it_loads_is_open(http: httpx.AsyncClient) -> None:
    shown = await http.get("/sign-in")
    assert shown.headers["cache-control"] == "no-store"
    # With none, browsers would send the form with the origin "null", which is refused.
    assert shown.headers["referrer-policy"] == "same-origin"
    loaded = re.findall(r'(?:src|href)="(/static/[^"]+)"', shown.text)
    assert loaded
    for path in loaded:
        assert (await http.get(path)).status_code == 200


async def test_programs_get_problem_details_and_no_form(http: httpx.AsyncClient) -> None:
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
        assert (await http.get("/v1/plans", headers=headers)).status_code == 401
    assert (await http.post("/v1/plans", json={}, headers=BROWSER)).status_code == 401


async def test_where_no_keys_are_asked_for_there_is_no_form(make_settings: Callable[..., Settings]) -> None:
    transport = httpx.ASGITransport(create_app(make_settings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.get("/sign-in")).status_code == 404
        assert (await http.get("/", headers=BROWSER)).status_code == 200
