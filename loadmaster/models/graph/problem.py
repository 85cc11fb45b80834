"""Problems of the kind ``graph``: a layer's program, a graph in numbers, and the GPU that it runs on ([Wu24] ch. 3, 4).

To be found: the order of the linear operators, for which rows each value is computed and whether it is kept, which
kernel makes it and how that is cut, and how many of the hottest feature rows are kept on the GPU. The objective is the
time of a step: of all kernels, one after the other, and before them of reading the other feature rows over the host
link.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from loadmaster.models.canonical import plain, sha256
from loadmaster.models.fields import READING, Bounds, Gbps, Name, Size
from loadmaster.models.graph.autodiff import with_backward
from loadmaster.models.graph.device import GraphHardware
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.statistics import GraphStatistics
from loadmaster.models.shown import ShownProblem


@dataclass(frozen=True)
class FeatureStore:
    """Table of feature rows that are not all kept on the GPU, which reads pinned host memory at ``link_gbps``, GB/s.
    The statistics' curve of hits says how often rows are read."""

    rows: Annotated[int, Bounds(ge=1, le=1 << 50)]
    row_bytes: Annotated[int, Bounds(ge=1, le=1 << 30)]
    reads: Size
    link_gbps: Gbps


@dataclass(frozen=True, repr=False)
class GraphProblem(ShownProblem):
    """Problem of one layer on one graph on one GPU.

    Attributes:
        training: whether the backward pass is planned, too.
        feature_gradients: whether features get gradients; they do where other layers come before.
        element_bytes: of every number that is kept: 4, or 2 where layers run in bfloat16.
        store: None where all features are on the GPU.
        budget_bytes: memory of the GPU; None: to be given at planning time.
    """

    name: Name
    program: Program
    statistics: GraphStatistics
    hardware: GraphHardware
    training: bool = True
    feature_gradients: bool = True
    element_bytes: Literal[2, 4] = 4
    store: FeatureStore | None = None
    title: str | None = None
    budget_bytes: Size | None = None

    kind: Literal["graph"] = "graph"
    unit: ClassVar[str] = "us"

    __pydantic_config__: ClassVar = READING

    @property
    def sizes(self) -> dict[str, int]:
        """Counts of values, nodes, edges and relations, for a person who waits for a plan."""
        return {
            "values": len(self.program.values),
            "nodes": self.statistics.rows("node"),
            "edges": self.statistics.rows("edge"),
            "relations": self.statistics.rows("relation"),
        }

    def step(self, forward: Program) -> Program:
        """Make the program of a step in the order of this forward pass: with its backward pass, if it trains."""
        if not self.training:
            return forward
        given = [*forward.given("parameter").values()]
        if self.feature_gradients:
            given += forward.given("feature").values()
        return with_backward(forward, sorted(given))

    @cached_property
    def sha256(self) -> str:
        """Hash of program, graph and GPU: neither the budget nor names enter it."""
        identity = {k: v for k, v in plain(self).items() if k not in ("name", "title", "budget_bytes")}
        identity["hardware"] = {k: v for k, v in identity["hardware"].items() if k != "name"}
        return sha256(identity)
