"""The page of a frontier: objective against limit, each point a link to its plan, as far as it has come."""

from __future__ import annotations

from typing import Any

from fastapi.responses import HTMLResponse, RedirectResponse
from markupsafe import Markup

from loadmaster.api.comparison import cost
from loadmaster.api.documents import FrontierResource
from loadmaster.api.report.extras import Extras
from loadmaster.api.report.frontier import Point, points_picture
from loadmaster.api.report.page import shown
from loadmaster.api.report.words import price_words
from loadmaster.api.server.context import Service, ServiceDep
from loadmaster.api.server.frontiers import FrontierId, cancel_all, existing_frontier
from loadmaster.api.server.keys import CallerDep
from loadmaster.api.server.pages.frame import page_router, render
from loadmaster.api.server.pages.words import job_words
from loadmaster.api.server.resources import frontier_resource, limit_document
from loadmaster.api.store.jobs import Frontier
from loadmaster.models.envelope import Price
from loadmaster.models.units import show_share

router = page_router()


@router.get("/frontiers/{frontier_id}")
def frontier_page(service: ServiceDep, frontier_id: FrontierId) -> HTMLResponse:
    """The page of a frontier: its curve and a row for each of its points."""
    return render("frontier.html", **_words(service, existing_frontier(service, frontier_id)))


@router.get("/frontiers/{frontier_id}/cancel")
def whether_to_cancel(service: ServiceDep, frontier_id: FrontierId) -> HTMLResponse:
    """The page that asks whether to cancel a frontier."""
    frontier = existing_frontier(service, frontier_id)
    return render(
        "cancel.html",
        name=f"the frontier of {frontier.jobs[0].name}",
        what="Points that are done stay. Of the others the best plans found so far are kept.",
        address=f"/frontiers/{frontier.id}",
        button="Cancel the frontier",
    )


@router.post("/frontiers/{frontier_id}/cancel")
def cancel_frontier(service: ServiceDep, caller: CallerDep, frontier_id: FrontierId) -> RedirectResponse:
    """Cancel the jobs of a frontier, and go back to its page."""
    cancel_all(service, caller, frontier_id)
    return RedirectResponse(f"/frontiers/{frontier_id}", status_code=303)


def _words(service: Service, frontier: Frontier) -> dict[str, Any]:
    found = frontier_resource(frontier, service.jobs)
    unit = next((job.unit for job in frontier.jobs if job.unit), "")
    rows = [
        {
            "job": job_words(job),
            "plan": point.plan or "",
            "objective": cost(point.objective, unit),
            "bound": cost(point.bound, unit),
            "gap": "" if point.gap is None else show_share(point.gap),
        }
        for job, point in zip(frontier.jobs, found.points, strict=True)
    ]
    return {
        "frontier": found,
        "rows": rows,
        "done": sum(job.state.final for job in frontier.jobs),
        "picture": _picture(found, unit, frontier),
        "prices": _prices(found, frontier, unit),
    }


def _prices(found: FrontierResource, frontier: Frontier, unit: str) -> list[list[str]]:
    """Rows of limit and price in words."""
    limits = (job_words(job).limit for job in frontier.jobs)
    return [
        [limit, *price_words(Price(**price.model_dump()), unit)]
        for limit, point in zip(limits, found.points, strict=True)
        for price in point.prices or ()
    ]


def _picture(found: FrontierResource, unit: str, frontier: Frontier) -> Markup:
    points = [
        Point(p.limit or 0, p.objective, p.bound, p.gap, f"/plans/{p.plan}")
        for p in found.points
        if p.objective is not None
    ]
    limit = limit_document(found.kind, frontier.jobs[0].limit)
    if not points or limit is None:
        return Markup()
    return Markup(shown(points_picture(points, (limit.name, limit.unit), unit, Extras())))
