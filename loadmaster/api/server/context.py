"""State that the endpoints share: settings, store, planner. Held by the app, handed to endpoints as a dependency."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Request
from starlette.convertors import Convertor, register_url_convertor

from loadmaster.api.server.keys import CallerDep, KeysInUse
from loadmaster.api.server.news import News
from loadmaster.api.server.places import Places
from loadmaster.api.server.problems import not_found
from loadmaster.api.server.readiness import Readiness
from loadmaster.api.server.reading.readers import Readers
from loadmaster.api.server.rendering.renderer import Renderer
from loadmaster.api.settings import Settings
from loadmaster.api.store.blobs import Blobs
from loadmaster.api.store.database import Database
from loadmaster.api.store.jobs import Jobs
from loadmaster.api.store.keys import Keys
from loadmaster.api.store.measurements import Measurements
from loadmaster.api.store.queue import Queue
from loadmaster.api.store.records import Job

__all__ = ["JobDep", "OwnJobDep", "PlanId", "Service", "ServiceDep", "existing_job", "service"]


class _Id(Convertor[str]):
    """An id in a path: no colon is in it, so ``/v1/plans/ID:cancel`` is the path of nothing but that."""

    regex = "[^/:]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("id", _Id())


@dataclass(frozen=True)
class Service:
    """The parts of a running service. ``stopping`` is set when the server has begun to shut down."""

    settings: Settings
    database: Database
    jobs: Jobs
    blobs: Blobs
    measurements: Measurements
    queue: Queue
    keys: Keys
    keys_in_use: KeysInUse
    bodies: Places
    readers: Readers
    renderer: Renderer
    streams: Places
    news: News
    readiness: Readiness
    stopping: threading.Event


async def service(request: Request) -> Service:
    """The service of the app that a request came to. Asynchronous, as all that never waits: no thread is needed."""
    found = request.app.state.service
    assert isinstance(found, Service)
    return found


ServiceDep = Annotated[Service, Depends(service)]
PlanId = Annotated[str, Path(max_length=64, description="id of a plan")]


def existing_job(plan_id: PlanId, service: ServiceDep) -> Job:
    """The job that the path names. Raises Refusal 404."""
    job = service.jobs.get(plan_id)
    if job is None:
        raise not_found("plan", plan_id)
    return job


JobDep = Annotated[Job, Depends(existing_job)]


def own_job(job: JobDep, caller: CallerDep) -> Job:
    """The job that the path names, to change it. Raises Refusal 404, and 403 if it is another's."""
    caller.expect_may_change("plan", job.owner)
    return job


OwnJobDep = Annotated[Job, Depends(own_job)]
