"""``/v1/plans``: submit, look, list, log, cancel, purge. (:mod:`~loadmaster.api.server.results` and
:mod:`~loadmaster.api.server.events` have modules of their own.)"""

from __future__ import annotations

import time
from typing import Annotated, Any
from urllib.parse import urlencode

import anyio
import anyio.to_thread
from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel

from loadmaster.api import telemetry
from loadmaster.api.documents import PlanPage, PlanRequest, PlanResource, Sizing
from loadmaster.api.errors import ProblemType
from loadmaster.api.planning import Request as Planning
from loadmaster.api.server.blobs import HeldDep, answer_submission
from loadmaster.api.server.context import JobDep, OwnJobDep, PlanId, Service, ServiceDep
from loadmaster.api.server.description import problem_answers
from loadmaster.api.server.keys import CallerDep
from loadmaster.api.server.problems import Refusal, not_found
from loadmaster.api.server.reading.body import json_bytes
from loadmaster.api.server.reading.submissions import Asked, Submission
from loadmaster.api.server.resources import budget_bytes, limit_document, plan_resource
from loadmaster.api.store.jobs import NewJob, NotFinalError
from loadmaster.api.store.records import Job, State
from loadmaster.errors import InputError

RETRY_AFTER_S = "1"
LONGEST_WAIT_S = 60.0
LARGEST_PAGE = 200

router = APIRouter(tags=["plans"])

IdempotencyKey = Annotated[
    str | None,
    Header(max_length=255, description="the same key with the same request gives the same plan, not a second one"),
]
BodyDep = Annotated[bytes, Depends(json_bytes)]


def body_schema(name: str) -> dict[str, Any]:
    """Describe a body that the endpoint reads by itself."""
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def new_job(planning: Planning) -> NewJob:
    """The columns of a job from a request that was read."""
    return NewJob(
        kind=planning.kind,
        name=planning.name[:200],
        options=planning.options,
        asked_gap=planning.gap,
        time_limit_s=planning.time_limit_s,
        limit=planning.limit,
        cache_key=planning.cache_key,
        unit=planning.unit,
        traceparent=telemetry.traceparent(),
    )


@router.post(
    "/v1/plans",
    status_code=202,
    response_model=PlanResource,
    responses={200: {"model": PlanResource | Sizing}, **problem_answers(413, 415, 422, 429, 503)},
    openapi_extra=body_schema("PlanRequest"),
)
async def submit_plan(
    service: ServiceDep,
    caller: CallerDep,
    held: HeldDep,
    body: BodyDep,
    idempotency_key: IdempotencyKey = None,
    dry_run: Annotated[bool, Query(description="only validate, and tell how large the model is")] = False,
) -> Response:
    """Queue a problem for planning; 200 at once when the answer is known already."""

    def queue(submission: Submission) -> Response:
        (planning,) = submission.plannings
        if submission.problem is None:
            return _json(_sizing(service, planning), 200)
        job = service.jobs.submit(
            new_job(planning),
            submission.problem,
            submission.labels,
            request_sha256=submission.request_sha256,
            idempotency_key=idempotency_key,
            owner=caller.name,
        )
        return _plan_response(job, 200 if job.state.final else 202, location=True)

    return await answer_submission(service, caller, held, Asked(PlanRequest, body, dry_run), queue)


@router.get("/v1/plans", responses=problem_answers(422))
def list_plans(
    service: ServiceDep,
    state: Annotated[State | None, Query()] = None,
    kind: Annotated[str | None, Query(max_length=40)] = None,
    label: Annotated[str | None, Query(description="name:value", max_length=330)] = None,
    owner: Annotated[str | None, Query(description="the name of a key", max_length=64)] = None,
    cursor: Annotated[str | None, Query(max_length=64, description="from the link to the next page")] = None,
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = 50,
) -> PlanPage:
    """List plans, the newest first, page by page."""
    # One more than asked for tells whether there is another page.
    named = label_filter(label)
    jobs = service.jobs.latest(state=state, kind=kind, label=named, owner=owner, before=cursor, limit=limit + 1)
    following = None
    if len(jobs) > limit:
        filters = {"state": state, "kind": kind, "label": label, "owner": owner}
        page = {"limit": limit, "cursor": jobs[limit - 1].id}
        given = {name: value for name, value in filters.items() if value is not None}
        following = "/v1/plans?" + urlencode({**given, **page})
    return PlanPage(plans=[plan_resource(job) for job in jobs[:limit]], next=following)


