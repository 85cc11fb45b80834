"""The checker of schedules of training steps: bytes counted twice, and every rule broken once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.statements import compared
from loadmaster.models.training.checker import STATEMENTS, TrainingCheck, check, check_plan
from loadmaster.models.training.limits import least_bytes, peak_bytes, plain_schedule, plain_us
from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import CHECKED, GroupPlan, Schedule, Stay, TrainingInfeasibility
from loadmaster.models.training.problem import Point, TrainingProblem
from loadmaster.models.training.residency import residency
from tests.models.training.steps import (
    HOST,
    KB,
    counted_bytes,
    counted_host_bytes,
    group,
    plan_of,
    problems,
    schedules,
    step_of,
)

MUCH = 1 << 40
# Four phases: the gradient of a is complete after 3, that of b after 2; they are used again at 4 and 5.
TWO = step_of(2, group("a", 0), group("b", 1))
# Six phases. The middle layer is used at 1, 4 and 7; its gradient is made at 4.
THREE = step_of(3, group("a", 1))
RESIDENT = GroupPlan(update_after=3)
SENT = GroupPlan(state="host", update_after=3, update_stay=Stay(2, 5))
COPIED = GroupPlan("copy", "host", "host", gradient_gone_at=5, copy_load_at=4)
STREAMED = GroupPlan("streamed", "host", "host", stays=(Stay(1, 2), Stay(4, 5)), gradient_gone_at=5)
FETCHED = replace(STREAMED, update="device", gradient_gone_at=None, update_after=4, update_stay=Stay(4, 6))
FROZEN = GroupPlan(update="none")


def scheduled(problem: TrainingProblem, *groups: GroupPlan) -> Schedule:
    return Schedule((0,) * len(problem.layers), groups)


def held(problem: TrainingProblem, *groups: GroupPlan, budget_bytes: int = MUCH) -> TrainingCheck:
    found = check(problem, scheduled(problem, *groups), budget_bytes)
    assert found.violations == ()
    return found


def refused(problem: TrainingProblem, schedule: Schedule, budget_bytes: int = MUCH) -> str:
    """The one thing that is wrong."""
    found = check(problem, schedule, budget_bytes)
    assert not found.ok
    assert found.timeline is None and found.objective == found.step_us == found.stall_us == 0.0
    assert found.summary()["ok"] is False
    assert len(found.violations) == 1, found.violations
    return found.violations[0]


def test_a_step_by_hand() -> None:
    points = (Point("keep", 10.0, 10.0, 3 * KB, forward_bytes=KB, backward_bytes=2 * KB),)
    problem = step_of(2, group("a", 0), group("b", 1), points=points, fixed_bytes=7 * KB)
    found = held(problem, COPIED, replace(RESIDENT, update_after=2), budget_bytes=40 * KB)
    by_role = {role: (sizes // KB).tolist() for role, sizes in found.bytes_by_role.items()}
    # Both layers keep 3 kB. Weights: a copy of 2 kB, and b's 4. a's gradient of 2 kB stays for phase 4, that is 0.
    assert by_role == {
        "fixed": [7, 7, 7, 7],
        "activation": [4, 7, 8, 5],
        "weights": [6, 6, 6, 6],
        "gradient": [2, 0, 4, 2],
        "state": [8, 8, 8, 8],
    }
    assert (found.peak_bytes, found.peak_at) == (33 * KB, "backward of l1")
    assert (found.phase_bytes // KB).tolist() == [27, 28, 33, 28]
    # b's update takes 3 us; then the gradient takes 2 us, the update on the host 5, the copy 2.
    assert found.summary() == {
        "ok": True,
        "peak_bytes": 33 * KB,
        "peak_at": "backward of l1",
        "step_us": 52.0,
        "stall_us": 9.0,
        "stored_bytes": 2 * KB,
        "loaded_bytes": 2 * KB,
        "host_bytes": 16 * KB,
        "host_updates_us": 5.0,
        "disk_bytes": 0,
    }
    assert found.objective == 52
    assert set(found.summary()) == set(CHECKED)


def test_bytes_of_what_comes_for_an_update() -> None:
    found = held(THREE, FETCHED)
    by_role = {role: (sizes // KB).tolist() for role, sizes in found.bytes_by_role.items()}
    # State and weights, with a copy beside the one that phase 4 reads, while 4 and 5 run.
    assert by_role["weights"] == [0, 2, 0, 0, 8, 6]
    assert by_role["state"] == [0, 0, 0, 0, 8, 8]
    assert by_role["gradient"] == [0, 0, 0, 0, 2, 0]
    assert found.host_bytes == 14 * KB
    assert (found.stored_bytes, found.loaded_bytes) == (14 * KB, 16 * KB)


def test_everything_on_the_device_is_held_with_the_peak() -> None:
    for problem in (TWO, THREE, step_of(2, group("a", 0, 1), group("f", 1, trained=False), micro_batches=3)):
        assert check(problem, plain_schedule(problem), peak_bytes(problem)).objective == plain_us(problem)
        assert "over the budget" in refused(problem, plain_schedule(problem), peak_bytes(problem) - 1)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        # Places.
        (FROZEN, "a is trained: it needs an update"),
        (replace(COPIED, state="device"), "the state of a is on the device, and its weights are on the host"),
        (replace(SENT, weights="copy", state="device"), "the state of a is on the device, and its weights are"),
        (replace(COPIED, weights="device"), "a is updated on the host, and its weights are on the device"),
        # What is given, and where it lies.
        (replace(RESIDENT, update_after=None), "update_after of a is missing"),
        (replace(COPIED, update_after=3), "update_after of a is of no use"),
        (replace(RESIDENT, update_after=2), "update_after of a is 2, which is not in 3..3"),
        (replace(RESIDENT, update_after=4), "update_after of a is 4, which is not in 3..3"),
        (replace(SENT, update_stay=None), "update_stay of a is missing"),
        (replace(RESIDENT, update_stay=Stay(2, 5)), "update_stay of a is of no use"),
        (replace(COPIED, update_stay=Stay(2, 5)), "update_stay of a is of no use"),
        (replace(SENT, update_stay=Stay(4, 5)), "update_stay of a from 4 to 5 is no stay of at most a step around"),
        (replace(SENT, update_stay=Stay(1, 3)), "update_stay of a from 1 to 3 is no stay of at most a step around"),
        (replace(SENT, update_stay=Stay(2, 7)), "update_stay of a from 2 to 7 is no stay of at most a step around"),
        (replace(COPIED, gradient_gone_at=None), "gradient_gone_at of a is missing"),
        (replace(RESIDENT, gradient_gone_at=4), "gradient_gone_at of a is of no use"),
        (replace(COPIED, gradient_gone_at=3), "gradient_gone_at of a is 3, which is not in 4..7"),
        (replace(COPIED, gradient_gone_at=8), "gradient_gone_at of a is 8, which is not in 4..7"),
        (replace(COPIED, copy_load_at=None), "copy_load_at of a is missing"),
        (replace(COPIED, copy_load_at=3), "copy_load_at of a is 3, which is not in 4..4"),
        (replace(COPIED, copy_load_at=5), "copy_load_at of a is 5, which is not in 4..4"),
        (replace(SENT, weights="copy", copy_load_at=4), "copy_load_at of a is of no use"),
        (replace(COPIED, stays=(Stay(0, 1),)), "stays of a are of no use: its weights are not streamed"),
    ],
)
def test_places_and_fields_go_together(plan: GroupPlan, says: str) -> None:
    problem = step_of(2, group("a", 0))
    assert refused(problem, scheduled(problem, plan)).startswith(says)


@pytest.mark.parametrize(
    ("stays", "says"),
    [
        ((), "a is not on the device at phase 1, forward of l1, which uses it"),
        ((Stay(1, 2),), "a is not on the device at phase 4, backward of l1, which uses it"),
        ((Stay(1, 2), Stay(3, 4)), "the stay of a from 3 to 4 has no use in it"),
        ((Stay(1, 2), Stay(6, 7)), "the stay of a from 6 to 7 is no part of a step"),
        ((Stay(1, 1), Stay(4, 5)), "the stay of a from 1 to 1 is no part of a step"),
        ((Stay(1, 8),), "the stay of a from 1 to 8 is no part of a step"),
        ((Stay(1, 3), Stay(2, 5)), "the stay of a from 1 to 3 overlaps the one from 2"),
        ((Stay(4, 8), Stay(1, 2)), "the stay of a from 4 to 8 overlaps the one from 7"),
        ((Stay(4, 8),), "the stay of a from 4 to 8 goes on over the update of its weights"),
    ],
)
def test_streamed_weights_are_there_for_each_use(stays: tuple[Stay, ...], says: str) -> None:
    found = check(THREE, scheduled(THREE, replace(STREAMED, stays=stays)), MUCH)
    assert found.violations[0] == says
    # A stay for nothing leaves out a use, too.
    assert len(found.violations) == (2 if "no use" in says else 1)


def test_a_stay_may_begin_in_the_step_before_and_a_frozen_one_may_go_on() -> None:
    assert held(THREE, replace(STREAMED, stays=(Stay(5, 8), Stay(3, 5)))).ok
    frozen = step_of(3, group("a", 1, trained=False))
    for stays in ((Stay(4, 8),), (Stay(0, 6),), (Stay(1, 2), Stay(4, 5)), (Stay(5, 11),)):
        assert held(frozen, GroupPlan("streamed", update="none", stays=stays)).ok
    assert held(frozen, GroupPlan("copy", update="none")).host_bytes == 6 * KB


def test_frozen_groups_are_only_read() -> None:
    problem = step_of(2, group("a", 0, trained=False))
    assert held(problem, FROZEN).ok
    assert refused(problem, scheduled(problem, RESIDENT)) == "a is frozen: it has no update"
    assert refused(problem, scheduled(problem, replace(FROZEN, state="host"))) == (
        "a is frozen: it has no state to be on the host"
    )
    assert refused(problem, scheduled(problem, replace(FROZEN, update_after=3))) == "update_after of a is of no use"


def test_the_host_updates_what_it_can() -> None:
    problem = step_of(2, group("a", 0, host_update_us=None))
    assert refused(problem, scheduled(problem, COPIED)) == "a is updated on the host, which cannot run that update"


def test_updates_wait_for_the_norm_of_all_gradients() -> None:
    late = replace(RESIDENT, update_after=2)
    assert held(TWO, RESIDENT, late).ok
    clipped = replace(TWO, clip_grad_norm=True)
    assert refused(clipped, scheduled(clipped, RESIDENT, late)) == "update_after of b is 2, which is not in 3..4"
    assert held(clipped, RESIDENT, RESIDENT).ok
    assert held(clipped, RESIDENT, replace(RESIDENT, update_after=4)).ok


def test_every_layer_and_every_group_has_its_part() -> None:
    good = scheduled(TWO, RESIDENT, RESIDENT)
    assert refused(TWO, replace(good, points=(0,))) == "there are 1 points, for 2 layers"
    assert refused(TWO, replace(good, groups=good.groups[:1])) == "there are plans for 1 groups, of 2"
    assert refused(TWO, replace(good, points=(0, 1))) == "l1 is run at point 1: its points are numbered 0 to 0"


def test_the_host_holds_no_more_than_its_capacity() -> None:
    # State, weights, copy and the gradient of the copy.
    enough = replace(step_of(2, group("a", 0)), host=replace(HOST, capacity_bytes=16 * KB))
    assert held(enough, COPIED).host_bytes == 16 * KB
    less = replace(enough, host=replace(HOST, capacity_bytes=16 * KB - 1))
    assert refused(less, scheduled(less, COPIED)) == "host holds 15.6 KiB, of 15.6 KiB"


def test_the_budget_is_hard_in_every_phase() -> None:
    peak = held(THREE, FETCHED).peak_bytes
    assert held(THREE, FETCHED, budget_bytes=peak).ok
    said = refused(THREE, scheduled(THREE, FETCHED), peak - 1)
    assert said == "23.4 KiB at backward of l1 are 1 B over the budget"


def test_a_step_that_never_ends_is_a_violation() -> None:
    early = replace(FETCHED, update_after=6, update_stay=Stay(6, 8), stays=(Stay(4, 5), Stay(5, 8)))
    assert refused(THREE, scheduled(THREE, early)).endswith("and the step never ends")


def test_more_violations_than_anyone_reads_are_cut() -> None:
    many = step_of(1, *(group(f"g{n}", 0) for n in range(50)))
    assert len(check(many, scheduled(many, *[FROZEN] * 50), MUCH).violations) == 20


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_bytes_are_those_of_a_plain_count(data: st.DataObject) -> None:
    problem = data.draw(problems())
    schedule = data.draw(schedules(problem))
    found = residency(problem, schedule)
    assert {role: sizes.tolist() for role, sizes in found.by_role.items()} == counted_bytes(problem, schedule)
    assert found.host_bytes == counted_host_bytes(problem, schedule)
    verdict = check(problem, schedule, MUCH)
    assert verdict.ok or "never ends" in verdict.violations[0]
    assert verdict.peak_bytes == max(map(sum, zip(*counted_bytes(problem, schedule).values(), strict=True)))


positions = st.one_of(st.none(), st.integers(0, 12), st.just(2**62))
any_stay = st.builds(Stay, st.integers(0, 12), st.integers(0, 20))
any_group = st.builds(
    GroupPlan,
    weights=st.sampled_from(["device", "copy", "streamed"]),
    state=st.sampled_from(["device", "host"]),
    update=st.sampled_from(["device", "host", "none"]),
    update_after=positions,
    stays=st.lists(any_stay, max_size=4).map(tuple),
    update_stay=st.one_of(st.none(), any_stay),
    gradient_gone_at=positions,
    copy_load_at=positions,
)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_schedule_whatever_has_a_verdict(data: st.DataObject) -> None:
    problem = data.draw(problems())
    legal = data.draw(schedules(problem))
    groups = tuple(data.draw(st.one_of(st.just(one), any_group)) for one in legal.groups)
    points = data.draw(st.one_of(st.just(legal.points), st.lists(st.integers(0, 3), max_size=5).map(tuple)))
    found = check(problem, Schedule(points, groups), 100 * KB)
    assert found.ok == (found.timeline is not None)
    assert len(found.phase_bytes) == len(Phases(problem))


def test_a_plan_is_of_its_problem_and_has_a_schedule() -> None:
    plan = plan_of(TWO, plain_schedule(TWO), MUCH, 46.0)
    assert check_plan(TWO, plan).ok
    with pytest.raises(InputError) as caught:
        check_plan(THREE, plan)
    assert caught.value.field == "problem_sha256"
    none = replace(plan, status="infeasible", objective=None, schedule=None)
    with pytest.raises(InputError) as caught:
        check_plan(TWO, none)
    assert caught.value.field == "status"


def test_all_that_a_plan_states_is_recomputed() -> None:
    plan = plan_of(TWO, plain_schedule(TWO), MUCH, 46.0)
    verdict = check_plan(TWO, plan)
    good = replace(plan, check=verdict.summary(), bound=46.0, gap=0.0, status="optimal")
    found = compared(STATEMENTS, "budget_bytes", TWO, good, verdict)
    # No update runs anywhere but on the device in less time.
    assert (found.wrong, found.least) == ((), 40.0)
    for wrong in (
        replace(good, plain_us=47.0),
        replace(good, objective=45.0),
        replace(good, check={**good.check, "host_bytes": 1}),
        replace(good, infeasibility=TrainingInfeasibility(1, 1, "there")),
    ):
        assert compared(STATEMENTS, "budget_bytes", TWO, wrong, verdict).wrong


def test_an_infeasible_answer_is_held_against_what_is_needed() -> None:
    least, where = least_bytes(TWO)
    plan = replace(
        plan_of(TWO, plain_schedule(TWO), least - 1, 46.0),
        status="infeasible",
        objective=None,
        schedule=None,
        stopped_by="proof",
        check={},
    )

    def wrong(budget_bytes: int, *reason: object) -> tuple[str, ...]:
        why = TrainingInfeasibility(*reason) if reason else None  # type: ignore[arg-type]
        told = replace(plan, budget_bytes=budget_bytes, infeasibility=why)
        return compared(STATEMENTS, "budget_bytes", TWO, told, None).wrong

    assert wrong(least - 1, least, 1, where) == ()
    assert wrong(least - 1)
    assert wrong(least - 1, least + 1, 2, where)
    assert wrong(least - 1, least, 2, where)
    assert wrong(least - 1, least, 1, "somewhere")
    # Above the least, it takes a search to say what is needed; no less than the budget, no more than the peak.
    assert wrong(least + 1, least + 3, 2, where) == ()
    assert wrong(least + 1, least + 1, 0, where)
    for elsewhere in ("somewhere", *({"forward of l1", "backward of l1"} - {where})):
        assert wrong(least + 1, least + 3, 2, elsewhere)
    assert wrong(least + 1, peak_bytes(TWO) + 1, peak_bytes(TWO) - least, where)
    assert wrong(peak_bytes(TWO), peak_bytes(TWO) + 1, 1, where)
