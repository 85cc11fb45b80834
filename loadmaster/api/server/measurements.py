"""``/v1/plans/{id}/measurement``: what a plan measured when it ran, for its page and its report."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from loadmaster.api.errors import ProblemType
from loadmaster.api.packed import unpack
from loadmaster.api.server.context import JobDep, OwnJobDep, ServiceDep
from loadmaster.api.server.description import problem_answers
from loadmaster.api.server.plans import BodyDep
from loadmaster.api.server.problems import Refusal, not_found
from loadmaster.api.server.reading.parsing import parse_object
from loadmaster.api.server.results import found_plan
from loadmaster.models.documents import LARGEST_MEASUREMENT_BYTES, MEASUREMENT_SCHEMA, write
from loadmaster.models.kinds import read_measurement, read_plan

__all__ = ["router"]

router = APIRouter(tags=["plans"])


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
