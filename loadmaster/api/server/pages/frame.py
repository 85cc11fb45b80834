"""The frame and headers of every page, and what is shown where a page cannot be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined

import loadmaster
from loadmaster.api.packed import UnreadableDocumentError
from loadmaster.api.server.problems import GONE, Refusal
from loadmaster.errors import InputError

__all__ = ["STATIC", "page_router", "render"]

_HERE = Path(__file__).parent
STATIC = _HERE / "static"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # Not none at all: without it, browsers do not say that a form is of this service's own page.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_environment = Environment(
    loader=PackageLoader("loadmaster.api.server.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.globals["version"] = loadmaster.__version__


def render(template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page, or a piece of one."""
    return HTMLResponse(_environment.get_template(template).render(values), status_code=status, headers=_HEADERS)


class _PageRoute(APIRoute):
    """A route whose refusals are pages, too."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        answer = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await answer(request)
            except Refusal as error:
                return _refused(error.status, error.detail)
            except UnreadableDocumentError:
                return _refused(410, GONE)
            except InputError as error:
                return _refused(422, str(error))
            except RequestValidationError:
                return _refused(422, "The address is not one that this page understands.")

        return shown


def page_router() -> APIRouter:
    """Make a router whose routes answer with pages and are not in ``/openapi.json``."""
    return APIRouter(
        include_in_schema=False,
        default_response_class=HTMLResponse,
        route_class=_PageRoute,
    )


def _refused(status: int, detail: str) -> HTMLResponse:
    return render("refused.html", status=status, title=HTTPStatus(status).phrase, detail=detail)
