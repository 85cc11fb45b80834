"""The app: all endpoints, the store behind them, and the workers beside them, from one :class:`Settings`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator
from importlib import metadata
from typing import Any

from fastapi import FastAPI

from loadmaster.api.documents import FrontierRequest, PlanRequest, ProblemDetails
from loadmaster.api.planning import load_planner
from loadmaster.api.server import events, exports, frontiers, metrics, operations, pages, plans, problems
from loadmaster.api.server.body import BodyLimit
from loadmaster.api.server.context import Service
from loadmaster.api.server.news import News
from loadmaster.api.server.security import HostCheck
from loadmaster.api.settings import Settings
from loadmaster.api.store.jobs import Jobs
from loadmaster.api.store.queue import Queue
from loadmaster.api.store.schema import Database
from loadmaster.api.worker.supervisor import Supervisor

__all__ = ["DESCRIPTION", "create_app"]

DESCRIPTION = """Plans deep-learning training by optimization.

Submit a problem document, follow its events, fetch the plan with its proof. Errors are problem details (RFC 9457).
"""


def create_app(settings: Settings) -> FastAPI:
    """The service. Its workers run between startup and shutdown of the app.

    Raises:
        InputError: settings that cannot be used.
    """
    database = Database(settings.database_url)
    queue = Queue(database, lease_s=settings.lease_s, max_attempts=settings.max_attempts)
    jobs, stopping = Jobs(database, settings.max_queued_jobs), threading.Event()
    news = News(jobs.heads, settings.poll_s, stopping)
    service = Service(settings, database, jobs, queue, load_planner(settings.planner), news, stopping)

    supervisor = Supervisor(settings, queue)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        supervisor.start()
        try:
            yield
        finally:
            service.stopping.set()
            supervisor.stop()
            database.close()

    app = FastAPI(
        title="Loadmaster",
        version=metadata.version("loadmaster"),
        description=DESCRIPTION,
        lifespan=lifespan,
        # The usual page of the interface loads its scripts from elsewhere; ours is among the pages.
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    app.state.supervisor = supervisor
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes, timeout_s=settings.request_timeout_s)
    app.add_middleware(HostCheck, host=settings.host, names=settings.allowed_host_names)
    problems.install(app)
    for module in (plans, events, exports, frontiers, operations, metrics):
        app.include_router(module.router)
    pages.install(app)
    _describe_bodies(app)
    return app


def _describe_bodies(app: FastAPI) -> None:
    """Add the models of bodies that endpoints read by themselves, and of refusals, to the app's description."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schemas = generate()["components"]["schemas"]
            for model in (PlanRequest, FrontierRequest, ProblemDetails):
                described = model.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas.update(described.pop("$defs", {}))
                schemas[model.__name__] = described
        assert app.openapi_schema is not None, "set by the first call"
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
