"""The ``memory`` problem: a training graph with costs, and a byte budget.

Forward operators i = 0..V-1 run in order, the last one is the loss; backward operators k = 1..K run in order after
them. Sizes are bytes, times microseconds, energies microjoules. Source: MONeT, [Shah23] sections 4.2
and 4.3; the accounting of memory is stated in :mod:`loadmaster.models.memory.checker`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np

from loadmaster.models import places
from loadmaster.models.canonical import plain, sha256
from loadmaster.models.fields import LARGEST_BYTES, READING, Ascending, Bounds, Index, Name, Size
from loadmaster.models.hardware import HostLink
from loadmaster.models.places import Placed
from loadmaster.models.shown import ShownProblem
from loadmaster.solvers.program import FloatArray, IntArray

# A year in microseconds (and as good a ceiling for microjoules).
LARGEST_COST = 3.2e13

Delta = Annotated[int, Bounds(ge=-LARGEST_BYTES, le=LARGEST_BYTES)]
Cost = Annotated[float, Bounds(ge=0, le=LARGEST_COST)]
CostDelta = Annotated[float, Bounds(ge=-LARGEST_COST, le=LARGEST_COST)]
Objective = Literal["time", "energy"]
Role = Literal["activation", "input", "parameter", "state"]


@dataclass(frozen=True)
class Implementation:
    """One way to run a forward operator."""

    time_us: Cost
    workspace_bytes: Delta
    energy_uj: Cost | None = None
    name: str | None = None


@dataclass(frozen=True)
class BackwardImplementation:
    """One way to run a backward operator: ``needs`` are the forward results it reads (D_k^l)."""

    time_us: Cost
    workspace_bytes: Delta
    needs: Annotated[tuple[Index, ...], Ascending()]
    energy_uj: Cost | None = None
    name: str | None = None


@dataclass(frozen=True)
class InPlace:
    """The operator may write its result over ``overwrites``; that tensor is then gone for this stage and later ones."""

    overwrites: Index
    time_delta_us: CostDelta
    workspace_delta_bytes: Delta
    energy_delta_uj: CostDelta | None = None


@dataclass(frozen=True)
class ForwardOperator(Placed):
    """Forward operator i: what it reads, what it produces, what it costs.

    Attributes:
        live_inputs: forward results that this or a later forward operator still reads while it runs (L_i).
        live_bytes: their total size.
        fixed_bytes: parameters, gradients so far and inputs that are resident anyway.
        recompute_implementations: costs when run again in the backward pass.
        encodes: this is an encoded result of that parent (sign bits of a ReLU, indices of a max-pool): it can only be
            computed in a stage that computes the parent too.
        recomputable: False for results that must not be computed twice.
        offloadable: whether the result may travel to host memory.
        node, module: the graph node it was captured from; the path of the module that ran it, ``layers.11.mlp``.
        source: the file and the line of the model's code, ``model.py:214``.
    """

    id: Index
    op: str
    inputs: tuple[Index, ...]
    output_bytes: Size
    live_inputs: tuple[Index, ...]
    live_bytes: Size
    fixed_bytes: Size
    implementations: Annotated[tuple[Implementation, ...], Bounds(min_length=1)]
    recompute_implementations: Annotated[tuple[Implementation, ...], Bounds(min_length=1)]
    encodes: Index | None = None
    in_place: InPlace | None = None
    recomputable: bool = True
    offloadable: bool = True
    role: Role = "activation"
    node: str | None = None
    module: str | None = None
    source: str | None = None

    @property
    def made_by(self) -> str | None:
        """Name for its result: its words, or the graph node where its place is not known."""
        return self.node if self.words == self.op else self.words

    @cached_property
    def label(self) -> str:
        """The words and the number: ``layers.11.mlp, gelu, model.py:214 (forward 302)``."""
        return places.label(f"forward {self.id}", self.op, self.module, self.source)


@dataclass(frozen=True)
class BackwardOperator(Placed):
    """Backward operator k = 1..K. ``fixed_bytes``, ``node``, ``module`` and ``source`` are as for the forward
    operators. ``output_bytes``: size of the gradient it produces. ``live_bytes``: gradients that must stay for it and
    later ones."""

    id: Annotated[int, Bounds(ge=1, le=LARGEST_BYTES)]
    op: str
    output_bytes: Size
    live_bytes: Size
    fixed_bytes: Size
    implementations: Annotated[tuple[BackwardImplementation, ...], Bounds(min_length=1)]
    node: str | None = None
    module: str | None = None
    source: str | None = None

    @cached_property
    def label(self) -> str:
        """The words and the number: ``layers.11.mlp, gelu_backward, model.py:214 (backward 302)``."""
        return places.label(f"backward {self.id}", self.op, self.module, self.source)


def last_readers(inputs: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Last operator that reads the result of each, given what each reads; itself where none does."""
    last = list(range(len(inputs)))
    for j, read in enumerate(inputs):
        for i in read:
            last[i] = max(last[i], j)
    return tuple(last)


