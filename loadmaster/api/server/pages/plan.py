"""The page of a plan: what its kind's report shows, what it can be had as, and why there is none."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fastapi.responses import HTMLResponse
from markupsafe import Markup

from loadmaster.api.report.page import shown
from loadmaster.api.report.views import view_of, views_of
from loadmaster.api.server.context import JobDep, Service, ServiceDep
from loadmaster.api.server.measurements import measured_of
from loadmaster.api.server.pages.frame import page_router, render
from loadmaster.api.server.pages.words import job_words
from loadmaster.api.server.resources import LATEST, exports_of
from loadmaster.api.server.results import Found, Incumbent, found_plan
from loadmaster.api.store.records import Job
from loadmaster.models.envelope import Plan
from loadmaster.models.kinds import find_kind, read_plan, read_problem

router = page_router()


@dataclass(frozen=True)
class ShownPlan:
    """What there is to see of a plan.

    Attributes:
        title: of the problem.
        sections: HTML; none where there is no plan.
        why: there is none, in words.
        measured: whether it shows what was measured, too.
    """

    title: str
    sections: tuple[Markup, ...]
    why: str = ""
    measured: bool = False


@router.get("/plans/{plan_id}")
def plan_page(service: ServiceDep, job: JobDep, incumbent: Incumbent = None) -> HTMLResponse:
    """A plan with its pictures and tables. Of a cancelled job it is the best that was found before."""
    found = found_plan(service, job, incumbent)
    return render(
        "plan.html",
        job=job_words(job),
        plan=_shown(service, job, found),
        is_result=found.is_result,
        query="" if found.is_result else LATEST,
        exports=_exports(job),
    )


def read_pair(service: Service, job: Job, found: Found) -> tuple[Any, Plan] | None:
    """The problem and a plan of a job, or None where its kind is not known here."""
    if find_kind(job.kind) is None:
        return None
    problem = read_problem(json.loads(service.jobs.document(job.problem_sha256)))
    return problem, read_plan(json.loads(found.content))


def _shown(service: Service, job: Job, found: Found) -> ShownPlan:
    pair = read_pair(service, job, found)
    if pair is None:
        return ShownPlan(job.name, ())
    problem, plan = pair
    views, title = views_of(job.kind), problem.title or problem.name
    if plan.status == "infeasible":
        return ShownPlan(title, (), views.infeasible(plan))
    view = view_of(problem, plan, measured_of(service, job, plan))
    # A kind without pieces of a report may have pictures, and always has words.
    if hasattr(views, "sections"):
        pieces = views.sections(view)
    elif hasattr(views, "pictures"):
        pieces = map(shown, views.pictures(view))
    else:
        pieces = [Markup("<pre>{}\n{}</pre>").format(views.summary(plan), views.details(view))]
    return ShownPlan(title, tuple(map(Markup, pieces)), measured=getattr(view, "measured", None) is not None)


def _exports(job: Job) -> list[tuple[str, str, str]]:
    """Name, address and words of what the plan can be had as."""
    kind = find_kind(job.kind)
    addresses = exports_of(job)
    return [] if kind is None else [(e.name, addresses[e.name], e.help) for e in kind.exports if e.name in addresses]
