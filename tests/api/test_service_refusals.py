"""Whatever comes in over the wire, the answer is problem details, and the service goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from fake_planner import FakePlanner, problem
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from private_postgresql import each_database_url

database_url = each_database_url

GOOD = {"problem": problem()}
JSON = {"Content-Type": "application/json"}


def expect_problem(answer: httpx.Response, status: int, name: str) -> dict[str, object]:
    """The answer is problem details of that status and type."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert found["type"] == f"urn:loadmaster:problem:{name}"
    assert (found["status"], bool(found["title"]), bool(found["detail"])) == (status, True, True)
    return dict(found)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe{}",
        b'{"problem": "\xc3\x28"}',
        b"[" * 100_000,
        b'{"problem": ' * 5_000,
        b'{"problem": ' + b'{"a": ' * 900 + b"1" + b"}" * 900 + b"}",
        b'{"problem": {"kind": "fake", "behaviour": ' + b"[" * 900 + b"]" * 900 + b"}}",
        b'{"problem": {"behaviour": NaN}}',
        b'{"problem": {"behaviour": Infinity}}',
        b'{"problem": {"behaviour": 1e999}}',
        b'{"problem": {"behaviour": ' + b"9" * 5000 + b"}}",
        b'{"problem": {"behaviour": 9223372036854775808}}',
        b'{"problem": {"behaviour": "quick", "name": "\\ud800"}}',
        b'{"problem": {}, "surprise": 1}',
        b'{"options": {}}',
        b'{"problem": {"behaviour": "quick", "name": "n"}, "options": [1]}',
        b'{"problem": {"behaviour": "quick", "name": "n"}, "options": {"sede": 1}}',
        b'{"problem": {"behaviour": "quick", "name": "n"}, "options": {"time_limit_s": 1e9}}',
        b'{"problem": {"behaviour": "quick", "name": "n"}, "labels": {"a b": "c"}}',
        b'{"problem": {"behaviour": "quick", "name": "n"}, "labels": {"a": 1}}',
        b'{"problem": {"behaviour": "quick", "name": "n"}, "labels": {"a": "\\u0000"}}',
    ],
)
async def test_a_bad_body_is_refused_with_its_place(http: httpx.AsyncClient, body: bytes) -> None:
    for path in ("/v1/plans", "/v1/frontiers"):
        found = expect_problem(await http.post(path, content=body, headers=JSON), 422, "invalid-input")
        (error, *_) = found["errors"]  # type: ignore[misc]
        assert error["pointer"].startswith("/")
        assert all(error[part] for part in ("field", "value", "problem", "remedy"))
    assert (await http.get("/livez")).status_code == 200


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"problem": None}, "/problem"),
        ({"problem": [1]}, "/problem"),
        ({"options": [1]}, "/options"),
        ({"options": {"sede": 1}}, "/options/sede"),
        ({"options": {"time_limit_s": 1e9}}, "/options/time_limit_s"),
        ({"labels": {"a": 1}}, "/labels/a"),
        ({"labels": [1]}, "/labels"),
        ({"surprise": 1}, "/surprise"),
        ({"problem": {"kind": "fake", "name": "n", "behaviour": "loud"}}, "/problem/behaviour"),
    ],
)
async def test_the_field_that_is_wrong_is_named(
    http: httpx.AsyncClient, change: dict[str, object], pointer: str
) -> None:
    for path, more in (("/v1/plans", {}), ("/v1/frontiers", {"budgets_bytes": [1, 2]})):
        answer = await http.post(path, json={**GOOD, **more, **change})
        (error,) = expect_problem(answer, 422, "invalid-input")["errors"]  # type: ignore[misc]
        assert error["pointer"] == pointer
        assert error["field"].replace(".", "/") == pointer[1:]


