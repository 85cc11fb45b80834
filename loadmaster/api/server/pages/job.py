"""The page of a job: what it has found so far and how far that can be from optimal, its log, and how to stop it."""

from __future__ import annotations

import time
from typing import Any

from fastapi.responses import HTMLResponse, RedirectResponse
from markupsafe import Markup

from loadmaster.api.report.page import shown
from loadmaster.api.report.search import SearchPoint, search_picture
from loadmaster.api.server.context import JobDep, OwnJobDep, Service, ServiceDep
from loadmaster.api.server.pages.frame import page_router, render
from loadmaster.api.server.pages.words import age, job_words
from loadmaster.api.store.jobs import log_tail, search
from loadmaster.api.store.records import Job, State
from loadmaster.models.units import show_share

router = page_router()

_LOG_LINES = 200
# Points of a curve: more are not told apart.
_POINTS = 500


@router.get("/jobs/{plan_id}")
def job_page(service: ServiceDep, job: JobDep) -> HTMLResponse:
    """The page of a job: everything about it but its plan."""
    options = [(name, value) for name, value in job.options.items() if value is not None]
    return render("job.html", options=options, **_live(service, job))


@router.get("/jobs/{plan_id}/live")
def job_live(service: ServiceDep, job: JobDep) -> HTMLResponse:
    """The part of a job's page that changes."""
    return render("job_live.html", **_live(service, job))


@router.get("/jobs/{plan_id}/log")
def job_log(service: ServiceDep, job: JobDep) -> HTMLResponse:
    """The page of a job's whole log."""
    events = service.jobs.events(job.id, type_="log", limit=None)
    return render("log.html", job=job_words(job), log=[event.data["line"] for event in events])


@router.get("/jobs/{plan_id}/cancel")
def whether_to_cancel(job: JobDep) -> HTMLResponse:
    """The page that asks whether to cancel a job: it needs no script, and nothing that comes meanwhile closes it."""
    return render(
        "cancel.html",
        name=job.name,
        what="The best plan found so far is kept, if there is one. The search cannot be taken up again.",
        address=f"/jobs/{job.id}",
        button="Cancel the job",
    )


@router.post("/jobs/{plan_id}/cancel")
def cancel_job(service: ServiceDep, job: OwnJobDep) -> RedirectResponse:
    """Cancel a job, and go back to its page."""
    service.jobs.cancel(job.id)
    return RedirectResponse(f"/jobs/{job.id}", status_code=303)


def _live(service: Service, job: Job) -> dict[str, Any]:
    tail = log_tail(service.database, job.id, _LOG_LINES + 1)
    return {
        "job": job_words(job),
        "note": _note(job),
        "error": "" if job.error is None else job.error["detail"],
        "asked_gap": show_share(job.asked_gap),
        "time_limit": age(job.time_limit_s),
        "search": _search(service, job),
        "log": tail[-_LOG_LINES:],
        "longer": len(tail) > _LOG_LINES,
    }


def _note(job: Job) -> str:
    """Remark that is shown next to the name of a job's state; empty where there is nothing to say."""
    if job.cached:
        return "answered from the store"
    if job.state is State.QUEUED:
        return "waits for a worker" if not job.attempts else "goes back to the queue: its worker was lost"
    if job.state is State.RUNNING and job.cancel_requested:
        return "hands over what it has found"
    return f"attempt {job.attempts}" if job.attempts > 1 else ""


def _search(service: Service, job: Job) -> Markup:
    """Objective and bound over time, of the attempt that counts."""
    if job.started_at is None:
        return Markup()
    points = [
        SearchPoint(event.at - job.started_at, event.data.get("objective"), event.data.get("bound"))
        for event in search(service.database, job.id, _POINTS)
        if event.at >= job.started_at
    ]
    end = job.finished_at or time.time()
    points.append(SearchPoint(end - job.started_at, job.objective, job.bound))
    picture = search_picture(points, job.unit or "")
    return Markup() if picture is None else Markup(shown(picture))
