"""The pages ``/hardware``, of devices and solvers, and ``/docs``, of every address of the HTTP interface."""

from __future__ import annotations

from typing import get_args

from fastapi.responses import HTMLResponse

from loadmaster.api.server.pages.frame import page_router, render
from loadmaster.models.hardware import DType, catalogue
from loadmaster.models.units import show_bytes
from loadmaster.solvers import registry

router = page_router()


@router.get("/hardware")
def hardware_page() -> HTMLResponse:
    """The page of all devices by name, and of the solvers."""
    devices = [(device, show_bytes(device.memory_bytes)) for device in catalogue()]
    return render("hardware.html", devices=devices, formats=get_args(DType), solvers=registry.available())


@router.get("/docs")
def reference_page() -> HTMLResponse:
    """The frame of the page; a script reads ``/openapi.json`` into it."""
    return render("reference.html")
