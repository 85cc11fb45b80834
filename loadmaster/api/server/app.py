"""The app: all endpoints, the store behind them, and the workers next to them, from one :class:`Settings`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator

from fastapi import FastAPI

import loadmaster
from loadmaster.api import telemetry
from loadmaster.api.planning import load_planner
from loadmaster.api.server import (
    blobs,
    events,
    exports,
    frontiers,
    metrics,
    operations,
    pages,
    plans,
    problems,
    results,
)
from loadmaster.api.server.context import Service
from loadmaster.api.server.description import describe
from loadmaster.api.server.keys import KeyCheck, KeysInUse
from loadmaster.api.server.news import News
from loadmaster.api.server.patience import most_connections
from loadmaster.api.server.places import Places
from loadmaster.api.server.readiness import Readiness
from loadmaster.api.server.reading.body import BodyLimit
from loadmaster.api.server.reading.body_memory import BodyMemory
from loadmaster.api.server.reading.readers import Readers
from loadmaster.api.server.rendering.renderer import Renderer
from loadmaster.api.server.security import HostCheck
from loadmaster.api.settings import Settings
from loadmaster.api.store.blobs import Blobs
from loadmaster.api.store.database import Database
from loadmaster.api.store.jobs import Jobs
from loadmaster.api.store.keys import Keys
from loadmaster.api.store.measurements import Measurements
from loadmaster.api.store.queue import Queue
from loadmaster.api.store.retention import Retention
from loadmaster.api.worker.supervisor import Supervisor

__all__ = ["DESCRIPTION", "create_app"]

DESCRIPTION = """Plans deep-learning training by optimization.

Submit a problem document, follow its events, fetch the plan with its proof. Errors are problem details (RFC 9457).
"""


# So long a submission waits for others who write, before it is refused.
_LONGEST_LOOK_S = 30.0
# Submissions that are read at a time: those of one key may not keep all others waiting.
_MOST_BODIES, _MOST_BODIES_OF_A_KEY = 256, 32


def create_app(settings: Settings) -> FastAPI:
    """The service. Its workers run between startup and shutdown of the app. Raises InputError if the settings cannot be
    used."""
    database = Database(settings.database_url)
    queue = Queue(database, lease_s=settings.lease_s, max_attempts=settings.max_attempts)
    jobs, stopping = Jobs(database, settings.max_queued_jobs, settings.max_key_bytes), threading.Event()
    news = News(jobs.events, jobs.heads, settings.poll_s, stopping)
    readiness = Readiness(lambda: operations.look(database, settings), _LONGEST_LOOK_S)
    readers, keys = Readers(settings, load_planner(settings.planner)), Keys(database)
    renderer, most = Renderer(settings), most_connections()
    service = Service(
        settings,
        database,
        jobs,
        Blobs(database, settings.max_blobs_bytes),
        Measurements(database),
        queue,
        keys,
        KeysInUse(keys),
        Places("submissions", _MOST_BODIES, _MOST_BODIES_OF_A_KEY),
        readers,
        renderer,
        Places(
            "event streams and requests that wait",
            min(settings.max_streams, most // 2),
            min(settings.max_key_streams, most // 4),
        ),
        news,
        readiness,
        stopping,
    )
    asks_for_keys = settings.keys == "required"

    supervisor = Supervisor(settings, queue, Retention(database, settings.keep_days, settings.keep_plans))

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        supervisor.start()
        try:
            yield
        finally:
            service.stopping.set()
            readers.close()
            renderer.close()
            supervisor.stop()
            database.close()

    app = FastAPI(
        title="Loadmaster",
        version=loadmaster.__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        telemetry=telemetry.of_requests(),
        # The usual page of the interface loads its scripts from elsewhere; ours is among the pages.
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    app.state.supervisor = supervisor
    # The last one is the first to see a request: nothing is read of what it may not ask.
    app.add_middleware(
        BodyLimit,
        max_bytes=settings.max_body_bytes,
        memory=BodyMemory(settings.max_bodies_memory_bytes),
        timeout_s=settings.request_timeout_s,
    )
    app.add_middleware(KeyCheck, keys=keys if asks_for_keys else None)
    app.add_middleware(HostCheck, host=settings.host, names=settings.allowed_host_names)
    problems.install(app)
    modules = (plans, results, events, exports, blobs, frontiers, operations, metrics)
    for module in modules:
        app.include_router(module.router)
    app.state.endpoints = [route for module in modules for route in module.router.routes]
    pages.install(app, asks_for_keys=asks_for_keys)
    describe(app, asks_for_keys=asks_for_keys)
    return app
