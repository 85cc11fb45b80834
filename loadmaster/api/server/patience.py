"""Limits on connections: how many there may be, and how long one may take to send a request.

Half of a request's headers would hold a place for ever. And a server without descriptors answers nobody: what comes
beyond those that it can have is told so and closed. Bodies have their own limit (``server/reading/body.py``), and idle
connections that of uvicorn.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

# So many connections are taken at once, before any of them can be told that it is one too many.
BACKLOG = 64
# In addition, descriptors that are not of clients: the store's, processes that work for the server, their files.
_RESERVED = 96 + BACKLOG
_FEWEST_CONNECTIONS = 16
_MOST_DESCRIPTORS = 65_536
_NO_ROOM = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def raise_descriptor_limit() -> None:
    """Let this process have as many open files as the system lets it ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def most_connections() -> int:
    """The number of connections of clients that the open files of this process are enough for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, _MOST_DESCRIPTORS)
    return max(_FEWEST_CONNECTIONS, descriptors - _RESERVED)


def protocol(timeout_s: float, most: int) -> type[asyncio.Protocol]:
    """uvicorn's protocol, which closes connections whose headers are not there after so many seconds, and all beyond
    ``most`` at once."""

    class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        _closing: asyncio.TimerHandle | None = None

        _refused = False

        def connection_made(self, transport: Any) -> None:
            if len(self.connections) >= most:
                self._refused = True
                transport.write(_NO_ROOM)
                transport.close()
                return
            super().connection_made(transport)
            self._expect_headers()

        def data_received(self, data: bytes) -> None:
            if self._refused:
                return
            if self._closing is None and not self._is_answering():
                self._expect_headers()
            super().data_received(data)
            if self._is_answering():
                self._stop()

        def eof_received(self) -> None:
            if not self._refused:
                super().eof_received()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._refused:
                return
            self._stop()
            super().connection_lost(exc)

        def _is_answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _expect_headers(self) -> None:
            self._closing = self.loop.call_later(timeout_s, self.transport.close)

        def _stop(self) -> None:
            if self._closing is not None:
                self._closing.cancel()
                self._closing = None

    return Protocol
