"""``/v1/frontiers``: one problem under several limits, as a parent of plans."""

from __future__ import annotations

import hashlib
from typing import Annotated

from fastapi import APIRouter, Path, Response

from loadmaster.api.documents import FrontierRequest, FrontierResource
from loadmaster.api.server.blobs import HeldDep, named_problem
from loadmaster.api.server.body import parse_body
from loadmaster.api.server.context import Service, ServiceDep
from loadmaster.api.server.description import problem_answers
from loadmaster.api.server.keys import Caller, CallerDep
from loadmaster.api.server.plans import (
    RETRY_AFTER_S,
    BodyDep,
    IdempotencyKey,
    body_schema,
    new_job,
    read_requests,
)
from loadmaster.api.server.problems import not_found
from loadmaster.api.server.resources import frontier_resource
from loadmaster.api.store.jobs import Frontier
from loadmaster.errors import InputError
from loadmaster.models.documents import Document
from loadmaster.models.kinds import find_kind, limit_of
from loadmaster.planner.options import LIMIT_NAMES

router = APIRouter(tags=["frontiers"])
FrontierId = Annotated[str, Path(max_length=64, description="id of a frontier")]


@router.post(
    "/v1/frontiers",
    status_code=202,
    response_model=FrontierResource,
    responses={200: {"model": FrontierResource}, **problem_answers(413, 415, 422, 429, 503)},
    openapi_extra=body_schema("FrontierRequest"),
)
def submit_frontier(
    service: ServiceDep, caller: CallerDep, held: HeldDep, body: BodyDep, idempotency_key: IdempotencyKey = None
) -> Response:
    """Queue a problem under several limits."""
    request = parse_body(FrontierRequest, body)
    problem = named_problem(service, held, request.problem)
    option, limits = _limits(request, problem)
    read = read_requests(service, problem, [{**request.options, option: limit} for limit in dict.fromkeys(limits)])
    # By the numbers that sizes and shares come to, each once.
    points = [new_job(planning) for _, planning in sorted({p.limit or 0: p for p in read}.items())]
    frontier = service.jobs.submit_frontier(
        points,
        problem,
        request.labels,
        request_sha256=hashlib.sha256(b"frontier\n" + body).hexdigest(),
        idempotency_key=idempotency_key,
        owner=caller.name,
    )
    return _frontier_response(frontier, submitted=True)


@router.get("/v1/frontiers/{frontier_id}", response_model=FrontierResource, responses=problem_answers(404, 422))
def show_frontier(service: ServiceDep, frontier_id: FrontierId) -> Response:
    """The points so far."""
    return _frontier_response(existing_frontier(service, frontier_id))


@router.post(
    "/v1/frontiers/{frontier_id}:cancel",
    status_code=202,
    response_model=FrontierResource,
    responses=problem_answers(404, 422),
)
def cancel_frontier(service: ServiceDep, caller: CallerDep, frontier_id: FrontierId) -> Response:
    """Cancel all its plans; what was found is kept."""
    return _frontier_response(cancel_all(service, caller, frontier_id), status=202)


def cancel_all(service: Service, caller: Caller, frontier_id: str) -> Frontier:
    """Cancel the jobs of a frontier; where they stand then.

    Raises:
        Refusal: 404, or 403 if it is another's.
    """
    jobs = existing_frontier(service, frontier_id).jobs
    caller.expect_may_change("frontier", jobs[0].owner)
    for job in jobs:
        service.jobs.cancel(job.id)
    return existing_frontier(service, frontier_id)


def _limits(request: FrontierRequest, problem: Document) -> tuple[str, list[int | str]]:
    """The option that each point gives, and its values.

    Raises:
        InputError: not one of the two, one that is not of the problem's kind, or a kind without a limit.
    """
    given = {"limit": request.limits, "budget_bytes": request.budgets_bytes}
    (option, values), *more = [(name, values) for name, values in given.items() if values is not None] or [("", [])]
    if not values:
        raise InputError("limits", None, "is missing", "Give the limits to plan for, or budgets_bytes.")
    if more:
        raise InputError("limits", request.limits, "are given beside budgets_bytes", "Give one of them.")
    kind = problem.get("kind")
    # What is no kind is left to whoever reads the problem.
    if find_kind(kind) is not None and limit_of(kind).field != option and option != "limit":
        raise InputError("budgets_bytes", values, f"mean nothing to {kind}", "Give limits.")
    for name in LIMIT_NAMES:
        if name in request.options:
            raise InputError(
                f"options.{name}", request.options[name], "is given beside the limits of the frontier", "Leave it out."
            )
    return option, values


def existing_frontier(service: Service, frontier_id: str) -> Frontier:
    """The frontier of that id.

    Raises:
        Refusal: 404.
    """
    frontier = service.jobs.get_frontier(frontier_id)
    if frontier is None:
        raise not_found("frontier", frontier_id)
    return frontier


def _frontier_response(frontier: Frontier, *, submitted: bool = False, status: int = 200) -> Response:
    resource = frontier_resource(frontier)
    headers = {}
    if submitted:
        headers["Location"] = resource.links["self"]
    if not resource.final:
        headers["Retry-After"] = RETRY_AFTER_S
        status = 202 if submitted else status
    return Response(resource.model_dump_json(), status_code=status, media_type="application/json", headers=headers)
