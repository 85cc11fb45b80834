"""The fixed baselines, the minimum budget, dead code: what they promise, on random graphs and on the shipped ones."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.memory import chen, choices, gist, minimum, plain
from loadmaster.models.memory.checker import MemoryCheck, check
from loadmaster.models.memory.dead_code import without_dead_code
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.memory.plan import Compute, Schedule
from loadmaster.models.memory.presets import chain, example
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.unconstrained import unconstrained_cost
from tests.models.memory.brute_force import best_objective
from tests.models.memory.instances import random_problem

PLENTY = 10**15
GIB = 1 << 30


def replayed(problem: MemoryProblem, schedule: Schedule) -> MemoryCheck:
    verdict = check(problem, schedule, PLENTY)
    assert verdict.violations == ()
    return verdict


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), once_only=st.sampled_from([0.0, 0.3]))
def test_plain_and_gist_recompute_nothing_and_chen_each_result_once(seed: int, once_only: float) -> None:
    problem = random_problem(seed, operators=8, in_place=0.5, encodings=0.5, once_only=once_only)
    step, fixed_choices, segments = (m.formulate(problem) for m in (plain, gist, chen))
    assert replayed(problem, step).recomputed == replayed(problem, fixed_choices).recomputed == 0
    assert replayed(problem, step).peak_bytes == plain.peak_bytes(problem)
    assert replayed(problem, step).objective >= unconstrained_cost(problem) - 1e-9
    replayed(problem, segments)
    again = [c.forward for stage in segments.stages[1:] for c in stage.computes]
    parents = {f.encodes for f in problem.forward}
    assert all(again.count(i) == 1 or i in parents for i in again)
    assert all(problem.forward[i].recomputable for i in again)


def test_chen_on_a_chain_takes_the_square_root() -> None:
    """64 equal operators: about 2 sqrt(64) results at once instead of 64, and each is computed at most twice."""
    size = 1000
    problem = read_problem(chain(64, size))
    gradients = 2 * size  # one comes in, one goes out
    assert plain.peak_bytes(problem) == pytest.approx(64 * size + gradients, rel=0.05)
    schedule = chen.formulate(problem)
    verdict = replayed(problem, schedule)
    assert verdict.peak_bytes <= (2 * 8 + 4) * size
    runs = [c.forward for stage in schedule.stages for c in stage.computes]
    assert max(runs.count(i) for i in set(runs)) == 2
    assert verdict.objective <= unconstrained_cost(problem) + sum(f.implementations[0].time_us for f in problem.forward)


def test_one_segment_recomputes_all_and_as_many_as_operators_nothing() -> None:
    problem = read_problem(chain(9, 1000))
    whole = replayed(problem, chen.in_segments(problem, 1))
    assert whole.recomputed == 9
    assert replayed(problem, chen.in_segments(problem, 10_000)).recomputed == 0


@pytest.mark.parametrize(
    ("name", "published_gb"), [("resnet50-b184-full", 15.1), ("unet-b11-full", 14.3), ("mobilenet_v2-b272-full", 14.5)]
)
def test_plain_peak_is_what_pytorch_was_measured_to_take(name: str, published_gb: float) -> None:
    """[Shah23] table 4.2, PyTorch's row: an independent measurement of the same networks."""
    assert plain.peak_bytes(read_problem(example(name))) / GIB == pytest.approx(published_gb, rel=0.05)


def test_gist_saves_memory_by_masks_and_in_place_only() -> None:
    problem = read_problem(example("resnet50-b184-full"))
    schedule = gist.formulate(problem)
    verdict = replayed(problem, schedule)
    assert verdict.peak_bytes < plain.peak_bytes(problem)
    encoded = [c for c in schedule.stages[0].computes if problem.forward[c.forward].encodes is not None]
    assert encoded
    assert any(c.in_place for c in schedule.stages[0].computes)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_minimum_budget_is_below_every_peak_and_its_blockers_add_up(seed: int) -> None:
    problem = random_problem(seed, operators=7, in_place=0.6, encodings=0.5)
    bound = minimum.minimum_budget(problem)
    for schedule in (plain.formulate(problem), gist.formulate(problem), chen.formulate(problem)):
        assert bound.budget_bytes <= replayed(problem, schedule).peak_bytes
    assert sum(b.size_bytes for b in bound.blockers) == bound.budget_bytes
    sizes = [b.size_bytes for b in bound.blockers]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("seed", range(5))
def test_no_schedule_at_all_below_the_minimum_budget(seed: int) -> None:
    problem = random_problem(seed, operators=3, encodings=0.3)
    assert math.isinf(best_objective(problem, minimum.minimum_budget(problem).budget_bytes - 1))


