"""Request bodies: how large they may be, and how bytes become a document that the rest can trust.

Nothing that comes in over the wire may end the server: not deep nesting, not numbers no machine type holds, not
text that is no text. All of it is refused here, as an InputError that names the place.
"""

from __future__ import annotations

import email.message
import json
import math
from typing import Any, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loadmaster.api.errors import ProblemType
from loadmaster.api.server.problems import Refusal, problem_response
from loadmaster.errors import InputError
from loadmaster.models import documents

ModelT = TypeVar("ModelT", bound=BaseModel)
_LARGEST_INTEGER = 2**63 - 1
_LONGEST_INTEGER = len(str(-_LARGEST_INTEGER))


class _BodyTooLarge(Exception):
    """Raised in the middle of reading a body, so that the rest is never read."""


class BodyLimit:
    """ASGI middleware: counts the bytes that really arrive (Content-Length may lie, or be absent)."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received = 0
        started = False

        async def counted_receive() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > self._max_bytes:
                    raise _BodyTooLarge
            return message

        async def noted_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, counted_receive, noted_send)
        except _BodyTooLarge:
            if started:
                raise
            detail = f"The body is larger than the {self._max_bytes} bytes that this server accepts."
            # Closed, because the rest of the body is still on its way.
            headers = {"Connection": "close"}
            response = problem_response(413, ProblemType.TOO_LARGE, detail, instance=scope["path"], headers=headers)
            await response(scope, receive, send)


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


def parse_body(model: type[ModelT], body: bytes) -> ModelT:
    """A body as the model, or an InputError that names what is wrong with it."""
    try:
        return documents.parse(model, parse_json(body))
    except RecursionError:
        raise _refuse("...", "is nested too deeply") from None


def parse_json(body: bytes) -> dict[str, Any]:
    """A JSON object of finite numbers and proper text.

    Raises:
        InputError: it is anything else.
    """
    try:
        document = json.loads(
            body.decode("utf-8"), parse_constant=_no_constant, parse_int=_bounded_int, parse_float=_finite_float
        )
        if b"\\u" in body:
            # Half a surrogate pair is JSON, but no text: it cannot be encoded.
            json.dumps(document, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise _refuse(body[error.start : error.start + 8], f"is not UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError as error:
        raise _refuse(error.object[error.start : error.end], "is half of a surrogate pair") from None
    except json.JSONDecodeError as error:
        raise _refuse(error.doc[error.pos : error.pos + 20], f"is not JSON: {error}") from None
    except RecursionError:
        raise _refuse("...", "is nested too deeply") from None
    if not isinstance(document, dict):
        raise _refuse(document, "is no JSON object")
    return document


def _refuse(value: object, problem: str) -> InputError:
    return InputError("body", value, problem, "Send one JSON object, in UTF-8.")


def _no_constant(text: str) -> NoReturn:
    raise InputError("body", text, "holds a number that JSON does not have", "Send finite numbers only.")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InputError("body", text, "holds a number that is too large", "Send numbers below 1e308.")
    return value


def _bounded_int(text: str) -> int:
    if len(text) > _LONGEST_INTEGER or not -_LARGEST_INTEGER <= int(text) <= _LARGEST_INTEGER:
        raise InputError("body", text, "holds a whole number that is too large", "Send numbers below 2**63.")
    return int(text)
