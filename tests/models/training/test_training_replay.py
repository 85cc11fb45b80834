"""The clock of schedules of training steps: by hand, and held against a simulator of queues."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from loadmaster.models.placement.problem import Tier
from loadmaster.models.training.checker import check
from loadmaster.models.training.limits import plain_schedule, plain_us
from loadmaster.models.training.plan import GroupPlan, Schedule, Stay
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.models.training.replay import StuckError, Timeline, replay
from tests.models.training.steps import KB, Deadlock, Simulated, group, problems, schedules, steady_us, step_of

CLOSE = 1e-6
# More steps than steps need to repeat, in nearly all cases.
MORE = 24


def timed(problem: TrainingProblem, *groups: GroupPlan) -> Timeline:
    schedule = Schedule((0,) * len(problem.layers), groups)
    assert check(problem, schedule, 1 << 40).violations == ()
    return replay(problem, schedule)


def copies(timeline: Timeline) -> list[tuple[str, str, float, float]]:
    return [(copy.direction, copy.what, copy.start_us, copy.end_us) for copy in timeline.copies]


def test_with_everything_on_the_device_nothing_waits() -> None:
    problem = step_of(2, group("a", 0), group("b", 1), group("frozen", 0, trained=False))
    found = replay(problem, plain_schedule(problem))
    # b is updated after its backward pass, a at the end of the step, 3 us each.
    assert found.starts_us == (0, 10, 20, 33)
    assert found.ends_us == (10, 20, 30, 43)
    assert [(u.group, u.start_us, u.end_us) for u in found.device_updates] == [(1, 30, 33), (0, 43, 46)]
    assert (found.step_us, found.stall_us) == (plain_us(problem), 0) == (46, 0)
    assert found.copies == ()
    assert found.host_updates == ()


def test_with_clipping_all_updates_come_at_the_end() -> None:
    problem = step_of(2, group("a", 0), group("b", 1), clip_grad_norm=True)
    found = replay(problem, plain_schedule(problem))
    assert found.starts_us == (0, 10, 20, 30)
    # In the order of the groups.
    assert [(u.group, u.start_us, u.end_us) for u in found.device_updates] == [(0, 40, 43), (1, 43, 46)]


def test_micro_batches_update_once() -> None:
    problem = step_of(2, group("a", 0), micro_batches=3)
    assert replay(problem, plain_schedule(problem)).step_us == 3 * 40 + 3


def test_state_on_the_host_where_the_link_is_the_bottleneck() -> None:
    # 100 us of link each way. Phase 0 waits for the store, whose memory is to be free there; then the load is queued,
    # and the update waits for it while phases run: 100 + 100 + 3.
    problem = step_of(2, group("a", 0, state_bytes=100))
    found = timed(problem, GroupPlan(state="host", update_after=3, update_stay=Stay(0, 4)))
    assert found.starts_us == (100, 110, 120, 130)
    assert copies(found) == [("to host", "state", 0, 100), ("from host", "state", 100, 200)]
    assert [(u.start_us, u.end_us) for u in found.device_updates] == [(200, 203)]
    assert (found.step_us, found.stall_us) == (203, 160)


def test_state_that_may_stay_longer_hides_behind_phases() -> None:
    # 8 us of link each way. Queued at 2, there at 28, the update after 3 need not wait; stored by 1 of the next step.
    problem = step_of(2, group("a", 0))
    found = timed(problem, GroupPlan(state="host", update_after=3, update_stay=Stay(2, 5)))
    assert (found.step_us, found.stall_us) == (43, 0)
    assert copies(found) == [("to host", "state", 0, 8), ("from host", "state", 20, 28)]
    # With half of the bandwidth, the load is there at 36, before the end of phase 3, and the store at 16: at 1, 10 us
    # into the step, its memory is waited for.
    slow = replace(problem, host=Tier("host", 0.5, 0.5))
    found = timed(slow, GroupPlan(state="host", update_after=3, update_stay=Stay(2, 5)))
    assert found.starts_us == (0, 16, 26, 36)
    assert found.step_us == 16 + 30 + 3


def test_a_host_update_delays_the_next_forward_pass() -> None:
    # The gradient is there 2 us after the step, the update takes 5, the copy another 2.
    problem = step_of(2, group("a", 0))
    found = timed(problem, GroupPlan("copy", "host", "host", gradient_gone_at=5, copy_load_at=4))
    assert copies(found) == [("to host", "gradient", 0, 2), ("from host", "copy", 7, 9)]
    assert [(u.start_us, u.end_us) for u in found.host_updates] == [(2, 7)]
    assert found.starts_us == (9, 19, 29, 39)
    assert (found.step_us, found.stall_us) == (49, 9)
    # That of the last layer hides behind two phases.
    late = step_of(2, group("b", 1))
    found = timed(late, GroupPlan("copy", "host", "host", gradient_gone_at=4, copy_load_at=4))
    assert copies(found) == [("from host", "copy", 0, 2), ("to host", "gradient", 30, 32)]
    assert found.step_us == 40
    # Unless it waits for the norm of all gradients: then it starts at 40, that is 0 of the next step, and phase 1, by
    # which the copy is there, need not wait either, only where the update takes longer than phase 0.
    plan = GroupPlan("copy", "host", "host", gradient_gone_at=4, copy_load_at=4)
    clipped = replace(late, clip_grad_norm=True)
    found = timed(clipped, plan)
    assert [(u.start_us, u.end_us) for u in found.host_updates] == [(40, 45)]
    assert found.step_us == 40
    slow = replace(clipped, groups=(replace(late.groups[0], host_update_us=15.0),))
    assert timed(slow, plan).starts_us == (0, 17, 27, 37)


def test_streamed_weights_come_for_each_use() -> None:
    # Queued when the phase before has ended: 2 us are waited for at every use of the middle layer.
    problem = step_of(3, group("a", 1))
    plan = GroupPlan("streamed", "host", "host", stays=(Stay(1, 2), Stay(4, 5)), gradient_gone_at=6)
    found = timed(problem, plan)
    assert found.starts_us == (0, 12, 22, 32, 44, 54)
    assert (found.step_us, found.stall_us) == (64, 4)
    assert copies(found) == [
        ("from host", "copy", 10, 12),
        ("from host", "copy", 42, 44),
        ("to host", "gradient", 54, 56),
    ]
    # A phase earlier, they are there in time.
    early = replace(plan, stays=(Stay(0, 2), Stay(3, 5)))
    assert timed(problem, early).step_us == 60


def test_weights_that_the_device_updates_come_back_after_their_store() -> None:
    # Weights and state, 12 us, come at 2 and go, with the copy 14 us, after the update at 43. The copy for phase 0
    # follows that store: 14 + 2 us.
    problem = step_of(2, group("a", 0))
    plan = GroupPlan(
        "streamed", "host", "device", update_after=3, update_stay=Stay(2, 6), stays=(Stay(0, 1), Stay(3, 4))
    )
    found = timed(problem, plan)
    assert copies(found) == [
        ("to host", "weights and state", 0, 14),
        ("from host", "copy", 14, 16),
        ("from host", "weights and state", 36, 48),
        ("from host", "copy", 48, 50),
    ]
    assert found.starts_us == (16, 26, 36, 50)
    assert (found.step_us, found.stall_us) == (63, 20)


def test_moves_of_one_position_go_by_who_needs_them_first_and_then_by_group() -> None:
    problem = step_of(3, group("a", 2, trained=False), group("b", 1, trained=False), group("c", 1, trained=False))
    streamed = [GroupPlan("streamed", "device", "none", stays=(Stay(0, 6),)) for _ in problem.groups]
    found = timed(problem, *streamed)
    assert [(copy.group, copy.start_us) for copy in found.copies] == [(1, 0), (2, 2), (0, 4)]


def test_a_copy_goes_before_the_state_of_the_update_after_its_phase() -> None:
    problem = step_of(1, group("a", 0))
    plan = GroupPlan(
        "streamed", "host", "device", update_after=1, update_stay=Stay(1, 2), stays=(Stay(0, 1), Stay(1, 2))
    )
    loads = [copy.what for copy in timed(problem, plan).copies if copy.direction == "from host"]
    assert loads == ["copy", "copy", "weights and state"]


def test_the_first_steps_differ_from_those_that_repeat() -> None:
    # In step 0 the copy is there. From step 1 on phase 0 waits for the update of the step before: 2 us of gradient, 100
    # of update, 2 of copy.
    problem = step_of(2, group("a", 0, host_update_us=100.0))
    plan = GroupPlan("copy", "host", "host", gradient_gone_at=5, copy_load_at=4)
    assert Simulated(problem, Schedule((0, 0), (plan,)), 4).step_us() == [40, 144, 144, 144]
    found = timed(problem, plan)
    assert found.step_us == 144
    assert found.starts_us[0] == 104


def behind(store_bytes: int) -> tuple[TrainingProblem, tuple[GroupPlan, ...]]:
    """Stores of 40 us and of what is given, beside phases and updates of 66 us. The second one may end 10 us after the
    first one's turn comes again: where both take longer than a step, the link falls behind so far before anything
    waits."""
    groups = (group("a", 2), group("b", 0))
    sizes = (40 * KB, store_bytes)
    groups = (replace(groups[0], state_bytes=sizes[0]), replace(groups[1], state_bytes=sizes[1]))
    plans = (
        GroupPlan(state="host", update_after=3, update_stay=Stay(3, 9)),
        GroupPlan(state="host", update_after=5, update_stay=Stay(5, 11)),
    )
    return step_of(3, *groups, tier=Tier("host", 1.0, 1e6)), plans


def test_a_backlog_that_takes_steps_to_build_up_counts() -> None:
    problem, plans = behind(30 * KB)
    seen = Simulated(problem, Schedule((0, 0, 0), plans), 8).step_us()
    # 4 us behind in every step, 10 us in the third.
    assert [round(us, 2) for us in seen] == [66, 66, 66, 68, 70, 70, 70, 70]
    found = timed(problem, *plans)
    assert found.step_us == pytest.approx(70)
    assert found.steps > 5


def test_steps_that_do_not_repeat_in_time_take_no_less_than_what_is_busy() -> None:
    # A nanosecond behind in every step: it takes thousands until anything waits.
    problem, plans = behind(26 * KB + 1)
    found = timed(problem, *plans)
    assert found.steps == 64
    assert found.step_us == pytest.approx(66.001, rel=1e-9)
    assert max(Simulated(problem, Schedule((0, 0, 0), plans), 64).step_us()) < 66.0009


def test_moves_that_wait_for_each_other_are_found() -> None:
    # The copy for the next step heads the queue from 2 on, and waits for the update, whose weights are behind it.
    problem = step_of(3, group("a", 1))
    stays = (Stay(1, 2), Stay(4, 5))
    plan = GroupPlan("streamed", "host", "device", update_after=5, update_stay=Stay(5, 7), stays=stays)
    assert timed(problem, plan).step_us > 60
    early = replace(plan, update_after=6, update_stay=Stay(6, 8), stays=(Stay(4, 5), Stay(5, 8)))
    with pytest.raises(StuckError) as caught:
        replay(problem, Schedule((0, 0, 0), (early,)))
    assert str(caught.value) == (
        "the update of a on the device waits for the weights and state of a, queued behind the copy of a, which waits "
        "for its store after the update: that comes later, and the step never ends"
    )
    # Clipped, the host updates a only after the last phase, which waits for a load behind a's copy.
    clipped = step_of(3, group("a", 1), group("b", 0, trained=False), clip_grad_norm=True)
    copied = GroupPlan("copy", "host", "host", gradient_gone_at=5, copy_load_at=5)
    streamed = GroupPlan("streamed", "device", "none", stays=(Stay(0, 1), Stay(5, 6)))
    # At the same position, what is needed first is first.
    assert timed(clipped, copied, streamed).step_us > 60
    longer = step_of(4, group("a", 2), group("b", 0, trained=False), clip_grad_norm=True)
    late = replace(streamed, stays=(Stay(0, 1), Stay(7, 8)))
    with pytest.raises(StuckError, match="backward of l0 waits for the copy of b, queued behind the copy of a, which"):
        replay(longer, Schedule((0,) * 4, (replace(copied, gradient_gone_at=6, copy_load_at=6), late)))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_schedule_takes_as_long_as_in_a_simulation(data: st.DataObject) -> None:
    problem = data.draw(problems())
    schedule = data.draw(schedules(problem))
    try:
        found = replay(problem, schedule)
    except StuckError:
        with pytest.raises(Deadlock):
            Simulated(problem, schedule, 4)
        return
    assume(found.steps <= MORE)
    seen = Simulated(problem, schedule, found.steps + MORE)
    assert found.step_us == pytest.approx(steady_us(seen.step_us()), rel=1e-9, abs=CLOSE)
    last, count = found.steps - 1, len(found.starts_us)
    zero = seen.ends["position", last - 1, count - 1]
    for p in range(count):
        assert zero + found.starts_us[p] == pytest.approx(seen.starts["phase", last, p], abs=CLOSE)
        assert zero + found.ends_us[p] == pytest.approx(seen.ends["phase", last, p], abs=CLOSE)
    expect_same(found, seen, zero)
    # Everything that belongs to a step is in it once.
    names = [name for name in seen.starts if name[1] == last and name[0] != "phase"]
    assert len(names) == sum(map(len, (found.copies, found.host_updates, found.device_updates, found.disk_moves)))


def expect_same(found: Timeline, seen: Simulated, zero: float) -> None:
    """Expect every move and update of a timeline among those of a simulation, at its time."""
    times: dict[object, list[tuple[float, float]]] = defaultdict(list)
    for name, start in seen.starts.items():
        if name[0] in ("store", "load"):
            times[name[0], name[2], seen.sizes[name]].append((start, seen.ends.get(name, start)))
        elif name[0] != "phase":
            times[name[0], name[2]].append((start, seen.ends.get(name, start)))
    mine: list[tuple[object, float, float]] = []
    for copy in found.copies:
        what = "store" if copy.direction == "to host" else "load"
        mine.append(((what, copy.group, copy.size_bytes), copy.start_us, copy.end_us))
    for what, updates in (("host update", found.host_updates), ("device update", found.device_updates)):
        mine += [((what, update.group), update.start_us, update.end_us) for update in updates]
    disk = {"to disk": "disk write", "from disk": "disk read"}
    mine += [((disk[move.direction], move.group), move.start_us, move.end_us) for move in found.disk_moves]
    for key, start, end in mine:
        near = [
            pair for pair in times[key] if abs(pair[0] - zero - start) < CLOSE and abs(pair[1] - zero - end) < CLOSE
        ]
        assert near, f"{key} at {start}..{end} is not in the simulation"
        times[key].remove(near[0])
