"""``/v1/plans/{id}/result``: the plan document of a job, or of one that goes on the best that it has so far; and
``/measurement``: what the plan measured when it ran, for its page and its report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import JSONResponse

from loadmaster.api.errors import ProblemType
from loadmaster.api.packed import PackedDocument, unpack
from loadmaster.api.server.context import JobDep, OwnJobDep, Service, ServiceDep
from loadmaster.api.server.description import problem_answers
from loadmaster.api.server.plans import RETRY_AFTER_S, BodyDep, known_tags
from loadmaster.api.server.problems import Refusal, not_found
from loadmaster.api.server.reading.parsing import parse_object
from loadmaster.api.server.resources import incumbent_address
from loadmaster.api.store.records import Job
from loadmaster.models.documents import LARGEST_MEASUREMENT_BYTES, MEASUREMENT_SCHEMA, write
from loadmaster.models.kinds import read_measurement, read_plan

__all__ = ["Found", "Incumbent", "found_plan", "packed_documents", "router"]

router = APIRouter(tags=["plans"])

Incumbent = Annotated[
    Literal["latest"] | None,
    Query(description="latest: the best plan so far of a job that has no result; of one that has, the result"),
]


@dataclass(frozen=True)
class Found:
    """A plan document; whether it is the job's result, or the best so far."""

    packed: PackedDocument
    is_result: bool


@router.get(
    "/v1/plans/{plan_id}/result",
    responses={
        200: {"content": {"application/json": {}}},
        304: {"description": "not changed since the given ETag"},
        **problem_answers(404, 409, 422),
    },
    response_class=JSONResponse,
)
def plan_result(
    service: ServiceDep,
    job: JobDep,
    incumbent: Incumbent = None,
    if_none_match: Annotated[str | None, Header(max_length=255)] = None,
) -> Response:
    """Get the plan document: of a cancelled plan the best one found before; with incumbent=latest the best so far."""
    found = found_plan(service, job, incumbent)
    headers = {"ETag": f'"{found.packed.sha256}"'}
    if headers["ETag"] in known_tags(if_none_match):
        return Response(status_code=304, headers=headers)
    return Response(found.packed.content(), media_type="application/json", headers=headers)


def packed_documents(service: Service, job: Job, found: Found) -> tuple[bytes, ...]:
    """The problem and a plan of a job, packed, and what it measured, where that was sent."""
    measured = service.measurements.get(job.id)
    problem = service.jobs.document(job.problem_sha256).body
    return (problem, found.packed.body) if measured is None else (problem, found.packed.body, measured)


def found_plan(service: Service, job: Job, incumbent: Literal["latest"] | None = None) -> Found:
    """Return the result of a job; asked for the incumbent, the best plan so far where there is no result. Raises
    Refusal 409 where there is none yet, or none at all."""
    if incumbent is not None and job.plan_sha256 is None:
        best = service.jobs.incumbent(job.id)
        if best is not None:
            return Found(best, is_result=False)
        # It may have come to its end since it was read.
        now = service.jobs.get(job.id)
        if now is None:
            raise not_found("plan", job.id)
        job = now
    if job.plan_sha256 is not None:
        return Found(service.jobs.document(job.plan_sha256), is_result=True)
    if not job.state.final:
        detail = f"The plan is {job.state}; its result comes when it is done."
        if incumbent is not None:
            detail = f"The plan is {job.state}, and none was found yet that could be looked at."
        elif job.incumbent_objective is not None:
            detail += f" The best so far is at {incumbent_address(job)}"
        raise Refusal(409, ProblemType.NOT_READY, detail, {"Retry-After": RETRY_AFTER_S})
    why = job.error["detail"] if job.error is not None else "It was cancelled before any plan was found."
    detail = f"The plan is {job.state} and has no result. {why}"
    if job.incumbent_objective is not None:
        detail += f" The best that it had found is at {incumbent_address(job)}"
    raise Refusal(409, ProblemType.NO_PLAN, detail)


@router.put(
    "/v1/plans/{plan_id}/measurement",
    status_code=204,
    responses=problem_answers(404, 409, 413, 415, 422),
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}},
)
def put_measurement(service: ServiceDep, job: OwnJobDep, body: BodyDep) -> Response:
    """Keep what a plan measured, as ``loadmaster fit`` writes it, in the place of what was sent before."""
    if len(body) > LARGEST_MEASUREMENT_BYTES:
        raise Refusal(413, ProblemType.TOO_LARGE, f"A measurement has {LARGEST_MEASUREMENT_BYTES} bytes at most.")
    document = parse_object(body, "body")
    plan = read_plan(found_plan(service, job).packed.document())
    if not service.measurements.put(job.id, write(MEASUREMENT_SCHEMA, read_measurement(document, plan))):
        raise not_found("plan", job.id)
    return Response(status_code=204)


@router.get(
    "/v1/plans/{plan_id}/measurement",
    responses={200: {"content": {"application/json": {}}}, **problem_answers(404, 422)},
    response_class=JSONResponse,
)
def get_measurement(service: ServiceDep, job: JobDep) -> Response:
    """Get what a plan measured when it ran."""
    found = service.measurements.get(job.id)
    if found is None:
        raise not_found("measurement of", job.id)
    return Response(unpack(found), media_type="application/json")
