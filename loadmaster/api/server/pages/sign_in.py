"""``/sign-in`` and ``/sign-out``: a browser's way to the pages of a service that asks for keys.

The form takes a key and hands it back as a cookie, which the check of keys reads as it reads the header. The browser
sends it to this host alone, shows it to no script, and forgets it when it is closed. Nothing is kept here, so that a
revoked key is signed out everywhere at once.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qs, urlencode

import anyio.to_thread
from fastapi import Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from loadmaster.api.errors import ProblemType
from loadmaster.api.server.context import ServiceDep
from loadmaster.api.server.keys import COOKIE, SIGN_IN, SIGN_OUT
from loadmaster.api.server.pages.frame import page_router, render
from loadmaster.api.server.problems import Refusal

router = page_router()

_LARGEST_FORM_BYTES = 4096
_WELCOME = "This service asks for an API key. Whoever runs it makes one with loadmaster keys add."
_UNKNOWN = "That key is not known here, or was revoked."

Target = Annotated[str, Query(max_length=2000, description="where to go on")]


@router.get(SIGN_IN)
def sign_in_form(to: Target = "/") -> HTMLResponse:
    """The page with the form for a key."""
    return _form(_WELCOME, to, 200)


@router.post(SIGN_IN)
async def sign_in(service: ServiceDep, request: Request, to: Target = "/") -> Response:
    """Take a key, and go on to where the form was asked for."""
    secret = await _key(request)
    if not secret or await anyio.to_thread.run_sync(service.keys.find, secret) is None:
        return _form(_UNKNOWN, to, 401)
    answer = RedirectResponse(_local(to), status_code=303, headers={"Cache-Control": "no-store"})
    # Links from elsewhere open pages; forms from elsewhere come without it.
    answer.set_cookie(COOKIE, secret, httponly=True, samesite="lax", secure=request.url.scheme == "https")
    return answer


@router.post(SIGN_OUT)
def sign_out() -> Response:
    """Forget the key: delete its cookie, and go to the form."""
    answer = RedirectResponse(SIGN_IN, status_code=303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="lax")
    return answer


async def _key(request: Request) -> str:
    """Read the key in the form. Strangers send it: no more is read than it can be. Raises Refusal 413 beyond that."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _LARGEST_FORM_BYTES:
            raise Refusal(413, ProblemType.TOO_LARGE, "That is no form of this service.", {"Connection": "close"})
    return parse_qs(body.decode("ascii", "replace")).get("key", [""])[0].strip()


def _form(message: str, to: str, status: int) -> HTMLResponse:
    action = f"{SIGN_IN}?{urlencode({'to': _local(to)})}"
    return render("sign_in.html", status=status, message=message, action=action, sign_out=SIGN_OUT)


def _local(to: str) -> str:
    """Return a path of this service, else the front page: browsers read ``//`` and ``/\\`` as a host."""
    return to if to.startswith("/") and to[1:2] not in ("/", "\\") and to.isprintable() else "/"
