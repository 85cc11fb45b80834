"""How long a connection may take to say what it wants: half of a request's headers would hold a place for ever.

Bodies have their own limit (``server/reading/body.py``), and idle connections that of uvicorn.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol


def protocol(timeout_s: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol, which closes connections whose headers are not there after so many seconds."""

    class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        _closing: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_headers()

        def data_received(self, data: bytes) -> None:
            if self._closing is None and not self._is_answering():
                self._expect_headers()
            super().data_received(data)
            if self._is_answering():
                self._stop()

        def connection_lost(self, exc: Exception | None) -> None:
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