@dataclass(frozen=True, repr=False)
class MemoryProblem(ShownProblem):
    """A training graph with costs, a budget (None: given at planning time) and an objective. Its identity is
    :attr:`sha256`. ``captured_with``: the packages it was captured with, and their versions."""

    name: Name
    forward: Annotated[tuple[ForwardOperator, ...], Bounds(min_length=1, max_length=20_000)]
    backward: Annotated[tuple[BackwardOperator, ...], Bounds(min_length=1, max_length=20_000)]
    title: str | None = None
    budget_bytes: Size | None = None
    objective: Objective = "time"
    host_link: HostLink | None = None
    captured_with: Mapping[str, str] | None = None

    kind: Literal["memory"] = "memory"

    __pydantic_config__: ClassVar = READING

    def with_budget(self, budget_bytes: int) -> MemoryProblem:
        """Copy the problem with another budget."""
        return replace(self, budget_bytes=budget_bytes)

    @cached_property
    def sha256(self) -> str:
        """Hash of graph, costs and objective; not of the budget, names and places in the model, or capturing tools."""
        left_out = ("name", "title", "budget_bytes", "captured_with")
        identity = {k: v for k, v in plain(self).items() if k not in left_out}
        for operators in ("forward", "backward"):
            rows = identity[operators]
            identity[operators] = [{k: v for k, v in row.items() if k not in ("module", "source")} for row in rows]
        return sha256(identity)

    @property
    def sizes(self) -> dict[str, int]:
        """Size of the problem, for a person who waits for its plan."""
        return {"forward": len(self.forward), "backward": len(self.backward)}

    @property
    def may_offload(self) -> bool:
        """True if plans may send results to the host: it takes a link, and is weighed in time only."""
        return self.host_link is not None and self.objective == "time"

    @property
    def unit(self) -> str:
        """Unit of the objective, ``us`` or ``uj``."""
        return "us" if self.objective == "time" else "uj"

    @property
    def stage_count(self) -> int:
        """Number of stages: 0 is the forward pass, k = 1..K recomputes and runs backward k."""
        return len(self.backward) + 1

    @cached_property
    def output_bytes(self) -> IntArray:
        """Bytes m_i of every forward result [V]."""
        return np.array([f.output_bytes for f in self.forward], dtype=np.int64)

    def gradient_bytes(self, stage: int) -> int:
        """Gradients and fixed bytes resident while stage t computes forward operators, G_t."""
        last = len(self.forward) - 1
        if stage == 0:
            return self.forward[max(last - 1, 0)].fixed_bytes
        live = self.backward[stage - 1].live_bytes
        if stage == 1:
            return live + self.forward[last].fixed_bytes
        return live + self.backward[stage - 2].fixed_bytes

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """Forward operators that read each forward result, ascending."""
        readers: list[list[int]] = [[] for _ in self.forward]
        for operator in self.forward:
            for i in operator.inputs:
                readers[i].append(operator.id)
        return tuple(tuple(r) for r in readers)

    @cached_property
    def last_readers(self) -> tuple[int, ...]:
        """Last forward operator that may read each forward result; itself where none does."""
        return last_readers([f.inputs for f in self.forward])

    @cached_property
    def encodings(self) -> tuple[tuple[int, ...], ...]:
        """Ids of the encoded results of each forward operator."""
        encoded: list[list[int]] = [[] for _ in self.forward]
        for operator in self.forward:
            if operator.encodes is not None:
                encoded[operator.encodes].append(operator.id)
        return tuple(tuple(e) for e in encoded)

    def first_run(self, read: Collection[int]) -> frozenset[int]:
        """Operators that the forward pass runs so that the results in ``read`` are there after it. That is every
        operator, and of the encoded results those that are in ``read`` or that others that run read."""
        runs = {f.id for f in self.forward if f.encodes is None or f.id in read}
        for f in reversed(self.forward):
            if f.id in runs:
                runs.update(f.inputs)
        return frozenset(runs)

    def cost(self, implementation: Implementation | BackwardImplementation) -> float:
        """Cost of one run in the objective: time or energy."""
        if self.objective == "time":
            return implementation.time_us
        assert implementation.energy_uj is not None  # documents without energies are refused for this objective
        return implementation.energy_uj

    def in_place_cost(self, in_place: InPlace) -> float:
        """Cost that running in place adds to the objective (often negative)."""
        if self.objective == "time":
            return in_place.time_delta_us
        assert in_place.energy_delta_uj is not None
        return in_place.energy_delta_uj

    def forward_costs(self, i: int, *, recompute: bool) -> FloatArray:
        """Objective of each implementation of forward operator i [implementations]."""
        operator = self.forward[i]
        chosen: Sequence[Implementation] = operator.recompute_implementations if recompute else operator.implementations
        return np.array([self.cost(c) for c in chosen])
