"""Protection of a service that asks for no keys from web pages of others, and limits on what its own pages may do.

A page from anywhere can have its reader's browser call any address. It cannot read the answers of another origin,
unless its own name is pointed at the service's address (DNS rebinding): then ``Host`` still says the page's name. So
only names are answered that are this service's. An address written in digits cannot be pointed elsewhere: any is fine.
What changes something is refused where the browser says (``Origin``) that a page of another origin asks for it.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from loadmaster.api.errors import ProblemType
from loadmaster.api.report.page import script, style
from loadmaster.api.server.problems import problem_response
from loadmaster.api.server.shown import show

__all__ = ["READING", "REPORT_HEADERS", "HostCheck", "is_loopback"]

_STYLE, _SCRIPT = (base64.b64encode(hashlib.sha256(of().encode()).digest()).decode() for of in (style, script))
# Of reports: nothing is loaded from anywhere, no script runs but their own, no other page frames them. (Of the pages of
# the service: :mod:`loadmaster.api.server.pages.frame`.)
REPORT_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE}'; "
    f"script-src 'sha256-{_SCRIPT}'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

# Methods that change nothing.
READING = ("GET", "HEAD", "OPTIONS")
_PORTS = {"http": 80, "https": 443}


def is_loopback(host: str) -> bool:
    """Return whether a name or an address means this machine alone."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


class HostCheck:
    """ASGI middleware: refuses requests for another host, and changes that a page of another origin asks for. ``host``
    is the one that the service listens on; ``names`` are those it is reached by, in addition to ``localhost`` and
    addresses in digits."""

    def __init__(self, app: ASGIApp, host: str, names: Iterable[str]) -> None:
        self._app = app
        self._given = {name.lower() for name in names}
        self._names = {"localhost", host.lower(), *self._given}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._reason(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
            return
        type_, detail = refused
        response = problem_response(403, type_, detail, instance=scope["path"])
        await response(scope, receive, send)

    def _reason(self, scope: Scope) -> tuple[ProblemType, str] | None:
        headers = Headers(scope=scope)
        # Only very old clients leave it out, no browser.
        host = _split(f"http://{headers['host']}") if "host" in headers else None
        if host is not None and not self._is_ours(host):
            return ProblemType.HOST_REFUSED, (
                f"This service does not answer for the host {show(headers['host'])}. If it is reached by that name, "
                "start it with --allowed-host NAME (or LOADMASTER_ALLOWED_HOSTS); otherwise use its address."
            )
        origin = headers.get("origin")
        if scope["method"] in READING or origin is None:
            return None
        from_page = _split(origin)
        if host is not None and from_page.netloc and _place(from_page) == _place(host, from_page.scheme):
            return None
        # Behind a proxy, the page has the name that was given, and ``Host`` may be another.
        if from_page.hostname in self._given:
            return None
        return ProblemType.ORIGIN_REFUSED, (
            f"A page of {show(origin)} may not change anything here. Use the Python client, the command line or curl; "
            "if that page is this service's own behind a proxy, start it with --allowed-host NAME."
        )

    def _is_ours(self, host: SplitResult) -> bool:
        name = host.hostname or ""
        return name in self._names or _address(name) is not None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _split(url: str) -> SplitResult:
    """The parts of a URL, none of them where it is not a URL."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # is read here, because a bad one fails only now
    except ValueError:
        return SplitResult("", "", "", "", "")
    return parts


def _place(url: SplitResult, scheme: str | None = None) -> tuple[str | None, int | None]:
    """Host and port, the usual port of the scheme where none is given."""
    return url.hostname, url.port or _PORTS.get(scheme or url.scheme)
