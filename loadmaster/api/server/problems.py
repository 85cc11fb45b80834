"""Every refusal of the service as RFC 9457 problem details, in one place."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from loadmaster.api.documents import ProblemDetails, ProblemError
from loadmaster.api.errors import ProblemType
from loadmaster.api.packed import UnreadableDocumentError
from loadmaster.api.server.shown import show
from loadmaster.api.store.database import log_error
from loadmaster.api.store.jobs import QueueFullError, QuotaError
from loadmaster.errors import InputError
from loadmaster.models.documents import field_path

__all__ = [
    "GONE",
    "MEDIA_TYPE",
    "NoMoreEvents",
    "Refusal",
    "database_problem",
    "input_problem",
    "install",
    "json_pointer",
    "not_found",
    "problem_response",
]

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
_LONGEST_ID = 80
_INDEX = re.compile(r"\[(\d+)\]")
_RETRY_AFTER_S = "2"
GONE = "What was stored of this plan is gone or damaged. Submit the problem again."
# A full queue is asked again after some of so many jobs are done.
_QUEUE_RETRY_AFTER_S = "10"


class Refusal(Exception):
    """A refusal that endpoints raise: it becomes problem details."""

    def __init__(self, status: int, type_: ProblemType, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.type, self.detail, self.headers = status, type_, detail, headers


class NoMoreEvents(Exception):
    """The end of a stream that its reader has seen already: 204 tells browsers not to reconnect."""


def not_found(what: str, identifier: str, *, beside: Sequence[str] = ()) -> Refusal:
    """The refusal 404 for an id that is not known, or a name that is none of a few."""
    known = f" of this plan; there are {', '.join(beside)}" if beside else ""
    return Refusal(404, ProblemType.NOT_FOUND, f"There is no {what} {identifier[:_LONGEST_ID]!r}{known}.")


def problem_response(
    status: int,
    type_: ProblemType,
    detail: str,
    *,
    instance: str | None = None,
    errors: Sequence[ProblemError] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """A response with problem details."""
    body = ProblemDetails(
        type=type_,
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        instance=instance,
        errors=list(errors),
    )
    content = body.model_dump(exclude_none=True)
    return JSONResponse(content, status_code=status, media_type=MEDIA_TYPE, headers=dict(headers or {}))


def json_pointer(field: str) -> str:
    """Write ``problem.forward[3].inputs`` as ``/problem/forward/3/inputs`` (RFC 6901)."""
    parts = _INDEX.sub(r".\1", field).split(".")
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts if part)


def input_problem(error: InputError, instance: str | None = None) -> JSONResponse:
    """The answer 422 with the field, the value and the remedy that the error names."""
    item = ProblemError(
        pointer=json_pointer(error.field),
        field=show(error.field)[1:-1],
        value=show(error.value),
        problem=error.problem,
        remedy=error.remedy,
    )
    detail = f"{item.field}: {item.problem} (found {item.value}). {item.remedy}"
    return problem_response(422, ProblemType.INVALID_INPUT, detail, instance=instance, errors=[item])


def install(app: FastAPI) -> None:
    """Let the app answer every error with problem details."""
    app.add_exception_handler(Refusal, _refusal)
    app.add_exception_handler(NoMoreEvents, _no_more_events)
    app.add_exception_handler(InputError, _input_error)
    app.add_exception_handler(QueueFullError, _queue_full)
    app.add_exception_handler(QuotaError, _queue_full)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _nobody)
    app.add_exception_handler(UnreadableDocumentError, _unreadable)
    app.add_exception_handler(SQLAlchemyError, _database_error)
    app.add_exception_handler(Exception, _bug)


def _refusal(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refusal)
    return problem_response(error.status, error.type, error.detail, instance=request.url.path, headers=error.headers)


def _no_more_events(request: Request, error: Exception) -> Response:
    return Response(status_code=204)


def _nobody(request: Request, error: Exception) -> Response:
    """Answer a client that left in the middle of a body: it reads no answer, and nothing is wrong here."""
    return Response(status_code=400)


def _input_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, InputError)
    return input_problem(error, request.url.path)


def _unreadable(request: Request, error: Exception) -> JSONResponse:
    logger.error("%s: %s", request.url.path, error)
    return problem_response(410, ProblemType.GONE, f"{GONE} ({error})", instance=request.url.path)


def _queue_full(request: Request, error: Exception) -> JSONResponse:
    return problem_response(
        429,
        ProblemType.QUOTA_REACHED if isinstance(error, QuotaError) else ProblemType.QUEUE_FULL,
        str(error),
        instance=request.url.path,
        headers={"Retry-After": _QUEUE_RETRY_AFTER_S},
    )


def _validation_error(request: Request, error: Exception) -> JSONResponse:
    """Answer 422 for parameters of the path, the query or the headers that FastAPI refused."""
    assert isinstance(error, RequestValidationError)
    items = [_validation_item(item) for item in error.errors()]
    detail = f"{items[0].field}: {items[0].problem} (found {items[0].value})."
    return problem_response(422, ProblemType.INVALID_INPUT, detail, instance=request.url.path, errors=items)


def _validation_item(item: Mapping[str, Any]) -> ProblemError:
    where = field_path(tuple(item["loc"]))
    return ProblemError(
        pointer=json_pointer(where),
        field=where,
        value=show(item.get("input")),
        problem=item["msg"],
        remedy="Correct the value; /openapi.json tells what is allowed.",
    )


_HTTP_TYPES = {404: ProblemType.NOT_FOUND, 405: ProblemType.METHOD_NOT_ALLOWED, 413: ProblemType.TOO_LARGE}


def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    type_ = _HTTP_TYPES.get(error.status_code, ProblemType.HTTP)
    headers = error.headers
    if error.status_code == 405 and (allowed := _allowed(request)):
        headers = {"Allow": ", ".join(allowed)}
    return problem_response(error.status_code, type_, str(error.detail), instance=request.url.path, headers=headers)


def _allowed(request: Request) -> list[str]:
    """The methods of all endpoints of a path: the framework names those of the first one."""
    found = [route for route in request.app.state.endpoints if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in found for method in route.methods or ()})


def _database_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SQLAlchemyError)
    return database_problem(error, request.url.path)


def database_problem(error: SQLAlchemyError, instance: str) -> JSONResponse:
    """The answer 503 for a store that does not respond."""
    log_error(logger, f"{instance} is refused", error)
    return problem_response(
        503,
        ProblemType.UNAVAILABLE,
        "The job store does not answer. Try again in a moment.",
        instance=instance,
        headers={"Retry-After": _RETRY_AFTER_S},
    )


def _bug(request: Request, error: Exception) -> JSONResponse:
    return problem_response(
        500,
        ProblemType.INTERNAL,
        "A bug in Loadmaster: the server's log has the trace. Please report it.",
        instance=request.url.path,
    )
