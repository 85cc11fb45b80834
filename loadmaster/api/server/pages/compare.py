"""The page of two plans beside each other: what was asked of each, what each comes to, and both in pictures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from loadmaster.api.comparison import Row, asked_rows, change, checked_rows
from loadmaster.api.report.page import shown
from loadmaster.api.report.views import views_of
from loadmaster.api.server.context import ServiceDep, existing_job
from loadmaster.api.server.pages.frame import page_router, render
from loadmaster.api.server.pages.plan import read_pair
from loadmaster.api.server.pages.words import job_words
from loadmaster.api.server.results import found_plan
from loadmaster.api.store.records import Job, State
from loadmaster.errors import InputError
from loadmaster.models.envelope import Plan

router = page_router()

# Plans to choose the second one from.
_CHOICES = 100


@router.get("/compare")
def compare_page(service: ServiceDep, plan: Annotated[list[str] | None, Query(max_length=200)] = None) -> HTMLResponse:
    """Two plans; of one alone, those that it can be compared with."""
    jobs = [existing_job(one, service) for one in dict.fromkeys(plan or [])]
    if len(jobs) == 1:
        others = service.jobs.latest(state=State.SUCCEEDED, kind=jobs[0].kind, limit=_CHOICES)
        choices = [job_words(other) for other in others if other.id != jobs[0].id]
        return render("compare_with.html", job=job_words(jobs[0]), choices=choices)
    if len(jobs) != 2:
        remedy = "Tick two in the list of plans."
        raise InputError("query.plan", len(jobs), "is not how many plans can be compared", remedy)
    first, second = jobs
    if first.kind != second.kind:
        remedy = "Tick two of one kind."
        raise InputError("query.plan", f"{first.kind} and {second.kind}", "are plans of two kinds", remedy)
    pairs = [read_pair(service, job, found_plan(service, job)) for job in jobs]
    checks = [{} if pair is None else pair[1].check for pair in pairs]
    rows = [*asked_rows(first.options, second.options), *_figures(first, second), *checked_rows(*checks)]
    views = _views(pairs)
    return render(
        "compare.html",
        jobs=[job_words(job) for job in jobs],
        rows=rows,
        both=_both(pairs, views),
        pictures=list(zip_longest(*(_pictures(first.kind, view) for view in views))),
    )


def _figures(first: Job, second: Job) -> list[Row]:
    a, b = job_words(first), job_words(second)
    rows = [Row(a.limit_name, a.limit, b.limit, *change(first.limit, second.limit, judged=False))] if a.limit else []
    rows.append(Row("objective", a.objective, b.objective, *change(first.objective, second.objective)))
    rows.append(Row("proved bound", a.bound, b.bound, *change(first.bound, second.bound, judged=False)))
    rows.append(Row("gap", a.gap, b.gap))
    rows.append(Row("searched for", a.ran, b.ran))
    return rows


def _views(pairs: Sequence[tuple[Any, Plan] | None]) -> list[Any]:
    """What pictures are made of, or None where a plan has none."""
    return [
        None if pair is None or pair[1].status == "infeasible" else views_of(pair[1].kind).view(*pair) for pair in pairs
    ]


def _pictures(kind: str, view: Any) -> list[Markup]:
    """Those of one plan, if its kind draws any."""
    draw = None if view is None else getattr(views_of(kind), "pictures", None)
    return [] if draw is None else [Markup(shown(picture)) for picture in draw(view)]


def _both(pairs: Sequence[tuple[Any, Plan] | None], views: Sequence[Any]) -> list[Markup]:
    """Those of two plans of one problem in one, if their kind draws any."""
    plans = [pair[1] for pair in pairs if pair is not None]
    if None in views or len({plan.problem_sha256 for plan in plans}) != 1:
        return []
    draw = getattr(views_of(plans[0].kind), "both", None)
    return [] if draw is None else [Markup(shown(picture)) for picture in draw(*views)]
