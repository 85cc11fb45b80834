"""Both clients against services that fail: retries, back-off, dropped streams, answers that are none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
from fake_planner import problem

from loadmaster.api.client import AsyncClient, Client
from loadmaster.api.errors import ServiceError, TooLargeError, UnavailableError
from loadmaster.api.protocol import Backoff, Call, Event, plan_path, retry_after_s
from loadmaster.errors import InputError
from loadmaster.planner import PlanOptions

QUICK = Backoff(attempts=4, first_s=0.001, longest_s=0.002)
PLAN = {
    "id": "plan_1", "kind": "fake", "name": "n", "labels": {}, "state": "queued", "status": None, "budget_bytes": None,
    "objective": None, "bound": None, "gap": None, "unit": None, "cached": False, "cancel_requested": False,
    "attempts": 0, "error": None, "options": {}, "created_at": 0.0, "started_at": None, "finished_at": None,
    "links": {},
}  # fmt: skip
Handler = Callable[[httpx.Request], httpx.Response]


class Script:
    """Answers calls one after the other, and notes them. An exception is raised."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers, self.requests = list(answers), list[httpx.Request]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def submit(script: Script, twin: str) -> None:
    """Submit through one of the clients."""
    transport = httpx.MockTransport(script)
    if twin == "sync":
        with Client("http://service", backoff=QUICK, transport=transport) as client:
            client.submit(problem())
    else:
        async with AsyncClient("http://service", backoff=QUICK, transport=transport) as client:
            await client.submit(problem())


twins = pytest.mark.parametrize("twin", ["sync", "async"])


@twins
async def test_a_call_is_repeated_under_the_same_key(twin: str) -> None:
    busy = httpx.Response(503, headers={"Retry-After": "0"})
    script = Script(httpx.ConnectError("refused"), httpx.ReadError("reset"), busy, httpx.Response(202, json=PLAN))
    await submit(script, twin)
    assert len(script.requests) == 4
    assert len({request.headers["Idempotency-Key"] for request in script.requests}) == 1
    assert len({request.content for request in script.requests}) == 1


@twins
async def test_it_gives_up_in_the_end(twin: str) -> None:
    script = Script(*[httpx.ConnectError("refused")] * 4)
    with pytest.raises(UnavailableError, match="loadmaster serve"):
        await submit(script, twin)
    assert not script.answers
    with pytest.raises(UnavailableError, match="503"):
        await submit(Script(*[httpx.Response(503, text="busy", headers={"Retry-After": "0"}) for _ in range(4)]), twin)


@twins
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"status_code": 500, "text": "oops"}, ServiceError),
        ({"status_code": 200, "text": "<html>a proxy</html>"}, ServiceError),
        ({"status_code": 200, "json": {"id": "x"}}, ServiceError),
        (
            {
                "status_code": 413,
                "json": {"type": "urn:loadmaster:problem:too-large", "title": "t", "status": 413, "detail": "large"},
            },
            TooLargeError,
        ),
        (
            {"status_code": 418, "json": {"type": "urn:other", "title": "t", "status": 418, "detail": "a pot"}},
            ServiceError,
        ),
    ],
)
async def test_other_answers_are_not_repeated(twin: str, answer: dict[str, Any], error: type[Exception]) -> None:
    script = Script(httpx.Response(**answer))
    with pytest.raises(error):
        await submit(script, twin)
    assert len(script.requests) == 1


def test_pauses_grow_with_jitter_and_honour_the_server() -> None:
    backoff = Backoff(first_s=1.0, longest_s=8.0)
    for attempt, limit in [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (9, 8.0)]:
        pauses = [backoff.pause_s(attempt) for _ in range(200)]
        assert 0.5 * limit <= min(pauses) < 0.6 * limit
        assert 0.9 * limit < max(pauses) <= limit
    asked = httpx.Response(503, headers={"Retry-After": "3"})
    assert 3.0 <= backoff.pause_s(1, asked) <= 4.0


@pytest.mark.parametrize(("text", "expected"), [("7", 7.0), ("", None), ("soon", None), ("99999", 60.0)])
def test_retry_after(text: str, expected: float | None) -> None:
    assert retry_after_s(httpx.Response(503, headers={"Retry-After": text})) == expected


def test_retry_after_as_a_date() -> None:
    moment = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    found = retry_after_s(httpx.Response(503, headers={"Retry-After": moment}))
    assert found is not None
    assert 25.0 < found <= 30.0


class CutStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Some events, then the connection breaks (or the stream just ends)."""

    def __init__(self, events: list[Event], error: Exception | None) -> None:
        self._chunks = [f"event: {e.type}\ndata: {json.dumps(dict(e.data))}\nid: {e.id}\n\n".encode() for e in events]
        # The last one half only: what is incomplete must not be taken for an event.
        self._chunks.append(b"event: log\ndata: {}\nid: 999")
        self._error = error

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk


STORY = [Event(n, "log", {"line": str(n)}) for n in range(1, 6)] + [Event(6, "done", {"state": "succeeded"})]


def story_teller() -> tuple[Handler, list[str]]:
    """A service that loses the connection after every second event, each time in another way."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["Last-Event-ID"])
        if len(asked) == 2:
            raise httpx.ConnectError("refused")
        if len(asked) == 3:
            return httpx.Response(502, text="a proxy")
        after = int(asked[-1])
        error = httpx.ReadError("reset") if len(asked) == 1 else None
        headers = {"Content-Type": "text/event-stream"}
        return httpx.Response(200, headers=headers, stream=CutStream(STORY[after : after + 2], error))

    return answer, asked


def test_a_dropped_stream_goes_on_where_it_was_cut() -> None:
    answer, asked = story_teller()
    with Client("http://service", backoff=QUICK, transport=httpx.MockTransport(answer)) as client:
        assert list(client.plan("plan_1").events()) == STORY
    assert asked == ["0", "2", "2", "2", "4"]


async def test_a_dropped_stream_goes_on_where_it_was_cut_async() -> None:
    answer, asked = story_teller()
    async with AsyncClient("http://service", backoff=QUICK, transport=httpx.MockTransport(answer)) as client:
        assert [event async for event in client.plan("plan_1").events()] == STORY
    assert asked == ["0", "2", "2", "2", "4"]


@twins
async def test_a_stream_that_is_left_lets_go_of_its_connection(twin: str) -> None:
    answer = httpx.Response(200, headers={"Content-Type": "text/event-stream"}, stream=CutStream(STORY, None))
    transport = httpx.MockTransport(Script(answer))
    if twin == "sync":
        with Client("http://service", transport=transport) as client:
            events = client.plan("plan_1").events()
            assert next(events) == STORY[0]
            assert not answer.is_closed
            events.close()  # type: ignore[attr-defined]
            assert answer.is_closed
    else:
        async with AsyncClient("http://service", transport=transport) as client:
            story = client.plan("plan_1").events()
            assert await anext(story) == STORY[0]
            assert not answer.is_closed
            await story.aclose()
            assert answer.is_closed


def test_a_stream_that_never_answers_gives_up() -> None:
    script = Script(*[httpx.ConnectError("refused")] * 4)
    with (
        Client("http://service", backoff=QUICK, transport=httpx.MockTransport(script)) as client,
        pytest.raises(UnavailableError),
    ):
        list(client.plan("plan_1").events())


@pytest.mark.parametrize("plan_id", ["", "../plans", "a/b", "a?b", "a b", "a#"])
def test_an_id_cannot_lead_elsewhere(plan_id: str) -> None:
    with pytest.raises(InputError, match="plan_id"):
        plan_path(plan_id)


@pytest.mark.parametrize("url", ["", "planner", "planner.lan:8642", "ftp://planner", "http://", "http://[::1"])
@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_what_is_no_address_is_refused_at_once(client: type[Client] | type[AsyncClient], url: str) -> None:
    with pytest.raises(InputError, match=r"^server: .*http://127.0.0.1:8642"):
        client(url)


def test_a_timeout_of_the_answer_is_waited_for_no_longer_than_asked() -> None:
    call = Call("GET", "/x", timeout_s=3.0)
    with httpx.Client(base_url="http://service") as http:
        assert call.build(http).extensions["timeout"]["read"] == 3.0


def test_options_may_be_typed() -> None:
    script = Script(httpx.Response(202, json=PLAN))
    with Client("http://service", transport=httpx.MockTransport(script)) as client:
        client.submit(problem(), PlanOptions(gap=0.25, budget_bytes=7))
    options = json.loads(script.requests[0].content)["options"]
    assert (options["gap"], options["budget_bytes"]) == (0.25, 7)


def test_the_client_needs_the_base_install_only() -> None:
    heavy = "fastapi starlette uvicorn sqlalchemy prometheus_client highspy ortools pulp torch networkx resvg_py"
    program = (
        "import sys, loadmaster; loadmaster.Client, loadmaster.AsyncClient;"
        f"print([name for name in {heavy.split()!r} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