def test_minimum_budget_names_operator_and_tensors() -> None:
    problem = read_problem(chain(3, 1000))
    bound = minimum.minimum_budget(problem)
    # Backward of a block: its input, the gradient that comes in and the one that goes out.
    assert bound.budget_bytes == 3000
    assert "block backward" in bound.where
    assert sorted(b.tensor for b in bound.blockers) == ["forward 1", "gradient from block backward", "live gradients"]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), segments=st.integers(1, 5), data=st.data())
def test_dead_code_goes(seed: int, segments: int, data: st.DataObject) -> None:
    """Needless recomputations and keeps are added to a schedule; without them again, it is no dearer and no larger."""
    problem = random_problem(seed, operators=6, encodings=0.4, in_place=0.0)
    schedule = chen.in_segments(problem, segments)
    stages = list(schedule.stages)
    for t in range(1, len(stages)):
        there = {*stages[t - 1].keep, *(c.forward for c in stages[t].computes)}
        extra = [
            f.id
            for f in problem.forward
            if f.id not in there and set(f.inputs) <= there and f.encodes is None and data.draw(st.booleans())
        ]
        computes = sorted((*stages[t].computes, *(Compute(i) for i in extra)), key=lambda c: c.forward)
        keep = sorted({*stages[t].keep, *extra, *(i for i in there if data.draw(st.booleans()))})
        stages[t] = replace(stages[t], computes=tuple(computes), keep=tuple(keep))
    messy = replayed(problem, replace(schedule, stages=tuple(stages)))
    cleaned = replayed(problem, without_dead_code(problem, replace(schedule, stages=tuple(stages))))
    assert cleaned.objective <= messy.objective + 1e-9
    assert cleaned.peak_bytes <= messy.peak_bytes
    assert without_dead_code(problem, schedule) == schedule


def test_cleaning_takes_out_what_nobody_reads() -> None:
    problem = read_problem(chain(4, 1000))
    clean = chen.in_segments(problem, 1)
    busy = [
        replace(stage, computes=tuple(Compute(i) for i in range(5)), keep=(0, 1, 2, 3, 4)) for stage in clean.stages
    ]
    busy[0] = clean.stages[0]
    cleaned = without_dead_code(problem, replace(clean, stages=tuple(busy)))
    assert replayed(problem, cleaned).objective == replayed(problem, clean).objective
    assert replayed(problem, cleaned).peak_bytes == replayed(problem, clean).peak_bytes


def test_cleaning_leaves_what_backward_reads_kept_or_computed() -> None:
    """Backward 2 reads the result of operator 2, which is stored when its stage starts and recomputed there."""
    problem = read_problem(chain(4, 1000))
    step = plain.formulate(problem)
    assert [stage.keep for stage in step.stages] == [(0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2), (0, 1), (0,), ()]
    again = replace(step.stages[2], computes=(Compute(2),))
    assert without_dead_code(problem, replace(step, stages=(*step.stages[:2], again, *step.stages[3:]))) == step
    # Not kept, it must be computed: then nobody needs it stored before.
    instead = replace(step, stages=(*step.stages[:2], replace(again, keep=(0, 1)), *step.stages[3:]))
    cleaned = without_dead_code(problem, instead)
    assert [stage.keep for stage in cleaned.stages] == [(0, 1, 3), (0, 1, 3), (0, 1), (0, 1), (0,), ()]
    assert replayed(problem, cleaned).recomputed == replayed(problem, instead).recomputed == 1


def test_dominated_implementations_are_left_out() -> None:
    offered = [
        choices.Choice(0, 5.0, 10),
        choices.Choice(1, 5.0, 10),
        choices.Choice(2, 6.0, 10),
        choices.Choice(3, 6.0, 9),
        choices.Choice(4, 4.0, 11),
        choices.Choice(5, 7.0, 9, frozenset({1})),
    ]
    assert [c.index for c in choices.undominated(offered)] == [0, 3, 4]
    by_needs = [choices.Choice(0, 1.0, 0, frozenset({1, 2})), choices.Choice(1, 2.0, 0, frozenset({2}))]
    assert len(choices.undominated(by_needs)) == 2
    assert choices.dominating(offered[2], choices.undominated(offered)) == offered[0]


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(
    unit=st.sampled_from([1, 3, 512, 1024, 123_457]),
    grains=st.integers(0, 10**7),
    budget=st.integers(10**3, 10**11),
    relaxes=st.booleans(),
)
def test_rows_hold_what_fits_and_not_a_grain_more(unit: int, grains: int, budget: int, relaxes: bool) -> None:
    problem = random_problem(1, operators=3, unit_bytes=unit)
    scale = choices.ByteScale(problem, budget, terms=10, relaxes=relaxes)
    held = grains * unit
    tolerance = scale.PRESOLVE_TOLERANCE / 2
    if scale.is_exact or relaxes:
        assert scale.units(held) + tolerance < scale.room(held)
    if scale.is_exact or not relaxes:
        assert scale.units(held + unit) - tolerance > scale.room(held + unit - 1)
