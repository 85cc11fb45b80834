"""``/v1/plans/{id}/export/{name}``: a plan as a report, a picture, a trace, or for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Path, Request, Response

from loadmaster.api.errors import ProblemType
from loadmaster.api.report.views import file_name
from loadmaster.api.server.context import JobDep, ServiceDep
from loadmaster.api.server.description import problem_answers
from loadmaster.api.server.keys import CallerDep
from loadmaster.api.server.problems import Refusal, not_found
from loadmaster.api.server.results import Incumbent, found_plan, packed_documents
from loadmaster.api.server.security import REPORT_HEADERS
from loadmaster.errors import InputError
from loadmaster.models.kind import Export
from loadmaster.models.kinds import find_kind

router = APIRouter(tags=["plans"])

ARCHIVE = "application/zip"
# Shown by a browser; the rest is saved.
_SHOWN = ("text/html", "image/png")


@router.get(
    "/v1/plans/{plan_id}/export/{name}",
    response_class=Response,
    responses={200: {"content": {"*/*": {}}}, **problem_answers(404, 409, 413, 422, 429, 503)},
)
async def export_plan(
    service: ServiceDep,
    caller: CallerDep,
    job: JobDep,
    name: Annotated[str, Path(max_length=64, description="of the export: its kind says which there are")],
    request: Request,
    incumbent: Incumbent = None,
) -> Response:
    """A feasible plan in another form; several files come as one ZIP archive. Its numbers are query parameters."""
    kind = find_kind(job.kind)
    what = next((e for e in kind.exports if e.name == name), None) if kind is not None else None
    if what is None:
        raise not_found("export", name, beside=[] if kind is None else [e.name for e in kind.exports])
    numbers = _numbers(what, {key: text for key, text in request.query_params.items() if key != "incumbent"})
    found = await anyio.to_thread.run_sync(found_plan, service, job, incumbent)
    if job.status == "infeasible":
        raise Refusal(409, ProblemType.NO_PLAN, "The plan is infeasible: there is nothing to export.")
    documents = await anyio.to_thread.run_sync(packed_documents, service, job, found)
    media_type, suffix = (what.media_type, what.suffix) if what.suffix else (ARCHIVE, f"-{name}.zip")
    how = "inline" if media_type in _SHOWN else "attachment"
    disposition = f'{how}; filename="{file_name(job.name, suffix)}"'
    headers = {**REPORT_HEADERS, "Content-Disposition": disposition}
    return await service.renderer.export(request, caller, what, numbers, documents, media_type, headers)


def _numbers(what: Export, given: Mapping[str, str]) -> dict[str, int]:
    """Read the numbers of an export from the query. Raises InputError for one that it does not take, or a value that it
    cannot have."""
    known = {number.name: number for number in what.numbers}
    for name, text in given.items():
        field = f"query.{name}"
        if name not in known:
            raise InputError(field, text, f"is nothing that {what.name} takes", "Leave it out.")
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            remedy = f"Give a whole number from 1 to {known[name].most}."
            raise InputError(field, text, "is no whole number", remedy)
    return {
        name: number.checked(int(given[name]) if name in given else None, f"query.{name}")
        for name, number in known.items()
    }
