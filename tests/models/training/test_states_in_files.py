"""States in files: the disk's turns and the buffers by hand, every rule broken once, and bounds that know of both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadmaster.models.placement.problem import Tier
from loadmaster.models.training.checker import TrainingCheck, check
from loadmaster.models.training.documents import read_problem, write_problem
from loadmaster.models.training.formulation import formulate
from loadmaster.models.training.limits import summary
from loadmaster.models.training.plan import GroupPlan, Schedule
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.models.training.ring import DiskRing
from loadmaster.models.training.runs import runs
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import SolveOptions, SolverStatus
from tests.models.training.steps import HOST, KB, group, step_of

MUCH = 1 << 40
# Writes 2 kB in a microsecond, reads 4.
DISK = Tier("nvme", 2.0, 4.0, capacity_bytes=100 * KB)
PLAN = GroupPlan("copy", "disk", "host", gradient_gone_at=6, copy_load_at=4)
BOTH = (PLAN, replace(PLAN, gradient_gone_at=4))


def two(**fields: object) -> TrainingProblem:
    """Two layers of 10 us each way with a group each, whose update on the host takes 5 us, its state of 8 kB on disk 4
    us to write and 2 to read."""
    return step_of(2, group("a", 0), group("b", 1), **{"disk": DISK, **fields})  # type: ignore[arg-type]


def held(problem: TrainingProblem, buffers: int, *groups: GroupPlan) -> TrainingCheck:
    found = check(problem, Schedule((0,) * len(problem.layers), groups, buffers), MUCH)
    assert found.violations == ()
    return found


def test_one_buffer_waits_for_its_write_and_the_next_read() -> None:
    ring = DiskRing(DISK, [8 * KB, 16 * KB], 1)
    # The first is there. Its write takes 4, the read of the second one 4; its write 8, the read of the first one 2.
    assert ring.ready_us == 0
    assert ring.updated(10.0)[:] == (0, 1, 10, 14, 18)
    assert ring.ready_us == 18
    assert ring.updated(20.0)[:] == (1, 0, 20, 28, 30)
    assert ring.ready_us == 30


def test_with_a_buffer_each_every_state_comes_back_to_its_own() -> None:
    ring = DiskRing(DISK, [8 * KB, 16 * KB], 2)
    assert ring.updated(10.0)[:] == (0, 0, 10, 14, 16)
    # The disk is busy until 16: the second one's write waits.
    assert ring.updated(11.0)[:] == (1, 1, 16, 24, 28)
    assert ring.ready_us == 16


def test_updates_wait_for_the_disk() -> None:
    # Phase 0 waits for a's copy until 10. So b's gradient is there at 42, its update runs until 47, its state is
    # written by 51, and a's is read by 53. a's gradient has come at 52: its update runs from 53 to 58, that is 3 to 8
    # us into the next step, as the step takes 50, and the copy is there at 10.
    found = held(two(), 1, *BOTH)
    timeline = found.timeline
    assert timeline is not None
    assert [(u.group, u.start_us) for u in timeline.host_updates] == [(0, 3.0), (1, 42.0)]
    assert (found.step_us, found.stall_us) == (50.0, 10.0)
    moves = [(m.direction, m.group, m.end_us - m.start_us) for m in timeline.disk_moves]
    assert moves == [("to disk", 0, 4.0), ("from disk", 1, 2.0), ("to disk", 1, 4.0), ("from disk", 0, 2.0)]
    for move, after in zip(timeline.disk_moves, timeline.disk_moves[1:], strict=False):
        assert move.end_us <= after.start_us
    # Apart from one buffer of 8 kB, the host holds 4 + 2 + 2 kB of each.
    assert found.host_bytes == (2 * 8 + 8) * KB
    assert found.disk_bytes == 16 * KB == found.summary()["disk_bytes"]
    assert held(two(), 2, *BOTH).host_bytes == (2 * 8 + 16) * KB


def test_a_slow_disk_is_as_long_as_the_step() -> None:
    slow = replace(DISK, to_gbps=0.1, from_gbps=0.4)
    for buffers in (1, 2):
        assert held(two(disk=slow), buffers, *BOTH).step_us >= 2 * (80 + 20)
    # The disk never rests with a buffer for each.
    assert held(two(disk=slow), 2, *BOTH).step_us == pytest.approx(200)
    assert held(two(), 2, *BOTH).step_us < 60


@pytest.mark.parametrize(
    ("fields", "plans", "buffers", "says"),
    [
        ({"disk": None}, BOTH, 1, "the state of a is in files, and there is no disk"),
        (
            {},
            (replace(PLAN, update="device"), BOTH[1]),
            2,
            "the state of a is in files, and its update is not on the host",
        ),
        ({}, BOTH, 0, "disk_buffers are 0, for 2 states in files"),
        ({}, BOTH, 3, "disk_buffers are 3, for 2 states in files"),
        ({}, (replace(PLAN, state="host"), replace(BOTH[1], state="host")), 1, "disk_buffers are 1, for 0 states"),
        ({"disk": replace(DISK, capacity_bytes=16 * KB - 1)}, BOTH, 1, "nvme holds"),
        ({"tier": replace(HOST, capacity_bytes=24 * KB - 1)}, BOTH, 1, "host holds"),
        ({"tier": replace(HOST, capacity_bytes=24 * KB)}, BOTH, 2, "host holds"),
    ],
)
def test_every_rule_is_held(fields: dict[str, object], plans: tuple[GroupPlan, ...], buffers: int, says: str) -> None:
    found = check(two(**fields), Schedule((0, 0), plans, buffers), MUCH)
    assert not found.ok and says in found.violations[0], found.violations


def test_frozen_parameters_have_no_state_in_files() -> None:
    frozen = step_of(2, group("a", 0, trained=False), disk=DISK)
    found = check(frozen, Schedule((0, 0), (GroupPlan("device", "disk", "none"),), 1), MUCH)
    assert found.violations[0] == "a is frozen: it has no state to be on the disk"


def test_a_disk_is_a_part_of_the_problem() -> None:
    problem = two()
    assert read_problem(write_problem(problem)) == problem
    assert problem.sha256 != two(disk=None).sha256 != two(disk=replace(DISK, to_gbps=3.0)).sha256
    assert problem.sha256 == two(disk=replace(DISK, name="other")).sha256
    worn = two(disk=replace(DISK, endurance_bytes=5_000 * KB))
    assert "nvme: 2 GB/s there, 4 back, 97.7 KiB, 4.77 MiB to be written in its life" in str(summary(worn))


def optimum_us(problem: TrainingProblem, budget_bytes: int) -> float | None:
    formulated = formulate(problem, budget_bytes, runs(problem, None))
    found = solve(formulated.program, SolveOptions(gap=1e-6), solver="highs")
    if found.status is SolverStatus.INFEASIBLE:
        return None
    assert found.objective is not None
    return found.objective * formulated.unit_us


def test_the_program_knows_the_disk() -> None:
    """Four like layers with room on the device for their results, a copy and its gradient, 16 kB, and on the host for
    all else but states, 32 kB, and for two of these, 16 kB: so for one and a buffer."""
    tier, slow = replace(HOST, capacity_bytes=(4 * 8 + 2 * 8) * KB), replace(DISK, to_gbps=0.1, from_gbps=0.1)
    problem = step_of(4, *(group(f"g{n}", n) for n in range(4)), tier=tier, disk=slow)
    budget = (4 * 3 + 4) * KB
    assert optimum_us(replace(problem, disk=None), budget) is None
    # Three states of 8 kB are written and read in every step, in 160 us each.
    assert optimum_us(problem, budget) == pytest.approx(3 * 160)
    roomy = replace(problem, host=replace(tier, capacity_bytes=4 * 16 * KB))
    assert optimum_us(roomy, budget) == pytest.approx(optimum_us(replace(roomy, disk=None), budget))
    assert optimum_us(replace(problem, disk=replace(slow, capacity_bytes=3 * 8 * KB - 1)), budget) is None
