"""Request bodies: how large they may be, each and all at once, and how bytes become a document that the rest can trust.

Nothing that comes in over the wire may end the server: not deep nesting, not numbers no machine type holds, not
text that is no text. All of it is refused here, as an InputError that names the place.
"""

from __future__ import annotations

import email.message
from collections.abc import Mapping
from typing import Any, TypeVar

import anyio
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loadmaster.api.documents import PlanRequest
from loadmaster.api.errors import ProblemType
from loadmaster.api.server.problems import Refusal, problem_response
from loadmaster.errors import InputError
from loadmaster.models import documents
from loadmaster.models.json_text import parse_json

__all__ = ["BodyLimit", "json_bytes", "parse_body"]

# Lists, objects, and what is in them, as commas and brackets tell; those within text count as well. They take half a
# gigabyte as objects.
MOST_VALUES = 5_000_000
# An object takes as much memory as so many numbers.
_OBJECT_VALUES = 4
# What a body takes in memory while it is read, as measured: its pieces, the whole, its text; and each value.
_COPIES, _VALUE_BYTES = 3, 48

# Of one object. Every key that nobody knows is a refusal of its own, of a kilobyte.
MOST_KEYS = 100_000

# Until a large body is answered.
_RETRY_AFTER_S = "5"

RequestT = TypeVar("RequestT", bound=PlanRequest)


class _NotRead(Exception):
    """Raised in the middle of reading a body, so that the rest is never read."""

    def __init__(self, status: int, type_: ProblemType, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.type, self.detail, self.headers = status, type_, detail, headers or {}


class BodyLimit:
    """ASGI middleware: counts the bytes that really arrive (Content-Length may lie, or be absent), and the seconds.

    Args:
        max_bytes: of one body.
        max_memory_bytes: that all bodies take whose requests are not answered yet. One alone is always read.
        timeout_s: for a body to arrive.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, max_memory_bytes: int, timeout_s: float) -> None:
        self._app, self._max_bytes, self._timeout_s = app, max_bytes, timeout_s
        self._max_memory_bytes, self._held_bytes = max_memory_bytes, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received = values = own_bytes = 0
        started = whole = False
        deadline = anyio.current_time() + self._timeout_s

        async def counted_receive() -> Message:
            nonlocal received, values, own_bytes, whole
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
                values = min(values + _values(piece), MOST_VALUES)
                before, own_bytes = own_bytes, _COPIES * received + _VALUE_BYTES * values
                self._held_bytes += own_bytes - before
                if piece and self._held_bytes > max(own_bytes, self._max_memory_bytes):
                    detail = "Other bodies take all the memory that there is for them. Send it again later."
                    raise _NotRead(503, ProblemType.BUSY, detail, {"Retry-After": _RETRY_AFTER_S})
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
            self._held_bytes -= own_bytes


async def json_bytes(request: Request) -> bytes:
    """The body of a request that says it is JSON.

    Raises:
        Refusal: 415 for another content type or any content encoding.
    """
    header = email.message.Message()
    header["content-type"] = request.headers.get("content-type", "")
    subtype = header.get_content_subtype()
    if header.get_content_maintype() != "application" or not (subtype == "json" or subtype.endswith("+json")):
        raise Refusal(415, ProblemType.UNSUPPORTED_MEDIA_TYPE, "Send the body as application/json.")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Refusal(415, ProblemType.UNSUPPORTED_MEDIA_TYPE, "Send the body without a content encoding.")
    return await request.body()


def parse_body(model: type[RequestT], body: bytes) -> RequestT:
    """A body as the model, or an InputError that names what is wrong with it."""
    # Before it is read: an empty list is two bytes here and eighty as an object.
    values = _values(body)
    if values > MOST_VALUES:
        raise InputError("body", values, "is about as many values as no problem has", f"Send {MOST_VALUES} at most.")
    document = parse_json(body, _refuse)
    _expect_few_keys(document)
    problem = document.get("problem")
    if not isinstance(problem, dict):
        return documents.parse(model, document)
    # Whoever reads the problem checks it; here it would be copied.
    request = documents.parse(model, {**document, "problem": {}})
    return request.model_copy(update={"problem": problem})


def _values(text: bytes) -> int:
    """About how many values there are in JSON, objects by what they take."""
    return text.count(b",") + text.count(b"[") + _OBJECT_VALUES * text.count(b"{")


def _expect_few_keys(document: dict[str, Any]) -> None:
    left: list[Any] = [document]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if len(value) > MOST_KEYS:
                raise InputError("body", len(value), "is more keys than an object has", f"Send {MOST_KEYS} at most.")
            value = value.values()
        left += [part for part in value if isinstance(part, dict | list)]


def _refuse(value: object, problem: str) -> InputError:
    return InputError("body", value, problem, "Send one JSON object, in UTF-8.")
