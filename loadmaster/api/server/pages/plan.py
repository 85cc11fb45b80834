"""The page of a plan: what its kind's report shows, what it can be had as, and why there is none."""

from __future__ import annotations

import anyio.to_thread
from fastapi import Request
from fastapi.responses import HTMLResponse

from loadmaster.api.server.context import JobDep, ServiceDep
from loadmaster.api.server.keys import CallerDep
from loadmaster.api.server.pages.frame import page_router, render
from loadmaster.api.server.pages.words import job_words
from loadmaster.api.server.rendering.drawing import ShownPlan
from loadmaster.api.server.resources import LATEST, exports_of
from loadmaster.api.server.results import Incumbent, found_plan, packed_documents
from loadmaster.api.store.records import Job
from loadmaster.models.kinds import find_kind

router = page_router()


@router.get("/plans/{plan_id}")
async def plan_page(
    request: Request, service: ServiceDep, caller: CallerDep, job: JobDep, incumbent: Incumbent = None
) -> HTMLResponse:
    """The page of a plan with its pictures and tables. Of a cancelled job it is the best that was found before."""
    found = await anyio.to_thread.run_sync(found_plan, service, job, incumbent)
    shown = ShownPlan(job.name, ())
    if find_kind(job.kind) is not None:
        documents = await anyio.to_thread.run_sync(packed_documents, service, job, found)
        shown = await service.renderer.show(request, caller, documents)
    return render(
        "plan.html",
        job=job_words(job),
        plan=shown,
        is_result=found.is_result,
        query="" if found.is_result else LATEST,
        exports=_exports(job),
    )


def _exports(job: Job) -> list[tuple[str, str, str]]:
    """Name, address and words of every form that the plan can be had in."""
    kind = find_kind(job.kind)
    addresses = exports_of(job)
    return [] if kind is None else [(e.name, addresses[e.name], e.help) for e in kind.exports if e.name in addresses]
