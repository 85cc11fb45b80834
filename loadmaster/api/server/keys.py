"""Check of API keys, sent as ``Authorization: Bearer KEY``, by browsers as a cookie: who asks, and whether they may.

Everything asks for a key but what :data:`OPEN` names, so that a new endpoint cannot be left open by mistake: to read
needs the scope ``read``, any other method ``submit``. Whose a plan is, endpoints ask (:class:`Caller`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

import anyio.to_thread
from fastapi import Depends, Request
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from loadmaster.api.errors import ProblemType
from loadmaster.api.server.problems import Refusal, database_problem, problem_response
from loadmaster.api.server.security import READING
from loadmaster.api.store import keys as store
from loadmaster.api.store.database import log_error

__all__ = [
    "COOKIE",
    "LOOK_EVERY_S",
    "OPEN",
    "SIGN_IN",
    "SIGN_OUT",
    "Caller",
    "CallerDep",
    "KeyCheck",
    "KeysInUse",
    "caller",
]

logger = logging.getLogger(__name__)

# Anybody may ask whether the service is up; files that come with the package are not secret.
OPEN = ("/livez", "/readyz")
_OPEN_FOLDER = "/static/"
SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
COOKIE = "loadmaster_key"
# So long a revoked key may follow what it had begun to.
LOOK_EVERY_S = 2.0
_REALM = 'Bearer realm="loadmaster"'


@dataclass(frozen=True)
class Caller:
    """The caller of a request. ``name`` is that of the key, which owns what it submits; None where the service asks for
    no keys. ``key_made_at`` tells a key from a later one of the same name."""

    name: str | None
    scope: store.Scope
    key_made_at: float | None = None

    def expect_may_change(self, what: str, owner: str | None) -> None:
        """Raise Refusal 403 for what is another's."""
        if self.scope is store.Scope.ADMIN or (self.name is not None and owner == self.name):
            return
        whose = "was submitted without a key" if owner is None else f"is {owner}'s"
        detail = f"The {what} {whose}: only a key of the scope admin may change it, and {self.name} is not one."
        raise Refusal(403, ProblemType.NOT_OWNER, detail)


# Where the service asks for no keys, whoever reaches it may do anything.
_ANYBODY = Caller(None, store.Scope.ADMIN)


async def caller(request: Request) -> Caller:
    """The caller that a request comes from."""
    found = request.state.caller
    assert isinstance(found, Caller)
    return found


CallerDep = Annotated[Caller, Depends(caller)]


class KeysInUse:
    """Watch over keys that are revoked while answers to them go on for long. Used within one event loop. One look at
    the store serves all who ask within a few seconds."""

    def __init__(self, keys: store.Keys) -> None:
        self._keys = keys
        self._looking = asyncio.Lock()
        self._found: Collection[tuple[str, float]] = ()
        self._looked_at: float | None = None

    async def has(self, caller: Caller) -> bool:
        """Return whether a caller would still be let in, as of :data:`LOOK_EVERY_S` ago."""
        if caller.name is None or caller.key_made_at is None:
            return True
        async with self._looking:
            if self._looked_at is None or time.monotonic() - self._looked_at >= LOOK_EVERY_S:
                try:
                    self._found = await anyio.to_thread.run_sync(self._keys.in_use)
                except SQLAlchemyError as error:
                    log_error(logger, "keys are taken to be as they were", error)
                    return True
                self._looked_at = time.monotonic()
            return (caller.name, caller.key_made_at) in self._found


class KeyCheck:
    """ASGI middleware: refuses requests without a key that is known and may do what they ask for. ``keys``: None where
    the service asks for none."""

    def __init__(self, app: ASGIApp, keys: store.Keys | None) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        answer = await self._expect_key(scope)
        if isinstance(answer, Caller):
            scope.setdefault("state", {})["caller"] = answer
            await self._app(scope, receive, send)
        else:
            await answer(scope, receive, send)

    async def _expect_key(self, scope: Scope) -> Caller | Response:
        """Return who asks, or the refusal."""
        if self._keys is None:
            return _ANYBODY
        connection = HTTPConnection(scope)
        secret = _secret(connection)
        if not secret:
            return _unknown(
                connection,
                "This service asks for an API key: send it as Authorization: Bearer KEY, or set LOADMASTER_API_KEY. "
                "Whoever runs the service makes one with loadmaster keys add.",
                _REALM,
            )
        try:
            key = await anyio.to_thread.run_sync(self._keys.find, secret)
        except SQLAlchemyError as error:
            return database_problem(error, scope["path"])
        if key is None:
            detail = "The API key is not known here, or was revoked. Ask whoever runs the service for another one."
            return _unknown(connection, detail, f'{_REALM}, error="invalid_token"')
        needed = store.Scope.READ if scope["method"] in READING else store.Scope.SUBMIT
        if not key.scope.includes(needed):
            return problem_response(
                403,
                ProblemType.SCOPE_MISSING,
                f"This needs a key of the scope {needed}; {key.name} has the scope {key.scope}.",
                instance=scope["path"],
                headers={"WWW-Authenticate": f'{_REALM}, error="insufficient_scope", scope="{needed}"'},
            )
        return Caller(key.name, key.scope, key.created_at)


def _is_open(path: str) -> bool:
    return path in (*OPEN, SIGN_IN, SIGN_OUT) or path.startswith(_OPEN_FOLDER)


def _secret(connection: HTTPConnection) -> str:
    header = connection.headers.get("authorization")
    if header is None:
        return connection.cookies.get(COOKIE, "")
    scheme, _, secret = header.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def _unknown(connection: HTTPConnection, detail: str, challenge: str) -> Response:
    """401; a browser that wants a page is sent to the form."""
    path = connection.url.path
    if connection.scope["method"] == "GET" and "text/html" in connection.headers.get("accept", ""):
        query = connection.url.query
        to = urlencode({"to": f"{path}?{query}" if query else path})
        return RedirectResponse(f"{SIGN_IN}?{to}", status_code=303, headers={"Cache-Control": "no-store"})
    headers = {"WWW-Authenticate": challenge}
    return problem_response(401, ProblemType.KEY_NEEDED, detail, instance=path, headers=headers)
