"""JSON of the kind ``collective``: problem and plan documents to typed data and back.

A problem holds its whole topology, so that a document means the same whatever presets say later. Keys of a sketch's
maps are local ranks, written as text because JSON has no other keys.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from loadmaster.errors import InputError
from loadmaster.models.canonical import plain
from loadmaster.models.collective.instance import Chunk
from loadmaster.models.collective.plan import Algorithm, CollectivePlan, Form, PlanStatus, Send, Unreachable
from loadmaster.models.collective.problem import (
    KIND,
    Collective,
    CollectiveProblem,
    Sketch,
    Strategy,
    SwitchPolicy,
)
from loadmaster.models.collective.problem_rules import LARGEST_BYTES, check_problem
from loadmaster.models.documents import PLAN_SCHEMA, PROBLEM_SCHEMA, Document, StrictModel, expect_schema, parse
from loadmaster.models.topologies.topology import Link, Topology

# More ranks, or more links, than any topology in a plan's reach has.
LARGEST_RANK_COUNT = 4096
LARGEST_LINK_COUNT = 1 << 18

Rank = Annotated[int, Field(ge=0, lt=LARGEST_RANK_COUNT)]
Index = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(ge=0, le=LARGEST_BYTES)]
PositiveSize = Annotated[int, Field(ge=1, le=LARGEST_BYTES)]
Count = Annotated[int, Field(ge=1, le=1 << 20)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
RankText = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,3})$")]


class LinkModel(StrictModel):
    source: Rank
    target: Rank
    latency_ns: int
    message_ns: int
    gbps: float
    resources: list[Index]
    switch: Index | None = None


class TopologyModel(StrictModel):
    name: Name
    node_of: Annotated[list[Index], Field(max_length=LARGEST_RANK_COUNT)]
    links: Annotated[list[LinkModel], Field(max_length=LARGEST_LINK_COUNT)]
    resources: Annotated[list[str], Field(max_length=LARGEST_LINK_COUNT)]
    switches: Annotated[list[list[Rank]], Field(max_length=LARGEST_RANK_COUNT)] = Field(default_factory=list)


class ChunkModel(StrictModel):
    size_bytes: Size
    sources: list[Rank]
    targets: list[Rank]
    reduces: bool = False
    senders: list[Rank] | None = None


class SwitchPolicyModel(StrictModel):
    ranks: list[Rank]
    strategy: Strategy = "free"


class SketchModel(StrictModel):
    name: Name = "sketch"
    switches: list[SwitchPolicyModel] = Field(default_factory=list)
    internode: dict[RankText, list[Rank]] | None = None
    relays: dict[RankText, Rank] = Field(default_factory=dict)
    beta_split: dict[RankText, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    symmetry: list[Annotated[list[Count], Field(min_length=2, max_length=2)]] = Field(default_factory=list)
    chunk_count: Count | None = None
    size_bytes: PositiveSize | None = None


class ProblemModel(StrictModel):
    schema_: Annotated[Literal["loadmaster/problem/1"], Field(alias="schema")]
    kind: Literal["collective"]
    name: Name
    title: str | None = None
    topology: TopologyModel
    collective: Collective
    sizes_bytes: Annotated[list[PositiveSize], Field(min_length=1, max_length=64)]
    chunk_counts: Annotated[list[Count], Field(max_length=64)] = Field(default_factory=list)
    root: Rank | None = None
    pair_bytes: list[list[Size]] | None = None
    custom: list[ChunkModel] | None = None
    sketch: SketchModel | None = None


def read_problem(document: Document) -> CollectiveProblem:
    """A collective problem from its document.

    Raises:
        InputError: unknown fields or versions, values out of range, fields that do not fit each other; names the field.
    """
    expect_schema(document, PROBLEM_SCHEMA)
    m = parse(ProblemModel, document)
    problem = CollectiveProblem(
        name=m.name,
        topology=_topology(m.topology),
        collective=m.collective,
        sizes_bytes=tuple(m.sizes_bytes),
        chunk_counts=tuple(m.chunk_counts),
        root=m.root,
        pair_bytes=None if m.pair_bytes is None else tuple(tuple(row) for row in m.pair_bytes),
        custom=None if m.custom is None else tuple(_chunk(c) for c in m.custom),
        sketch=None if m.sketch is None else _sketch(m.sketch),
        title=m.title,
    )
    check_problem(problem)
    return problem


def _topology(m: TopologyModel) -> Topology:
    return Topology(
        name=m.name,
        node_of=tuple(m.node_of),
        links=tuple(
            Link(k.source, k.target, k.latency_ns, k.message_ns, k.gbps, tuple(k.resources), k.switch) for k in m.links
        ),
        resources=tuple(m.resources),
        switches=tuple(tuple(ranks) for ranks in m.switches),
    )


def _chunk(m: ChunkModel) -> Chunk:
    senders = None if m.senders is None else frozenset(m.senders)
    return Chunk(m.size_bytes, tuple(m.sources), tuple(m.targets), m.reduces, senders)


def _sketch(m: SketchModel) -> Sketch:
    return Sketch(
        name=m.name,
        switches=tuple(SwitchPolicy(tuple(s.ranks), s.strategy) for s in m.switches),
        internode=None if m.internode is None else {int(rank): tuple(to) for rank, to in m.internode.items()},
        relays={int(rank): relay for rank, relay in m.relays.items()},
        beta_split={int(rank): share for rank, share in m.beta_split.items()},
        symmetry=tuple((offset, group) for offset, group in m.symmetry),
        chunk_count=m.chunk_count,
        size_bytes=m.size_bytes,
    )


def write_problem(problem: CollectiveProblem) -> dict[str, Any]:
    """The document of a problem; reading it back gives an equal problem."""
    document = asdict(problem)
    for chunk in document["custom"] or ():
        chunk["senders"] = None if chunk["senders"] is None else sorted(chunk["senders"])
    if problem.sketch is not None:
        for name in ("internode", "relays", "beta_split"):
            ranks = document["sketch"][name]
            document["sketch"][name] = None if ranks is None else {str(rank): value for rank, value in ranks.items()}
    del document["kind"]
    written: dict[str, Any] = plain({"schema": PROBLEM_SCHEMA, "kind": KIND, **document})
    return written


class SendModel(StrictModel):
    start_ns: Index
    source: Rank
    target: Rank
    chunks: list[Index]
    combines: bool = False


class AlgorithmModel(StrictModel):
    size_bytes: PositiveSize
    chunk_count: Count
    form: Form
    sends: list[SendModel]
    time_ns: Index
    bound_ns: Index
    bound_by: str
    throughput_bound_ns: Index
    from_bytes: Size = 0
    method: str = ""
    seconds: float = 0.0


class UnreachableModel(StrictModel):
    chunk: Index
    rank: Rank
    reached: list[Rank]
    why: str


class PlanModel(StrictModel):
    schema_: Annotated[Literal["loadmaster/plan/1"], Field(alias="schema")]
    kind: Literal["collective"]
    name: str
    problem_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    status: PlanStatus
    objective: float | None = None
    bound: float | None = None
    gap: float | None = None
    unit: str
    method: str
    stopped_by: str
    seconds: dict[str, float]
    solver: dict[str, Any]
    check: dict[str, Any]
    algorithms: list[AlgorithmModel] = Field(default_factory=list)
    infeasibility: UnreachableModel | None = None
    options: dict[str, Any] = Field(default_factory=dict)


def read_plan(document: Document) -> CollectivePlan:
    """A collective plan from its document. It is not checked here: see :mod:`loadmaster.models.collective.checker`.

    Raises:
        InputError: unknown fields or versions, values out of range; names the field.
    """
    expect_schema(document, PLAN_SCHEMA)
    m = parse(PlanModel, document)
    if (m.status == "infeasible") == bool(m.algorithms):
        raise InputError(
            "status",
            m.status,
            f"does not go with {len(m.algorithms)} algorithms",
            f"A plan that is one of {', '.join(get_args(PlanStatus)[:2])} has algorithms, an infeasible one has none.",
        )
    scalars = {
        name: getattr(m, name)
        for name in PlanModel.model_fields
        if name not in ("schema_", "kind", "algorithms", "infeasibility")
    }
    why = m.infeasibility
    return CollectivePlan(
        **scalars,
        algorithms=tuple(_algorithm(a) for a in m.algorithms),
        infeasibility=None if why is None else Unreachable(why.chunk, why.rank, tuple(why.reached), why.why),
    )


def _algorithm(m: AlgorithmModel) -> Algorithm:
    scalars = {name: getattr(m, name) for name in AlgorithmModel.model_fields if name != "sends"}
    sends = tuple(Send(s.start_ns, s.source, s.target, tuple(s.chunks), s.combines) for s in m.sends)
    return Algorithm(**scalars, sends=sends)


def write_plan(plan: CollectivePlan) -> dict[str, Any]:
    """The document of a plan; reading it back gives an equal plan."""
    fields = {name: getattr(plan, name) for name in PlanModel.model_fields if name not in ("schema_", "kind")}
    fields["algorithms"] = [_write_algorithm(a) for a in plan.algorithms]
    if plan.infeasibility is not None:
        fields["infeasibility"] = asdict(plan.infeasibility)
    written: dict[str, Any] = plain({"schema": PLAN_SCHEMA, "kind": KIND, **fields})
    return written


def _write_algorithm(algorithm: Algorithm) -> dict[str, Any]:
    """Sends without their defaults: algorithms have tens of thousands."""
    fields = {name: getattr(algorithm, name) for name in AlgorithmModel.model_fields}
    fields["sends"] = [
        {"start_ns": s.start_ns, "source": s.source, "target": s.target, "chunks": s.chunks}
        | ({"combines": True} if s.combines else {})
        for s in algorithm.sends
    ]
    return fields
