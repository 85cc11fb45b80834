"""``/v1/frontiers``: one problem under several limits, as a parent of plans."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from loadmaster.api.documents import FrontierRequest, FrontierResource
from loadmaster.api.server.blobs import HeldDep, answer_submission
from loadmaster.api.server.context import Service, ServiceDep
from loadmaster.api.server.description import problem_answers
from loadmaster.api.server.keys import Caller, CallerDep
from loadmaster.api.server.plans import (
    RETRY_AFTER_S,
    BodyDep,
    IdempotencyKey,
    body_schema,
    new_job,
)
from loadmaster.api.server.problems import not_found
from loadmaster.api.server.reading.submissions import Asked, Submission
from loadmaster.api.server.resources import frontier_resource
from loadmaster.api.store.jobs import Frontier

router = APIRouter(tags=["frontiers"])
FrontierId = Annotated[str, Path(max_length=64, description="id of a frontier")]


@router.post(
    "/v1/frontiers",
    status_code=202,
    response_model=FrontierResource,
    responses={200: {"model": FrontierResource}, **problem_answers(413, 415, 422, 429, 503)},
    openapi_extra=body_schema("FrontierRequest"),
)
async def submit_frontier(
    service: ServiceDep, caller: CallerDep, held: HeldDep, body: BodyDep, idempotency_key: IdempotencyKey = None
) -> Response:
    """Queue a problem under several limits."""

    def queue(submission: Submission) -> Response:
        assert submission.problem is not None
        frontier = service.jobs.submit_frontier(
            [new_job(planning) for planning in submission.plannings],
            submission.problem,
            submission.labels,
            request_sha256=submission.request_sha256,
            idempotency_key=idempotency_key,
            owner=caller.name,
        )
        return _frontier_response(service, frontier, submitted=True)

    return await answer_submission(service, caller, held, Asked(FrontierRequest, body), queue)


@router.get("/v1/frontiers/{frontier_id:id}", response_model=FrontierResource, responses=problem_answers(404, 422))
def show_frontier(service: ServiceDep, frontier_id: FrontierId) -> Response:
    """Get the points of a frontier so far."""
    return _frontier_response(service, existing_frontier(service, frontier_id))


@router.post(
    "/v1/frontiers/{frontier_id}:cancel",
    status_code=202,
    response_model=FrontierResource,
    responses=problem_answers(404, 422),
)
def cancel_frontier(service: ServiceDep, caller: CallerDep, frontier_id: FrontierId) -> Response:
    """Cancel all plans of a frontier; what was found is kept."""
    return _frontier_response(service, cancel_all(service, caller, frontier_id), status=202)


def cancel_all(service: Service, caller: Caller, frontier_id: str) -> Frontier:
    """Cancel the jobs of a frontier; returns it as it stands then. Raises Refusal 404, or 403 if it is another's."""
    jobs = existing_frontier(service, frontier_id).jobs
    caller.expect_may_change("frontier", jobs[0].owner)
    for job in jobs:
        service.jobs.cancel(job.id)
    return existing_frontier(service, frontier_id)


def existing_frontier(service: Service, frontier_id: str) -> Frontier:
    """Look up a frontier by its id. Raises Refusal 404."""
    frontier = service.jobs.get_frontier(frontier_id)
    if frontier is None:
        raise not_found("frontier", frontier_id)
    return frontier


def _frontier_response(service: Service, frontier: Frontier, *, submitted: bool = False, status: int = 200) -> Response:
    resource = frontier_resource(frontier, service.jobs)
    headers = {}
    if submitted:
        headers["Location"] = resource.links["self"]
    if not resource.final:
        headers["Retry-After"] = RETRY_AFTER_S
        status = 202 if submitted else status
    return Response(resource.model_dump_json(), status_code=status, media_type="application/json", headers=headers)
