"""JSON of the kind ``memory``: problem and plan documents to typed data and back.

Fields, stages and accounting are those of the published training graphs; captured graphs and offload add the optional
ones (``host_link``, ``role``, ``recomputable``, ``offloadable``, ``node``, energies).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field

from loadmaster.errors import InputError
from loadmaster.models.canonical import plain
from loadmaster.models.documents import (
    PLAN_SCHEMA,
    PROBLEM_SCHEMA,
    Document,
    StrictModel,
    expect_schema,
    parse,
)
from loadmaster.models.hardware import HostLink
from loadmaster.models.memory.graph_rules import check_graph
from loadmaster.models.memory.plan import (
    Blocker,
    Compute,
    Fetch,
    Infeasibility,
    MemoryPlan,
    Schedule,
    Stage,
)
from loadmaster.models.memory.problem import (
    KIND,
    BackwardImplementation,
    BackwardOperator,
    ForwardOperator,
    Implementation,
    InPlace,
    MemoryProblem,
    Objective,
    Role,
)

# One exbibyte: a size above it is a mistake in units, not a tensor.
LARGEST_BYTES = 1 << 60
# A year in microseconds (and as good a ceiling for microjoules).
LARGEST_COST = 3.2e13

Size = Annotated[int, Field(ge=0, le=LARGEST_BYTES)]
Delta = Annotated[int, Field(ge=-LARGEST_BYTES, le=LARGEST_BYTES)]
Cost = Annotated[float, Field(ge=0, le=LARGEST_COST)]
CostDelta = Annotated[float, Field(ge=-LARGEST_COST, le=LARGEST_COST)]
Id = Annotated[int, Field(ge=0)]


class ImplementationModel(StrictModel):
    time_us: Cost
    workspace_bytes: Delta
    energy_uj: Cost | None = None
    name: str | None = None


class BackwardImplementationModel(StrictModel):
    time_us: Cost
    workspace_bytes: Delta
    needs: list[Id]
    energy_uj: Cost | None = None
    name: str | None = None


class InPlaceModel(StrictModel):
    overwrites: Id
    time_delta_us: CostDelta
    workspace_delta_bytes: Delta
    energy_delta_uj: CostDelta | None = None


class ForwardModel(StrictModel):
    id: Id
    op: str
    inputs: list[Id]
    output_bytes: Size
    live_inputs: list[Id]
    live_bytes: Size
    fixed_bytes: Size
    implementations: Annotated[list[ImplementationModel], Field(min_length=1)]
    recompute_implementations: Annotated[list[ImplementationModel], Field(min_length=1)]
    encodes: Id | None = None
    in_place: InPlaceModel | None = None
    recomputable: bool = True
    offloadable: bool = True
    role: Role = "activation"
    node: str | None = None


class BackwardModel(StrictModel):
    id: Annotated[int, Field(ge=1)]
    op: str
    output_bytes: Size
    live_bytes: Size
    fixed_bytes: Size
    implementations: Annotated[list[BackwardImplementationModel], Field(min_length=1)]
    node: str | None = None


class HostLinkModel(StrictModel):
    to_host_gbps: Annotated[float, Field(gt=0, le=1e6)]
    from_host_gbps: Annotated[float, Field(gt=0, le=1e6)]
    capacity_bytes: Size | None = None


class ProblemModel(StrictModel):
    schema_: Annotated[Literal["loadmaster/problem/1"], Field(alias="schema")]
    kind: Literal["memory"]
    name: Annotated[str, Field(min_length=1, max_length=200)]
    title: str | None = None
    budget_bytes: Size | None = None
    objective: Objective = "time"
    host_link: HostLinkModel | None = None
    forward: Annotated[list[ForwardModel], Field(min_length=1, max_length=20_000)]
    backward: Annotated[list[BackwardModel], Field(min_length=1, max_length=20_000)]


def read_problem(document: Document) -> MemoryProblem:
    """A memory problem from its document.

    Raises:
        InputError: unknown fields or versions, sizes out of range, cyclic or dangling graphs; names the field.
    """
    expect_schema(document, PROBLEM_SCHEMA)
    model = parse(ProblemModel, document)
    forward = tuple(_forward(m) for m in model.forward)
    backward = tuple(_backward(m) for m in model.backward)
    check_graph(forward, backward, model.objective)
    return MemoryProblem(
        name=model.name,
        title=model.title,
        forward=forward,
        backward=backward,
        budget_bytes=model.budget_bytes,
        objective=model.objective,
        host_link=None if model.host_link is None else HostLink(**model.host_link.model_dump()),
    )


def _forward(m: ForwardModel) -> ForwardOperator:
    return ForwardOperator(
        id=m.id,
        op=m.op,
        inputs=tuple(m.inputs),
        output_bytes=m.output_bytes,
        live_inputs=tuple(m.live_inputs),
        live_bytes=m.live_bytes,
        fixed_bytes=m.fixed_bytes,
        implementations=tuple(Implementation(**c.model_dump()) for c in m.implementations),
        recompute_implementations=tuple(Implementation(**c.model_dump()) for c in m.recompute_implementations),
        encodes=m.encodes,
        in_place=None if m.in_place is None else InPlace(**m.in_place.model_dump()),
        recomputable=m.recomputable,
        offloadable=m.offloadable,
        role=m.role,
        node=m.node,
    )


def _backward(m: BackwardModel) -> BackwardOperator:
    return BackwardOperator(
        id=m.id,
        op=m.op,
        output_bytes=m.output_bytes,
        live_bytes=m.live_bytes,
        fixed_bytes=m.fixed_bytes,
        implementations=tuple(
            BackwardImplementation(
                time_us=c.time_us,
                workspace_bytes=c.workspace_bytes,
                needs=tuple(sorted(set(c.needs))),
                energy_uj=c.energy_uj,
                name=c.name,
            )
            for c in m.implementations
        ),
        node=m.node,
    )


def write_problem(problem: MemoryProblem) -> dict[str, Any]:
    """The document of a problem; reading it back gives an equal problem."""
    document: dict[str, Any] = {
        "schema": PROBLEM_SCHEMA,
        "kind": KIND,
        "name": problem.name,
        "title": problem.title,
        "budget_bytes": problem.budget_bytes,
        "objective": problem.objective,
        "host_link": None if problem.host_link is None else asdict(problem.host_link),
        "forward": [plain(asdict(f)) for f in problem.forward],
        "backward": [plain(asdict(b)) for b in problem.backward],
    }
    written: dict[str, Any] = plain(document)
    return written


class ComputeModel(StrictModel):
    forward: Id
    implementation: Id = 0
    in_place: bool = False


class FetchModel(StrictModel):
    forward: Id
    issued_at: Id


class StageModel(StrictModel):
    computes: list[ComputeModel]
    implementation: Id | None = None
    keep: list[Id]
    fetches: tuple[FetchModel, ...] = Field((), strict=False)


class ScheduleModel(StrictModel):
    stages: list[StageModel]
    offload: tuple[Id, ...] = Field((), strict=False)
    gone_before: tuple[Id, ...] = Field((), strict=False)


class BlockerModel(StrictModel):
    tensor: str
    op: str
    size_bytes: Size


class InfeasibilityModel(StrictModel):
    minimum_budget_bytes: Size
    short_bytes: Size
    where: str
    blockers: list[BlockerModel]


class PlanModel(StrictModel):
    schema_: Annotated[Literal["loadmaster/plan/1"], Field(alias="schema")]
    kind: Literal["memory"]
    name: str
    problem_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    budget_bytes: Size
    status: Literal["optimal", "feasible", "infeasible"]
    objective: float | None = None
    bound: float | None = None
    gap: float | None = None
    overhead_gap: float | None = None
    unconstrained: float
    unit: str
    method: str
    stopped_by: str
    seconds: dict[str, float]
    solver: dict[str, Any]
    check: dict[str, Any]
    options: dict[str, Any] = Field(default_factory=dict)
    schedule: ScheduleModel | None = None
    infeasibility: InfeasibilityModel | None = None


def read_plan(document: Document) -> MemoryPlan:
    """A memory plan from its document. It is not checked here: see :mod:`loadmaster.models.memory.checker`.

    Raises:
        InputError: unknown fields or versions, values out of range; names the field.
    """
    expect_schema(document, PLAN_SCHEMA)
    m = parse(PlanModel, document)
    schedule = None
    if m.schedule is not None:
        _expect_departures(m.schedule)
        schedule = Schedule(
            stages=tuple(
                Stage(
                    computes=tuple(Compute(c.forward, c.implementation, c.in_place) for c in s.computes),
                    implementation=s.implementation,
                    keep=tuple(s.keep),
                    fetches=tuple(Fetch(f.forward, f.issued_at) for f in s.fetches),
                )
                for s in m.schedule.stages
            ),
            offload=tuple(m.schedule.offload),
            gone_before=tuple(m.schedule.gone_before),
        )
    infeasibility = None
    if m.infeasibility is not None:
        infeasibility = Infeasibility(
            minimum_budget_bytes=m.infeasibility.minimum_budget_bytes,
            short_bytes=m.infeasibility.short_bytes,
            where=m.infeasibility.where,
            blockers=tuple(Blocker(b.tensor, b.op, b.size_bytes) for b in m.infeasibility.blockers),
        )
    scalars = {
        name: getattr(m, name)
        for name in PlanModel.model_fields
        if name not in ("schema_", "kind", "schedule", "infeasibility")
    }
    return MemoryPlan(**scalars, schedule=schedule, infeasibility=infeasibility)


def _expect_departures(schedule: ScheduleModel) -> None:
    sent, gone = len(schedule.offload), len(schedule.gone_before)
    if gone not in (0, sent):
        raise InputError(
            "schedule.gone_before",
            list(schedule.gone_before),
            f"has {gone} entries for the {sent} of schedule.offload",
            "Give one for each, or leave the field out: all are there until the backward pass starts.",
        )


def write_plan(plan: MemoryPlan) -> dict[str, Any]:
    """The document of a plan; reading it back gives an equal plan."""
    document = plain(asdict(plan))
    if plan.schedule is not None:
        for stage in document["schedule"]["stages"]:
            stage["computes"] = [_short(c) for c in stage["computes"]]
            if not stage["fetches"]:
                del stage["fetches"]
    return {"schema": PLAN_SCHEMA, "kind": KIND, **{k: v for k, v in document.items() if k != "kind"}}


def _short(compute: dict[str, Any]) -> dict[str, Any]:
    """A compute without its defaults: schedules have tens of thousands."""
    return {k: v for k, v in compute.items() if v or k == "forward"}
