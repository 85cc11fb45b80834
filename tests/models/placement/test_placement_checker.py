"""The checker of placement plans: timed by hand, and every rule broken once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadmaster.errors import InputError
from loadmaster.models.placement.checker import PlacementCheck, check, check_plan
from loadmaster.models.placement.plan import Absence, Moves, PlacementInfeasibility, Store
from loadmaster.models.placement.problem import PlacementProblem, Tier
from tests.models.placement.tiny import HOST, KB, plan_of, trace

# Operator 0 reads and writes A, operator 1 does without: A is away while it runs.
TWO = trace([("A", "A"), ("", "")], [4])
ONE_AWAY = Moves((Store(0, 0, 1),), (Absence(0, 0, 1, 2),))
# A is written at 0 and read at 2 and 4; B is there for operator 1 to 3 only.
SHARED = trace([("", "A"), ("", "B"), ("A", ""), ("B", ""), ("A", "")], [4, 3])


def refused(problem: PlacementProblem, moves: Moves, budget_bytes: int = 1 << 40) -> str:
    found = check(problem, moves, budget_bytes)
    assert not found.ok
    assert found.timeline is None and found.objective == 0.0
    assert found.summary()["ok"] is False
    return "\n".join(found.violations)


def held(problem: PlacementProblem, moves: Moves, budget_bytes: int) -> PlacementCheck:
    found = check(problem, moves, budget_bytes)
    assert found.violations == ()
    return found


def test_a_step_timed_by_hand() -> None:
    found = held(TWO, ONE_AWAY, 4 * KB)
    # Operator 0 waits for the load of 4 us and runs 10; operator 1 waits for the store of 4 us and runs 10.
    assert found.timeline is not None
    assert found.timeline.step_us == found.objective == 28
    assert found.timeline.starts_us == (4, 18)
    assert [(c.what, c.start_us, c.end_us) for c in found.timeline.copies] == [("load", 0, 4), ("store", 14, 18)]
    assert found.resident_bytes.tolist() == [4 * KB, 0]
    assert (found.peak_bytes, found.peak_at) == (4 * KB, "operator 0 (op0)")
    assert (found.stored_bytes, found.loaded_bytes, found.written_bytes) == (4 * KB, 4 * KB, (4 * KB,))
    assert found.summary() == {
        "ok": True,
        "peak_bytes": 4 * KB,
        "peak_at": "operator 0 (op0)",
        "step_us": 28.0,
        "stall_us": 8.0,
        "stored_bytes": 4 * KB,
        "loaded_bytes": 4 * KB,
    }


def test_nothing_moves_where_all_fits() -> None:
    found = held(SHARED, Moves(), 7 * KB)
    assert found.objective == SHARED.compute_us
    assert found.resident_bytes.tolist() == [4 * KB, 7 * KB, 7 * KB, 7 * KB, 4 * KB]


def test_a_copy_that_hides_behind_operators_costs_nothing() -> None:
    # A is stored while operator 1 runs, gone at 2, back by 4: 4 us each way beside 10 of compute.
    problem = trace([("", "A"), ("", ""), ("", ""), ("", ""), ("A", "")], [4])
    found = held(problem, Moves((Store(0, 0, 1),), (Absence(0, 0, 2, 3),)), 4 * KB)
    assert found.objective == 50
    assert found.timeline is not None
    assert [(c.what, c.start_us, c.end_us) for c in found.timeline.copies] == [("store", 10, 14), ("load", 30, 34)]


def test_two_gaps_share_a_copy() -> None:
    # Away while 1 runs and while 3 runs: B fits then. One store of 4 us at 1; loads of 4 us at 2 and at 4.
    moves = Moves((Store(0, 0, 1),), (Absence(0, 0, 1, 2), Absence(0, 0, 3, 4)))
    found = held(SHARED, moves, 7 * KB)
    assert (found.stored_bytes, found.loaded_bytes) == (4 * KB, 8 * KB)
    assert found.resident_bytes.tolist() == [4 * KB, 3 * KB, 7 * KB, 3 * KB, 4 * KB]
    # 10, store 4, 10, load 4, 10, 10, load 4, 10.
    assert found.objective == 62


def test_an_absence_goes_on_into_the_next_step() -> None:
    # A is read and written at 2 only: it is away from 3, that is 0 of the next step, to 2 of it.
    problem = trace([("", ""), ("", ""), ("A", "A")], [4])
    found = held(problem, Moves((Store(0, 0, 0),), (Absence(0, 0, 0, 1),)), 4 * KB)
    assert found.resident_bytes.tolist() == [0, 4 * KB, 4 * KB]
    # Stored at the start of the step, 4 us; then loaded while operator 1 runs.
    assert found.objective == 34
    # The same, gone at 0 after a store at the very end is none: there is no operator after 2 in the step.
    over_the_edge = trace([("", ""), ("A", "A"), ("", "")], [4])
    found = held(over_the_edge, Moves((Store(0, 0, 2),), (Absence(0, 0, 2, 4),)), 4 * KB)
    assert found.resident_bytes.tolist() == [0, 4 * KB, 0]
    # Operator 2 waits 4 us for the store; the load is queued at 1 of the next step, whose operator waits 4 us.
    assert found.objective == 38


def test_a_store_of_the_step_before_is_waited_for() -> None:
    # Stored at 2, gone at 0 of the next step: 12 us of link beside 10 of operator 2, 2 us are waited for.
    problem = trace([("", ""), ("A", "A"), ("", "")], [12])
    found = held(problem, Moves((Store(0, 0, 2),), (Absence(0, 0, 0, 1),)), 12 * KB)
    assert found.timeline is not None
    # The load of 12 us is queued at 1.
    assert found.timeline.starts_us == (2, 24, 34)
    assert found.objective == 44


def test_a_block_that_nobody_writes_needs_no_store() -> None:
    problem = trace([("A", ""), ("", ""), ("", "")], [4])
    found = held(problem, Moves((), (Absence(0, 0, 1, 3),)), 4 * KB)
    assert (found.stored_bytes, found.loaded_bytes) == (0, 4 * KB)
    assert found.objective == 34
    early = held(problem, Moves((), (Absence(0, 0, 1, 2),)), 4 * KB)
    assert early.objective == 30


def test_moves_of_one_direction_wait_for_each_other_and_the_other_direction_does_not() -> None:
    problem = trace([("AB", "AB"), ("", ""), ("", "")], [4, 4])
    both = Moves((Store(0, 0, 1), Store(1, 0, 1)), (Absence(0, 0, 1, 3), Absence(1, 0, 2, 3)))
    found = held(problem, both, 8 * KB)
    # Operator 0 waits for loads of 8 us; 1 for the first store; the second store is over while it runs.
    assert found.objective == 8 + 10 + 4 + 10 + 10
    tiers = (HOST, Tier("disk", 1.0, 1.0))
    apart = Moves((Store(0, 0, 1), Store(1, 1, 1)), (Absence(0, 0, 1, 3), Absence(1, 1, 2, 3)))
    assert held(replace(problem, tiers=tiers), apart, 8 * KB).objective == 4 + 10 + 4 + 10 + 10
    assert held(replace(problem, tiers=tiers), apart, 8 * KB).written_bytes == (4 * KB, 4 * KB)


@pytest.mark.parametrize(
    ("moves", "says"),
    [
        (Moves((Store(1, 0, 0),)), "block 1, tier 0 is moved: there is no such one"),
        (Moves((), (Absence(0, 1, 1, 2),)), "block 0, tier 1 is moved: there is no such one"),
        (Moves((Store(0, 0, 2),)), "store 0 is at 2: the step has 2 operators"),
        (Moves((), (Absence(0, 0, 2, 3),)), "absence 0 from 2 to 3 is no part of a step"),
        (Moves((), (Absence(0, 0, 1, 1),)), "absence 0 from 1 to 1 is no part of a step"),
        (Moves((), (Absence(0, 0, 1, 4),)), "absence 0 from 1 to 4 is no part of a step"),
        (Moves((Store(0, 0, 1),), (Absence(0, 0, 0, 2),)), "absence 0 of A from 0 to 2 is in no gap"),
        (Moves((Store(0, 0, 1),), (Absence(0, 0, 1, 3),)), "absence 0 of A from 1 to 3 is in no gap"),
        (Moves((), (Absence(0, 0, 1, 2),)), "absence 0 of A from 1 to 2 has no store before it"),
    ],
)
def test_what_is_no_move_of_this_step_is_refused(moves: Moves, says: str) -> None:
    assert says in refused(TWO, moves)


def test_a_dead_gap_is_no_gap() -> None:
    # What A holds after 4 is written over at 0.
    problem = replace(SHARED, operators=(*SHARED.operators, SHARED.operators[1]))
    assert "is in no gap" in refused(problem, Moves((Store(0, 0, 5),), (Absence(0, 0, 5, 6),)))


def test_a_gap_has_one_absence() -> None:
    problem = trace([("A", ""), ("", ""), ("", ""), ("", "")], [4])
    twice = Moves((), (Absence(0, 0, 1, 2), Absence(0, 0, 3, 4)))
    assert "absence 1 of A from 3 to 4 is the second one in the same gap" in refused(problem, twice)


def test_a_store_comes_before_the_first_absence_of_what_it_holds() -> None:
    late = Moves((Store(0, 0, 3),), (Absence(0, 0, 1, 2), Absence(0, 0, 3, 4)))
    assert "absence 0 of A from 1 to 2 has no store before it" in refused(SHARED, late)
    # Of the write before.
    problem = trace([("A", "A"), ("", ""), ("A", "A"), ("", "")], [4])
    stale = Moves((Store(0, 0, 1),), (Absence(0, 0, 3, 4),))
    assert "absence 0 of A from 3 to 4 has no store before it" in refused(problem, stale)
    assert held(problem, Moves((Store(0, 0, 3),), (Absence(0, 0, 3, 4),)), 4 * KB).ok
    # To another tier.
    tiers = (HOST, Tier("disk", 1.0, 1.0))
    elsewhere = Moves((Store(0, 1, 3),), (Absence(0, 0, 3, 4),))
    assert "has no store before it" in refused(replace(problem, tiers=tiers), elsewhere)


def test_a_store_reads_what_is_on_the_device() -> None:
    again = Moves((Store(0, 0, 1), Store(0, 0, 2)), (Absence(0, 0, 1, 3),))
    problem = trace([("", "A"), ("", ""), ("", ""), ("A", "")], [4])
    assert "store 1 of A at 2 comes after it has left" in refused(problem, again)
    # Contents are dead after 3: there is nothing to read until 0 has written.
    dead = Moves((Store(0, 0, 0),))
    assert "store 0 of A at 0 is of nothing that is read again" in refused(problem, dead)
    nobody_writes = trace([("A", ""), ("", "")], [4])
    useless = Moves((Store(0, 0, 1),))
    assert "store 0 of A at 1 is of a block that nobody writes" in refused(nobody_writes, useless)
    assert held(problem, Moves((Store(0, 0, 2),)), 4 * KB).stored_bytes == 4 * KB


def test_the_budget_is_hard_at_every_operator() -> None:
    assert "7.81 KiB at operator 0 (op0) are 1 B over the budget" in refused(
        trace([("AB", "")], [4, 4]), Moves(), 8 * KB - 1
    )
    # A load that is queued one operator earlier takes memory one operator longer.
    problem = trace([("A", ""), ("B", ""), ("", ""), ("B", "")], [4, 4], workspace=1)
    late = Moves((), (Absence(0, 0, 1, 4), Absence(1, 0, 0, 1)))
    assert held(problem, late, 5 * KB).peak_bytes == 5 * KB
    early = Moves((), (Absence(0, 0, 1, 3), Absence(1, 0, 0, 1)))
    assert "at operator 3 (op3)" in refused(problem, early, 5 * KB)


def test_a_tier_holds_no_more_than_its_capacity() -> None:
    def small(capacity: int) -> PlacementProblem:
        return replace(SHARED, tiers=(Tier("host", 1.0, 1.0, capacity_bytes=capacity),))

    # A's copy lies there from 1 to its last reader.
    moves = Moves((Store(0, 0, 1),), (Absence(0, 0, 1, 2), Absence(0, 0, 3, 4)))
    assert held(small(4 * KB), moves, 7 * KB).ok
    assert "host holds 3.91 KiB at operator 1 (op1), of 3.91 KiB" in refused(small(4 * KB - 1), moves)
    # B's copy, from 2 to 3, is there beside it.
    both = Moves((*moves.stores, Store(1, 0, 2)), (*moves.absences, Absence(1, 0, 2, 3)))
    assert held(small(7 * KB), both, 7 * KB).ok
    assert "host holds 6.84 KiB at operator 2 (op2)" in refused(small(7 * KB - 1), both)
    # A block that nobody writes lies there for the whole step.
    given = replace(trace([("A", ""), ("", "")], [4]), tiers=(Tier("host", 1.0, 1.0, capacity_bytes=4 * KB - 1),))
    assert "host holds 3.91 KiB at operator 0" in refused(given, Moves((), (Absence(0, 0, 1, 2),)))


def test_more_violations_than_anyone_reads_are_cut() -> None:
    many = Moves(tuple(Store(9, 0, 0) for _ in range(50)))
    assert len(check(TWO, many, KB).violations) == 20


def test_a_plan_is_of_its_problem_and_has_moves() -> None:
    plan = plan_of(TWO, ONE_AWAY, 4 * KB, 28.0)
    assert check_plan(TWO, plan).ok
    with pytest.raises(InputError) as caught:
        check_plan(SHARED, plan)
    assert caught.value.field == "problem_sha256"
    none = replace(
        plan, status="infeasible", objective=None, moves=None, infeasibility=PlacementInfeasibility(1, 1, "there")
    )
    with pytest.raises(InputError) as caught:
        check_plan(TWO, none)
    assert caught.value.field == "status"
