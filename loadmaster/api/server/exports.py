"""``/v1/plans/{id}/export/{name}``: a plan as a report, a picture, a trace, or for other programs."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from loadmaster.api.errors import ProblemType
from loadmaster.api.file_names import file_name
from loadmaster.api.report.views import export
from loadmaster.api.server.context import JobDep, ServiceDep
from loadmaster.api.server.description import problem_answers
from loadmaster.api.server.measurements import measured_of
from loadmaster.api.server.problems import Refusal, not_found
from loadmaster.api.server.results import Incumbent, found_plan
from loadmaster.api.server.security import REPORT_HEADERS
from loadmaster.errors import InputError
from loadmaster.models.kind import Export
from loadmaster.models.kinds import find_kind, read_plan, read_problem

router = APIRouter(tags=["plans"])

ARCHIVE = "application/zip"
# Shown by a browser; the rest is saved.
_SHOWN = ("text/html", "image/png")


@router.get(
    "/v1/plans/{plan_id}/export/{name}",
    response_class=Response,
    responses={200: {"content": {"*/*": {}}}, **problem_answers(404, 409, 422)},
)
def export_plan(
    service: ServiceDep,
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
    plan = read_plan(json.loads(found_plan(service, job, incumbent).content))
    if plan.status == "infeasible":
        raise Refusal(409, ProblemType.NO_PLAN, "The plan is infeasible: there is nothing to export.")
    problem = read_problem(json.loads(service.jobs.document(job.problem_sha256)))
    written = export(problem, plan, what, numbers, measured_of(service, job, plan))
    if isinstance(written, bytes):
        return _file(written, what.media_type, file_name(job.name, what.suffix))
    return _file(_archive(written), ARCHIVE, file_name(job.name, f"-{name}.zip"))


def _numbers(what: Export, given: Mapping[str, str]) -> dict[str, int]:
    """The numbers of the query.

    Raises:
        InputError: one that the export does not take, or that is no whole number of at least 1.
    """
    known = {number.name: number for number in what.numbers}
    for name, text in given.items():
        field = f"query.{name}"
        if name not in known:
            raise InputError(field, text, f"is nothing that {what.name} takes", "Leave it out.")
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise InputError(field, text, "is no whole number", "Give a whole number of at least 1.")
    return {
        name: number.checked(int(given[name]) if name in given else None, f"query.{name}")
        for name, number in known.items()
    }


def _archive(files: Mapping[str, bytes]) -> bytes:
    """The files as one; equal files make equal archives."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return target.getvalue()


def _file(content: bytes, media_type: str, name: str) -> Response:
    how = "inline" if media_type in _SHOWN else "attachment"
    return Response(
        content, media_type=media_type, headers={**REPORT_HEADERS, "Content-Disposition": f'{how}; filename="{name}"'}
    )
