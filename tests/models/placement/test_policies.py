"""Demand policies: timed by hand on tiny traces, and held to their promises on random ones."""

from __future__ import annotations

import random
from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.hardware import hardware
from loadmaster.models.placement.documents import read_problem
from loadmaster.models.placement.limits import peak_bytes
from loadmaster.models.placement.policies.correlation import Correlation
from loadmaster.models.placement.policies.outcome import POLICIES, of_log, run_policy
from loadmaster.models.placement.policies.policy import Belady, Lru, Policy
from loadmaster.models.placement.policies.simulator import replay_under
from loadmaster.models.placement.presets import transformer
from loadmaster.models.placement.problem import Operator, PlacementProblem
from tests.models.placement.log_checker import hold
from tests.models.placement.tiny import KB, problems, trace

# Three blocks of 5 us that nobody writes, room for two.
ROUND = trace([("A", ""), ("B", ""), ("C", "")], [5, 5, 5])


def test_lru_evicts_what_comes_next_in_a_round() -> None:
    found = run_policy(ROUND, "lru", 10 * KB)
    # Each operator: 5 us for its block, 10 us of its own. Victims are clean.
    assert found.step_us == (45, 45, 45)
    assert found.faults_by_step == (3, 3, 3)
    assert (found.stored_bytes, found.loaded_bytes, found.dropped_bytes) == (0, 15 * KB, 15 * KB)
    assert found.stall_us.tolist() == [5, 5, 5]
    assert found.starts_us.tolist() == [5, 20, 35]
    assert found.resident_bytes.tolist() == [10 * KB] * 3
    assert found.peak_bytes == 10 * KB


def test_belady_keeps_what_comes_next_in_a_round() -> None:
    found = run_policy(ROUND, "belady", 10 * KB)
    # Step 1: A, B missed; for C leaves B (next at 4; A at 3). Step 2: A is there; for B leaves A (6; C at 5); C is
    # there. Step 3: for A leaves C (8; B at 7); B is there; for C leaves B (10; A at 9).
    assert found.faults_by_step == (3, 1, 2)
    assert found.step_us == (45, 35, 40)


def test_a_dirty_victim_is_stored_before_its_memory_is_free() -> None:
    found = run_policy(trace([("A", "A"), ("B", "B")], [5, 5]), "lru", 5 * KB)
    # Step 1: A 0-5, runs to 15, stored to 20, B to 25, runs to 35. Step 2: two of (store 5, load 5, run 10).
    assert found.step_us == (35, 40, 40)
    assert (found.stored_bytes, found.loaded_bytes, found.dropped_bytes) == (10 * KB, 10 * KB, 0)
    copies = [(copy.what, copy.block, copy.start_us, copy.end_us) for copy in found.copies]
    assert copies == [("store", 1, 0, 5), ("load", 0, 5, 10), ("store", 0, 20, 25), ("load", 1, 25, 30)]


def test_a_victim_that_was_not_written_since_it_was_loaded_is_dropped() -> None:
    # B and C push A out every time, but A is written only by operator 0: one store, at its first eviction.
    problem = trace([("A", "A"), ("B", ""), ("A", ""), ("C", "")], [5, 5, 5])
    found = run_policy(problem, "lru", 5 * KB)
    # Loads of A, B, A, C; a store after operator 0, while A leaves for nothing after operator 2.
    assert (found.stored_bytes, found.loaded_bytes, found.dropped_bytes) == (5 * KB, 20 * KB, 15 * KB)
    assert found.last_us == 4 * 15 + 5


DEAD = trace([("", "A"), ("A", ""), ("", "B"), ("B", "")], [5, 5])


@pytest.mark.parametrize("policy", POLICIES)
def test_dead_blocks_cost_nothing(policy: str) -> None:
    found = run_policy(DEAD, policy, 5 * KB)
    assert found.step_us == (40, 40, 40)
    assert (found.faults, found.stored_bytes, found.loaded_bytes, found.dropped_bytes) == (0, 0, 0, 0)


def test_without_invalidation_dead_blocks_travel() -> None:
    found = run_policy(DEAD, "lru", 5 * KB, invalidate=False)
    # Step 1: A needs no load; for B, A is stored 20-25. Then for each of both: store 5, load 5, two operators.
    assert found.step_us == (45, 60, 60)
    assert (found.faults, found.stored_bytes, found.loaded_bytes) == (2, 10 * KB, 10 * KB)


def test_both_directions_of_the_link_work_at_once() -> None:
    # Room for two. B and D are pushed out by A and C together: stores 5 each, and the load of A starts after the first.
    problem = trace([("AC", "AC"), ("BD", "BD")], [5, 5, 5, 5])
    found = run_policy(problem, "lru", 10 * KB)
    # Stores 0-5, 5-10, loads 5-10, 10-15, then 10 us of its own; twice.
    assert found.last_us == 50
    assert found.stall_us.tolist() == [15, 15]


