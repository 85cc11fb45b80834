"""Jobs and frontiers as the interface shows them."""

from __future__ import annotations

from loadmaster.api.documents import (
    FailureDocument,
    FrontierPoint,
    FrontierResource,
    LimitDocument,
    PlanResource,
    PriceDocument,
)
from loadmaster.api.store.jobs import Frontier, Jobs
from loadmaster.api.store.records import Job, State
from loadmaster.models.kinds import find_kind
from loadmaster.planner.sweep import Figures, monotone
from loadmaster.solvers.solution import relative_gap

# Asks for the best plan so far.
LATEST = "?incumbent=latest"


def plan_resource(job: Job) -> PlanResource:
    """A job with its links."""
    address = f"/v1/plans/{job.id}"
    links = {"self": address, "events": f"{address}/events", "log": f"{address}/log"}
    if job.plan_sha256 is not None:
        links["result"] = f"{address}/result"
    if job.incumbent_objective is not None:
        links["incumbent"] = incumbent_address(job)
    links |= {f"export/{name}": href for name, href in exports_of(job).items()}
    if not job.state.final:
        links["cancel"] = f"{address}:cancel"
    if job.frontier_id is not None:
        links["frontier"] = f"/v1/frontiers/{job.frontier_id}"
    return PlanResource(
        id=job.id,
        kind=job.kind,
        name=job.name,
        labels=dict(job.labels),
        owner=job.owner,
        state=job.state.value,
        status=job.status,  # type: ignore[arg-type]
        limit=limit_document(job.kind, job.limit),
        budget_bytes=budget_bytes(job.kind, job.limit),
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


def frontier_resource(frontier: Frontier, jobs: Jobs) -> FrontierResource:
    """A frontier with the best figures of every limit; plans with prices are read from the store for them."""
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
        owner=first.owner,
        state=state.value,
        unit=next((job.unit for job in frontier.jobs if job.unit is not None), None),
        created_at=frontier.created_at,
        points=_with_prices(frontier_points(frontier.jobs), frontier.jobs, jobs),
        links=links,
    )


def frontier_points(jobs: tuple[Job, ...]) -> list[FrontierPoint]:
    """The points of jobs that ascend in limit, each with the best plan that fits and the best bound that holds."""
    figures = [Figures(job.objective if job.plan_sha256 is not None else None, job.bound) for job in jobs]
    points = []
    for job, best in zip(jobs, monotone(figures), strict=True):
        objective = None if best.plan_of is None else figures[best.plan_of].objective
        points.append(
            FrontierPoint(
                limit=job.limit or 0,
                budget_bytes=budget_bytes(job.kind, job.limit),
                job=job.id,
                state=job.state.value,
                plan=None if best.plan_of is None else jobs[best.plan_of].id,
                objective=objective,
                bound=best.bound,
                gap=relative_gap(objective, best.bound),
            )
        )
    return points


def _with_prices(points: list[FrontierPoint], of: tuple[Job, ...], jobs: Jobs) -> list[FrontierPoint]:
    """Add the prices that plans state. Where a smaller limit's plan is better than a point's own, less is gained."""
    priced = []
    for point, job in zip(points, of, strict=True):
        if not job.options.get("prices") or job.plan_sha256 is None or job.objective is None:
            priced.append(point)
            continue
        ahead = job.objective - (job.objective if point.objective is None else point.objective)
        stated = map(PriceDocument.model_validate, jobs.document(job.plan_sha256).document().get("prices") or ())
        prices = [p.model_copy(update={"plan_gains": max(p.plan_gains - ahead, 0.0)}) for p in stated]
        priced.append(point.model_copy(update={"prices": prices}))
    return priced


def limit_document(kind: str, value: int | None) -> LimitDocument | None:
    """A limit as its kind calls it. Of a kind that is not known here, it is shown as a budget in bytes."""
    if value is None:
        return None
    known = find_kind(kind)
    if known is None or known.limit is None:
        return LimitDocument(name="budget", value=value, unit="bytes")
    return LimitDocument(name=known.limit.name, value=value, unit=known.limit.unit)


def budget_bytes(kind: str, value: int | None) -> int | None:
    """The limit, of kinds whose limit is a budget in bytes (or that are not known here)."""
    known = find_kind(kind)
    return value if known is None or known.limit is None or known.limit.field == "budget_bytes" else None


def exports_of(job: Job) -> dict[str, str]:
    """The addresses of every form that the job's plan, or its best so far, can be had in, by name."""
    known = find_kind(job.kind)
    is_result = job.plan_sha256 is not None and job.objective is not None
    if known is None or not (is_result or job.incumbent_objective is not None):
        return {}
    query = "" if is_result else LATEST
    return {export.name: f"/v1/plans/{job.id}/export/{export.name}{query}" for export in known.exports}


def incumbent_address(job: Job) -> str:
    """The address of the best plan so far."""
    return f"/v1/plans/{job.id}/result{LATEST}"


def frontier_state(states: list[State]) -> State:
    """State of a frontier: unfinished as long as a point is; then failed or cancelled if one is missing for that."""
    if all(state is State.QUEUED for state in states):
        return State.QUEUED
    if not all(state.final for state in states):
        return State.RUNNING
    for state in (State.FAILED, State.CANCELLED, State.SUCCEEDED):
        if state in states:
            return state
    return State.INFEASIBLE
