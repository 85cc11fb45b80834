"""The page ``/docs``: every address of the HTTP interface, from its own description, in Swagger UI."""

from __future__ import annotations

from fastapi.responses import HTMLResponse

from loadmaster.api.server.pages.frame import page_router, render

router = page_router()


@router.get("/docs")
def reference_page() -> HTMLResponse:
    """The frame of the page; a script reads ``/openapi.json`` into it."""
    return render("reference.html")