def test_a_latency_is_paid_by_every_copy() -> None:
    tier = ROUND.tiers[0].__class__("host", 1.0, 1.0, latency_us=2.0)
    found = run_policy(trace([("A", ""), ("B", ""), ("C", "")], [5, 5, 5], tier=tier), "lru", 10 * KB)
    assert found.last_us == 3 * (7 + 10)


FOUR = trace([("A", ""), ("B", ""), ("C", ""), ("D", "")], [5, 5, 5, 5])


def test_correlation_learns_a_round() -> None:
    found = run_policy(FOUR, Correlation(FOUR, kernels=1), 10 * KB)
    # Step 1 is new. In step 2 only D has been seen after just those three: while it runs, A is loaded. In step 3
    # all are known: each load of 5 us hides behind an operator of 10.
    assert found.step_us == (60, 60, 40)
    assert found.faults_by_step == (4, 4, 0)
    assert found.stall_us.tolist() == [0, 0, 0, 0]
    assert found.loaded_bytes == 20 * KB


@pytest.mark.parametrize(("window_bytes", "most"), [(None, 3), (10 * KB, 2), (1, 1)])
def test_a_window_in_bytes_bounds_what_is_wanted(window_bytes: int | None, most: int) -> None:
    wanted = []

    class Watched(Correlation):
        def starts(self, operator: Operator, position: int) -> None:
            super().starts(operator, position)
            wanted.append(len(list(self.wanted())))

    # Room for one of six: all three that are predicted are away.
    six = trace([(letter, "") for letter in "ABCDEF"], [5] * 6)
    replay_under(six, Watched(six, kernels=3, window_bytes=window_bytes), 5 * KB, steps=4)
    assert max(wanted) == most


def test_kernels_of_one_id_are_told_apart_by_the_blocks_before() -> None:
    rows = [("A", ""), ("B", ""), ("C", ""), ("D", ""), ("E", "")]
    problem = trace(rows, [5] * 5, ops=["load", "layer", "layer", "layer", "end"])
    found = run_policy(problem, Correlation(problem, kernels=1), 10 * KB, steps=5)
    assert found.faults == 0
    assert found.last_us == 50


def test_a_wrong_prediction_is_forgotten() -> None:
    # A then B the first time round, A then C the second: what follows A depends on the three before it.
    rows = [("A", ""), ("B", ""), ("A", ""), ("C", "")]
    problem = trace(rows, [5, 5, 5], ops=["a", "b", "a", "c"])
    found = run_policy(problem, Correlation(problem, kernels=1), 10 * KB, steps=5)
    assert found.faults == 0


def test_figures_are_of_the_last_step_and_waits_add_up() -> None:
    problem = trace([("A", "A"), ("B", "BC"), ("AC", "")], [4, 3, 2], workspace=1)
    for policy in POLICIES:
        found = run_policy(problem, policy, 8 * KB)
        assert found.last_us == pytest.approx(problem.compute_us + found.total_stall_us)
        assert found.starts_us[-1] + problem.operators[-1].time_us == pytest.approx(found.last_us)
        assert found.resident_bytes.max() <= found.peak_bytes <= 8 * KB


def test_a_budget_below_an_operator_is_refused_by_its_name_and_size() -> None:
    problem = trace([("A", ""), ("AB", "C")], [1, 2, 3], workspace=1)
    for policy in POLICIES:
        with pytest.raises(InputError, match=r"budget_bytes: .*\(7000 bytes\) are needed for operator 1 \(op1\)"):
            run_policy(problem, policy, 7 * KB - 1)
        assert run_policy(problem, policy, 7 * KB).peak_bytes == 7 * KB


