"""Both clients and a service that asks for keys: what they send, what they say, and what they keep to themselves."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fake_planner import problem
from running_service import RunningService

from loadmaster.api.client import AsyncClient, Client
from loadmaster.api.errors import KeyNeededError, NotAllowedError, QuotaReachedError, ServiceError
from loadmaster.api.protocol import Backoff
from loadmaster.api.store.keys import Keys, Scope
from loadmaster.errors import InputError

SECRET = "lm_a-secret-that-nobody-may-see"
ONCE = Backoff(attempts=1)
twins = pytest.mark.parametrize("twin", ["sync", "async"])


def ask(twin: str, url: str, call: str = "get", *arguments: Any, **options: Any) -> Any:
    """One call of one of the clients; lists are read to their end."""
    if twin == "sync":
        with Client(url, **options) as client:
            found = getattr(client, call)(*arguments)
            return list(found) if call == "list" else found

    async def asked() -> Any:
        async with AsyncClient(url, **options) as client:
            if call == "list":
                return [plan async for plan in client.list()]
            return await getattr(client, call)(*arguments)

    return asyncio.run(asked())


def sent(twin: str, **options: Any) -> str | None:
    """The key that a client sends."""
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, json={})

    ask(twin, "http://service", "get", "/v1/solvers", transport=httpx.MockTransport(answer), **options)
    return requests[0].headers.get("Authorization")


@twins
def test_the_argument_beats_the_environment(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOADMASTER_API_KEY", raising=False)
    assert sent(twin) is None
    monkeypatch.setenv("LOADMASTER_API_KEY", "lm_of-the-environment\n")
    assert sent(twin) == "Bearer lm_of-the-environment"
    assert sent(twin, api_key=SECRET) == f"Bearer {SECRET}"
    assert sent(twin, api_key="") is None
    monkeypatch.setenv("LOADMASTER_API_KEY", "")
    assert sent(twin) is None


@twins
@pytest.mark.parametrize("bad", ["a secret", "secret\nX-Other: 1", "secret\x07", "sécret"])
def test_what_can_be_no_key_is_refused_and_not_shown(twin: str, bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="api_key") as given:
        ask(twin, "http://service", "get", "/v1/solvers", api_key=bad)
    monkeypatch.setenv("LOADMASTER_API_KEY", bad)
    with pytest.raises(InputError, match="LOADMASTER_API_KEY") as found:
        ask(twin, "http://service", "get", "/v1/solvers")
    for error in (given, found):
        assert "cret" not in str(error.value)


@twins
@pytest.mark.parametrize("status", [500, 401, None])
def test_a_key_is_in_no_error_no_log_and_no_repr(
    twin: str, status: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def fail(_: httpx.Request) -> httpx.Response:
        if status is None:
            raise httpx.ConnectError("refused")
        return httpx.Response(status, text="broken")

    with pytest.raises(ServiceError) as error:
        ask(twin, "http://service", "get", "/x", api_key=SECRET, backoff=ONCE, transport=httpx.MockTransport(fail))
    assert SECRET not in "".join(traceback.format_exception(error.value))
    assert SECRET not in caplog.text
    with Client("http://service", api_key=SECRET) as client:
        assert SECRET not in repr(client) + repr(vars(client)) + repr(client.plan("plan_0"))


@pytest.fixture
def asking(start_service: Callable[..., RunningService]) -> RunningService:
    """A real service that asks for keys, without workers."""
    return start_service(keys="required")


@pytest.fixture
def keys(asking: RunningService) -> Keys:
    """Its keys."""
    return Keys(asking.app.state.service.database)


@twins
def test_with_a_key_everything_works(
    twin: str, asking: RunningService, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = keys.add("ann", Scope.SUBMIT)
    plan = ask(twin, asking.url, "submit", problem(), api_key=secret)
    (listed,) = ask(twin, asking.url, "list", api_key=secret)
    assert (listed.id, listed.owner) == (plan.id, "ann")
    assert secret not in caplog.text


@twins
def test_refusals_are_errors_of_their_own(twin: str, asking: RunningService, keys: Keys) -> None:
    quota = keys.add("ann", Scope.SUBMIT, max_queued=1)
    for wrong in ("", "lm_wrong"):
        with pytest.raises(KeyNeededError, match="key") as refused:
            ask(twin, asking.url, "submit", problem(), api_key=wrong)
        assert refused.value.status == 401
    with pytest.raises(NotAllowedError, match="submit"):
        ask(twin, asking.url, "submit", problem(), api_key=keys.add("eye", Scope.READ))
    ask(twin, asking.url, "submit", problem(), api_key=quota, backoff=ONCE)
    with pytest.raises(QuotaReachedError, match="ann"):
        ask(twin, asking.url, "submit", problem(name="another"), api_key=quota, backoff=ONCE)


def test_another_ones_plan_is_an_error_of_its_own(asking: RunningService, keys: Keys) -> None:
    with Client(asking.url, api_key=keys.add("ann", Scope.SUBMIT)) as ann:
        plan = ann.submit(problem())
        assert [listed.id for listed in ann.list(owner="ann")] == [plan.id]
        assert list(ann.list(owner="bob")) == []
    with Client(asking.url, api_key=keys.add("bob", Scope.SUBMIT)) as bob:
        with pytest.raises(NotAllowedError, match="ann"):
            bob.plan(plan.id).cancel()
        assert bob.plan(plan.id).state().owner == "ann"


async def test_streams_need_a_key_and_carry_it(asking: RunningService, keys: Keys) -> None:
    secret = keys.add("ann", Scope.SUBMIT)
    async with AsyncClient(asking.url, api_key=secret) as ann, AsyncClient(asking.url, api_key="") as stranger:
        plan = await ann.submit(problem())
        await plan.cancel()
        assert [event.type async for event in plan.events()][-1] == "done"
        with pytest.raises(KeyNeededError):
            async for _ in stranger.plan(plan.id).events():
                pass
