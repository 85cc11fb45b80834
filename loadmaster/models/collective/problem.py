"""The ``collective`` problem: a topology, a collective, the sizes it runs at, and how far a user wants to guide it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from loadmaster.models.canonical import plain, sha256
from loadmaster.models.collective.instance import Chunk
from loadmaster.models.fields import READING, AsText, Bounds, Name, PositiveSize, Size
from loadmaster.models.shown import ShownProblem
from loadmaster.models.summary import Summary
from loadmaster.models.topologies.topology import Rank, Topology
from loadmaster.models.units import show_bytes

Collective = Literal[
    "allgather",
    "reduce_scatter",
    "allreduce",
    "alltoall",
    "alltoallv",
    "broadcast",
    "reduce",
    "scatter",
    "gather",
    "custom",
]

Strategy = Literal["uc-max", "uc-min", "free"]

Count = Annotated[int, Bounds(ge=1, le=1 << 20)]
_LocalRank = Annotated[int, AsText()]


@dataclass(frozen=True)
class SwitchPolicy:
    """A switch-hyperedge: local ranks around it, and how many of its links a schedule should use."""

    ranks: tuple[Rank, ...]
    strategy: Strategy = "free"


@dataclass(frozen=True)
class Sketch:
    """A user's sketch of an algorithm; ranks are local, 0 to the ranks of a node less one, unless said otherwise.

    Source: [Shah23], section 5.4.1 and appendix B.1; both published dialects are read into this.

    Attributes:
        switches: links within a node are those through these switches; empty: all that the topology has.
        internode: to which local ranks of another node each local rank sends; ranks that are missing do not send. None:
            every link between nodes.
        relays: the local rank through which chunks that start at a local rank leave the node. Empty: any.
        beta_split: each sender gets 1/n of the bandwidth of its links between nodes.
        symmetry: (offset, group): ranks rotate by offset within groups of that many consecutive global ranks.
        chunk_count: parts of each rank's piece; None: the planner's choice.
        size_bytes: as in the problem; None: the problem's.
    """

    name: Name = "sketch"
    switches: tuple[SwitchPolicy, ...] = ()
    internode: Mapping[_LocalRank, tuple[Rank, ...]] | None = None
    relays: Mapping[_LocalRank, Rank] = field(default_factory=dict)
    beta_split: Mapping[_LocalRank, Annotated[float, Bounds(gt=0)]] = field(default_factory=dict)
    symmetry: tuple[tuple[Count, Count], ...] = ()
    chunk_count: Count | None = None
    size_bytes: PositiveSize | None = None


@dataclass(frozen=True, repr=False)
class CollectiveProblem(ShownProblem):
    """One collective on one topology.

    Attributes:
        topology: the physical one; a sketch cuts it down.
        sizes_bytes: of the largest buffer of a rank, ascending (see :mod:`loadmaster.models.collective.collectives`).
            ``alltoallv`` and ``custom`` have one: the sum of chunks.
        chunk_counts: parts of each rank's piece to try; empty: the planner's choice.
        root: of broadcast, reduce, scatter and gather.
        pair_bytes: ``alltoallv``: bytes from each rank (row) to each rank (column).
        custom: ``custom``: the chunks themselves.
        sketch: None: the planner tries some.
    """

    name: Name
    topology: Topology
    collective: Collective
    sizes_bytes: Annotated[tuple[PositiveSize, ...], Bounds(min_length=1, max_length=64)]
    chunk_counts: Annotated[tuple[Count, ...], Bounds(max_length=64)] = ()
    root: Rank | None = None
    pair_bytes: tuple[tuple[Size, ...], ...] | None = None
    custom: tuple[Chunk, ...] | None = None
    sketch: Sketch | None = None
    title: str | None = None

    kind: Literal["collective"] = "collective"

    __pydantic_config__: ClassVar = READING

    @property
    def unit(self) -> str:
        """Unit of objectives: what is counted in ns is shown in us."""
        return "us"

    @property
    def sizes(self) -> dict[str, int]:
        """Size of the problem, for a person who waits for its plan."""
        topology = self.topology
        return {"ranks": topology.rank_count, "links": len(topology.links), "sizes": len(self.sizes_bytes)}

    @cached_property
    def sha256(self) -> str:
        """Identity: everything but the names."""
        identity = {name: value for name, value in plain(self).items() if name not in ("name", "title")}
        return sha256(_one_form(identity))


def _one_form(value: Any) -> Any:
    """One form of whole numbers: 25 GB/s and 25.0 GB/s are the same, whoever wrote the JSON."""
    if isinstance(value, dict):
        return {key: _one_form(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_one_form(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def summary(problem: CollectiveProblem) -> Summary:
    """The collective, its network, and the sizes that it is planned for."""
    topology = problem.topology
    rows = [
        ("collective", problem.collective + ("" if problem.root is None else f", root {problem.root}")),
        ("network", f"{topology.name}: {topology.rank_count} ranks on {topology.node_count} nodes"),
        ("planned for", ", ".join(map(show_bytes, problem.sizes_bytes))),
    ]
    if problem.sketch is not None:
        rows.append(("sketch", problem.sketch.name))
    return Summary(problem.name, tuple(rows), {"nodes": topology.node_count, "sizes_bytes": problem.sizes_bytes})
