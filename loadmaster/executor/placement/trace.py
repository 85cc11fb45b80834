"""A recorded step as a placement problem.

Blocks are the storages of :data:`SMALL_BYTES` and more. Smaller ones (biases, statistics) are not worth a move: what
they take together, those that still matter while an operator runs, is part of that operator's workspace. So the budget
counts every byte, and the plan moves only blocks that take longer to copy than to ask for.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from loadmaster.executor.costs import CostModel
from loadmaster.executor.costs.calls import Call
from loadmaster.executor.placement.operands import allocates_only
from loadmaster.executor.placement.recorder import RecordedOperator, Recording
from loadmaster.executor.steps.versions import captured_with
from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.problem import Block, Operator, PlacementProblem, Tier

# A copy of 16 KiB takes 0.3 us at 50 GB/s, and a multiple of that to be asked for.
SMALL_BYTES = 1 << 14
_LONGEST_NAME = 200


@dataclass(frozen=True)
class Cost:
    """Of one operator: time and the memory that it takes for itself."""

    time_us: float
    workspace_bytes: int = 0


def problem_of(
    recording: Recording,
    costs: Sequence[Cost],
    tiers: Sequence[Tier],
    name: str,
    *,
    title: str | None = None,
    budget_bytes: int | None = None,
) -> PlacementProblem:
    """The problem of a step whose operators cost that much."""
    used = sorted({index for operator in recording.operators for index in (*operator.reads, *operator.writes)})
    large = [n for n in used if recording.storages[n].size_bytes >= SMALL_BYTES]
    small = _living_bytes(recording, [n for n in used if recording.storages[n].size_bytes < SMALL_BYTES])
    place = {index: n for n, index in enumerate(large)}
    operators = tuple(
        Operator(
            op=operator.op,
            time_us=cost.time_us,
            reads=_placed(operator.reads, place),
            writes=_placed(operator.writes, place),
            workspace_bytes=cost.workspace_bytes + more,
            module=operator.place.module,
            source=operator.place.source,
        )
        for operator, cost, more in zip(recording.operators, costs, small, strict=True)
    )
    blocks = tuple(
        Block(stored.name[:_LONGEST_NAME], stored.size_bytes, stored.role)
        for stored in (recording.storages[index] for index in large)
    )
    return PlacementProblem(
        name=name,
        operators=operators,
        blocks=blocks,
        tiers=tuple(tiers),
        title=title,
        budget_bytes=budget_bytes,
        captured_with=captured_with(),
    )


def costs_of(operators: Sequence[RecordedOperator], model: CostModel) -> list[Cost]:
    """What a cost model says of each; equal calls are asked for once."""
    known: dict[Hashable, Cost] = {}
    found = []
    for operator in operators:
        call = operator.call
        assert call is not None
        if call.key not in known:
            known[call.key] = _cost(call, model)
        found.append(known[call.key])
    return found


def _cost(call: Call, model: CostModel) -> Cost:
    if allocates_only(call.target):
        return Cost(0.0)
    node = call.node()
    return Cost(model.node_us(node), model.workspace_bytes(node))


def _placed(indices: frozenset[int], place: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(sorted(place[n] for n in indices if n in place))


def _living_bytes(recording: Recording, among: Sequence[int]) -> list[int]:
    """What these storages take together while each operator runs, those whose contents still matter."""
    if not among:
        return [0] * len(recording.operators)
    place = {index: n for n, index in enumerate(among)}
    operators = tuple(Operator(o.op, 0.0, _placed(o.reads, place), _placed(o.writes, place)) for o in recording.operators)
    blocks = tuple(Block("small", recording.storages[n].size_bytes) for n in among)
    return [int(n) for n in Accesses(PlacementProblem("small", operators, blocks, (Tier("none", 1.0, 1.0),))).live_bytes]
