"""The JSON of the HTTP interface, shared by server and client. Problems and plans themselves are documents of the
models floor and pass through here as they are."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, StringConstraints, WithJsonSchema

StateName = Literal["queued", "running", "succeeded", "infeasible", "failed", "cancelled"]
FrontierStateName = Literal["queued", "running", "succeeded", "infeasible", "failed", "cancelled"]
FINAL_STATES = frozenset({"succeeded", "infeasible", "failed", "cancelled"})

LabelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._/-]{1,64}$")]
LabelValue = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{0,256}$")]
_LARGEST_LIMIT, _LONGEST_LIMIT = 1 << 60, 40
Labels = Annotated[dict[LabelName, LabelValue], Field(max_length=16)]


def _limit(value: object) -> object:
    """Validate a limit by hand: a union would name its branches in the place of an error."""
    if isinstance(value, str) and len(value) <= _LONGEST_LIMIT:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_LIMIT:
        return value
    raise ValueError("Input should be a whole number, 0 or more, a size such as 6GiB, or a share such as 50%")


_LIMIT_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": _LARGEST_LIMIT},
            {"type": "string", "maxLength": _LONGEST_LIMIT, "description": "a size (6GiB) or a share (50%)"},
        ]
    }
)
Limits = Annotated[
    list[Annotated[int | str, PlainValidator(_limit), _LIMIT_SCHEMA]], Field(min_length=1, max_length=64)
]


class _Incoming(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class PlanRequest(_Incoming):
    """A request to plan: a problem document, options of the planner, labels of the caller's own."""

    problem: dict[str, Any] = Field(description="a problem document, or blob_sha256 alone: that of a blob")
    options: dict[str, Any] = Field(default_factory=dict, description="time_limit_s, gap, seed, solver, ...")
    labels: Labels = Field(default_factory=dict)


class FrontierRequest(PlanRequest):
    """A request to plan under several limits, or budgets_bytes for kinds whose limit is that: one of the two."""

    limits: Limits | None = None
    budgets_bytes: Limits | None = None


class LimitDocument(BaseModel):
    """The limit that a plan is made under: its name in the plan's kind, its value, its unit."""

    name: str
    value: int
    unit: str


class Sizing(BaseModel):
    """The answer to a dry run: the request is good, and this large. ``budget_bytes``: the limit, where it is that."""

    kind: str
    name: str
    limit: LimitDocument | None = None
    budget_bytes: int | None
    options: dict[str, Any]
    sizes: dict[str, int]
    cached: bool = Field(description="whether a real request would be answered at once")


class FailureDocument(BaseModel):
    """The reason why a job failed: the class of the error and its message; the other fields are of an InputError."""

    type: str
    detail: str
    field: str | None = None
    value: str | None = None
    problem: str | None = None
    remedy: str | None = None


class PlanResource(BaseModel):
    """A job and where it stands. Objective and bound are in ``unit``; times are seconds since the epoch.

    ``budget_bytes`` is the limit of kinds whose limit is that.
    """

    id: str
    kind: str
    name: str
    labels: dict[str, str]
    owner: str | None = Field(default=None, description="the name of the key that it was submitted with")
    state: StateName
    status: Literal["optimal", "feasible", "infeasible"] | None
    limit: LimitDocument | None = None
    budget_bytes: int | None
    objective: float | None
    bound: float | None
    gap: float | None
    unit: str | None
    cached: bool
    cancel_requested: bool
    attempts: int
    error: FailureDocument | None
    options: dict[str, Any]
    created_at: float
    started_at: float | None
    finished_at: float | None
    links: dict[str, str]

    @property
    def final(self) -> bool:
        """True once nothing about the job changes any more."""
        return self.state in FINAL_STATES


class PlanPage(BaseModel):
    """One page of jobs, newest first; ``next`` is the address of the following page."""

    plans: list[PlanResource]
    next: str | None


class PriceDocument(BaseModel):
    """Worth of a little more of a resource: by how much the proved bound is lower with it (null: not proved in time),
    and by how much the best plan that was found is better."""

    more: str
    bound_falls: float | None = None
    plan_gains: float


class FrontierPoint(BaseModel):
    """One limit of a frontier (and ``budget_bytes``, where it is that).

    A plan for a smaller limit serves a larger one, and a bound for a larger limit holds for a smaller one:
    objective and bound are the best over the frontier, ``plan`` is the job whose plan gives that objective. ``prices``
    are there where the option of that name was given and the job has a plan.
    """

    limit: int | None = None
    budget_bytes: int | None
    job: str
    state: StateName
    plan: str | None
    objective: float | None
    bound: float | None
    gap: float | None
    prices: list[PriceDocument] | None = None


class FrontierResource(BaseModel):
    """A frontier and where it stands; points ascend in limit, their objectives never do."""

    id: str
    kind: str
    name: str
    labels: dict[str, str]
    owner: str | None = Field(default=None, description="the name of the key that it was submitted with")
    state: FrontierStateName
    unit: str | None
    created_at: float
    points: list[FrontierPoint]
    links: dict[str, str]

    @property
    def final(self) -> bool:
        """True once all points of the frontier are final."""
        return self.state in FINAL_STATES


class SolverResource(BaseModel):
    """A solver that can be asked for."""

    name: str
    version: str
    features: list[str]


class SolverList(BaseModel):
    """The solvers installed on the server."""

    solvers: list[SolverResource]


class HardwareList(BaseModel):
    """The devices known by name; their fields are those of :class:`loadmaster.models.hardware.Hardware`."""

    hardware: list[dict[str, Any]]


class Health(BaseModel):
    """The answer of /livez and /readyz."""

    status: Literal["ok", "unavailable"]
    version: str | None = None
    checks: dict[str, str] = Field(default_factory=dict)


class ProblemError(BaseModel):
    """One thing that is wrong with a request: where (a JSON pointer, and in words), what was found, the remedy."""

    pointer: str
    field: str
    value: str
    problem: str
    remedy: str


class ProblemDetails(BaseModel):
    """Details of a refusal, as RFC 9457 defines them."""

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None
    errors: list[ProblemError] = Field(default_factory=list)
