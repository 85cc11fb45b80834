"""The forward pass in the grouped programs, and the choices of the backward pass: exact in both, and written here.

The boundary relaxation and the banded restriction look at the backward pass in groups of stages, each in its own way.
Rows (4.1), (4.10) and (M.a) are stated in :mod:`loadmaster.models.memory.banded`, (R3) to (R5) in
:mod:`loadmaster.models.memory.relaxation`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from loadmaster.models.memory.groups import GroupedProblem, least_workspace_bytes, worthwhile
from loadmaster.models.memory.problem import ForwardOperator, MemoryProblem
from loadmaster.models.memory.rows import Row, RowWriter, term
from loadmaster.solvers.program import IntArray

# Prefix sums over this many results keep the forward rows short.
STRIDE = 8


@dataclass(frozen=True)
class BackwardColumns:
    """The choices of the backward pass: per operator, the columns of its implementations. ``needs``: for a backward
    operator k and a result that it may read, the choices that read it."""

    choices: list[IntArray]
    needs: dict[tuple[int, int], Row]


@dataclass(frozen=True)
class ForwardColumns:
    """The choices of the forward pass; the columns ``stored`` and ``in_place`` [V] are -1 for none. ``choices``: for
    operators with a choice, the columns and the implementations they stand for. ``costs``: for each operator, what it
    costs: a row, and a constant on top."""

    stored: IntArray
    in_place: IntArray
    choices: dict[int, tuple[IntArray, tuple[int, ...]]]
    costs: list[tuple[Row, float]]


@dataclass(frozen=True)
class ForwardRules:
    """Differences of the two programs in the forward pass.

    Attributes:
        survives: whether a result outlives the forward pass, so that nothing may overwrite it.
        keep_encoded: writes an encoded result's rows and cost, given the bytes kept before it and those that it takes.
        sending: bytes on their way to the host while an operator runs.
    """

    survives: Callable[[int], Row]
    keep_encoded: Callable[[ForwardColumns, ForwardOperator, Row, int], None]
    sending: Callable[[ForwardOperator], Row]


def single_backward_implementation(w: RowWriter, problem: MemoryProblem) -> BackwardColumns:
    """Add a choice of one implementation for each backward operator."""
    found = BackwardColumns([], {})
    for operator in problem.backward:
        columns = w.choices("backward", len(operator.implementations))
        found.choices.append(columns)
        w.equal("backward", Row({int(c): 1.0 for c in columns}), 1.0)
        for column, choice in zip(columns, operator.implementations, strict=True):
            w.cost(column, problem.cost(choice))
            for i in choice.needs:
                found.needs.setdefault((operator.id, i), Row()).also(int(column))
    return found


def forward_memory(w: RowWriter, g: GroupedProblem, stored: IntArray, rules: ForwardRules) -> ForwardColumns:
    """The forward pass, with the kept results piling up; implementations and in-place are chosen."""
    nothing: tuple[Row, float] = (Row(), 0.0)
    columns = ForwardColumns(stored, np.full(g.count, -1, dtype=np.int64), {}, [nothing] * g.count)
    gradients_bytes = g.problem.gradient_bytes(0)
    prefix = _prefix_sums(w, g, stored)
    for f in g.problem.forward:
        w.look_at_the_clock()
        row = _kept_before(g, f, stored, prefix).plus(rules.sending(f))
        taken_bytes = gradients_bytes + f.output_bytes + f.live_bytes
        if f.encodes is not None:
            rules.keep_encoded(columns, f, row, taken_bytes)
        else:
            _compute(w, g, columns, f, row, taken_bytes, rules)
    return columns


def _compute(
    w: RowWriter,
    g: GroupedProblem,
    columns: ForwardColumns,
    f: ForwardOperator,
    row: Row,
    taken_bytes: int,
    rules: ForwardRules,
) -> None:
    choices = worthwhile(g.problem, f.implementations, g.noticeable_bytes)
    cheapest = g.problem.cost(choices[0][1])
    w.constant += cheapest
    cost = Row()
    if len(choices) > 1:
        chosen = w.choices("forward_choice", len(choices))
        w.equal("forward_choice", Row({int(c): 1.0 for c in chosen}), 1.0)
        columns.choices[f.id] = (chosen, tuple(c for c, _ in choices))
        for column, (_, choice) in zip(chosen, choices, strict=True):
            cost.also(int(column), g.problem.cost(choice) - cheapest)
            row.also(int(column), g.scale.units(choice.workspace_bytes))
    else:
        taken_bytes += least_workspace_bytes(f.implementations)
    if f.in_place is not None:
        inside = w.binary("in_place")
        columns.in_place[f.id] = inside
        cost.also(inside, g.problem.in_place_cost(f.in_place))
        row.also(inside, g.scale.units(f.in_place.workspace_delta_bytes))
        w.at_most("in_place", Row({inside: 1.0}).plus(rules.survives(f.in_place.overwrites)), 1.0)
        _exclude_later_readers(w, g, columns.stored, inside, f)
    columns.costs[f.id] = cost, cheapest
    w.objective.plus(cost)
    w.fits("forward", row, taken_bytes)


def _exclude_later_readers(w: RowWriter, g: GroupedProblem, stored: IntArray, inside: int, f: ForwardOperator) -> None:
    """Exclude f in place with later readers of what it overwrites: encoded results run when kept, others always."""
    assert f.in_place is not None
    for reader in g.problem.consumers[f.in_place.overwrites]:
        if reader > f.id and g.problem.forward[reader].encodes is None:
            w.at_most("in_place", Row({inside: 1.0}), 0.0)
        elif reader > f.id and stored[reader] >= 0:
            w.at_most("in_place", Row({inside: 1.0}).plus(term(stored, reader)), 1.0)


def _prefix_sums(w: RowWriter, g: GroupedProblem, kept: IntArray) -> IntArray:
    """Columns holding the kept bytes of results 0..STRIDE*n-1, n = 0, 1, ..."""
    count = (g.count + STRIDE - 1) // STRIDE
    columns = w.builder.columns("kept_before", count)
    w.equal("kept_before", Row({int(columns[0]): 1.0}))
    for n in range(1, count):
        row = Row({int(columns[n]): 1.0, int(columns[n - 1]): -1.0})
        for i in range((n - 1) * STRIDE, n * STRIDE):
            if kept[i] >= 0:
                row.also(int(kept[i]), -g.sizes[i])
        w.equal("kept_before", row)
    return columns


def _kept_before(g: GroupedProblem, f: ForwardOperator, kept: IntArray, prefix: IntArray) -> Row:
    """Kept bytes of results before f that are not live anyway."""
    n = f.id // STRIDE
    row = Row({int(prefix[n]): 1.0})
    live = set(f.live_inputs)
    for i in range(n * STRIDE, f.id):
        if i not in live and kept[i] >= 0:
            row.also(int(kept[i]), g.sizes[i])
    for i in live:
        if i < n * STRIDE and kept[i] >= 0:
            row.also(int(kept[i]), -g.sizes[i])
    return row
