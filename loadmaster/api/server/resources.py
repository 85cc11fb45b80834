"""Jobs and frontiers as the interface shows them."""

from __future__ import annotations

import math

from loadmaster.api.documents import FailureDocument, FrontierPoint, FrontierResource, PlanResource
from loadmaster.api.store.jobs import Frontier
from loadmaster.api.store.records import Job, State
from loadmaster.solvers.solution import relative_gap


def plan_resource(job: Job) -> PlanResource:
    """A job with its links."""
    address = f"/v1/plans/{job.id}"
    links = {"self": address, "events": f"{address}/events", "log": f"{address}/log"}
    if job.plan_sha256 is not None:
        links["result"] = f"{address}/result"
    if not job.state.final:
        links["cancel"] = f"{address}:cancel"
    if job.frontier_id is not None:
        links["frontier"] = f"/v1/frontiers/{job.frontier_id}"
    return PlanResource(
        id=job.id,
        kind=job.kind,
        name=job.name,
        labels=dict(job.labels),
        state=job.state.value,
        status=job.status,  # type: ignore[arg-type]
        budget_bytes=job.budget_bytes,
        objective=job.objective,
        bound=job.bound,
        gap=job.gap,
        unit=job.unit,
        cached=job.cached,
        cancel_requested=job.cancel_requested,
        attempts=job.attempts,
        error=None if job.error is None else FailureDocument.model_validate(job.error),
        options=dict(job.options),
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        links=links,
    )


def frontier_resource(frontier: Frontier) -> FrontierResource:
    """A frontier with the best figures of every budget."""
    address = f"/v1/frontiers/{frontier.id}"
    first = frontier.jobs[0]
    state = frontier_state([job.state for job in frontier.jobs])
    links = {"self": address}
    if not state.final:
        links["cancel"] = f"{address}:cancel"
    return FrontierResource(
        id=frontier.id,
        kind=first.kind,
        name=first.name,
        labels=dict(frontier.labels),
        state=state.value,
        unit=next((job.unit for job in frontier.jobs if job.unit is not None), None),
        created_at=frontier.created_at,
        points=frontier_points(frontier.jobs),
        links=links,
    )


def frontier_points(jobs: tuple[Job, ...]) -> list[FrontierPoint]:
    """The points of jobs that ascend in budget, each with the best plan that fits and the best bound that holds."""
    bounds: list[float | None] = []
    bound: float | None = None
    for job in reversed(jobs):
        if job.bound is not None and (bound is None or job.bound > bound):
            bound = job.bound
        bounds.append(bound)
    bounds.reverse()
    points = []
    best: tuple[float, str] | None = None
    for job, bound in zip(jobs, bounds, strict=True):
        if job.objective is not None and job.plan_sha256 is not None:
            best = min(best or (math.inf, ""), (job.objective, job.id))
        objective = None if best is None else best[0]
        points.append(
            FrontierPoint(
                budget_bytes=job.budget_bytes or 0,
                job=job.id,
                state=job.state.value,
                plan=None if best is None else best[1],
                objective=objective,
                bound=bound,
                gap=relative_gap(objective, bound),
            )
        )
    return points


def frontier_state(states: list[State]) -> State:
    """Unfinished as long as one point is; then failed or cancelled if one point is missing for that reason."""
    if all(state is State.QUEUED for state in states):
        return State.QUEUED
    if not all(state.final for state in states):
        return State.RUNNING
    for state in (State.FAILED, State.CANCELLED, State.SUCCEEDED):
        if state in states:
            return state
    return State.INFEASIBLE
