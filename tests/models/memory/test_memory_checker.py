"""The checker against arithmetic by hand, against the accounting written out as sums, and every way to be wrong."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.hardware import HostLink
from loadmaster.models.memory import chen, gist, plain
from loadmaster.models.memory.checker import check, check_plan
from loadmaster.models.memory.plan import Compute, MemoryPlan, Schedule, Stage
from loadmaster.models.memory.problem import (
    BackwardImplementation,
    BackwardOperator,
    ForwardOperator,
    Implementation,
    InPlace,
    MemoryProblem,
)
from tests.models.memory.instances import random_problem

PLENTY = 10**12


def forward(
    id_: int,
    size: int,
    times_us: tuple[float, float],
    workspace: int,
    fixed: int,
    *,
    encodes: int | None = None,
    in_place: InPlace | None = None,
) -> ForwardOperator:
    inputs = (id_ - 1,) if id_ else ()
    sizes = (4, 3, 1)
    return ForwardOperator(
        id=id_,
        op=f"op{id_}",
        inputs=inputs,
        output_bytes=size,
        live_inputs=inputs,
        live_bytes=sum(sizes[i] for i in inputs),
        fixed_bytes=fixed,
        implementations=(Implementation(times_us[0], workspace),),
        recompute_implementations=(Implementation(times_us[1], workspace),),
        encodes=encodes,
        in_place=in_place,
    )


def backward(k: int, time_us: float, sizes: tuple[int, int, int, int], needs: tuple[int, ...]) -> BackwardOperator:
    output, live, fixed, workspace = sizes
    return BackwardOperator(
        id=k,
        op=f"backward{k}",
        output_bytes=output,
        live_bytes=live,
        fixed_bytes=fixed,
        implementations=(BackwardImplementation(time_us, workspace, needs),),
    )


def three_operators(*, host_link: HostLink | None = None) -> MemoryProblem:
    """Operators of 4, 3 and 1 bytes in a row. All numbers below are worked out from these."""
    return MemoryProblem(
        name="three",
        forward=(
            forward(0, 4, (5.0, 4.0), workspace=1, fixed=10),
            forward(1, 3, (7.0, 6.0), workspace=2, fixed=11, in_place=InPlace(0, -2.0, -3)),
            forward(2, 1, (1.0, 1.0), workspace=0, fixed=12),
        ),
        backward=(
            backward(1, 10.0, (3, 1, 20, 0), (1,)),
            backward(2, 20.0, (4, 3, 21, 2), (0,)),
            backward(3, 30.0, (0, 4, 22, 1), ()),
        ),
        host_link=host_link,
    )


def stages(*made: Stage, offload: tuple[int, ...] = ()) -> Schedule:
    return Schedule(made, offload)


FORWARD = (Compute(0), Compute(1), Compute(2))
KEEP_ALL = stages(Stage(FORWARD, None, (0, 1)), Stage((), 0, (0, 1)), Stage((), 0, (0,)), Stage((), 0, ()))
AGAIN = stages(Stage(FORWARD, None, (1,)), Stage((), 0, (1,)), Stage((Compute(0),), 0, ()), Stage((), 0, ()))


def resident(schedule: Schedule, problem: MemoryProblem | None = None) -> list[int]:
    verdict = check(problem or three_operators(), schedule, PLENTY)
    assert verdict.violations == ()
    return [e.resident_bytes for e in verdict.events]


def test_keeping_everything_by_hand() -> None:
    verdict = check(three_operators(), KEEP_ALL, PLENTY)
    assert verdict.ok
    assert [e.resident_bytes for e in verdict.events] == [
        11 + 1 + 4,  # gradients of stage 0, workspace, result
        11 + 2 + 3 + 4,  # its live input is kept too, and counted once
        11 + 0 + 1 + 3 + 4,  # the kept result 0 is no live input of the loss
        0 + 1 + 20 + 3 + 3 + 4,  # workspace, live, fixed, output, need 1, kept 0
        2 + 3 + 21 + 4 + 4,
        1 + 4 + 22 + 0,
    ]
    assert (verdict.peak_bytes, verdict.peak_at) == (34, "backward 2 (backward2)")
    assert [e.start_us for e in verdict.events] == [0, 5, 12, 13, 23, 43]
    assert (verdict.forward_us, verdict.recompute_us, verdict.backward_us) == (13, 0, 60)
    assert verdict.time_us == verdict.objective == 73
    assert verdict.recomputed == 0


def test_recomputing_by_hand() -> None:
    verdict = check(three_operators(), AGAIN, PLENTY)
    assert verdict.ok
    assert [(e.what, e.operator) for e in verdict.events[3:]] == [
        ("backward", 1),
        ("recompute", 0),
        ("backward", 2),
        ("backward", 3),
    ]
    # Result 1, kept through the stage that reads it, is stored when the next one recomputes 0.
    assert resident(AGAIN) == [16, 20, 11 + 1 + 3, 1 + 20 + 3 + 3, 3 + 20 + 1 + 4 + 3, 34, 27]
    assert (verdict.recompute_us, verdict.time_us, verdict.recomputed) == (4, 77, 1)


def test_moments_just_before_operators_count_what_later_ones_find_stored() -> None:
    """With no workspace and no gradients, stage 1 is fullest before it runs anything: both results are stored."""
    problem = three_operators()
    slim = tuple(replace(b, output_bytes=0, fixed_bytes=0) for b in problem.backward)
    fat = replace(problem.forward[2], fixed_bytes=100)
    verdict = check(replace(problem, forward=(*problem.forward[:2], fat), backward=slim), KEEP_ALL, PLENTY)
    assert (verdict.peak_bytes, verdict.peak_at) == (100 + 1 + 4 + 3, "stage 1: before forward 0")


def test_a_result_kept_beyond_its_need_is_charged_while_others_run() -> None:
    longer = change(AGAIN, 2, Stage((Compute(0),), 0, (1,)))
    assert resident(longer) == [16, 20, 15, 27, 31, 34 + 3, 27]


def test_what_backward_reads_its_stage_keeps_or_computes() -> None:
    """Stored before is not enough; computed again is, stored or not."""
    passed_on = check(three_operators(), change(KEEP_ALL, 1, Stage((), 0, (0,))), PLENTY)
    assert passed_on.violations == ("backward 1 (backward1) reads forward 1, which stage 1 neither keeps nor computes",)
    at_the_end = replace(three_operators(), backward=three_operators().backward[:2])
    assert check(at_the_end, stages(*KEEP_ALL.stages[:3]), PLENTY).ok
    dropped = check(at_the_end, stages(*KEEP_ALL.stages[:2], Stage((), 0, ())), PLENTY)
    assert dropped.violations == ("backward 2 (backward2) reads forward 0, which stage 2 neither keeps nor computes",)
    again = change(KEEP_ALL, 1, Stage((Compute(1),), 0, (0,)))
    # Recomputing 1 in stage 1: 1 + 12 of gradients, workspace 2, result 3, live input 4, kept and so counted once.
    assert resident(again) == [16, 20, 19, 13 + 2 + 3 + 4, 31, 34, 27]


def test_in_place_saves_and_overwrites() -> None:
    here = (Compute(0), Compute(1, in_place=True), Compute(2))
    verdict = check(three_operators(), replace(AGAIN, stages=(Stage(here, None, (1,)), *AGAIN.stages[1:])), PLENTY)
    assert verdict.ok
    assert verdict.events[1].resident_bytes == 20 - 3
    assert verdict.forward_us == 13 - 2
    kept = check(three_operators(), replace(KEEP_ALL, stages=(Stage(here, None, (0, 1)), *KEEP_ALL.stages[1:])), PLENTY)
    assert kept.violations == ("stage 0 keeps forward 0, which is neither stored, computed nor left intact",)


def test_over_budget_says_where_and_by_how_much() -> None:
    assert check(three_operators(), KEEP_ALL, 34).ok
    verdict = check(three_operators(), KEEP_ALL, 33)
    assert verdict.violations == ("backward 2 (backward2): 34 bytes, 1 over the budget of 33",)
    assert not verdict.ok
    tight = check(three_operators(), AGAIN, 19)
    assert tight.violations[0] == "stage 0: forward 1 (op1): 20 bytes, 1 over the budget of 19"


def change(schedule: Schedule, t: int, stage: Stage) -> Schedule:
    return replace(schedule, stages=(*schedule.stages[:t], stage, *schedule.stages[t + 1 :]))


WRONG: list[tuple[Schedule, str]] = [
    (stages(*KEEP_ALL.stages[:3]), "3 stages, but the problem has 4"),
    (change(KEEP_ALL, 0, Stage((Compute(0), Compute(1)), None, (0, 1))), "does not compute forward 2"),
    (change(KEEP_ALL, 0, Stage(FORWARD[::-1], None, (0, 1))), "ids must exist and ascend"),
    (change(KEEP_ALL, 0, Stage((*FORWARD, Compute(3)), None, (0, 1))), "ids must exist and ascend"),
    (change(KEEP_ALL, 0, Stage(FORWARD, 0, (0, 1))), "stage 0 runs no backward operator"),
    (
        change(KEEP_ALL, 0, Stage((Compute(0, 1), *FORWARD[1:]), None, (0, 1))),
        "forward 0 (op0) has no implementation 1",
    ),
    (change(KEEP_ALL, 0, Stage((Compute(0, -1), *FORWARD[1:]), None, (0, 1))), "has no implementation -1"),
    (change(KEEP_ALL, 1, Stage((), 1, (0, 1))), "backward 1 has no implementation 1"),
    (change(KEEP_ALL, 1, Stage((), -1, (0, 1))), "backward 1 has no implementation -1"),
    (change(KEEP_ALL, 1, Stage((), None, (0, 1))), "backward 1 has no implementation None"),
    (change(AGAIN, 2, Stage((), 0, ())), "backward 2 (backward2) reads forward 0, which is not on the device"),
    (change(AGAIN, 2, Stage((Compute(1),), 0, ())), "forward 1 (op1) reads forward 0, which is not on the device"),
    (change(AGAIN, 1, Stage((), 0, (0,))), "stage 1 keeps forward 0"),
    (change(AGAIN, 1, Stage((), 0, (7,))), "stage 1 keeps forward 7"),
    (change(AGAIN, 2, Stage((Compute(0, in_place=True),), 0, ())), "forward 0 (op0) cannot run in place"),
    (
        change(AGAIN, 2, Stage((Compute(0), Compute(1, in_place=True)), 0, ())),
        "backward 2 (backward2) reads forward 0, which is not on the device",
    ),
]


@pytest.mark.parametrize(("schedule", "words"), WRONG, ids=[w[1] for w in WRONG])
def test_every_sort_of_violation_is_named(schedule: Schedule, words: str) -> None:
    verdict = check(three_operators(), schedule, PLENTY)
    assert not verdict.ok
    assert any(words in v for v in verdict.violations), verdict.violations


def test_results_that_must_not_be_computed_twice() -> None:
    problem = three_operators()
    once = replace(problem, forward=(replace(problem.forward[0], recomputable=False), *problem.forward[1:]))
    assert check(once, KEEP_ALL, PLENTY).ok
    assert check(once, AGAIN, PLENTY).violations == ("stage 2: forward 0 (op0) must not be recomputed",)


def with_signs(*, beside_in_place: bool) -> MemoryProblem:
    """Forward 2 now encodes forward 1 and is what backward 2 reads; the loss is gone."""
    problem = three_operators()
    signs = replace(problem.forward[2], encodes=1, in_place=InPlace(0, 0.5, 0) if beside_in_place else None)
    reads_signs = replace(problem.backward[1], implementations=(BackwardImplementation(20.0, 2, (2,)),))
    return replace(
        problem,
        forward=(*problem.forward[:2], signs),
        backward=(problem.backward[0], reads_signs, problem.backward[2]),
    )


def test_encoded_results_need_their_parent_beside_them() -> None:
    keep_signs = stages(Stage(FORWARD, None, (1, 2)), Stage((), 0, (1, 2)), Stage((), 0, (2,)), Stage((), 0, ()))
    assert check(with_signs(beside_in_place=False), keep_signs, PLENTY).ok
    alone = stages(Stage(FORWARD[:2], None, (1,)), Stage((), 0, (1,)), Stage((Compute(2),), 0, ()), Stage((), 0, ()))
    found = check(with_signs(beside_in_place=False), alone, PLENTY).violations
    assert found == ("stage 2: forward 2 (op2) encodes forward 1, which this stage does not compute",)


def test_encoded_results_run_in_place_exactly_when_their_parent_does() -> None:
    problem = with_signs(beside_in_place=True)
    rest = (Stage((), 0, (1, 2)), Stage((), 0, (2,)), Stage((), 0, ()))
    for parent, signs in ((False, False), (False, True), (True, False), (True, True)):
        runs = (Compute(0), Compute(1, in_place=parent), Compute(2, in_place=signs))
        verdict = check(problem, stages(Stage(runs, None, (1, 2)), *rest), PLENTY)
        assert verdict.ok == (parent == signs)
        if not verdict.ok:
            assert verdict.violations == ("stage 0: forward 2 (op2) must run in place exactly when forward 1 does",)
        elif parent:
            assert verdict.forward_us == 13 - 2 + 0.5


def a_plan(problem: MemoryProblem, schedule: Schedule | None, budget: int) -> MemoryPlan:
    return MemoryPlan(
        name="three",
        problem_sha256=problem.sha256,
        budget_bytes=budget,
        status="feasible",
        objective=73.0,
        bound=None,
        gap=None,
        overhead_gap=None,
        unconstrained=73.0,
        unit="us",
        method="plain",
        stopped_by="gap",
        seconds={},
        solver={},
        check={},
        schedule=schedule,
    )


def test_a_plan_is_checked_under_its_own_budget_and_for_its_own_problem() -> None:
    problem = three_operators()
    assert check_plan(problem, a_plan(problem, KEEP_ALL, 34)).ok
    assert not check_plan(problem, a_plan(problem, KEEP_ALL, 33)).ok
    with pytest.raises(InputError, match="problem_sha256"):
        check_plan(replace(problem, objective="energy"), a_plan(problem, KEEP_ALL, 34))
    with pytest.raises(InputError, match="holds no schedule"):
        check_plan(problem, a_plan(problem, None, 34))


def peak_by_sums(problem: MemoryProblem, schedule: Schedule) -> int:
    """The accounting of the checker's docstring, sum by sum (no offload)."""
    m = [f.output_bytes for f in problem.forward]
    peak, stored = 0, set[int]()
    for t, stage in enumerate(schedule.stages):
        keep = set(stage.keep)
        choice = None if t == 0 else problem.backward[t - 1].implementations[stage.implementation or 0]
        needs = set() if choice is None else set(choice.needs)
        computed = {c.forward: c for c in stage.computes}
        for j, f in enumerate(problem.forward):
            gradients = problem.gradient_bytes(t)
            passed = sum(m[i] for i in needs - keep if i < j)
            before = gradients + sum(m[i] for i in stored if i >= j) + sum(m[i] for i in keep if i < j) + passed
            peak = max(peak, before)
            if j in computed:
                choices = f.recompute_implementations if t else f.implementations
                workspace = choices[computed[j].implementation].workspace_bytes
                if computed[j].in_place and f.in_place is not None:
                    workspace += f.in_place.workspace_delta_bytes
                live = set(f.live_inputs)
                after = sum(m[i] for i in stored if i > j)
                kept = sum(m[i] for i in keep - live if i < j)
                peak = max(peak, gradients + workspace + m[j] + sum(m[i] for i in live) + after + kept + passed)
        if choice is not None:
            b = problem.backward[t - 1]
            peak = max(
                peak,
                choice.workspace_bytes
                + b.live_bytes
                + b.fixed_bytes
                + b.output_bytes
                + sum(m[i] for i in needs)
                + sum(m[i] for i in keep - needs),
            )
        stored = keep
    return peak


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), operators=st.integers(2, 9), segments=st.integers(1, 6))
def test_replay_is_the_accounting_and_the_time_is_the_sum_of_its_parts(
    seed: int, operators: int, segments: int
) -> None:
    problem = random_problem(seed, operators=operators, in_place=0.6, encodings=0.5)
    for schedule in (plain.formulate(problem), gist.formulate(problem), chen.in_segments(problem, segments)):
        verdict = check(problem, schedule, PLENTY)
        assert verdict.violations == ()
        assert verdict.peak_bytes == peak_by_sums(problem, schedule)
        assert check(problem, schedule, verdict.peak_bytes).ok
        assert not check(problem, schedule, verdict.peak_bytes - 1).ok
        parts = verdict.forward_us + verdict.recompute_us + verdict.backward_us + verdict.stall_us
        assert verdict.time_us == pytest.approx(parts)
        assert verdict.time_us == pytest.approx(sum(e.duration_us for e in verdict.events))
        assert verdict.objective == pytest.approx(verdict.time_us)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), segments=st.integers(1, 5), data=st.data())
