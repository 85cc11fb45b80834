"""The event stream: its form, its order, and that it goes on wherever it was cut."""

from __future__ import annotations

import httpx
import pytest
from fake_planner import OPTIMUM, problem
from private_postgresql import each_database_url

from loadmaster.api.protocol import Event, EventDecoder
from loadmaster.api.worker.worker import Worker

database_url = each_database_url


def decode(text: str) -> list[Event]:
    """All events of a stream."""
    decoder = EventDecoder()
    return [event for line in text.split("\n") if (event := decoder.feed(line)) is not None]


@pytest.fixture
async def finished(http: httpx.AsyncClient, worker: Worker) -> str:
    """The address of a plan that was solved."""
    plan = (await http.post("/v1/plans", json={"problem": problem()})).json()
    worker.work_once()
    return str(plan["links"]["self"])


async def test_the_stream_tells_the_whole_story_in_order(http: httpx.AsyncClient, finished: str) -> None:
    answer = await http.get(f"{finished}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = decode(answer.text)
    assert [event.id for event in events] == list(range(1, len(events) + 1))
    states = [event.data["state"] for event in events if event.type == "state"]
    assert states == ["queued", "running", "succeeded"]
    objectives = [event.data["objective"] for event in events if event.type == "incumbent"]
    assert objectives == [1.2 * OPTIMUM, 1.1 * OPTIMUM]
    assert {event.type for event in events} <= {"state", "progress", "incumbent", "log", "done"}
    assert events[-1].type == "done"
    assert (events[-1].data["state"], events[-1].data["objective"]) == ("succeeded", OPTIMUM)


async def test_the_stream_resumes_after_any_event(http: httpx.AsyncClient, finished: str) -> None:
    events = decode((await http.get(f"{finished}/events")).text)
    for seen in range(len(events)):
        header = await http.get(f"{finished}/events", headers={"Last-Event-ID": str(seen)})
        query = await http.get(f"{finished}/events", params={"after": seen})
        assert decode(header.text) == decode(query.text) == events[seen:]


async def test_what_a_browser_saw_last_comes_before_where_the_address_began(
    http: httpx.AsyncClient, finished: str
) -> None:
    """A browser that reconnects repeats the address, ``after`` in it, and says by Last-Event-ID how far it got."""
    events = decode((await http.get(f"{finished}/events")).text)
    for after, seen in [(1, 3), (3, 1), (0, 2), (2, 0)]:
        answer = await http.get(f"{finished}/events", params={"after": after}, headers={"Last-Event-ID": str(seen)})
        assert decode(answer.text) == events[seen:]


async def test_a_stream_seen_to_its_end_asks_not_to_reconnect(http: httpx.AsyncClient, finished: str) -> None:
    last = decode((await http.get(f"{finished}/events")).text)[-1].id
    answer = await http.get(f"{finished}/events", headers={"Last-Event-ID": str(last)})
    assert (answer.status_code, answer.content) == (204, b"")


def test_the_decoder_follows_the_standard() -> None:
    stream = (
        ': ping\n\nevent: log\ndata: {\ndata: "a": 1}\nid: 7\nretry: 5\n\nevent: log\n\nevent:done\ndata:[]\nid:8\n\n'
    )
    assert decode(stream) == [Event(7, "log", {"a": 1}), Event(8, "done", [])]  # type: ignore[arg-type]