def label_filter(label: str | None) -> tuple[str, str] | None:
    """Split ``name:value`` into name and value. Raises InputError if there is no colon."""
    if label is None:
        return None
    name, separator, value = label.partition(":")
    if not separator:
        raise InputError("query.label", label, "has no colon", "Give label=name:value.")
    return name, value


@router.get(
    "/v1/plans/{plan_id:id}",
    response_model=PlanResource,
    responses={304: {"description": "not changed since the given ETag"}, **problem_answers(404, 422, 429, 503)},
)
async def show_plan(
    service: ServiceDep,
    caller: CallerDep,
    plan_id: PlanId,
    wait: Annotated[
        float,
        Query(ge=0, le=LONGEST_WAIT_S, description="seconds to wait for the end, or with If-None-Match for a change"),
    ] = 0.0,
    if_none_match: Annotated[str | None, Header(max_length=255)] = None,
) -> Response:
    """Get state and figures of a plan."""
    known = known_tags(if_none_match)
    deadline = time.monotonic() + wait
    while True:
        job = await anyio.to_thread.run_sync(service.jobs.get, plan_id)
        if job is None:
            raise not_found("plan", plan_id)
        news = _etag(job) not in known if known else job.state.final
        remaining = deadline - time.monotonic()
        if news or job.state.final or remaining <= 0 or service.stopping.is_set():
            break
        with service.streams.take(caller), anyio.move_on_after(remaining):
            await service.news.wait(job.id, job.event_seq)
    if _etag(job) in known:
        return Response(status_code=304, headers={"ETag": _etag(job)})
    return _plan_response(job, 200)


@router.get(
    "/v1/plans/{plan_id}/problem",
    responses={200: {"content": {"application/json": {}}}, **problem_answers(404, 422)},
    response_class=JSONResponse,
)
def plan_problem(service: ServiceDep, job: JobDep) -> Response:
    """Get the problem document that was submitted."""
    return Response(service.jobs.document(job.problem_sha256).content(), media_type="application/json")


@router.get("/v1/plans/{plan_id}/log", response_class=PlainTextResponse, responses=problem_answers(404, 422))
def plan_log(
    service: ServiceDep, job: JobDep, offset: Annotated[int, Query(ge=0, description="bytes already read")] = 0
) -> Response:
    """The log as text from a byte offset on; the header Log-Offset tells where to go on."""
    events = service.jobs.events(job.id, type_="log", limit=None)
    text = "".join(event.data["line"] + "\n" for event in events).encode()
    headers = {"Log-Offset": str(max(offset, len(text)))}
    return PlainTextResponse(text[offset:], headers=headers)


@router.post(
    "/v1/plans/{plan_id}:cancel", status_code=202, response_model=PlanResource, responses=problem_answers(404, 422)
)
def cancel_plan(service: ServiceDep, job: OwnJobDep) -> Response:
    """Cancel a plan; the best one found so far is kept. Cancelling what is final changes nothing."""
    cancelled = service.jobs.cancel(job.id)
    if cancelled is None:
        raise not_found("plan", job.id)
    return _plan_response(cancelled, 202)


@router.delete("/v1/plans/{plan_id:id}", status_code=204, responses=problem_answers(404, 409, 422))
def purge_plan(service: ServiceDep, job: OwnJobDep) -> Response:
    """Remove a final plan with its events and documents."""
    try:
        known = service.jobs.purge(job.id)
    except NotFinalError as error:
        raise Refusal(409, ProblemType.NOT_FINAL, str(error)) from None
    if not known:
        raise not_found("plan", job.id)
    return Response(status_code=204)


def known_tags(if_none_match: str | None) -> set[str]:
    """The tags of the versions that a caller has already."""
    return {tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")} - {""}


def _etag(job: Job) -> str:
    return f'"{job.event_seq}"'


def _plan_response(job: Job, status: int, *, location: bool = False) -> Response:
    headers = {"ETag": _etag(job)}
    if location:
        headers["Location"] = f"/v1/plans/{job.id}"
    if not job.state.final:
        headers["Retry-After"] = RETRY_AFTER_S
    return _json(plan_resource(job), status, headers)


def _sizing(service: Service, planning: Planning) -> Sizing:
    return Sizing(
        kind=planning.kind,
        name=planning.name,
        limit=limit_document(planning.kind, planning.limit),
        budget_bytes=budget_bytes(planning.kind, planning.limit),
        options=dict(planning.options),
        sizes=dict(planning.sizes),
        cached=service.jobs.is_cached(planning.cache_key, planning.gap),
    )


def _json(body: BaseModel, status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(body.model_dump_json(), status_code=status, media_type="application/json", headers=headers)