@pytest.mark.parametrize(
    ("field", "arguments"), [("policy", {"policy": "mru"}), ("tier", {"tier": 1}), ("steps", {"steps": 0})]
)
def test_bad_arguments_are_refused(field: str, arguments: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        run_policy(ROUND, **({"policy": "lru", "budget_bytes": 10 * KB} | arguments))  # type: ignore[arg-type]
    assert caught.value.field == field


class Restless(Policy):
    """Wants what is away and gives up what is here, at random: all that the device must be able to take."""

    name = "restless"

    def __init__(self, problem: PlacementProblem, seed: int) -> None:
        super().__init__()
        self._random, self._blocks = random.Random(seed), list(range(len(problem.blocks)))

    def victim(self, pinned: Collection[int]) -> int | None:
        free = [block for block in self._here if block not in pinned]
        return self._random.choice(free) if free else None

    def early_victim(self, pinned: Collection[int]) -> int | None:
        return self.victim(pinned) if self._random.random() < 0.8 else None

    def wanted(self) -> list[int]:
        self._random.shuffle(self._blocks)
        return [block for block in self._blocks if block not in self._here]


class Hasty(Policy):
    """Gives up A for C as soon as it can."""

    def early_victim(self, pinned: Collection[int]) -> int | None:
        return 0 if 0 in self._here and 0 not in pinned else None

    def wanted(self) -> list[int]:
        return [2]


@pytest.mark.parametrize(("writes", "stores"), [("A", 6), ("", 3)])
def test_a_block_that_is_needed_again_while_it_is_stored(writes: str, stores: int) -> None:
    # While operator 1 runs for 1 us, A starts to leave for C, which takes 5 us. Operator 2 keeps it. What it writes
    # there is not in the copy: A is stored once more when C, D and E push it out.
    problem = trace([("AB", "A"), ("B", ""), ("A", writes), ("CDE", "")], [5, 1, 2, 3, 2], times=1.0)
    log = replay_under(problem, Hasty(), 7 * KB)
    hold(problem, log, 7 * KB, invalidate=True)
    started = [event.at_us for event in log.events if (event.what, event.of) == ("store", 0)]
    runs = [event.at_us for event in log.events if (event.what, event.of) == ("run", 2)]
    assert 0 < runs[0] - started[0] < 5
    assert len(started) == stores


def made(name: str, problem: PlacementProblem) -> Policy:
    if name == "narrow":
        return Correlation(problem, kernels=2, window_bytes=3 * KB, rows=1, associativity=1, successors=1)
    return POLICIES[name](problem)


@settings(max_examples=120)
@given(drawn=problems(), name=st.sampled_from([*POLICIES, "narrow"]), invalidate=st.booleans())
def test_no_policy_overdraws_memory_or_runs_without_its_blocks(
    drawn: tuple[PlacementProblem, int], name: str, invalidate: bool
) -> None:
    problem, budget = drawn
    log = replay_under(problem, made(name, problem), budget, steps=4, invalidate=invalidate)
    hold(problem, log, budget, invalidate)
    found = of_log(problem, name, log)
    assert found.last_us >= problem.compute_us - 1e-9
    assert found.peak_bytes <= budget
    assert np.all(found.resident_bytes <= budget)


@settings(max_examples=200)
@given(drawn=problems(), seed=st.integers(0, 99), invalidate=st.booleans())
@pytest.mark.slow
def test_a_policy_may_do_what_it_likes(drawn: tuple[PlacementProblem, int], seed: int, invalidate: bool) -> None:
    problem, budget = drawn
    log = replay_under(problem, Restless(problem, seed), budget, steps=6, invalidate=invalidate)
    hold(problem, log, budget, invalidate)


@settings(max_examples=80)
@given(drawn=problems(unit=True))
def test_belady_has_no_more_faults_than_lru(drawn: tuple[PlacementProblem, int]) -> None:
    problem, budget = drawn
    faults = [len(replay_under(problem, policy, budget, steps=4).faults) for policy in (Belady(problem), Lru())]
    assert faults[0] <= faults[1]


@settings(max_examples=60)
@given(drawn=problems())
def test_nothing_is_missed_once_a_window_that_fits_is_known(drawn: tuple[PlacementProblem, int]) -> None:
    problem, _ = drawn
    count = len(problem.operators)
    # Each operator is a kernel of its own, with time for every copy; room for it and the next.
    operators = [
        (o, "".join(chr(65 + b) for b in o.reads), "".join(chr(65 + b) for b in o.writes)) for o in problem.operators
    ]
    sizes = [b.size_bytes // KB for b in problem.blocks]
    slow = trace([(r or "A", w) for _, r, w in operators], sizes, times=500.0, tier=problem.tiers[0])
    pairs = [{*slow.operators[i].blocks, *slow.operators[(i + 1) % count].blocks} for i in range(count)]
    budget = max(sum(slow.blocks[b].size_bytes for b in pair) for pair in pairs)
    found = run_policy(slow, Correlation(slow, kernels=1), budget, steps=5)
    assert found.faults_by_step[3:] == (0, 0)


def test_prefetching_beats_demand_paging_on_a_large_trace() -> None:
    problem = read_problem(transformer(24, 1024, 512, 4, hardware("h200"), 50.0))
    budget = round(0.7 * peak_bytes(problem))
    steps = {name: run_policy(problem, name, budget).last_us for name in POLICIES}
    assert problem.compute_us < steps["correlation"] < steps["lru"]
