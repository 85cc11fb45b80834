"""``loadmaster serve``: the HTTP server, with its workers."""

from __future__ import annotations

import logging
from types import FrameType

import uvicorn

from loadmaster.api import logs, telemetry
from loadmaster.api.server.app import create_app
from loadmaster.api.server.context import Service
from loadmaster.api.server.patience import protocol
from loadmaster.api.server.security import is_loopback
from loadmaster.api.settings import Settings
from loadmaster.api.worker.work import expect_engine
from loadmaster.errors import InputError

__all__ = ["Server", "make_server", "serve"]

logger = logging.getLogger(__name__)

_FINISH_REQUESTS_S = 5


class Server(uvicorn.Server):
    """A server whose open event streams end when it is told to stop, so that it can."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.service.stopping.set()
        super().handle_exit(sig, frame)


def make_server(settings: Settings) -> Server:
    """A server that is ready to ``run()``.

    Raises:
        InputError: settings that cannot be used.
        MissingExtraError: the engine that they name is not installed.
    """
    _expect_keys_beyond_this_machine(settings)
    expect_engine(settings)
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=protocol(settings.request_timeout_s),
        log_config=None,
        log_level=settings.log_level,
        timeout_graceful_shutdown=_FINISH_REQUESTS_S,
        server_header=False,
    )
    return Server(config, app.state.service)


def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        InputError: settings that cannot be used.
        MissingExtraError: the engine that they name is not installed.
    """
    logs.configure(settings)
    telemetry.configure()
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
