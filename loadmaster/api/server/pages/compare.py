"""The page that compares two plans: what was asked of each, what each comes to, and both in pictures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Annotated

import anyio.to_thread
from fastapi import Query, Request
from fastapi.responses import HTMLResponse

from loadmaster.api.comparison import ComparisonRow, asked_rows, change, checked_rows
from loadmaster.api.server.context import Service, ServiceDep, existing_job
from loadmaster.api.server.keys import CallerDep
from loadmaster.api.server.pages.frame import page_router, render
from loadmaster.api.server.pages.words import job_words
from loadmaster.api.server.rendering.drawing import ComparedPlans
from loadmaster.api.server.results import found_plan, packed_documents
from loadmaster.api.store.records import Job, State
from loadmaster.errors import InputError
from loadmaster.models.kinds import find_kind

router = page_router()

# Plans to choose the second one from.
_CHOICES = 100
# Three are as wrong as two hundred.
_MOST_LOOKED_FOR = 3


@router.get("/compare")
async def compare_page(
    request: Request,
    service: ServiceDep,
    caller: CallerDep,
    plan: Annotated[list[str] | None, Query(max_length=200)] = None,
) -> HTMLResponse:
    """The page of two plans, or of one plan and those that it can be compared with."""
    jobs = await anyio.to_thread.run_sync(_jobs, service, plan or [])
    if len(jobs) == 1:
        others = await anyio.to_thread.run_sync(_others, service, jobs[0])
        choices = [job_words(other) for other in others if other.id != jobs[0].id]
        return render("compare_with.html", job=job_words(jobs[0]), choices=choices)
    if len(jobs) != 2:
        remedy = "Tick two in the list of plans."
        raise InputError("query.plan", len(jobs), "is not how many plans can be compared", remedy)
    first, second = jobs
    if first.kind != second.kind:
        remedy = "Tick two of one kind."
        raise InputError("query.plan", f"{first.kind} and {second.kind}", "are plans of two kinds", remedy)
    compared = ComparedPlans(({}, {}), (), ((), ()))
    if find_kind(first.kind) is not None:
        compared = await service.renderer.compare(
            request, caller, await anyio.to_thread.run_sync(_documents, service, jobs)
        )
    rows = [
        *asked_rows(first.options, second.options),
        *_figures(first, second),
        *checked_rows(*compared.checks),
    ]
    return render(
        "compare.html",
        jobs=[job_words(job) for job in jobs],
        rows=rows,
        both=compared.both,
        pictures=list(zip_longest(*compared.pictures)),
    )


def _jobs(service: Service, plans: Sequence[str]) -> list[Job]:
    """Look up the jobs that are to be compared, three at most: that is one too many already."""
    return [existing_job(one, service) for one in [*dict.fromkeys(plans)][:_MOST_LOOKED_FOR]]


def _others(service: Service, job: Job) -> list[Job]:
    return service.jobs.latest(state=State.SUCCEEDED, kind=job.kind, limit=_CHOICES)


def _documents(service: Service, jobs: Sequence[Job]) -> tuple[bytes, ...]:
    """The problem and the plan of each, packed."""
    return tuple(body for job in jobs for body in packed_documents(service, job, found_plan(service, job))[:2])


def _figures(first: Job, second: Job) -> list[ComparisonRow]:
    a, b = job_words(first), job_words(second)
    rows = (
        [ComparisonRow(a.limit_name, a.limit, b.limit, *change(first.limit, second.limit, judged=False))]
        if a.limit
        else []
    )
    rows.append(ComparisonRow("objective", a.objective, b.objective, *change(first.objective, second.objective)))
    rows.append(ComparisonRow("proved bound", a.bound, b.bound, *change(first.bound, second.bound, judged=False)))
    rows.append(ComparisonRow("gap", a.gap, b.gap))
    rows.append(ComparisonRow("searched for", a.ran, b.ran))
    return rows
