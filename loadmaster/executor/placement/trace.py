"""Conversion of a recorded step to a placement problem.

Blocks are the storages of ``small_bytes`` and more. Smaller ones (biases, statistics) are not worth a move: those that
still matter while an operator runs are part of its workspace. So is what the program still holds though no operator
needs it any more: logits that a local variable names while the loss is computed, gradients between their update and the
next ``zero_grad``. So the budget counts every byte. An operator that uses no block adds its time to the one before it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import fx

from loadmaster.errors import InputError
from loadmaster.executor.costs import CostModel
from loadmaster.executor.placement.operands import allocates_only
from loadmaster.executor.placement.recorder import RecordedOperator, Recording
from loadmaster.executor.steps.guards import captured_with
from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.problem import Block, Operator, PlacementProblem, Tier

# A copy of 64 KiB takes 1.3 us at 50 GB/s, and a multiple of that to be asked for.
SMALL_BYTES = 64 << 10
_LONGEST_NAME = 200


@dataclass(frozen=True)
class Cost:
    """Time of one operator, and the memory that it takes for itself."""

    time_us: float
    workspace_bytes: int = 0


@dataclass(frozen=True)
class Trace:
    """A placement problem, the recorded storage of each of its blocks, and for each recorded operator the operator of
    the problem that its time counts to."""

    problem: PlacementProblem
    blocks: tuple[int, ...]
    positions: tuple[int, ...]


def trace_of(
    recording: Recording,
    costs: Sequence[Cost],
    tiers: Sequence[Tier],
    name: str,
    *,
    small_bytes: int = SMALL_BYTES,
    budget_bytes: int | None = None,
) -> Trace:
    """Build the placement problem of a recorded step with these costs; InputError if all of its storages are small."""
    sizes = [stored.size_bytes for stored in recording.storages]
    used = sorted({index for operator in recording.operators for index in operator.uses})
    large = [n for n in used if sizes[n] >= small_bytes]
    small = _living_bytes(recording, [n for n in used if sizes[n] < small_bytes])
    held = _held_bytes(recording)
    place = {index: b for b, index in enumerate(large)}
    operators: list[Operator] = []
    positions: list[int] = []
    waiting_us, waiting_bytes = 0.0, 0
    for n, (ran, cost) in enumerate(zip(recording.operators, costs, strict=True)):
        reads, writes = _placed(ran.reads, place), _placed(ran.writes, place)
        own_bytes = cost.workspace_bytes + small[n] + held[n]
        positions.append(max(len(operators) - 1, 0))
        if reads or writes:
            positions[-1] = len(operators)
            operators.append(
                Operator(
                    op=ran.op,
                    time_us=cost.time_us + waiting_us,
                    reads=reads,
                    writes=writes,
                    workspace_bytes=max(own_bytes, waiting_bytes),
                    module=ran.place.module,
                    source=ran.place.source,
                )
            )
            waiting_us, waiting_bytes = 0.0, 0
        elif operators:
            last = operators[-1]
            most_bytes = max(last.workspace_bytes, own_bytes)
            operators[-1] = replace(last, time_us=last.time_us + cost.time_us, workspace_bytes=most_bytes)
        else:
            waiting_us, waiting_bytes = waiting_us + cost.time_us, max(waiting_bytes, own_bytes)
    if not operators:
        remedy = f"Capture a larger model, or give a smaller small_bytes than {small_bytes}."
        raise InputError("small_bytes", small_bytes, "is more than any storage of the step", remedy)
    problem = PlacementProblem(
        name=name,
        operators=tuple(operators),
        blocks=tuple(
            Block(stored.name[:_LONGEST_NAME], stored.size_bytes, stored.role)
            for stored in (recording.storages[index] for index in large)
        ),
        tiers=tuple(tiers),
        budget_bytes=budget_bytes,
        captured_with=captured_with(),
    )
    return Trace(problem, tuple(large), tuple(positions))


def costs_of(operators: Sequence[RecordedOperator], model: CostModel) -> list[Cost]:
    """Ask a cost model for the cost of each operator; equal calls are asked for once."""
    graph = fx.Graph()  # one for all: a model may measure several of its operators together
    nodes: dict[Hashable, fx.Node | None] = {}
    keys = []
    for operator in operators:
        call = operator.call
        assert call is not None
        keys.append(call.key)
        if call.key not in nodes:
            nodes[call.key] = None if allocates_only(call.target) else call.node(graph)
    known = {
        key: Cost(0.0) if node is None else Cost(model.node_us(node), max(model.workspace_bytes(node), 0))
        for key, node in nodes.items()
    }
    return [known[key] for key in keys]


def _placed(indices: frozenset[int], place: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(sorted(place[n] for n in indices if n in place))


def _living_bytes(recording: Recording, among: Sequence[int]) -> list[int]:
    """Bytes of these storages, those whose contents still matter, while each operator runs."""
    if not among:
        return [0] * len(recording.operators)
    place = {index: n for n, index in enumerate(among)}
    operators = tuple(
        Operator(o.op, 0.0, _placed(o.reads, place), _placed(o.writes, place)) for o in recording.operators
    )
    blocks = tuple(Block("small", recording.storages[n].size_bytes) for n in among)
    tiers = (Tier("none", 1.0, 1.0),)
    return [int(n) for n in Accesses(PlacementProblem("small", operators, blocks, tiers)).live_bytes]


def _held_bytes(recording: Recording) -> list[int]:
    """Bytes made in the step and not freed yet while each operator runs, though no operator reads them any more."""
    count = len(recording.operators)
    last = {index: n for n, operator in enumerate(recording.operators) for index in operator.uses}
    found = [0] * count
    for index, stored in enumerate(recording.storages):
        if stored.born is not None and index in last:
            for n in range(last[index] + 1, count if stored.died is None else stored.died):
                found[n] += stored.size_bytes
    return found
