"""``/livez`` and ``/readyz``, and the catalogues ``/v1/solvers`` and ``/v1/hardware``."""

from __future__ import annotations

from fastapi import APIRouter, Response
from sqlalchemy.exc import SQLAlchemyError

from loadmaster.api.documents import HardwareList, Health, SolverList, SolverResource
from loadmaster.api.server.context import ServiceDep
from loadmaster.api.settings import Settings
from loadmaster.api.store import figures
from loadmaster.api.store.database import Database
from loadmaster.models.hardware import catalogue
from loadmaster.solvers import registry

router = APIRouter()


@router.get("/livez", tags=["operations"])
async def livez() -> Health:
    """Tell that this process answers: nothing else is asked. Restart it when it does not."""
    return Health(status="ok")


@router.get("/readyz", tags=["operations"], responses={503: {"model": Health}})
async def readyz(service: ServiceDep, response: Response) -> Health:
    """Tell whether plans can be submitted and will be worked on: free threads, a store that takes writes, workers."""
    checks = {
        "server": "stopping" if service.stopping.is_set() else "ok",
        "threads": await service.readiness.threads(),
        **await service.readiness.checks(),
    }
    ready = all(value == "ok" for value in checks.values())
    response.status_code = 200 if ready else 503
    return Health(status="ok" if ready else "unavailable", checks=checks)


def look(database: Database, settings: Settings) -> dict[str, str]:
    """Ask the store for what tells whether the service is ready. May wait for others who write."""
    try:
        found = figures.read(database)
        takes_writes = database.takes_writes()
    except SQLAlchemyError:
        return {"database": "does not answer"}
    # Without workers of its own the server takes jobs for workers that may come later.
    lacking = settings.workers > 0 and found.workers == 0
    return {
        "database": "ok" if takes_writes else "takes no writes: is its disk full?",
        "workers": "none alive" if lacking else "ok",
    }


@router.get("/v1/solvers", tags=["catalogue"])
def list_solvers() -> SolverList:
    """List the solvers installed on the server."""
    found = [
        SolverResource(name=solver.name, version=solver.version, features=list(solver.features))
        for solver in registry.available()
    ]
    return SolverList(solvers=found)


@router.get("/v1/hardware", tags=["catalogue"])
def list_hardware() -> HardwareList:
    """List the devices that problems can be built and priced for by name."""
    return HardwareList(hardware=[device.document() for device in catalogue()])
