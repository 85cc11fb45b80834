"""Sequences of kernels beside all sequences there are, and reasons why kernels are too much beside all schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.graph import sequence
from loadmaster.models.graph.inline import Inline
from loadmaster.models.graph.lowering import kernel_of
from loadmaster.models.graph.operators import Value
from loadmaster.models.graph.orders import orders
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.program import Builder, Program
from loadmaster.models.graph.residence import peak_bytes
from loadmaster.models.graph.schedule import Kernel, Schedule
from loadmaster.models.graph.schedule_rules import broken_rules
from loadmaster.models.graph.sequence import Fact, Sequences, conflict, in_sequence
from tests.models.graph import enumeration, problems

SEQUENCES = 2_000  # tried of one set of kernels


def reads(step: Program, kernels: Sequence[Kernel], kernel: Kernel) -> frozenset[int]:
    """What a kernel reads that another one stores."""
    kept = frozenset(n for each in kernels for n in each.stores)
    needs = Inline(step, kept)
    return frozenset(r for n in kernel.stores for r in needs.to_make(n).reads & kept) - {*kernel.stores}


def sequences(step: Program, kernels: Sequence[Kernel]) -> Iterator[Schedule]:
    """Every sequence in which kernels come after those that they read of, the forward pass first."""
    needed = [reads(step, kernels, kernel) for kernel in kernels]
    forward = [min(kernel.stores) < step.forward_count for kernel in kernels]

    def go_on(some: list[int], stored: frozenset[int]) -> Iterator[list[int]]:
        if len(some) == len(kernels):
            yield some
        for at, kernel in enumerate(kernels):
            waits = forward[at] or all(i in some for i, is_it in enumerate(forward) if is_it)
            if at not in some and waits and needed[at] <= stored:
                yield from go_on([*some, at], stored.union(kernel.stores))

    for order in go_on([], frozenset()):
        yield Schedule(tuple(kernels[at] for at in order), sum(forward))


def drawn(data: st.DataObject, *, feature_gradients: bool = False) -> tuple[GraphProblem, Program, list[Schedule]]:
    """A small problem, one order of it, and all schedules of that, each in one sequence."""
    training = data.draw(st.booleans())
    seed = data.draw(st.integers(0, 5))
    problem = problems.rgcn(seed, training=training, feature_gradients=feature_gradients)
    step = problem.step(data.draw(st.sampled_from(orders(problem.program))).program)
    return problem, step, [*enumeration.schedules(problem, step)]


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_no_sequence_takes_less_at_the_most(data: st.DataObject) -> None:
    problem, step, schedules = drawn(data, feature_gradients=True)
    kernels = data.draw(st.permutations(data.draw(st.sampled_from(schedules)).kernels))
    found = in_sequence(problem, step, kernels)
    assert found is not None and found.is_least
    assert broken_rules(step, found.schedule) == []
    assert {*found.schedule.kernels} == {*kernels}
    every = [peak_bytes(problem, step, one) for one, _ in zip(sequences(step, kernels), range(SEQUENCES), strict=False)]
    least = peak_bytes(problem, step, found.schedule)
    assert least <= min(every) and (len(every) == SEQUENCES or least == min(every))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_of_few_sets_a_sequence_holds_and_is_not_said_to_be_the_least(data: st.DataObject) -> None:
    problem, step, schedules = drawn(data)
    kernels = data.draw(st.sampled_from(schedules)).kernels
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequence, "MOST_SETS", 1)
        found = in_sequence(problem, step, kernels)
    assert found is not None and broken_rules(step, found.schedule) == []
    assert found.is_least or sum(1 for _ in zip(sequences(step, kernels), range(2), strict=False)) == 2


def test_kernels_that_wait_for_each_other_have_no_sequence() -> None:
    b = Builder()
    x = b.add(Value("x", "feature", space="edge", shape=(4,)))
    first = b.made("aggregate", x, over="edge", space="target", reduce="sum")
    seen = b.made("mul", b.made("target", b.made("as_node", first)), x)
    second = b.made("aggregate", seen, over="edge", space="target", reduce="sum")
    third = b.made("aggregate", b.made("relu", x), over="edge", space="target", reduce="sum")
    made = b.made("as_node", b.made("add", second, b.made("mul", third, first)))
    step = b.program([made], len(b.values))
    problem = problems.problem(step, 0)
    aggregates = [n for n, value in enumerate(step.values) if value.op == "aggregate"]
    (last,) = (n for n, value in enumerate(step.values) if value.op == "add")
    circle = [
        kernel_of(step, (aggregates[0], last)),
        kernel_of(step, (aggregates[1],)),
        kernel_of(step, aggregates[2:]),
    ]
    assert in_sequence(problem, step, circle) is None


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_reason_holds_for_all_schedules_that_have_it(data: st.DataObject) -> None:
    problem, step, schedules = drawn(data)
    peaks = [peak_bytes(problem, step, one) for one in schedules]
    at = data.draw(st.integers(0, len(schedules) - 1))
    budget_bytes = data.draw(st.sampled_from(sorted({*peaks, *(peak - 1 for peak in peaks)})))
    every = [[Fact(frozenset(k.stores), reads(step, one.kernels, k)) for k in one.kernels] for one in schedules]
    reason = conflict(Sequences(problem, step), every[at], budget_bytes)
    assert (reason is None) == (peaks[at] <= budget_bytes)
    if reason is None:
        return
    for facts, peak in zip(every, peaks, strict=True):
        if all(any(r.stores <= f.stores and r.reads <= f.reads | f.stores for f in facts) for r in reason):
            assert peak > budget_bytes
