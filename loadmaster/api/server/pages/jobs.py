"""The page ``/``: the latest jobs, by state, kind, label and owner, and which of their plans to compare."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import Query
from fastapi.responses import HTMLResponse

from loadmaster.api.server.context import ServiceDep
from loadmaster.api.server.pages.frame import page_router, render
from loadmaster.api.server.pages.words import job_words
from loadmaster.api.server.plans import label_filter
from loadmaster.api.store.records import State
from loadmaster.models.kinds import all_kinds

router = page_router()

_SHOWN = 50


@router.get("/")
def jobs_page(
    service: ServiceDep,
    state: Annotated[str, Query(max_length=40)] = "",
    kind: Annotated[str, Query(max_length=40)] = "",
    label: Annotated[str, Query(max_length=330)] = "",
    owner: Annotated[str, Query(max_length=64)] = "",
    cursor: Annotated[str, Query(max_length=64)] = "",
    plan: Annotated[list[str] | None, Query(max_length=200)] = None,
) -> HTMLResponse:
    """The page of jobs, newest first; a form leaves fields that nobody filled in empty."""
    asked = next((known for known in State if known == state), None)
    jobs = service.jobs.latest(
        state=asked,
        kind=kind or None,
        label=label_filter(label or None),
        owner=owner or None,
        before=cursor or None,
        limit=_SHOWN + 1,
    )
    filters = {"state": asked.value if asked else "", "kind": kind, "label": label, "owner": owner}
    given = {name: value for name, value in filters.items() if value}
    here = urlencode({**given, "cursor": cursor} if cursor else given)
    following = urlencode({**given, "cursor": jobs[_SHOWN - 1].id}) if len(jobs) > _SHOWN else ""
    return render(
        "jobs.html",
        jobs=[job_words(job) for job in jobs[:_SHOWN]],
        picked=plan or [],
        states=[known.value for known in State],
        kinds=list(all_kinds()),
        filters=filters,
        address=f"/?{here}" if here else "/",
        first=f"/?{urlencode(given)}" if given else "/",
        is_first=not cursor,
        following=f"/?{following}" if following else "",
    )
