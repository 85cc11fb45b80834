"""Request bodies: how large they may be, each and all at once, and how long they may take to arrive."""

from __future__ import annotations

import email.message
from collections.abc import Mapping

import anyio
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loadmaster.api.errors import ProblemType
from loadmaster.api.server.problems import Refusal, problem_response
from loadmaster.api.server.reading.body_memory import NO_ROOM, NO_ROOM_RETRY_AFTER_S, BodyMemory
from loadmaster.api.server.reading.parsing import MOST_VALUES, count_values

__all__ = ["BodyLimit", "expect_plain", "json_bytes"]


class _NotRead(Exception):
    """The end of reading a body in the middle of it, so that the rest is never read."""

    def __init__(self, status: int, type_: ProblemType, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.type, self.detail, self.headers = status, type_, detail, headers or {}


class BodyLimit:
    """ASGI middleware: counts the bytes that really arrive (Content-Length may lie, or be absent), and the seconds.
    ``max_bytes`` is of one body, ``memory`` is shared by all, ``timeout_s`` is for a body to arrive."""

    def __init__(self, app: ASGIApp, max_bytes: int, memory: BodyMemory, timeout_s: float) -> None:
        self._app, self._max_bytes, self._timeout_s = app, max_bytes, timeout_s
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received = values = 0
        held = self._memory.hold()
        scope.setdefault("state", {})["held"] = held
        started = whole = False
        deadline = anyio.current_time() + self._timeout_s

        async def counted_receive() -> Message:
            nonlocal received, values, whole
            if whole:  # what comes now is only that the client has gone
                return await receive()
            try:
                with anyio.fail_after(max(0.0, deadline - anyio.current_time())):
                    message = await receive()
            except TimeoutError:
                detail = f"The body did not arrive within {self._timeout_s:g} seconds."
                raise _NotRead(408, ProblemType.TOO_SLOW, detail) from None
            if message["type"] == "http.request":
                whole = not message.get("more_body", False)
                piece = message.get("body", b"")
                received += len(piece)
                if received > self._max_bytes:
                    detail = f"The body is larger than the {self._max_bytes} bytes that this server accepts."
                    raise _NotRead(413, ProblemType.TOO_LARGE, detail)
                # More are refused before they become objects.
                values = min(values + count_values(piece), MOST_VALUES)
                if piece and not held.fits(received, values):
                    raise _NotRead(503, ProblemType.BUSY, NO_ROOM, {"Retry-After": NO_ROOM_RETRY_AFTER_S})
            return message

        async def noted_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, counted_receive, noted_send)
        except _NotRead as error:
            if started:
                raise
            # Closed, because the rest of the body is still on its way.
            headers = {"Connection": "close", **error.headers}
            response = problem_response(error.status, error.type, error.detail, instance=scope["path"], headers=headers)
            await response(scope, receive, send)
        finally:
            held.give_back()


async def json_bytes(request: Request) -> bytes:
    """The body of a request that says it is JSON. Raises Refusal 415 for another content type, or any encoding."""
    header = email.message.Message()
    header["content-type"] = request.headers.get("content-type", "")
    subtype = header.get_content_subtype()
    if header.get_content_maintype() != "application" or not (subtype == "json" or subtype.endswith("+json")):
        raise Refusal(415, ProblemType.UNSUPPORTED_MEDIA_TYPE, "Send the body as application/json.")
    expect_plain(request)
    return await request.body()


def expect_plain(request: Request) -> None:
    """Raise Refusal 415 for a body with a content encoding."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Refusal(415, ProblemType.UNSUPPORTED_MEDIA_TYPE, "Send the body without a content encoding.")