def test_reads_of_what_is_only_stored_are_named_and_no_others(seed: int, segments: int, data: st.DataObject) -> None:
    """Each stage on its own, as the data state it: S[k+1,i] + P[k,i] >= 1. Nothing runs in place here."""
    problem = random_problem(seed, operators=6, encodings=0.4)
    schedule = chen.in_segments(problem, segments)
    forgetful = [
        replace(stage, keep=tuple(i for i in stage.keep if data.draw(st.integers(0, 5)) > 0))
        for stage in schedule.stages
    ]
    expected = set()
    for k, (before, stage) in enumerate(itertools.pairwise(forgetful), start=1):
        operator = problem.backward[k - 1]
        at_hand = {*stage.keep, *(c.forward for c in stage.computes)}
        for i in operator.implementations[stage.implementation or 0].needs:
            if i in before.keep and i not in at_hand:
                where = f"backward {k} ({operator.op})"
                expected.add(f"{where} reads forward {i}, which stage {k} neither keeps nor computes")
    found = check(problem, replace(schedule, stages=tuple(forgetful)), PLENTY).violations
    assert {v for v in found if "neither keeps nor computes" in v} == expected


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_keeping_less_never_raises_the_peak_of_a_step_that_recomputes_nothing(seed: int, data: st.DataObject) -> None:
    problem = random_problem(seed, operators=6)
    step = plain.formulate(problem)
    held = sorted({i for stage in step.stages for i in stage.keep})
    if not held:
        return
    dropped = data.draw(st.sampled_from(held))
    since = data.draw(st.integers(0, len(step.stages) - 1))
    fewer = [
        replace(stage, keep=tuple(i for i in stage.keep if i != dropped or t < since))
        for t, stage in enumerate(step.stages)
    ]
    less = check(problem, replace(step, stages=tuple(fewer)), PLENTY)
    assert less.peak_bytes <= check(problem, step, PLENTY).peak_bytes
