"""The pages at ``/``, for a person with a browser: jobs, plans, comparisons, frontiers, hardware, the interface.

They are rendered here and read without a script. With one, those that show something under way bring themselves up to
date (htmx). Nothing is loaded from anywhere else, so that they work offline.
"""

from __future__ import annotations

from fastapi import FastAPI, Response
from starlette.staticfiles import StaticFiles

from loadmaster.api.report.page import script, style
from loadmaster.api.server.pages import catalogue, compare, frontier, job, jobs, plan, sign_in
from loadmaster.api.server.pages.frame import STATIC

__all__ = ["install"]


def install(app: FastAPI, *, asks_for_keys: bool) -> None:
    """Add the pages to the service, and a form for the key where it asks for one."""
    for module in (jobs, job, plan, compare, frontier, catalogue):
        app.include_router(module.router)
    if asks_for_keys:
        app.include_router(sign_in.router)
    # The colours of reports, and what is made of their pieces, are in one place; so is what reads their pictures out.
    app.add_api_route("/static/report.css", _report_css, include_in_schema=False)
    app.add_api_route("/static/report.js", _report_js, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC))


def _report_css() -> Response:
    return Response(style(), media_type="text/css")


def _report_js() -> Response:
    return Response(script(), media_type="text/javascript")
