"""``/v1/plans/{id}/events``: what happens to a plan, as server-sent events that resume where they were cut."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Annotated

import anyio
from fastapi import APIRouter, Depends, Header, Query
from fastapi.sse import KEEPALIVE_COMMENT
from sqlalchemy.exc import SQLAlchemyError

from loadmaster.api.server.context import JobDep, Service, ServiceDep
from loadmaster.api.server.description import problem_answers
from loadmaster.api.server.keys import LOOK_EVERY_S, Caller, CallerDep
from loadmaster.api.server.places import HoldingResponse
from loadmaster.api.server.problems import NoMoreEvents
from loadmaster.api.store.database import log_error
from loadmaster.errors import InputError

logger = logging.getLogger(__name__)

router = APIRouter(tags=["plans"])


class EventStream(HoldingResponse):
    """A response that holds a place among the streams. Not FastAPI's own kind, whose two tasks end in a traceback
    when a client leaves."""

    media_type = "text/event-stream"


def first_event(
    job: JobDep,
    last_event_id: Annotated[str | None, Header(max_length=20, description="the last event already seen")] = None,
    after: Annotated[int | None, Query(ge=0, description="the same as Last-Event-ID, for the first request")] = None,
) -> int:
    """The number of the event to go on after. Checked here, because a stream that has begun cannot refuse."""
    if last_event_id is not None:
        if not (last_event_id.isascii() and last_event_id.isdigit()):
            raise InputError("header.Last-Event-ID", last_event_id, "is no event number", "Give the id of an event.")
        field, seen = "header.Last-Event-ID", int(last_event_id)
    else:
        field, seen = "query.after", after or 0
    if seen > job.event_seq:
        raise InputError(field, seen, f"comes after the last event, {job.event_seq}", "Give the id of an event.")
    if job.state.final and seen >= job.event_seq:
        raise NoMoreEvents
    return seen


@router.get(
    "/v1/plans/{plan_id}/events",
    response_class=EventStream,
    responses={
        204: {"description": "the last event was seen already: do not reconnect"},
        **problem_answers(404, 422, 429, 503),
    },
)
async def plan_events(
    service: ServiceDep, caller: CallerDep, job: JobDep, seen: Annotated[int, Depends(first_event)]
) -> EventStream:
    """Events of the types state, progress, incumbent, log and done; the stream ends after done, or with its key."""
    # Proxies on the way may not keep events back to send several at once.
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    with contextlib.ExitStack() as held:
        held.enter_context(service.streams.take(caller))
        stream = EventStream(_events(service, caller, job.id, seen), headers=headers)
        stream.held = held.pop_all()
    return stream


async def _events(service: Service, caller: Caller, job_id: str, seen: int) -> AsyncIterator[bytes]:
    while not service.stopping.is_set() and await service.keys_in_use.has(caller):
        try:
            events = await service.news.events(job_id, seen)
        except SQLAlchemyError as error:
            # Readers come back after the last event that they saw.
            log_error(logger, "a stream ends", error)
            return
        for event in events:
            seen = event.seq
            yield event.text
            if event.type == "done":
                return
        if events:
            continue
        is_there = True
        with anyio.move_on_after(LOOK_EVERY_S) as silence:
            is_there = await service.news.wait(job_id, seen)
        if silence.cancelled_caught:
            # Proxies on the way close connections on which nothing is said.
            yield KEEPALIVE_COMMENT
        elif not is_there:
            return
