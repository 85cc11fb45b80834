"""``loadmaster serve``: the HTTP server, with its workers."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from types import FrameType

import uvicorn

from loadmaster.api import logs, telemetry
from loadmaster.api.server.app import create_app
from loadmaster.api.server.context import Service
from loadmaster.api.server.patience import BACKLOG, most_connections, protocol, raise_descriptor_limit
from loadmaster.api.server.security import is_loopback
from loadmaster.api.settings import Settings
from loadmaster.api.worker.supervisor import Supervisor
from loadmaster.api.worker.work import expect_engine
from loadmaster.errors import InputError

__all__ = ["Server", "make_server", "serve"]

logger = logging.getLogger(__name__)

_WAITING_CONNECTIONS = 1024
_FINISH_REQUESTS_S, _FINISH_WORK_S = 5, 3
# Longer than it ever takes in good order: whoever stops a server gives it fifteen seconds.
_LAST_RESORT_S = 14.0


class Server(uvicorn.Server):
    """A server that ends when it is told to: open event streams end, and its workers stop, while requests go on.
    Anything that does not end even so, as a thread that waits for a store that is away, ends with the process: jobs and
    their leases are safe in the store."""

    def __init__(self, config: uvicorn.Config, service: Service, supervisor: Supervisor) -> None:
        super().__init__(config)
        self.service, self.supervisor = service, supervisor

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.service.stopping.is_set():
            self.service.stopping.set()
            self.supervisor.begin_to_stop()
            last_resort = threading.Timer(_LAST_RESORT_S, _end)
            last_resort.daemon = True
            last_resort.start()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for listening in server.sockets:
                # The system may keep more waiting than are taken at once: of those that it turns away, each tries again
                # ever more slowly.
                with socket.socket(fileno=os.dup(listening.fileno())) as same:
                    same.listen(_WAITING_CONNECTIONS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # What is not done by then is refused, not cut off.
        asyncio.get_running_loop().call_later(_FINISH_WORK_S, self._end_work)
        await super().shutdown(sockets)

    def _end_work(self) -> None:
        self.service.readers.close()
        self.service.renderer.close()


def _end() -> None:
    logger.error("the server did not come to an end in good order; what it did is cut off")
    os._exit(1)


def make_server(settings: Settings) -> Server:
    """A server that is ready to ``run()``. Raises InputError if the settings cannot be used, MissingExtraError if the
    engine that they name is not installed."""
    _expect_keys_beyond_this_machine(settings)
    expect_engine(settings)
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=protocol(settings.request_timeout_s, most_connections()),
        log_config=None,
        log_level=settings.log_level,
        backlog=BACKLOG,
        timeout_graceful_shutdown=_FINISH_REQUESTS_S,
        server_header=False,
    )
    return Server(config, app.state.service, app.state.supervisor)


def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM; raises as :func:`make_server`, and InputError if the port is not free here."""
    logs.configure(settings)
    telemetry.configure()
    raise_descriptor_limit()
    server = make_server(settings)
    if settings.keys == "required" and all(key.revoked_at is not None for key in server.service.keys.all()):
        logger.warning("there is no key yet, and nobody is let in: loadmaster keys add NAME --scope submit makes one")
    try:
        server.run()
    except SystemExit:  # uvicorn has logged why, and means another status by its own than the command line does
        where = f"{settings.host}:{settings.port}"
        raise InputError("port", where, "cannot be listened on", "Give --host and --port that are free here.") from None


def _expect_keys_beyond_this_machine(settings: Settings) -> None:
    if settings.keys == "off" and not is_loopback(settings.host):
        raise InputError(
            "keys",
            settings.keys,
            f"would let everybody in who reaches {settings.host}",
            "Give --keys required and make one (loadmaster keys add NAME --scope submit), or give --host 127.0.0.1.",
        )