async def test_an_input_error_keeps_its_words(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/plans", json={"problem": problem("unheard of")})
    (error,) = expect_problem(answer, 422, "invalid-input")["errors"]  # type: ignore[misc]
    assert error["pointer"] == "/problem/behaviour"
    assert error["field"] == "problem.behaviour"
    assert error["value"] == "'unheard of'"
    assert error["problem"] == "is unknown"
    assert "quick" in error["remedy"]


async def test_pointers_lead_to_the_place(http: httpx.AsyncClient) -> None:
    body = {**GOOD, "budgets_bytes": [1, 2, -3]}
    (error,) = expect_problem(await http.post("/v1/frontiers", json=body), 422, "invalid-input")["errors"]  # type: ignore[misc]
    assert (error["pointer"], error["value"]) == ("/budgets_bytes/2", "-3")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_only_json_is_taken(http: httpx.AsyncClient, content_type: str) -> None:
    answer = await http.post("/v1/plans", content=json.dumps(GOOD), headers={"Content-Type": content_type})
    expect_problem(answer, 415, "unsupported-media-type")


async def test_encoded_bodies_are_refused(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/plans", content=b"..", headers={**JSON, "Content-Encoding": "gzip"})
    expect_problem(answer, 415, "unsupported-media-type")


async def test_the_body_limit_counts_real_bytes(http: httpx.AsyncClient) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 50_000
            yield b" " * 50_000

    for path in ("/v1/plans", "/v1/frontiers"):
        # Without a Content-Length, and with one that lies.
        expect_problem(await http.post(path, content=endless(), headers=JSON), 413, "too-large")
        lying = {**JSON, "Content-Length": "10"}
        expect_problem(await http.post(path, content=b" " * 300_000, headers=lying), 413, "too-large")
    assert sent <= 2 * 300_000, "the rest of a large body is not read"
    just_fits = json.dumps(GOOD).encode().ljust(200_000)
    assert (await http.post("/v1/plans", content=just_fits, headers=JSON)).status_code == 202


async def test_unknown_things_are_404_and_wrong_methods_405(http: httpx.AsyncClient) -> None:
    for method, path in [
        ("GET", "/v1/plans/nobody"),
        ("GET", "/v1/plans/nobody/events"),
        ("GET", "/v1/plans/nobody/result"),
        ("GET", "/v1/plans/nobody/log"),
        ("POST", "/v1/plans/nobody:cancel"),
        ("DELETE", "/v1/plans/nobody"),
        ("GET", "/v1/frontiers/nobody"),
        ("POST", "/v1/frontiers/nobody:cancel"),
        ("GET", "/v2/plans"),
        ("GET", "/v1/plans/%00"),
    ]:
        expect_problem(await http.request(method, path), 404, "not-found")
    expect_problem(await http.request("PATCH", "/v1/plans"), 405, "method-not-allowed")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/plans?state=done",
        "/v1/plans?limit=0",
        "/v1/plans?limit=100000",
        "/v1/plans?label=nocolon",
        "/v1/plans/x?wait=-1",
        "/v1/plans/x?wait=nan",
        "/v1/plans/" + "x" * 100,
    ],
)
async def test_bad_parameters_are_named(http: httpx.AsyncClient, path: str) -> None:
    found = expect_problem(await http.get(path), 422, "invalid-input")
    assert found["errors"]


async def test_a_bad_event_number_is_refused_before_the_stream(http: httpx.AsyncClient) -> None:
    plan = (await http.post("/v1/plans", json=GOOD)).json()
    for bad in ("x", "-1", "1e3", "²"):
        answer = await http.get(plan["links"]["events"], headers={"Last-Event-ID": bad.encode()})
        expect_problem(answer, 422, "invalid-input")


async def test_a_bug_is_a_500_that_tells_nothing_of_the_inside(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr(FakePlanner, "read_each", broken)
    found = expect_problem(await http.post("/v1/plans", json=GOOD), 500, "internal")
    assert "inside" not in json.dumps(found)


async def test_a_store_that_does_not_answer_is_a_503(http: httpx.AsyncClient, app: FastAPI) -> None:
    from loadmaster.api.store import schema

    with app.state.service.database.write() as connection:
        connection.exec_driver_sql("ALTER TABLE job RENAME TO lost")
        assert schema.job.name == "job"
    answer = await http.get("/v1/plans")
    expect_problem(answer, 503, "unavailable")
    assert answer.headers["retry-after"]
    ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["database"]) == (503, "does not answer")
    assert (await http.get("/livez")).status_code == 200


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    document=st.fixed_dictionaries(
        {"problem": json_values}, optional={"options": json_values, "labels": json_values, "budgets_bytes": json_values}
    )
    | json_values
)
async def test_no_json_value_is_a_500(http: httpx.AsyncClient, document: object) -> None:
    body = json.dumps(document).encode()
    for path in ("/v1/plans", "/v1/frontiers"):
        answer = await http.post(path, content=body, headers=JSON)
        assert answer.status_code in (413, 422), answer.text


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=200))
async def test_no_bytes_are_a_500(http: httpx.AsyncClient, body: bytes) -> None:
    assert (await http.post("/v1/plans", content=body, headers=JSON)).status_code == 422
